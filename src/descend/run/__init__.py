"""A run: a recipe carried out in a folder. `Run` is the noun; training, evaluation and exports are its verbs."""

from typing import TYPE_CHECKING

from descend.extras import lazy_names

if TYPE_CHECKING:
    from descend.run.completing import complete
    from descend.run.describing import differences, stored
    from descend.run.early import EarlyExits
    from descend.run.evaluating import LinearProbes, usual_levels
    from descend.run.exporting import export, export_model
    from descend.run.frozen import frozen_folder
    from descend.run.run import Run
    from descend.run.training import finished, train

__all__ = [
    "EarlyExits",
    "LinearProbes",
    "Run",
    "complete",
    "differences",
    "export",
    "export_model",
    "finished",
    "frozen_folder",
    "stored",
    "train",
    "usual_levels",
]

_FILES = {
    "completing": ("complete",),
    "describing": ("differences", "stored"),
    "early": ("EarlyExits",),
    "evaluating": ("LinearProbes", "usual_levels"),
    "exporting": ("export", "export_model"),
    "frozen": ("frozen_folder",),
    "run": ("Run",),
    "training": ("finished", "train"),
}

__getattr__ = lazy_names("descend.run", _FILES)
