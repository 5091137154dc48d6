"""Checks of paths and names on the command line, before anything slow is imported."""

from pathlib import Path
from typing import Any

from descend.errors import InputError
from descend.reading import refuse_file
from descend.recipes import GENERATED
from descend.settings import DIGITS

DENOISERS = ("descend-ut", "descend-dust", "descend-vit")
"""The model types of the video recipes."""


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


def check_run(folder: Path, model: str | None = None) -> str | None:
    """Refuse a folder that holds no run, or not the model that is asked for.

    Args:
        folder: The folder.
        model: The name of one of the run's models; None for a command that needs none.

    Returns:
        The name of its recipe; None if its ``config.json`` names none, as that of a model of Transformers.

    Raises:
        InputError: If it has no ``config.json``, one that is not JSON, or one of a saved model; or if it has no such
            model.
    """
    from descend.reading import read_json
    from descend.results import MODELS, check_model

    if not (folder / "config.json").exists() and _is_of_a_script(folder):
        page = f" Its page: descend report {folder}." if (folder / "summary.json").is_file() else ""
        raise InputError(
            f"{folder} was written by a script, and is no run of descend train, which names its data and model. In "
            f"Python descend.evaluate evaluates the model, and descend.run.export_model writes its first layers.{page}"
        )
    config = read_json(folder / "config.json")
    entries = config if isinstance(config, dict) else {}
    name = entries.get("recipe")
    if isinstance(name, str):
        if model is not None and model != MODELS[0]:  # a run in training has none yet; its lock says so better
            check_model(folder, model)
        return name
    if model is None:
        return None
    run = folder.absolute().parent
    if folder.absolute().name in MODELS and (run / "config.json").is_file():
        raise InputError(f"{folder} is a model of a run; give the run: {run} --model {folder.absolute().name}.")
    classifier = "ForSequenceClassification" in str(entries.get("architectures"))
    if _is_export(entries):
        use = ""
        if classifier:
            use = f" It is evaluated by descend evaluate {folder} --task classification --data PATH."
        elif entries.get("model_type") in DENOISERS:
            use = f" Its frames are written by descend denoise {folder} --data PATH --out FOLDER."
        raise InputError(f"{folder} is an export, and no run; give the run that it was exported from.{use}")
    if (kind := entries.get("model_type")) is not None:
        judge = f"descend evaluate {folder} --task classification --data PATH" if classifier else "descend.evaluate"
        raise InputError(
            f"{folder} is a saved model of {kind}, and no run of descend train, which names its data. How many layers "
            f"it needs says descend evaluate {folder} --layers --data PATH. Judge it by {judge}"
            f"{'' if classifier else ' in Python'}; in Python descend.run.export_model writes its first layers."
        )
    return None


def exported_type(folder: Path) -> str | None:
    """The model type of a folder that ``descend export`` wrote; None for another folder.

    Raises:
        InputError: If its ``config.json`` is not JSON.
    """
    from descend.reading import read_json

    path = folder / "config.json"
    config = read_json(path) if path.is_file() else {}
    return str(config["model_type"]) if isinstance(config, dict) and _is_export(config) else None


def _is_export(config: dict[str, Any]) -> bool:
    """Whether ``descend export`` wrote a folder with this ``config.json``."""
    return "model_type" in config and isinstance(config.get("descend"), dict)


def _is_of_a_script(folder: Path) -> bool:
    """Whether a trainer without a recipe, or `descend.evaluate`, wrote a folder."""
    return any((folder / name).is_file() for name in ("records.jsonl", "groups.json", "summary.json")) or any(
        folder.glob("checkpoint-*")
    )
