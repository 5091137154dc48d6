"""Recipes: a name for data, task, model and the settings they were tuned with.

Importing this package is cheap. Recipes and the other names load torch and Transformers when they are first used.
"""

from collections.abc import Mapping
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, NamedTuple

from descend import settings
from descend.declared import GENERATED
from descend.errors import refuse
from descend.extras import lazy_names, required
from descend.settings import RecipeSettings

if TYPE_CHECKING:
    from descend.recipes.base import SHIFTS, Data, Recipe, Restored, Setup
    from descend.recipes.configuring import configure

__all__ = [
    "GENERATED",
    "RECIPES",
    "SHIFTS",
    "Data",
    "Recipe",
    "Restored",
    "Setup",
    "configure",
]


class Entry(NamedTuple):
    """A recipe by name, and what is known of it before its class is imported.

    Attributes:
        name: The recipe's name.
        place: The module in this package and the class in it.
        settings: The class of its settings.
        about: One line about it.
        data: What ``--data`` may be beside `GENERATED`.
    """

    name: str
    place: str
    settings: type[RecipeSettings]
    about: str
    data: str

    @property
    def kind(self) -> "type[Recipe]":
        """The recipe's class, which may need optional packages."""
        with required(self.name):
            return resolve_name(f"descend.recipes.{self.place}")

    @property
    def needs_model(self) -> bool:
        """Whether it trains a pretrained model, which must be named."""
        return issubclass(self.settings, settings.PretrainedSettings)

    def check_given(self, given: Mapping[str, Any]) -> None:
        """Refuse a recipe without data or model: generated data are used only where they are asked for.

        Args:
            given: The given settings.

        Raises:
            InputError: If no data are given, or no model to a recipe of pretrained models.
        """
        lacks_model = self.needs_model and given.get("model") is None
        model = "--model PATH_OR_NAME, the folder of a pretrained model or its name on the Hub."
        refuse(
            (
                given.get("data") is None,
                f"{self.name} needs data; expected --data {self.data}, or --data {GENERATED} for the generated ones "
                f"that come with descend.{f' Also give {model}' if lacks_model else ''}",
            ),
            (lacks_model, f"{self.name} trains a pretrained model; expected {model}"),
        )


_VIDEO = "PATH, a folder or file of videos"
_TEXT = "NAME, a folder of texts with classes or its name on the Hub"
_INSTRUCTIONS = "FILE, .json or .jsonl in Alpaca's form"


RECIPES = {
    entry.name: entry
    for entry in (
        Entry(
            "video-ut",
            "video:UTRecipe",
            settings.UTSettings,
            "video denoising with the unrolled transformer UT (Yang et al., 2022)",
            _VIDEO,
        ),
        Entry(
            "video-dust",
            "video:DUSTRecipe",
            settings.DUSTSettings,
            "video denoising with the deep unfolded sequential transformer DUST (De Weerdt et al., 2023)",
            _VIDEO,
        ),
        Entry(
            "video-vit",
            "video:ViTRecipe",
            settings.ViTSettings,
            "video denoising with a vision transformer ViT, frame by frame (Dosovitskiy et al., 2021)",
            _VIDEO,
        ),
        Entry(
            "text-ut",
            "text:TextUTRecipe",
            settings.TextUTSettings,
            "text classification with the unrolled transformer UT on word embeddings",
            _TEXT,
        ),
        Entry(
            "text-distilbert",
            "text:DistilBERTRecipe",
            settings.EncoderSettings,
            "text classification with DistilBERT (Sanh et al., 2019), small from scratch or pretrained",
            _TEXT,
        ),
        Entry(
            "text-roberta",
            "text:RoBERTaRecipe",
            settings.EncoderSettings,
            "text classification with RoBERTa (Liu et al., 2019), small from scratch or pretrained",
            _TEXT,
        ),
        Entry(
            "image",
            "images:ImageRecipe",
            settings.ImageSettings,
            "image classification with a pretrained ViT, DeiT or DINOv2",
            "PATH, a folder of images by class or of MNIST's IDX files, or --data digits",
        ),
        Entry(
            "llm-sft",
            "language:InstructionRecipe",
            settings.InstructionSettings,
            "instruction tuning of a Llama-like language model, small from scratch or pretrained",
            _INSTRUCTIONS,
        ),
        Entry(
            "text",
            "text:ClassifierRecipe",
            settings.ClassifierSettings,
            "text classification with a pretrained model: BERT, RoBERTa, ModernBERT and others",
            _TEXT,
        ),
        Entry(
            "lm",
            "language:LanguageModelRecipe",
            settings.LanguageModelSettings,
            "instruction tuning of a pretrained language model: Llama, Qwen and others",
            _INSTRUCTIONS,
        ),
    )
}
"""Name → recipe, in the order of the command line's list."""

_ROOMS = {
    "base": ("SHIFTS", "Data", "Recipe", "Restored", "Setup"),
    "configuring": ("configure",),
}


__getattr__ = lazy_names("descend.recipes", _ROOMS)
