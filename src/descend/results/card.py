"""A model card's file, the README.md beside saved weights, and the names in it; `descend.report` writes its text."""

import logging
import re
from pathlib import Path
from typing import Any

from descend.results.folder import CARD_FILE, is_ours, put

logger = logging.getLogger(__name__)


def hub_name(source: str) -> str | None:
    """A model's name on the Hub; None for a path on this machine."""
    local = Path(source).expanduser().exists() or re.fullmatch(r"[\w.-]+(/[\w.-]+)?", source) is None
    return None if local else source


def without_adapters(network: Any) -> Any:
    """The model that PEFT's adapters are on; a model without adapters as it is."""
    return network.get_base_model() if hasattr(network, "peft_config") else network


def write_card(folder: Path, text: str) -> None:
    """Write a model's card in one piece; one that somebody wrote or edited is left as it is, with a warning.

    Args:
        folder: The model's folder.
        text: The card.
    """
    path = folder / CARD_FILE
    if not is_ours(path):
        logger.warning("%s was edited and is left as it is. Remove it to get a new card.", path)
    else:
        put(path, lambda part: part.write_text(text, "utf-8"))
