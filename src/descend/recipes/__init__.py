"""Recipes: a name for data, task, model and the settings they were tuned with."""

from collections.abc import Callable
from pathlib import Path

from descend.recipes.base import SHIFTS, Recipe
from descend.recipes.text import DistilBERTRecipe, PlainTextRecipe, RoBERTaRecipe, TextRecipe, TextUTRecipe
from descend.recipes.video import DUSTRecipe, UTRecipe, VideoRecipe, ViTRecipe

__all__ = ["PLAIN", "RECIPES", "SHIFTS", "Recipe", "TextRecipe", "VideoRecipe"]

RECIPES: dict[str, type[Recipe]] = {
    "video-ut": UTRecipe,
    "video-dust": DUSTRecipe,
    "video-vit": ViTRecipe,
    "text-ut": TextUTRecipe,
    "text-distilbert": DistilBERTRecipe,
    "text-roberta": RoBERTaRecipe,
}

PLAIN: dict[str, Callable[[Path, str, str | None], Recipe]] = {"classification": PlainTextRecipe.of}
"""By task: what a folder with a model that Descend never trained is judged as, on which data of which kind."""
