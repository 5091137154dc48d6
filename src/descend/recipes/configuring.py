"""Turn settings into a recipe and its training arguments, in the same way for Python and the command line."""

from collections.abc import Collection
from dataclasses import MISSING, Field, fields
from typing import TYPE_CHECKING, Any, NamedTuple

from descend.errors import InputError
from descend.methods import check_method
from descend.recipes import RECIPES
from descend.recipes.base import Recipe
from descend.training.config import FILLED, all_measured_are_saved
from descend.training.preset import Preset, paper

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


class Configured(NamedTuple):
    """A recipe by name, with its training arguments.

    Attributes:
        name: The recipe's name, such as ``video-ut``.
        recipe: The recipe.
        arguments: Its training arguments, of the class ``recipe.arguments()``.
    """

    name: str
    recipe: Recipe
    arguments: Any


def configure(name: str, **settings: Any) -> Configured:
    """Choose a recipe and set what differs from its defaults, as ``descend train NAME --setting value`` does.

    A setting is, in this order: the given one, the preset's, the recipe's, or the default of `DescentConfig`.

    Args:
        name: The recipe's name, such as ``video-ut``.
        **settings: Fields of the recipe and of its training arguments. ``data`` is required, and ``output_dir`` is the
            run's folder.

    Raises:
        InputError: If there is no such recipe or setting, a value is not allowed, a setting belongs to another method,
            or no data are given.
    """
    if name not in RECIPES:
        raise InputError(f"no recipe {name!r}; expected one of {', '.join(RECIPES)}.")
    kind = RECIPES[name]
    recipe_fields, argument_fields = _settable(kind), _settable(kind.arguments())
    if unknown := settings.keys() - recipe_fields.keys() - argument_fields.keys():
        raise InputError(
            f"{name} has no settings {', '.join(sorted(unknown))}; descend train {name} --help lists them."
        )
    RECIPES.check_given(name, settings.get("data"))
    check_method(settings)
    preset = Preset()
    if settings.get("preset") is not None:
        method, dataset = settings.get("method", "constrained"), settings.get("dataset", "imdb")
        preset = paper(name, method, dataset, settings)
    try:
        chosen = {**preset.settings, **settings}
        recipe = kind(**{key: chosen[key] for key in recipe_fields.keys() & chosen.keys()})
        defaults = recipe.defaults.arguments()
        fixed = {key: value for key, value in defaults.items() if key not in FILLED}
        values = {**fixed, **preset.training, **settings}
        # A setting that both have, such as the longest text, has one value.
        values |= {key: getattr(recipe, key) for key in recipe_fields.keys() & argument_fields.keys()}
        values = _consistent(values, settings.keys(), argument_fields)
        arguments: Any = kind.arguments()(**{key: values[key] for key in argument_fields.keys() & values.keys()})
    except InputError:
        raise
    except (ValueError, ImportError) as error:  # Transformers' own checks of its arguments
        raise InputError(f"{error}") from None
    arguments.fill({key: defaults[key] for key in FILLED if key in defaults})
    return Configured(name, recipe, arguments)


def _settable(kind: "type[DataclassInstance]") -> dict[str, Field[Any]]:
    """The fields that a dataclass takes as arguments, by name."""
    return {each.name: each for each in fields(kind) if each.init}


def _consistent(
    values: dict[str, Any], given: Collection[str], argument_fields: dict[str, Field[Any]]
) -> dict[str, Any]:
    """Drop those defaults of a recipe that contradict a given setting.

    Args:
        values: Training arguments by name.
        given: Names of those that the user gave.
        argument_fields: All training arguments.
    """
    defaults = {name: each.default for name, each in argument_fields.items() if each.default is not MISSING}
    values = dict(values)
    if "num_train_epochs" in given and "max_steps" not in given:
        values["max_steps"] = -1  # the recipe's number of steps would override the epochs
    if "load_best_model_at_end" not in given and not all_measured_are_saved(defaults | values):
        values["load_best_model_at_end"] = False
    if not values.get("load_best_model_at_end") and "metric_for_best_model" not in given:
        values["metric_for_best_model"] = None
    return values
