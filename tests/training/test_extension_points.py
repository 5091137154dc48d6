"""What users of Transformers' and TRL's trainers have in their scripts works with ours: only the class's name differs.

The steps are those of ``run_glue.py``, ``run_clm.py`` (Transformers 5.23) and ``sft.py`` (TRL 1.16). An override of any
public method is called, or refused when a trainer is made.
"""

import ast
import json
import math
import re
import runpy
import sys
from difflib import unified_diff
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import trl
from datasets import Dataset
from torch.utils.data import DataLoader
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    DataCollatorForTokenClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)
from trl import SFTTrainer
from trl.scripts import sft

from descend import DescentConfig, DescentTrainer, InputError, results
from descend.results import CERTIFIED_FILE
from descend.tasks.text import generate_reviews, learn_tokenizer
from descend.training import hf_hooks
from descend.training.sft import DescentSFTConfig, DescentSFTTrainer
from tests.support import tagging
from tests.support.cases import slow
from tests.support.networks import QUIET, causal, network
from tests.support.own import samples
from tests.support.ranks import fitted, points
from tests.support.runs import put

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
    assert {name for name, when in POINTS.items() if when == REFUSED} == hf_hooks.NEVER_CALLED.keys()
    page = PAGE.read_text(encoding="utf-8")
    assert all(f"`{name}`" in page for name in (*hf_hooks.NEVER_CALLED, *hf_hooks.REPLACED))


PRIVATE = {
    "_clip_grad_norm", "_determine_best_metric", "_finalize_training", "_get_collator_with_removed_columns",
    "_get_grad_norm", "_get_output_dir", "_get_train_sampler", "_init_training_state", "_issue_warnings_after_load",
    "_load_best_model", "_load_from_checkpoint", "_load_optimizer_and_scheduler", "_prepare_dataset",
    "_prepare_for_training", "_prepare_inputs", "_push_from_checkpoint", "_remove_unused_columns", "_run_epoch",
    "_save", "_save_checkpoint", "_send_telemetry", "_set_signature_columns_if_needed", "_wrap_model",
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

    Noted = type(
        "Noted", (DescentTrainer,), {name: noted(name) for name in POINTS if name not in hf_hooks.NEVER_CALLED}
    )
    saving = {"save_strategy": "steps", "save_steps": 2, "eval_strategy": "steps", "eval_steps": 1}
    data = [{"input_ids": [5, 6, 7], "labels": place % 3} for place in range(16)]
    given = {"model": network("bert"), "task": None, "train_dataset": data, "eval_dataset": data, "noise": 0.5}
    ours = points(tmp_path, Noted, given, max_steps=2, **saving)
    for phase, given in (("train", ()), ("evaluate", ()), ("predict", (data,))):
        phases.append(phase)
        getattr(ours, phase)(*given)
    expected = {name: set(when.split()) for name, when in POINTS.items()}
    assert seen == {name: when for name, when in expected.items() if when <= set(phases)}


@pytest.mark.parametrize("name", hf_hooks.NEVER_CALLED)
def test_an_override_that_would_never_be_called_is_refused(tmp_path, name):
    override = {name: lambda self, *args, **kwargs: None}
    mixed = type("Mixed", (type("Mixin", (), override), DescentTrainer), {})
    behind = type("Behind", (DescentTrainer, type("Mine", (Trainer,), override)), {})
    for kind in (type("Own", (DescentTrainer,), override), mixed, behind):
        with pytest.raises(InputError, match=rf"(Own|Mixin|Mine)\.{name} would never be called"):
            points(tmp_path, kind)
    with pytest.raises(InputError, match=f"Tuned.{name}"):
        type("Tuned", (DescentSFTTrainer,), override)(None, DescentSFTConfig(str(tmp_path), **QUIET))


@pytest.mark.parametrize("name", hf_hooks.REPLACED)
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


# --- scripts around Trainer

EXAMPLES = Path(__file__).parents[2] / "examples"
BLOCK = 51


@pytest.fixture(scope="module")
def tokenizer():
    made = learn_tokenizer(row["text"] for row in generate_reviews(200, 0))
    made.model_input_names = ["input_ids", "attention_mask"]
    made.eos_token = made.sep_token
    return made


def texts(tokenizer, count, seed):
    """As `map` leaves them: the text and a number that no model takes are still there."""
    rows = Dataset.from_list(generate_reviews(count, seed)).add_column("idx", list(range(count)))
    return rows.map(lambda batch: tokenizer(batch["text"], truncation=True, max_length=60), batched=True)


def blocks(tokenizer, count):
    """`run_clm.py` joins all texts and cuts them into blocks, whose labels are their own tokens."""
    ids = [token for row in generate_reviews(200, 1) for token in tokenizer(row["text"])["input_ids"]]
    rows = [ids[start : start + BLOCK] for start in range(0, count * BLOCK, BLOCK)]
    return Dataset.from_list([{"input_ids": row, "attention_mask": [1] * BLOCK, "labels": row} for row in rows])


def classifier(tokenizer, most=64):
    return network("distilbert", labels=2, vocab_size=len(tokenizer), max_position_embeddings=most)


def trainer(folder, tokenizer, kind=DescentTrainer, args=None, model=None, config=TrainingArguments, **given):
    chosen = {"max_steps": 4, "per_device_train_batch_size": 8, "learning_rate": 1e-3, **QUIET, **(args or {})}
    given = {"train_dataset": texts(tokenizer, 64, 0), "eval_dataset": texts(tokenizer, 40, 1)} | given
    return kind(model or classifier(tokenizer), config(str(folder), **chosen), processing_class=tokenizer, **given)


def language(folder, tokenizer, kind, args=None, **given):
    """An evaluation of a language model as `run_clm.py` has it."""
    data = {"train_dataset": blocks(tokenizer, 24), "eval_dataset": blocks(tokenizer, 16)}
    data["data_collator"] = DataCollatorForLanguageModeling(tokenizer, mlm=False)
    return trainer(folder, tokenizer, kind, args, causal(vocab_size=len(tokenizer)), **data | given)


# --- examples


def put_start(folder, model, tokenizer, data):
    """What a script is started from: a saved model in ``start``, and files of lines in ``data``."""
    model.save_pretrained(folder / "start")
    tokenizer.save_pretrained(folder / "start")
    put(folder / "data", {name: "\n".join(lines) + "\n" for name, lines in data.items()})


def test_the_examples_differ_in_the_trainer_alone():
    plain, ours = ((EXAMPLES / name).read_text().splitlines() for name in ("glue_trainer.py", "glue_descent.py"))
    lines = [
        line
        for line in unified_diff(plain, ours, n=0, lineterm="")
        if line[0] in "+-" and line[1:3] not in ("--", "++")
    ]
    assert [line for line in lines if '"""' not in line and "examples/" not in line and line[1:].strip()] == [
        "-from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainingArguments",
        "+from transformers import AutoModelForSequenceClassification, AutoTokenizer, TrainingArguments",
        "+from descend import DescentTrainer",
        "-trainer = Trainer(",
        "+trainer = DescentTrainer(",
    ]


def test_the_example_trains_and_saves_a_model_of_transformers(tmp_path, tokenizer, monkeypatch, capsys):
    reviews = {"train.tsv": generate_reviews(60, 0), "validation.tsv": generate_reviews(30, 1)}
    tables = {
        name: ["sentence\tlabel", *(f"{row['text']}\t{row['label']}" for row in rows)] for name, rows in reviews.items()
    }
    put_start(tmp_path, classifier(tokenizer, most=128), tokenizer, tables)
    monkeypatch.setattr(sys, "argv", ["example", *(str(tmp_path / part) for part in ("start", "data", "out"))])
    runpy.run_path(str(EXAMPLES / "glue_descent.py"), run_name="__main__")
    assert "'eval_feasible'" in capsys.readouterr().out
    trained, started = (
        AutoModelForSequenceClassification.from_pretrained(tmp_path / side).parameters() for side in ("out", "start")
    )
    assert not any(torch.equal(one, other) for one, other in zip(trained, started, strict=True))
    assert AutoTokenizer.from_pretrained(tmp_path / "out")("the film was good")["input_ids"]


def test_trls_own_script(tmp_path, tokenizer, monkeypatch):
    """The script as TRL installs it, from its command line to the saved model."""
    lines = [json.dumps({"text": row["text"]}) for row in generate_reviews(16, 3)]
    model = causal(vocab_size=len(tokenizer))
    put_start(tmp_path, model, tokenizer, {"train.jsonl": lines, "test.jsonl": lines[:8]})
    monkeypatch.setattr(trl, "SFTTrainer", DescentSFTTrainer)
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    flags = f"""--model_name_or_path {tmp_path}/start --dataset_name {tmp_path}/data --output_dir {tmp_path}/out
        --max_steps 4 --per_device_train_batch_size 4 --eval_strategy steps --eval_steps 2 --logging_steps 1
        --use_cpu --bf16 false --report_to none --use_peft --lora_target_modules q_proj v_proj --dtype float32"""
    sft.main(*sft.make_parser().parse_args_and_config(flags.split()))
    assert (tmp_path / "out" / "adapter_model.safetensors").is_file()
    state = json.loads((tmp_path / "out" / "checkpoint-4" / "trainer_state.json").read_text())
    names = {name for row in state["log_history"] for name in row}
    assert {"loss", "mean_token_accuracy", "entropy", "num_tokens", "eval_mean_token_accuracy"} <= names
    assert "multiplier/1" in names


# --- predictions and metrics


@pytest.mark.parametrize(
    ("head", "size", "given"),
    [("tokens", 1, {}), ("tokens", 5, {}), ("answer", 5, {}), ("tokens", 5, {"include_for_metrics": ["loss"]})],
)
def test_predict_has_the_loss_of_evaluate_whatever_the_batch_size(tmp_path, head, size, given):
    """Of texts with unlike numbers of targets, of which some have none; and evaluate times itself as Trainer does."""
    data = tagging.texts(head)
    for row in data[3:5] if head == "tokens" else ():
        row["labels"] = [-100] * len(row["labels"])
    found = {}
    for kind in (Trainer, DescentTrainer):
        args = TrainingArguments(str(tmp_path), **QUIET, per_device_eval_batch_size=size, **given)
        collate = DataCollatorForTokenClassification(learn_tokenizer(["a text"]))
        labels = 3 if head == "tokens" else 2
        model = network("bert", labels=labels, auto=tagging.HEADS[head], initializer_range=0.5)
        one = kind(model, args, eval_dataset=data, data_collator=collate)
        found[kind] = one.evaluate(), one.predict(data).metrics
    ours, predicted = found[DescentTrainer]
    assert predicted["test_loss"] == pytest.approx(ours["eval_loss"], rel=1e-5)
    theirs, timed = ({name for name in each[0] if "second" in name} for each in found.values())
    assert theirs == timed == {"eval_samples_per_second", "eval_steps_per_second"}
    rate = ours["eval_samples_per_second"] / ours["eval_steps_per_second"]
    assert rate == pytest.approx(len(data) / math.ceil(len(data) / size), rel=0.01)


@pytest.mark.parametrize(
    ("made", "args", "given"),
    [
        (trainer, {}, {}),
        (language, {}, {"compute_metrics": None}),
        slow((language, {}, {"preprocess_logits_for_metrics": lambda logits, labels: logits.argmax(dim=-1)})),
        (
            language,
            {},
            {"preprocess_logits_for_metrics": lambda logits, labels: (logits.argmax(-1), logits.logsumexp(-1))},
        ),
        (language, {"eval_do_concat_batches": False}, {}),
        (  # texts of 3 to 8 tokens
            language,
            {"per_device_eval_batch_size": 2},
            {"eval_dataset": Dataset.from_list([{"input_ids": list(range(5, 8 + place))} for place in range(6)])},
        ),
    ],
    ids=["classifier", "predict", "argmax", "tuple", "left apart", "padded"],
)
def test_predictions_and_what_metrics_see_are_those_of_trainer(tmp_path, tokenizer, made, args, given):
    found = {}
    for kind in (Trainer, DescentTrainer):
        seen = found[kind] = []

        def compute(prediction, seen=seen):
            seen.append((prediction.predictions, prediction.label_ids))
            return {"batches": len(seen)}

        settings = {"per_device_eval_batch_size": 6} | args
        one = made(tmp_path, tokenizer, kind, settings, **{"compute_metrics": compute} | given)
        assert one.evaluate().get("eval_batches", 0) == len(seen)
        predicted = one.predict(one.eval_dataset)
        seen.append((predicted.predictions, predicted.label_ids))
    for theirs, ours in zip(*found.values(), strict=True):
        for one, other in zip(*(torch.utils._pytree.tree_leaves(each) for each in (theirs, ours)), strict=True):
            np.testing.assert_allclose(np.asarray(other), np.asarray(one), rtol=1e-4, atol=1e-5)


def test_several_evaluation_sets_have_metrics_of_their_own(tmp_path, tokenizer):
    """Names that compute_metrics gives are kept; data given by hand, a test set, leave no trace."""
    sets = {"one": texts(tokenizer, 20, 1), "two": texts(tokenizer, 30, 2)}
    ours = trainer(
        tmp_path,
        tokenizer,
        eval_dataset=sets,
        preprocess_logits_for_metrics=lambda logits, labels: logits.argmax(-1),
        compute_metrics=lambda given: {"eval_one_f1": 0.5, "shape": float(given.predictions.ndim)},
    )
    metrics = ours.evaluate()
    assert {"eval_one_loss", "eval_two_loss", "eval_two_feasible", "eval_two_samples_per_second"} <= metrics.keys()
    assert metrics["eval_one_f1"] == 0.5 and metrics["eval_one_shape"] == 1
    written = [json.loads(line) for line in (tmp_path / "records.jsonl").read_text().splitlines()]
    assert {row["split"] for row in written} == {"validation one", "validation two"}
    before = ours.verdict
    for given in (sets["one"], "one"):
        assert ours.evaluate(given)["eval_loss"] == pytest.approx(metrics["eval_one_loss"])
    assert len((tmp_path / "records.jsonl").read_text().splitlines()) == len(written) and ours.verdict is before


def of_tags(given):
    """As Transformers' guide to token classification has it: (B, T, C), and labels of -100."""
    chosen, known = np.argmax(given.predictions, axis=2), given.label_ids != -100
    return {"right": float((chosen == given.label_ids)[known].mean()), "count": int(known.sum())}


def of_every_class(given):
    """Like an area under a curve, it needs all classes, which no batch of two has."""
    if len(set(given.label_ids.tolist())) < 3:
        raise ValueError("only some classes present in y_true")
    return {"share": 0.5}


class Counted(TrainerCallback):
    """The steps that were taken."""

    steps = 0

    def on_step_end(self, args, state, control, **kwargs):
        self.steps = state.global_step


def tagged(**given):
    """Arguments of a trainer that classifies tokens."""
    return {
        **{"model": network("bert", auto=tagging.HEADS["tokens"]), "task": None},
        **{"train_dataset": tagging.texts("tokens"), "eval_dataset": tagging.texts("tokens", 7)},
        "data_collator": DataCollatorForTokenClassification(learn_tokenizer(["a text"])),
        **given,
    }


def test_compute_metrics_is_called_before_the_first_step(tmp_path):
    """What it can't take is refused then; a score that needs the whole set is not."""
    args = {"eval_strategy": "steps", "eval_steps": 2, "max_steps": 2, "per_device_eval_batch_size": 2}
    given = tagged(compute_metrics=of_tags)
    ours = fitted(points(tmp_path, given=given, **args))
    del given["task"], given["model"]
    found, expected = ours.evaluate(), Trainer(ours.model, ours.args, **given).evaluate()
    assert [found[name] == expected[name] for name in ("eval_right", "eval_count")] == [True, True]
    fitted(points(tmp_path, given={"compute_metrics": of_every_class}, **args))
    for metrics, chosen, words in (
        (of_tags, None, r"compute_metrics fails on the evaluation data, before the first step: \w*Error: axis 2"),
        (of_every_class, "f1", "metric_for_best_model must be one of .*share.*; got 'f1'"),
    ):
        counted = Counted()
        one = points(
            tmp_path, given={"compute_metrics": metrics, "callbacks": [counted]}, metric_for_best_model=chosen, **args
        )
        with pytest.raises(InputError, match=words):
            one.train()
        assert counted.steps == 0


def test_answers_that_max_length_cuts_off_are_counted(tmp_path, tokenizer, caplog):
    long, short = "the film was good " * 8, "good"
    rows = [{"prompt": long if place % 3 else short, "completion": " good film"} for place in range(12)]
    made = partial(DescentSFTTrainer, causal(vocab_size=len(tokenizer)), processing_class=tokenizer)
    args = DescentSFTConfig(str(tmp_path), **QUIET, bf16=False, max_length=10, completion_only_loss=True)
    made(args, train_dataset=Dataset.from_list(rows), eval_dataset={"a": Dataset.from_list(rows[:6])})
    told = [record.getMessage() for record in caplog.records if "max_length" in record.getMessage()]
    assert [(each.split(" texts")[0], re.findall(r"(\d+) of them lose", each)) for each in told] == [
        ("train data: 8 of 12", ["8"]),
        ("a data: 4 of 6", ["4"]),
    ]
    with pytest.raises(InputError, match="max_length=10 cuts off the answer of all 8 rows of the train data set"):
        made(args, train_dataset=Dataset.from_list([row for row in rows if row["prompt"] == long]))


def test_a_metric_that_no_evaluation_gives_is_named_with_those_there_are(tmp_path, tokenizer):
    """What compute_metrics returns is known when it was called: in a warm-up, too."""
    args = {"eval_strategy": "steps", "eval_steps": 1, "max_steps": 2, "dual_warmup_steps": 1}
    made = partial(trainer, tmp_path, tokenizer, config=DescentConfig, compute_metrics=lambda _: {"share": 0.5})
    with pytest.raises(InputError, match=r"accuracy, .*loss, .*share.*; got 'f1'"):
        made(args=args | {"metric_for_best_model": "f1"}).train()
    assert fitted(made(args=args | {"metric_for_best_model": "share"})).state.best_metric == 0.5


# --- data


def test_streams_and_samples_made_when_fetched(tmp_path, tokenizer):
    ours = fitted(trainer(tmp_path, tokenizer, train_dataset=texts(tokenizer, 64, 0).to_iterable_dataset(), noise=0.5))
    assert ours.state.global_step == 4 and ours.evaluate()["eval_loss"] > 0
    lazy = Dataset.from_list(generate_reviews(32, 0)).with_transform(
        lambda rows: {**tokenizer(rows["text"], truncation=True, max_length=60), "labels": rows["label"]}
    )
    made = fitted(trainer(tmp_path, tokenizer, train_dataset=lazy, noise=0.5, args={"remove_unused_columns": False}))
    assert made.sigma > 0


# --- the trainer's model


class Look(TrainerCallback):
    """The models that callbacks see."""

    def __init__(self):
        self.seen = []

    def look(self, args, state, control, model=None, **kwargs):
        self.seen.append(model)

    on_train_begin = on_step_end = on_evaluate = on_save = on_train_end = look


class Rates(DescentTrainer):
    """An optimizer by the names of the model's parameters."""

    def create_optimizer(self):
        named = list(self.model.named_parameters())
        head = [each for name, each in named if name.startswith("classifier.")]
        rest = [each for name, each in named if not name.startswith("classifier.")]
        self.optimizer = torch.optim.AdamW([{"params": head, "lr": 1e-2}, {"params": rest, "lr": 1e-3}])
        return self.optimizer


def test_the_trainers_model_is_the_users_before_in_and_after_training(tmp_path, tokenizer):
    model, look = classifier(tokenizer), Look()
    args = {
        **{"save_strategy": "steps", "save_steps": 2, "eval_strategy": "steps", "eval_steps": 2},
        **{"bf16": True, "neftune_noise_alpha": 5.0},
    }
    ours = trainer(tmp_path, tokenizer, Rates, args, model, callbacks=[look])
    batch = tokenizer(["the film was good", "dull"], padding=True, return_tensors="pt")
    batch["labels"] = torch.tensor([1, 0])
    forward = model.forward
    for _ in range(2):
        predicted = ours.predict(texts(tokenizer, 4, 2).remove_columns("label"))
        assert predicted.predictions.shape == (4, 2) and predicted.label_ids is None
        ours.train()
        assert len(ours.optimizer.param_groups[0]["params"]) == 2 and ours.model is model
    ours.evaluate()
    assert ours.model is ours.callback_handler.model is model and {id(each) for each in look.seen} == {id(model)}
    assert len(look.seen) == 2 * (1 + 4 + 2 + 2 + 1) + 1
    assert not ours.model.training, "as Trainer leaves it after an evaluation"
    found = ours.model(**batch)
    assert found.loss.dtype == torch.float32 and torch.equal(found.loss, ours.model(**batch).loss)
    assert ours.model.forward == forward and ours.model.num_parameters() > 0 and ours.state.total_flos > 0
    certified = tmp_path / CERTIFIED_FILE
    words = '{"threshold": 0.9, "risk": 0.1, "confidence": 0.9, "noise": 0}'  # of the weights before
    results.put(certified, lambda part: part.write_text(words))
    ours.save_model()
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path).state_dict()
    assert all(torch.equal(loaded[name], value) for name, value in ours.model.state_dict().items())
    assert not certified.exists()
