"""Recipes: a name for data, task, model and the settings they were tuned with, one file each, found by their files.

They are imported without torch, which they load when they are used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

from descend.declared import GENERATED
from descend.extras import lazy_names, named_classes, required
from descend.recipes.base import Data, Recipe

if TYPE_CHECKING:
    from descend.recipes.configuring import configure

__all__ = [
    "GENERATED",
    "RECIPES",
    "Data",
    "Recipe",
    "configure",
]


class Entry(NamedTuple):
    """A recipe by name.

    Attributes:
        settings: The recipe's class, of which the declared settings need no optional package.
    """

    settings: type[Recipe]

    @property
    def kind(self) -> type[Recipe]:
        """The recipe's class, to be used.

        Raises:
            MissingPackageError: If an optional package that it needs is not installed.
        """
        with required(self.settings.name):
            for package in self.settings.packages:
                import_module(package)
        return self.settings


_KINDS = named_classes(__name__, __path__, Recipe, but=("configuring", "corpora"))
RECIPES = {name: Entry(kind) for name, kind in _KINDS.items()}
"""Name → recipe, in the order of the command line's list."""


__getattr__ = lazy_names("descend.recipes", {"configuring": ("configure",)})
