"""Load pretrained models for recipes, from a folder or the Hub."""

from typing import Any

from transformers import AutoConfig, PreTrainedConfig

from descend.models.loading import load_model

SMALL = "small"
"""The value of ``--model`` for a new small model."""

_EXPECTED = "a folder with config.json and model.safetensors, or a name on the Hub, which needs a network at first"


def config_of(source: str) -> PreTrainedConfig:
    """The configuration of a pretrained model.

    Raises:
        InputError: If there is none that can be loaded.
    """
    return load_model(AutoConfig, source, "a model", _EXPECTED)


def load_pretrained(auto_class: Any, source: str, **settings: Any) -> Any:
    """A pretrained model.

    Args:
        auto_class: One of Transformers' Auto classes.
        source: A folder or a name on the Hub.
        **settings: Further arguments of its ``from_pretrained``.

    Raises:
        InputError: If it can't be loaded.
    """
    return load_model(auto_class, source, "a model", _EXPECTED, **settings)
