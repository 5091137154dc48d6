"""Checks of paths and names on the command line, before anything slow is imported."""

from pathlib import Path

from descend.errors import InputError
from descend.reading import refuse_file
from descend.recipes import GENERATED
from descend.settings import DIGITS


def check_data(data: str | None, *, hub: bool = False, images: bool = False) -> None:
    """Refuse data that are not there.

    Args:
        data: A path, or `GENERATED`; None for a command that takes none.
        hub: Whether it may be a name on the Hub as well.
        images: Whether it may be `DIGITS` as well.

    Raises:
        InputError: If there is no such file or folder.
    """
    if data is None or data == GENERATED or (images and data == DIGITS) or Path(data).expanduser().exists():
        return
    if not hub or data.startswith(("/", "./", "../", "~")) or data.count("/") > 1:
        names = " or the name of a data set on the Hub" if hub else f", {DIGITS}" if images else ""
        raise InputError(f"the data {data} does not exist; expected a file or folder{names}, or {GENERATED}.")


def check_out(out: Path) -> None:
    """Refuse a place that can't be written because a file stands in its path.

    Raises:
        InputError: If a folder above it is a file.
    """
    refuse_file(out.expanduser().parent, "another place with --out")


def check_run(folder: Path, model: str) -> str:
    """Refuse a folder that holds no run, or not the model that is asked for.

    Args:
        folder: The folder.
        model: The name of one of the run's models.

    Returns:
        The name of its recipe.

    Raises:
        InputError: If it is no run's, see `read_config`; or if it has no such model.
    """
    from descend.results import MODELS, check_model, read_config

    config = read_config(folder)
    if model != MODELS[0]:  # a run in training has none yet; its lock says so better
        check_model(folder, model)
    return config.recipe
