"""Recipes: a name for data, task, model and the settings they were tuned with."""

from descend.recipes.base import Recipe
from descend.recipes.text import DistilBERTRecipe, RoBERTaRecipe, TextRecipe, TextUTRecipe
from descend.recipes.video import DUSTRecipe, UTRecipe, VideoRecipe, ViTRecipe

__all__ = ["RECIPES", "Recipe", "TextRecipe", "VideoRecipe"]

RECIPES: dict[str, type[Recipe]] = {
    "video-ut": UTRecipe,
    "video-dust": DUSTRecipe,
    "video-vit": ViTRecipe,
    "text-ut": TextUTRecipe,
    "text-distilbert": DistilBERTRecipe,
    "text-roberta": RoBERTaRecipe,
}
