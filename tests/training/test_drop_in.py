"""What users of Transformers' and TRL's trainers have in their scripts works with ours: only the class's name differs.

The steps are those of ``run_glue.py``, ``run_clm.py`` (Transformers 5.23) and ``sft.py`` (TRL 1.16), on small models.
"""

import json
import runpy
import sys
from difflib import unified_diff
from pathlib import Path

import numpy as np
import pytest
import torch
import trl
from datasets import Dataset
from peft import LoraConfig, PeftModel, TaskType, get_peft_model
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)
from trl import SFTTrainer
from trl.scripts import sft

from descend import DescentConfig, DescentTrainer, GaussianNoise, InputError
from descend.models import LayeredClassifier
from descend.results import CERTIFIED_FILE
from descend.tasks.text import generate_reviews, learn_tokenizer
from descend.training.sft import DescentSFTTrainer
from tests.support.networks import causal, network

EXAMPLES = Path(__file__).parents[2] / "examples"
QUIET = {"report_to": "none", "disable_tqdm": True, "use_cpu": True, "seed": 0, "save_strategy": "no"}
STILL = ["dropout", "attention_dropout", "seq_classif_dropout", "hidden_dropout_prob", "attention_probs_dropout_prob"]
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


def classifier(tokenizer, family="distilbert", **settings):
    sizes = {"vocab_size": len(tokenizer), "max_position_embeddings": 64} | settings
    return network(family, labels=2, **sizes)


def adapted(tokenizer):
    lora = LoraConfig(task_type=TaskType.SEQ_CLS, r=4, target_modules=["q_lin", "v_lin"])
    return get_peft_model(classifier(tokenizer), lora)


def trainer(folder, tokenizer, model=None, kind=DescentTrainer, args=None, **given):
    chosen = {"max_steps": 4, "per_device_train_batch_size": 8, "learning_rate": 1e-3, **QUIET, **(args or {})}
    given = {"train_dataset": texts(tokenizer, 64, 0), "eval_dataset": texts(tokenizer, 40, 1)} | given
    model = model or classifier(tokenizer)
    return kind(model, TrainingArguments(str(folder), **chosen), processing_class=tokenizer, **given)


def language(folder, tokenizer, kind, args=None, **given):
    """An evaluation of a language model as `run_clm.py` has it."""
    data = {"train_dataset": blocks(tokenizer, 24), "eval_dataset": blocks(tokenizer, 16)}
    data["data_collator"] = DataCollatorForLanguageModeling(tokenizer, mlm=False)
    return trainer(folder, tokenizer, causal(vocab_size=len(tokenizer)), kind, args, **data | given)


def parameters(trainer):
    return torch.nn.utils.parameters_to_vector(trainer.model.parameters()).detach()


# --- examples


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


@pytest.mark.parametrize("name", ["glue_trainer.py", "glue_descent.py"])
def test_an_example_trains_and_saves_a_model_of_the_librarys(tmp_path, tokenizer, name, monkeypatch, capsys):
    classifier(tokenizer, max_position_embeddings=128).save_pretrained(tmp_path / "start")
    tokenizer.save_pretrained(tmp_path / "start")
    (tmp_path / "data").mkdir()
    for side, count, seed in (("train", 60, 0), ("validation", 30, 1)):
        rows = [f"{row['text']}\t{row['label']}" for row in generate_reviews(count, seed)]
        (tmp_path / "data" / f"{side}.tsv").write_text("\n".join(["sentence\tlabel", *rows]) + "\n")
    monkeypatch.setattr(sys, "argv", [name, *(str(tmp_path / part) for part in ("start", "data", "out"))])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    said = capsys.readouterr().out
    assert "'eval_loss'" in said and ("'eval_feasible'" in said) == (name == "glue_descent.py")
    kind = AutoModelForSequenceClassification
    trained, started = (kind.from_pretrained(tmp_path / side).parameters() for side in ("out", "start"))
    assert not any(torch.equal(one, other) for one, other in zip(trained, started, strict=True))
    assert AutoTokenizer.from_pretrained(tmp_path / "out")("the film was good")["input_ids"]


@pytest.mark.parametrize("kind", [Trainer, DescentTrainer])
def test_run_glue(tmp_path, tokenizer, kind):
    settings = {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps"}
    metric = lambda p: {"accuracy_of_script": float((p.predictions.argmax(1) == p.label_ids).mean())}  # noqa: E731
    ours = trainer(tmp_path, tokenizer, classifier(tokenizer, "bert"), kind, settings, compute_metrics=metric)
    metrics = ours.train(resume_from_checkpoint=None).metrics | {"train_samples": 40}
    ours.save_model()
    ours.log_metrics("train", metrics)
    ours.save_metrics("train", metrics)
    ours.save_state()
    found = ours.evaluate(eval_dataset=ours.eval_dataset)
    ours.log_metrics("eval", found)
    ours.save_metrics("eval", found)
    predicted = ours.predict(texts(tokenizer, 10, 2).remove_columns("label"), metric_key_prefix="predict")
    ours.create_model_card(finetuned_from="small", tasks="text-classification")
    assert {"eval_loss", "eval_accuracy_of_script", "eval_runtime", "eval_samples_per_second"} <= found.keys()
    assert predicted.predictions.shape == (10, 2) and predicted.label_ids is None
    written = {path.name for path in tmp_path.iterdir()}
    assert {"model.safetensors", "README.md", "all_results.json", "trainer_state.json", "eval_results.json"} <= written


@pytest.mark.parametrize("kind", [SFTTrainer, DescentSFTTrainer])
def test_trls_own_script(tmp_path, tokenizer, monkeypatch, kind):
    """The script as TRL installs it, from its command line to the saved model."""
    causal(vocab_size=len(tokenizer)).save_pretrained(tmp_path / "start")
    tokenizer.save_pretrained(tmp_path / "start")
    (tmp_path / "data").mkdir()
    for side, count in (("train", 16), ("test", 8)):
        rows = [json.dumps({"text": row["text"]}) for row in generate_reviews(count, 3)]
        (tmp_path / "data" / f"{side}.jsonl").write_text("\n".join(rows))
    monkeypatch.setattr(trl, "SFTTrainer", kind)
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    flags = f"--model_name_or_path {tmp_path}/start --dataset_name {tmp_path}/data --output_dir {tmp_path}/out "
    flags += "--max_steps 4 --per_device_train_batch_size 4 --eval_strategy steps --eval_steps 2 --logging_steps 1 "
    flags += "--use_cpu --bf16 false --report_to none --use_peft --lora_target_modules q_proj v_proj --dtype float32"
    sft.main(*sft.make_parser().parse_args_and_config(flags.split()))
    assert (tmp_path / "out" / "adapter_model.safetensors").is_file()
    state = json.loads((tmp_path / "out" / "checkpoint-4" / "trainer_state.json").read_text())
    names = {name for row in state["log_history"] for name in row}
    assert {"loss", "mean_token_accuracy", "entropy", "num_tokens", "eval_mean_token_accuracy"} <= names
    assert ("multiplier/1" in names) == (kind is DescentSFTTrainer)


# --- predictions and metrics


def padded(tokenizer):
    """Texts of 3 to 8 tokens."""
    rows = [list(range(5, 8 + place)) for place in range(6)]
    return Dataset.from_list([{"input_ids": row} for row in rows])


@pytest.mark.parametrize(
    ("args", "given"),
    [
        ({}, {"compute_metrics": None}),
        ({}, {"preprocess_logits_for_metrics": lambda logits, labels: logits.argmax(dim=-1)}),
        ({}, {"preprocess_logits_for_metrics": lambda logits, labels: (logits.argmax(-1), logits.logsumexp(-1))}),
        ({"batch_eval_metrics": True, "include_for_metrics": ["loss"]}, {}),
        ({"eval_do_concat_batches": False}, {}),
        ({"per_device_eval_batch_size": 2}, {"eval_dataset": padded}),
    ],
    ids=["predict", "argmax", "tuple", "batch by batch", "left apart", "padded"],
)
def test_predictions_and_what_metrics_see_are_those_of_trainer(tmp_path, tokenizer, args, given):
    given = {name: value(tokenizer) if value is padded else value for name, value in given.items()}
    found = {}
    for kind in (Trainer, DescentTrainer):
        seen = found[kind] = []

        def compute(prediction, compute_result=True, seen=seen):
            seen.append((prediction.predictions, prediction.label_ids, compute_result))
            return {"batches": len(seen)}

        settings = {"per_device_eval_batch_size": 6} | args
        one = language(tmp_path, tokenizer, kind, settings, **{"compute_metrics": compute} | given)
        metrics = one.evaluate()
        assert metrics.get("eval_batches", 0) == len(seen)
        predicted = one.predict(one.eval_dataset)
        seen.append((predicted.predictions, predicted.label_ids, True))
    for theirs, ours in zip(*found.values(), strict=True):
        for one, other in zip(*(torch.utils._pytree.tree_leaves(each) for each in (theirs, ours)), strict=True):
            np.testing.assert_allclose(np.asarray(other), np.asarray(one), rtol=1e-4, atol=1e-5)


def accuracy(prediction):
    return {"share": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


def test_metrics_are_the_last_layers_and_evaluations_leave_the_dual(tmp_path, tokenizer):
    ours = trainer(tmp_path, tokenizer, compute_metrics=accuracy)
    ours.train()
    before = ours.dual.state_dict()
    metrics = ours.evaluate()
    assert metrics["eval_share"] == pytest.approx(metrics["eval_accuracy"])
    predicted = ours.predict(texts(tokenizer, 20, 2))
    batch = tokenizer.pad([{"input_ids": row["input_ids"]} for row in texts(tokenizer, 20, 2)], return_tensors="pt")
    expected = ours.objective.model.network.eval()(**batch).logits
    np.testing.assert_allclose(predicted.predictions, expected.detach().numpy(), rtol=1e-4, atol=1e-5)
    assert predicted.metrics["test_share"] == accuracy(predicted)["share"]
    after = ours.dual.state_dict()
    assert torch.equal(before["totals"], after["totals"]) and before["steps"] == after["steps"]


def test_several_evaluation_sets_have_metrics_of_their_own(tmp_path, tokenizer):
    """Names that compute_metrics gives are kept; data given by hand, a test set, leave no trace."""
    sets = {"one": texts(tokenizer, 20, 1), "two": texts(tokenizer, 30, 2)}
    metric = lambda given: {"eval_one_f1": 0.5, "shape": float(given.predictions.ndim)}  # noqa: E731
    prepare = {"preprocess_logits_for_metrics": lambda logits, labels: logits.argmax(-1), "compute_metrics": metric}
    ours = trainer(tmp_path, tokenizer, eval_dataset=sets, **prepare)
    metrics = ours.evaluate()
    assert {"eval_one_loss", "eval_two_loss", "eval_two_feasible"} <= metrics.keys()
    assert metrics["eval_one_f1"] == 0.5 and metrics["eval_one_shape"] == 1
    written = [json.loads(line) for line in (tmp_path / "records.jsonl").read_text().splitlines()]
    assert {row["split"] for row in written} == {"validation one", "validation two"}
    for given in (sets["one"], "one"):
        assert ours.evaluate(given)["eval_loss"] == pytest.approx(metrics["eval_one_loss"])
    assert len((tmp_path / "records.jsonl").read_text().splitlines()) == len(written)


def test_a_metric_that_no_evaluation_gives_is_named_with_those_there_are(tmp_path, tokenizer):
    """What compute_metrics returns is known when it was called: in a warm-up, too."""

    def train(name):
        best = {"eval_strategy": "steps", "eval_steps": 1, "metric_for_best_model": name}
        args = DescentConfig(str(tmp_path), max_steps=2, dual_warmup_steps=1, **QUIET | best)
        given = {"train_dataset": texts(tokenizer, 16, 0), "eval_dataset": texts(tokenizer, 8, 1)}
        given |= {"processing_class": tokenizer, "compute_metrics": lambda _: {"share": 0.5}}
        ours = DescentTrainer(classifier(tokenizer), args, **given)
        ours.train()
        return ours.state

    with pytest.raises(InputError, match=r"accuracy, .*loss, .*share.*; got 'f1'"):
        train("f1")
    assert train("share").best_metric == 0.5


def test_the_best_feasible_model_is_chosen_on_the_trainers_own_data_alone(tmp_path, tokenizer):
    easy = DescentConfig(str(tmp_path), alpha="1e-9", first_layer=2, max_steps=2, **QUIET)
    model = classifier(tokenizer)
    with torch.no_grad():  # the last layer but one reads as noise, the last as next to nothing
        for weight in model.distilbert.transformer.layer[-1].output_layer_norm.parameters():
            weight.zero_()
        for layer in (model.pre_classifier, model.classifier):
            layer.weight.mul_(100)
    data = {"train_dataset": texts(tokenizer, 16, 0), "eval_dataset": texts(tokenizer, 40, 1)}
    ours = DescentTrainer(model, easy, processing_class=tokenizer, **data)
    ours.evaluate(texts(tokenizer, 30, 2))
    assert ours.verdict.feasible and not (tmp_path / "best_feasible").exists()
    ours.evaluate()
    assert ours.verdict.feasible and (tmp_path / "best_feasible" / "tokenizer.json").is_file()


def test_the_measurement_does_not_depend_on_how_samples_are_batched(tmp_path, tokenizer):
    ours = trainer(tmp_path, tokenizer, noise=0.5, args={"per_device_eval_batch_size": 1})
    alone = ours._measure(ours._evaluation_loader(ours.eval_dataset))
    ours.args.per_device_eval_batch_size = 40
    together = ours._measure(ours._evaluation_loader(ours.eval_dataset))
    torch.testing.assert_close(together.losses, alone.losses, rtol=1e-4, atol=1e-5)


# --- arguments, data and noise


def test_plain_arguments_stand_for_the_default_problem(tmp_path, tokenizer):
    ours = trainer(tmp_path, tokenizer, args={"weight_decay": 0.02})
    defaults = DescentConfig(output_dir=str(tmp_path), report_to="none")
    assert ours.args.weight_decay == 0.02 and ours.args.method == "constrained"
    assert ours.args.problem(3).alpha == defaults.problem(3).alpha
    assert ours.args.primal_dual(3)._kind == defaults.primal_dual(3)._kind


def test_a_number_for_the_noise_is_gaussian_and_follows_the_embedding(tmp_path, tokenizer):
    ours = trainer(tmp_path, tokenizer, noise=0.5)
    assert isinstance(ours.objective.noise, GaussianNoise) and ours.objective.noise.sigma is None
    before = ours.sigma
    ids = np.concatenate(ours.train_dataset["input_ids"])
    words = ours.objective.model.get_input_embeddings().weight[ids].double()
    assert before == pytest.approx(words.std(correction=0).item(), rel=1e-6)
    with torch.no_grad():
        ours.objective.model.get_input_embeddings().weight.mul_(3)
    assert ours.sigma == pytest.approx(3 * before, rel=1e-5)
    ours.train()
    assert ours.evaluate()["eval_loss"] > 0


@pytest.mark.parametrize("family", ["distilbert", "bert", "roberta", "adapters"])
def test_noise_reaches_the_embedding_through_every_door(tokenizer, family):
    """Of a model's own call, of its layers, under adapters and with embedded words, for real tokens alone."""
    plain = adapted(tokenizer).eval() if family == "adapters" else classifier(tokenizer, family).eval()
    batch = tokenizer(["the film was good", "dull"], padding=True, return_tensors="pt")
    model, mask, noise = LayeredClassifier(plain), batch["attention_mask"].bool(), GaussianNoise(1.0, 0.3, seed=1)
    embedded = model.get_input_embeddings()(batch["input_ids"])
    by_words = {"inputs_embeds": embedded, "attention_mask": batch["attention_mask"]}
    with torch.no_grad():
        expected = plain(**by_words | {"inputs_embeds": noise(embedded, mask, [4, 5])}).logits
        clean = plain(**batch).logits
        for inputs in (batch, by_words):
            with noise.on(model, mask=mask, indices=[4, 5]):
                *_, layered = model.predictions(inputs)
                whole = plain(**inputs).logits
            torch.testing.assert_close(layered, expected)
            torch.testing.assert_close(whole, expected)
        assert not torch.allclose(expected, clean) and torch.equal(plain(**batch).logits, clean)


@pytest.mark.parametrize("family", ["distilbert", "bert", "roberta"])
def test_activations_computed_again_change_nothing(tmp_path, tokenizer, family):
    still = dict.fromkeys(STILL, 0.0)
    trainers = [
        trainer(tmp_path, tokenizer, classifier(tokenizer, family, **still), args={"gradient_checkpointing": again})
        for again in (False, True)
    ]
    for each in trainers:
        each.train()
    torch.testing.assert_close(*map(parameters, trainers), rtol=1e-4, atol=1e-5)


def test_streams_and_samples_made_when_fetched(tmp_path, tokenizer):
    stream = texts(tokenizer, 64, 0).to_iterable_dataset()
    ours = trainer(tmp_path, tokenizer, train_dataset=stream, noise=0.5)
    ours.train()
    assert ours.state.global_step == 4 and ours.evaluate()["eval_loss"] > 0
    lazy = Dataset.from_list(generate_reviews(32, 0)).with_transform(
        lambda rows: {**tokenizer(rows["text"], truncation=True, max_length=60), "labels": rows["label"]}
    )
    made = trainer(tmp_path, tokenizer, train_dataset=lazy, noise=0.5, args={"remove_unused_columns": False})
    made.train()
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
    args = {"save_strategy": "steps", "save_steps": 2, "eval_strategy": "steps", "eval_steps": 2, "bf16": True}
    args |= {"neftune_noise_alpha": 5.0}
    ours = trainer(tmp_path, tokenizer, model, Rates, args, callbacks=[look])
    batch = tokenizer(["the film was good", "dull"], padding=True, return_tensors="pt")
    batch["labels"] = torch.tensor([1, 0])
    forward = model.forward
    for _ in range(2):
        ours.predict(texts(tokenizer, 4, 2))
        ours.train()
        assert len(ours.optimizer.param_groups[0]["params"]) == 2 and ours.model is model
    ours.evaluate()
    assert ours.model is ours.callback_handler.model is model and {id(each) for each in look.seen} == {id(model)}
    assert len(look.seen) == 2 * (1 + 4 + 2 + 2 + 1) + 1
    assert not ours.model.training, "as Trainer leaves it after an evaluation"
    found = ours.model(**batch)
    assert found.loss.dtype == torch.float32 and torch.equal(found.loss, ours.model(**batch).loss)
    assert ours.model.forward == forward and ours.model.num_parameters() > 0 and ours.state.total_flos > 0
    ours.model.save_pretrained(tmp_path / "by hand")
    assert AutoModelForSequenceClassification.from_pretrained(tmp_path / "by hand").num_labels == 2


@pytest.mark.parametrize("family", ["distilbert", "bert", "roberta"])
def test_a_classifier_is_saved_as_the_librarys_own(tmp_path, tokenizer, family):
    ours = trainer(tmp_path, tokenizer, classifier(tokenizer, family), noise=0.5)
    ours.train()
    metrics = ours.evaluate()
    assert 0 <= metrics["eval_accuracy"] <= 1 and len(ours.verdict.violations) == 3
    ours.save_model(str(tmp_path / "model"))
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path / "model").state_dict()
    assert all(torch.equal(loaded[name], value) for name, value in ours.model.state_dict().items())


def test_adapters_are_what_is_trained_and_saved(tmp_path, tokenizer):
    model = adapted(tokenizer)
    before = {name: value.clone() for name, value in model.named_parameters()}
    ours = trainer(tmp_path, tokenizer, model, noise=0.5)
    ours.train()
    certified = tmp_path / CERTIFIED_FILE
    certified.write_text('{"threshold": 0.9, "risk": 0.1, "confidence": 0.9, "noise": 0}')  # of the weights before
    ours.save_model()
    assert not certified.exists() and (ours.dual.multipliers > 0).any()
    moved = {name for name, value in model.named_parameters() if not torch.equal(value, before[name])}
    learned = {name for name in before if "lora_" in name or "modules_to_save" in name}
    assert moved == learned and any("lora_A" in name for name in moved)
    assert (tmp_path / "adapter_model.safetensors").is_file() and not (tmp_path / "model.safetensors").exists()
    loaded = PeftModel.from_pretrained(classifier(tokenizer), tmp_path).eval()
    batch = tokenizer(["the film was good", "dull plot"], return_tensors="pt", padding=True)
    expected = list(LayeredClassifier(model.eval()).predictions(batch))
    torch.testing.assert_close(list(LayeredClassifier(loaded).predictions(batch)), expected)
    torch.testing.assert_close(expected[-1], model(**batch).logits)
