"""What Descend relies on of the private methods of Transformers' and TRL's trainers, in one file alone.

Checked with Transformers 5.23 and TRL 1.16. Where a release fails here, read its change of the method that is named,
mend ``descend/training/hf_hooks.py`` if needed, and enter the new signature below.
"""

import ast
import inspect
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from transformers import Trainer
from trl import SFTTrainer

from descend.training import hf_hooks

ROOT = Path(__file__).parents[2]
CHECKED = {"transformers": "5.23", "trl": "1.16"}

TRANSFORMERS = {
    "_determine_best_metric": "metrics, trial",
    "_finalize_training": "trial, num_train_samples, start_time",
    "_get_collator_with_removed_columns": "data_collator, description=None",
    "_clip_grad_norm": "model",
    "_get_grad_norm": "model, grad_norm=None",
    "_get_output_dir": "trial",
    "_get_train_sampler": "train_dataset=None",
    "_init_training_state": "max_steps, num_update_steps_per_epoch, num_train_epochs, resume_from_checkpoint, trial",
    "_issue_warnings_after_load": "load_result",
    "_load_best_model": "",
    "_load_from_checkpoint": "resume_from_checkpoint, model=None",
    "_load_optimizer_and_scheduler": "checkpoint",
    "_prepare_for_training": "max_steps, train_dataloader, resume_from_checkpoint",
    "_prepare_inputs": "inputs",
    "_push_from_checkpoint": "checkpoint_folder",
    "_remove_unused_columns": "dataset, description=None",
    "_run_epoch": "model, epoch, train_dataloader, steps_in_epoch, num_update_steps_per_epoch, trial, "
    "ignore_keys_for_eval, start_time, resume_from_checkpoint, epochs_trained, steps_trained_in_current_epoch",
    "_save": "output_dir=None, state_dict=None",
    "_save_checkpoint": "model, trial",
    "_set_signature_columns_if_needed": "",
    "_wrap_model": "model, training=True, dataloader=None",
}
TRL = {"_prepare_dataset": "dataset, processing_class, args, packing, formatting_func, dataset_name"}
ATTRIBUTES = {
    Trainer: ["_signature_columns"],
    SFTTrainer: ["_formatting_func", "_skip_prepare_dataset", "_tokenizer"],
}
READ = {name for names in ATTRIBUTES.values() for name in names}


def signature(method) -> str:
    """Names and defaults, without types."""
    _self, *parameters = inspect.signature(method).parameters.values()
    return ", ".join(
        each.name if each.default is each.empty else f"{each.name}={each.default!r}" for each in parameters
    )


@pytest.mark.parametrize(
    ("trainer", "name", "expected"),
    [(Trainer, *item) for item in TRANSFORMERS.items()] + [(SFTTrainer, *item) for item in TRL.items()],
)
def test_a_private_method_has_the_signature_that_we_rely_on(trainer, name, expected):
    assert signature(getattr(trainer, name)) == expected, f"{trainer.__name__}.{name} has changed"


@pytest.mark.parametrize(("trainer", "names"), ATTRIBUTES.items())
def test_a_private_attribute_is_set_where_a_trainer_is_made(trainer, names):
    source = inspect.getsource(trainer.__init__)
    assert all(f"self.{name} = " in source for name in names)


def private_names(file: Path) -> set[str]:
    """Private names that a file defines as methods, or reads of any object."""
    nodes = list(ast.walk(ast.parse(file.read_text(encoding="utf-8"))))
    names = {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
    names |= {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    return {name for name in names if name.startswith("_") and not name.startswith("__")}


def test_they_all_stand_in_one_file():
    theirs = {name for trainer in SFTTrainer.__mro__ for name in vars(trainer)} | READ
    hooks = Path(hf_hooks.__file__)
    used = private_names(hooks) & theirs
    assert used == TRANSFORMERS.keys() | TRL.keys() | READ
    for file in hooks.parent.glob("*.py"):
        if file != hooks:
            assert not private_names(file) & theirs, file.name


def test_the_versions_that_are_installed_were_checked():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"], *project["optional-dependencies"]["llm"]]
    for name, checked in CHECKED.items():
        assert any(each.startswith(f"{name}>={checked}") for each in asked), "the oldest version is the one checked"
        assert version(name).startswith(f"{checked}."), f"{name} {version(name)} is new: enter it once this file passes"
