"""Recipes: a name for data, task, model and the settings they were tuned with.

Importing this package is cheap. Recipes and the other names load torch and Transformers when they are first used.
"""

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from descend import settings
from descend.errors import InputError
from descend.extras import lazy_names, required
from descend.settings import GENERATED, RecipeSettings

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


class _Entry(NamedTuple):
    """A recipe's class and its settings, one line about it, and what ``--data`` may be beside `GENERATED`."""

    module: str
    name: str
    settings: type[RecipeSettings]
    about: str
    data: str


_VIDEO = "PATH, a folder or file of videos"
_TEXT = "NAME, a folder of texts with classes or its name on the Hub"
_INSTRUCTIONS = "FILE, .json or .jsonl in Alpaca's form"


class _Recipes(Mapping[str, "type[Recipe]"]):
    """Recipes by name. Each is imported on access, because it may need optional packages."""

    _entries: ClassVar = {
        "video-ut": _Entry(
            "video",
            "UTRecipe",
            settings.UTSettings,
            "video denoising with the unrolled transformer UT (Yang et al., 2022)",
            _VIDEO,
        ),
        "video-dust": _Entry(
            "video",
            "DUSTRecipe",
            settings.DUSTSettings,
            "video denoising with the deep unfolded sequential transformer DUST (De Weerdt et al., 2023)",
            _VIDEO,
        ),
        "video-vit": _Entry(
            "video",
            "ViTRecipe",
            settings.ViTSettings,
            "video denoising with a vision transformer ViT, frame by frame (Dosovitskiy et al., 2021)",
            _VIDEO,
        ),
        "text-ut": _Entry(
            "text",
            "TextUTRecipe",
            settings.TextUTSettings,
            "text classification with the unrolled transformer UT on word embeddings",
            _TEXT,
        ),
        "text-distilbert": _Entry(
            "text",
            "DistilBERTRecipe",
            settings.EncoderSettings,
            "text classification with DistilBERT (Sanh et al., 2019), small from scratch or pretrained",
            _TEXT,
        ),
        "text-roberta": _Entry(
            "text",
            "RoBERTaRecipe",
            settings.EncoderSettings,
            "text classification with RoBERTa (Liu et al., 2019), small from scratch or pretrained",
            _TEXT,
        ),
        "image": _Entry(
            "images",
            "ImageRecipe",
            settings.ImageSettings,
            "image classification with a pretrained ViT, DeiT or DINOv2",
            "PATH, a folder of images by class or of MNIST's IDX files, or --data digits",
        ),
        "llm-sft": _Entry(
            "language",
            "InstructionRecipe",
            settings.InstructionSettings,
            "instruction tuning of a Llama-like language model, small from scratch or pretrained",
            _INSTRUCTIONS,
        ),
        "text": _Entry(
            "text",
            "ClassifierRecipe",
            settings.ClassifierSettings,
            "text classification with a pretrained model: BERT, RoBERTa, ModernBERT and others",
            _TEXT,
        ),
        "lm": _Entry(
            "language",
            "LanguageModelRecipe",
            settings.LanguageModelSettings,
            "instruction tuning of a pretrained language model: Llama, Qwen and others",
            _INSTRUCTIONS,
        ),
    }

    def __getitem__(self, name: str) -> "type[Recipe]":
        entry = self._entries[name]
        with required(name):
            return getattr(import_module(f"descend.recipes.{entry.module}"), entry.name)

    def __contains__(self, name: object) -> bool:
        return name in self._entries  # Mapping's own would import the recipe

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def about(self, name: str) -> str:
        """One line about a recipe; imports nothing."""
        return self._entries[name].about

    def settings(self, name: str) -> type[RecipeSettings]:
        """The settings of a recipe; imports nothing."""
        return self._entries[name].settings

    def needs_model(self, name: str) -> bool:
        """Whether a recipe trains a pretrained model, which must be named; imports nothing."""
        return issubclass(self.settings(name), settings.PretrainedSettings)

    def check_given(self, name: str, given: Mapping[str, Any]) -> None:
        """Refuse a recipe without data or model: generated data are used only where they are asked for.

        Args:
            name: The recipe.
            given: The given settings.

        Raises:
            InputError: If no data are given, or no model to a recipe of pretrained models.
        """
        model = ""
        if self.needs_model(name) and given.get("model") is None:
            model = "--model PATH_OR_NAME, the folder of a pretrained model or its name on the Hub."
        if given.get("data") is None:
            raise InputError(
                f"{name} needs data; expected --data {self._entries[name].data}, or --data {GENERATED} for the "
                f"generated ones that come with descend.{model and f' Also give {model}'}"
            )
        if model:
            raise InputError(f"{name} trains a pretrained model; expected {model}")


RECIPES = _Recipes()

_ROOMS = {
    "base": ("SHIFTS", "Data", "Recipe", "Restored", "Setup"),
    "configuring": ("configure",),
}


__getattr__ = lazy_names("descend.recipes", _ROOMS)
