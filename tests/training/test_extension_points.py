"""Every public method of Transformers' and TRL's trainers: an override is called, or refused when a trainer is made."""

import ast
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback
from trl import SFTTrainer

from descend import DescentTrainer
from descend.errors import InputError
from descend.training import hf_hooks
from descend.training.hf_hooks import NEVER_CALLED, REPLACED
from descend.training.sft import DescentSFTConfig, DescentSFTTrainer
from tests.support.networks import QUIET, network
from tests.support.own import samples
from tests.support.ranks import points

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "trainer.md"

REFUSED = "refused"
UTILITY = "called by the user alone"
ON_THE_HUB = "called when a model is pushed to the Hub, as in Transformers"
# When an override is called: while the trainer is made, in train, evaluate or predict.
POINTS = {
    "add_callback": "made",
    "autocast_smart_context_manager": "train evaluate predict",
    "call_model_init": REFUSED,
    "compute_loss": "train",
    "compute_loss_context_manager": "train evaluate predict",
    "create_accelerator_and_postprocess": "made",
    "create_model_card": ON_THE_HUB,
    "create_optimizer": "train",
    "create_optimizer_and_scheduler": REFUSED,
    "create_scheduler": "train",
    "end": UTILITY,
    "evaluate": "train evaluate",
    "evaluation_loop": REFUSED,
    "floating_point_ops": "train",
    "get_batch_samples": "train",
    "get_cp_size": "train",
    "get_decay_parameter_names": "train",
    "get_eval_dataloader": "train evaluate",
    "get_learning_rates": UTILITY,
    "get_num_trainable_parameters": UTILITY,
    "get_optimizer_cls_and_kwargs": "train",
    "get_optimizer_group": UTILITY,
    "get_sp_size": "train",
    "get_test_dataloader": "predict",
    "get_total_train_batch_size": "train",
    "get_tp_size": "train",
    "get_train_dataloader": "train",
    "hyperparameter_search": UTILITY,  # it needs model_init, which is refused
    "init_hf_repo": ON_THE_HUB,
    "is_local_process_zero": "made train",
    "is_world_process_zero": "made train evaluate",
    "log": "train evaluate",
    "log_metrics": UTILITY,
    "metrics_format": UTILITY,
    "num_examples": "train predict",
    "pop_callback": UTILITY,
    "predict": "predict",
    "prediction_step": REFUSED,
    "push_to_hub": ON_THE_HUB,
    "remove_callback": UTILITY,
    "save_metrics": UTILITY,
    "save_model": "train",
    "save_state": UTILITY,
    "set_initial_training_values": "train",
    "store_flos": "train",
    "train": "train",
    "training_step": "train",
}


def test_every_public_method_is_known():
    """Where this fails, Transformers or TRL has a new method: see whether an override is called, and enter it."""
    public = {name for kind in (Trainer, SFTTrainer) for name in dir(kind) if not name.startswith("_")}
    assert {name for name in public if callable(getattr(Trainer, name, None))} == POINTS.keys()
    assert not [name for name in public - POINTS.keys() if callable(getattr(SFTTrainer, name))]
    assert {name for name, when in POINTS.items() if when == REFUSED} == NEVER_CALLED.keys()
    page = PAGE.read_text(encoding="utf-8")
    assert all(f"`{name}`" in page for name in (*NEVER_CALLED, *REPLACED))


PRIVATE = {
    "_clip_grad_norm", "_determine_best_metric", "_finalize_training", "_get_collator_with_removed_columns",
    "_get_grad_norm", "_get_output_dir", "_get_train_sampler", "_init_training_state", "_issue_warnings_after_load",
    "_load_best_model", "_load_from_checkpoint", "_load_optimizer_and_scheduler", "_prepare_dataset",
    "_prepare_for_training", "_prepare_inputs", "_push_from_checkpoint", "_remove_unused_columns", "_run_epoch",
    "_save", "_save_checkpoint", "_set_signature_columns_if_needed", "_wrap_model",
}  # fmt: skip
READ = {"_signature_columns", "_formatting_func", "_skip_prepare_dataset", "_tokenizer"}
"""Attributes that a trainer sets where it is made."""


def private_names(file: Path) -> set[str]:
    """Private names that a file defines as methods, or reads of any object."""
    nodes = list(ast.walk(ast.parse(file.read_text(encoding="utf-8"))))
    names = {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
    names |= {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    return {name for name in names if name.startswith("_") and not name.startswith("__")}


def test_private_names_of_transformers_and_trl_stand_in_one_file():
    theirs = {name for trainer in SFTTrainer.__mro__ for name in vars(trainer)} | READ
    hooks = Path(hf_hooks.__file__)
    assert private_names(hooks) & theirs == PRIVATE | READ
    for file in hooks.parent.glob("*.py"):
        assert file == hooks or not private_names(file) & theirs, file.name


def test_overrides_are_called(tmp_path):
    phases, seen = ["made"], {}

    def noted(name):
        def method(self, *args, **kwargs):
            seen.setdefault(name, set()).add(phases[-1])
            return getattr(super(Noted, self), name)(*args, **kwargs)

        def function(*args, **kwargs):
            seen.setdefault(name, set()).add(phases[-1])
            return getattr(Trainer, name)(*args, **kwargs)

        return staticmethod(function) if isinstance(vars(Trainer)[name], staticmethod) else method

    Noted = type("Noted", (DescentTrainer,), {name: noted(name) for name in POINTS.keys() - NEVER_CALLED.keys()})
    saving = {"save_strategy": "steps", "save_steps": 2, "eval_strategy": "steps", "eval_steps": 1}
    data = [{"input_ids": [5, 6, 7], "labels": place % 3} for place in range(16)]
    given = {"model": network("bert"), "task": None, "train_dataset": data, "eval_dataset": data, "noise": 0.5}
    ours = points(tmp_path, Noted, given, max_steps=2, **saving)
    for phase, given in (("train", ()), ("evaluate", ()), ("predict", (data,))):
        phases.append(phase)
        getattr(ours, phase)(*given)
    expected = {name: set(when.split()) for name, when in POINTS.items()}
    assert seen == {name: when for name, when in expected.items() if when <= set(phases)}


@pytest.mark.parametrize("name", NEVER_CALLED)
def test_an_override_that_would_never_be_called_is_refused(tmp_path, name):
    override = {name: lambda self, *args, **kwargs: None}
    mixed = type("Mixed", (type("Mixin", (), override), DescentTrainer), {})
    behind = type("Behind", (DescentTrainer, type("Mine", (Trainer,), override)), {})
    for kind in (type("Own", (DescentTrainer,), override), mixed, behind):
        with pytest.raises(InputError, match=rf"(Own|Mixin|Mine)\.{name} would never be called"):
            points(tmp_path, kind)
    with pytest.raises(InputError, match=f"Tuned.{name}"):
        type("Tuned", (DescentSFTTrainer,), override)(None, DescentSFTConfig(str(tmp_path), **QUIET))


@pytest.mark.parametrize("name", REPLACED)
def test_a_class_behind_descends_is_refused_where_it_would_be_passed_over(tmp_path, name):
    mine = type("Mine", (Trainer,), {name: lambda self, *args, **kwargs: None})
    with pytest.raises(InputError, match=rf"Mine.{name}.*class Both\(Mine, …\)"):
        points(tmp_path, type("Both", (DescentTrainer, mine), {}))
    points(tmp_path, type("Both", (mine, DescentTrainer), {}))


# --- get_eval_dataloader, and what callbacks see of it


class Watching(TrainerCallback):
    """Counts the batches of an evaluation."""

    batches = 0

    def on_prediction_step(self, args, state, control, eval_dataloader=None, **kwargs):
        self.batches += 1
        self.loader = eval_dataloader


def test_callbacks_see_the_loader_and_its_batches(tmp_path):
    watching = Watching()
    ours = points(tmp_path, given={"callbacks": [watching]}, per_device_eval_batch_size=4)
    ours.evaluate()
    ours.calibrate()
    assert watching.batches == len(watching.loader) == 3
    assert sum(len(batch["labels"]) for batch in watching.loader) == 12


def raw(count, seed=1):
    """Samples that only `collate` makes batches of."""
    return [(sample["x"], sample["labels"]) for sample in samples(count, seed)]


def collate(rows):
    return {"x": torch.stack([x for x, _ in rows]), "labels": torch.tensor([label for _, label in rows])}


class Loading(DescentTrainer):
    """Its data are not those of a collator."""

    asked: list

    def get_train_dataloader(self):
        return self.accelerator.prepare(DataLoader(self.train_dataset, batch_size=4, collate_fn=collate))

    def get_eval_dataloader(self, eval_dataset=None):
        Loading.asked.append(eval_dataset)
        data = self.eval_dataset[eval_dataset] if isinstance(eval_dataset, str) else eval_dataset
        return DataLoader(raw(6) if data is None else data, batch_size=4, collate_fn=collate)


class Wrapping(DescentTrainer):
    """It looks at the batches that Transformers makes."""

    seen = 0

    def get_eval_dataloader(self, eval_dataset=None):
        for batch in super().get_eval_dataloader(eval_dataset):
            Wrapping.seen += len(batch["labels"])
            yield batch


def test_overridden_loaders_are_what_is_read(tmp_path):
    """The losses are those of the same samples in a list; a loader may give other samples, or any batches."""
    Loading.asked = []
    expected = points(tmp_path / "a", given={"eval_dataset": samples(6, 1), "noise": 0.5}).evaluate()
    rows = raw(6)
    for given, asked in ((rows, [rows]), (None, [None]), ({"one": rows}, ["one"])):
        found = points(tmp_path / "b", Loading, {"eval_dataset": given, "noise": 0.5}).evaluate()
        one = "_one" if isinstance(given, dict) else ""
        for name in ("loss", "violation", "merit"):
            assert found[f"eval{one}_{name}"] == pytest.approx(expected[f"eval_{name}"], rel=1e-6)
        assert Loading.asked == asked
        Loading.asked.clear()
    wrapped = points(tmp_path / "c", Wrapping, {"eval_dataset": samples(6, 1), "noise": 0.5}).evaluate()
    assert wrapped["eval_loss"] == pytest.approx(expected["eval_loss"], rel=1e-6) and Wrapping.seen == 6
    alone = points(tmp_path / "d", Loading, {"train_dataset": None, "eval_dataset": None, "noise": 0.5})
    assert alone.evaluate()["eval_loss"] > 0  # σ_x is that of the loader's data
    trained = points(tmp_path / "e", Loading, {"train_dataset": raw(16), "eval_dataset": None}, max_steps=2).train()
    assert trained.global_step == 2
