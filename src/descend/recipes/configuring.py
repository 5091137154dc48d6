"""Turn settings into a recipe and its training arguments, in the same way for Python and the command line."""

from dataclasses import MISSING
from typing import Any

from descend.errors import InputError
from descend.recipes import RECIPES
from descend.run.run import Run
from descend.settings import check_method, settings_of
from descend.training.config import FILLED, drop_what_contradicts
from descend.training.preset import Preset, paper


def configure(name: str, **settings: Any) -> Run:
    """Choose a recipe and set what differs from its defaults, as ``descend train NAME --setting value`` does.

    A setting is, in this order: the given one, the preset's, the recipe's, or the default of `DescentConfig`.

    Args:
        name: The recipe's name, such as ``video-ut``.
        **settings: Fields of the recipe and of its training arguments. ``data`` is required, and ``output_dir`` is the
            run's folder.

    Returns:
        The run that is not trained yet: its ``recipe`` and its training ``arguments``; ``run.train()`` trains it in its
        folder, ``run.trainer()`` is a trainer for a script of your own.

    Raises:
        InputError: If there is no such recipe or setting, a value is not allowed, a setting belongs to another method,
            or no data are given.
    """
    if name not in RECIPES:
        raise InputError(f"no recipe {name!r}; expected one of {', '.join(RECIPES)}.")
    kind = RECIPES[name].kind
    of_recipe, of_trainer = settings_of(kind), settings_of(kind.arguments())
    if unknown := settings.keys() - of_recipe.keys() - of_trainer.keys():
        raise InputError(
            f"{name} has no settings {', '.join(sorted(unknown))}; descend train {name} --help lists them."
        )
    kind.check_given(settings)
    preset = Preset()
    if settings.get("preset") is not None:
        usual = of_recipe["dataset"].default if "dataset" in of_recipe else "imdb"
        preset = paper(name, settings.get("method", "constrained"), settings.get("dataset", usual), settings)
    chosen = {**preset.settings, **settings}
    try:
        recipe = kind(**{key: chosen[key] for key in of_recipe.keys() & chosen.keys()})
        defaults = recipe.defaults
        fixed = {key: value for key, value in defaults.items() if key not in FILLED}
        values = {key: each.default for key, each in of_trainer.items() if each.default is not MISSING}
        values |= fixed | {**preset.training, **settings}
        # A setting that both have, such as the longest text, has one value.
        values |= {key: getattr(recipe, key) for key in of_recipe.keys() & of_trainer.keys()}
        drop_what_contradicts(values, settings)
        check_method(settings, str(values["method"]))
        arguments: Any = kind.arguments()(**{key: values[key] for key in of_trainer.keys() & values.keys()})
    except InputError:
        raise
    except (ValueError, ImportError) as error:  # Transformers' own checks of its arguments
        raise InputError(f"{error}") from None
    arguments.fill({key: defaults[key] for key in FILLED if key in defaults})
    return Run(arguments.folder, recipe=recipe, arguments=arguments, given=list(settings))
