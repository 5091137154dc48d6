"""Recipes: a name for data, task, model and the settings they were tuned with."""

from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import ClassVar

from descend.errors import InputError
from descend.recipes.base import SHIFTS, Recipe
from descend.recipes.text import PlainTextRecipe, TextRecipe
from descend.recipes.video import VideoRecipe

__all__ = ["PLAIN", "RECIPES", "SHIFTS", "Recipe", "TextRecipe", "VideoRecipe"]


class _Recipes(Mapping[str, type[Recipe]]):
    """Recipes by name, each imported when it is asked for: not everyone has the libraries of all."""

    _places: ClassVar = {
        "video-ut": "video.UTRecipe",
        "video-dust": "video.DUSTRecipe",
        "video-vit": "video.ViTRecipe",
        "text-ut": "text.TextUTRecipe",
        "text-distilbert": "text.DistilBERTRecipe",
        "text-roberta": "text.RoBERTaRecipe",
        "llm-sft": "language.InstructionRecipe",
    }

    def __getitem__(self, name: str) -> type[Recipe]:
        module, kind = self._places[name].split(".")
        try:
            return getattr(import_module(f"descend.recipes.{module}"), kind)
        except ModuleNotFoundError as error:
            raise InputError(f"{name} needs {error.name}: pip install 'descend[llm]'.") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


RECIPES = _Recipes()

PLAIN: dict[str, Callable[[Path, str, str | None], Recipe]] = {"classification": PlainTextRecipe.of}
"""By task: what a folder with a model that Descend never trained is judged as, on which data of which kind."""
