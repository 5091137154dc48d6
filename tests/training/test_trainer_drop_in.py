"""A script for transformers' Trainer, its Trainer replaced: the library's models, arguments and data as they are."""

import json
import runpy
import sys
from difflib import unified_diff
from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import Dataset
from peft import LoraConfig, PeftModel, TaskType, get_peft_model
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    TrainerCallback,
    TrainingArguments,
)

from descend import DescentConfig, DescentTrainer, GaussianNoise
from descend.errors import InputError
from descend.models import LayeredClassifier
from descend.results import CERTIFIED_FILE
from descend.tasks.text import generate_reviews, learn_tokenizer
from tests.support.networks import network

EXAMPLES = Path(__file__).parents[2] / "examples"
QUIET = {"report_to": "none", "disable_tqdm": True, "use_cpu": True, "save_strategy": "no"}


@pytest.fixture(scope="module")
def tokenizer():
    made = learn_tokenizer(row["text"] for row in generate_reviews(200, 0))
    made.model_input_names = ["input_ids", "attention_mask"]
    return made


def texts(tokenizer, count, seed):
    """As `map` leaves them: the text and a number that no model takes are still there."""
    rows = Dataset.from_list(generate_reviews(count, seed))
    rows = rows.add_column("idx", list(range(count)))
    return rows.map(lambda batch: tokenizer(batch["text"], truncation=True, max_length=60), batched=True)


def classifier(tokenizer, family="distilbert", **settings):
    sizes = {"vocab_size": len(tokenizer), "max_position_embeddings": 64} | settings
    return network(family, labels=2, **sizes)


def trainer(folder, tokenizer, model, kind=DescentTrainer, args=None, **settings):
    chosen = {
        "max_steps": 4,
        "per_device_train_batch_size": 8,
        "learning_rate": 1e-3,
        "seed": 0,
        **QUIET,
        **(args or {}),
    }
    given = {"train_dataset": texts(tokenizer, 64, 0), "eval_dataset": texts(tokenizer, 40, 1)} | settings
    return kind(model, TrainingArguments(str(folder), **chosen), processing_class=tokenizer, **given)


# --- examples


def test_the_examples_differ_in_the_trainer_alone():
    plain, ours = ((EXAMPLES / name).read_text().splitlines() for name in ("glue_trainer.py", "glue_descent.py"))
    changed = [
        line
        for line in unified_diff(plain, ours, n=0, lineterm="")
        if line[0] in "+-" and line[1:3] not in ("--", "++")
    ]
    code = [line for line in changed if '"""' not in line and "examples/" not in line and line[1:].strip()]
    assert code == [
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
    assert "'eval_loss'" in said
    assert ("'eval_feasible'" in said) == (name == "glue_descent.py")
    trained = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out")
    started = AutoModelForSequenceClassification.from_pretrained(tmp_path / "start")
    moved = [not torch.equal(one, other) for one, other in zip(trained.parameters(), started.parameters(), strict=True)]
    assert all(moved)
    assert AutoTokenizer.from_pretrained(tmp_path / "out")("the film was good")["input_ids"]


# --- what Trainer's users have in their scripts


def accuracy(prediction):
    return {"share": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


def test_compute_metrics_and_predict_are_those_of_the_last_layer(tmp_path, tokenizer):
    ours = trainer(tmp_path, tokenizer, classifier(tokenizer), compute_metrics=accuracy)
    ours.train()
    before = ours.dual.state_dict()
    metrics = ours.evaluate()
    assert metrics["eval_share"] == pytest.approx(metrics["eval_accuracy"])
    predicted = ours.predict(texts(tokenizer, 20, 2))
    with torch.no_grad():
        batch = tokenizer.pad([{"input_ids": row["input_ids"]} for row in texts(tokenizer, 20, 2)], return_tensors="pt")
        expected = ours.objective.model.network.eval()(**batch).logits
    np.testing.assert_allclose(predicted.predictions, expected.numpy(), rtol=1e-4, atol=1e-5)
    assert predicted.metrics["test_share"] == accuracy(predicted)["share"]
    # The multipliers are those of training alone.
    after = ours.dual.state_dict()
    assert torch.equal(before["totals"], after["totals"]) and before["steps"] == after["steps"]


def test_what_has_no_labels_can_be_predicted(tmp_path, tokenizer):
    ours = trainer(tmp_path, tokenizer, classifier(tokenizer))
    found = ours.predict(texts(tokenizer, 10, 2).remove_columns("label"))
    assert found.predictions.shape == (10, 2) and found.label_ids is None


def test_several_evaluation_sets_have_metrics_of_their_own(tmp_path, tokenizer):
    sets = {"one": texts(tokenizer, 20, 1), "two": texts(tokenizer, 30, 2)}
    ours = trainer(tmp_path, tokenizer, classifier(tokenizer), eval_dataset=sets)
    metrics = ours.evaluate()
    assert {"eval_one_loss", "eval_two_loss", "eval_two_feasible"} <= metrics.keys()
    written = [json.loads(line) for line in (tmp_path / "records.jsonl").read_text().splitlines()]
    assert {row["split"] for row in written} == {"validation one", "validation two"}
    # Data given by hand, a test set, leave no trace.
    assert metrics["eval_one_loss"] == pytest.approx(ours.evaluate(sets["one"])["eval_loss"])
    assert len((tmp_path / "records.jsonl").read_text().splitlines()) == len(written)


def test_the_best_feasible_model_is_chosen_on_the_trainers_own_data_alone(tmp_path, tokenizer):
    easy = DescentConfig(str(tmp_path), alpha="1e-9", first_layer=2, max_steps=2, **QUIET)
    model = classifier(tokenizer)
    with torch.no_grad():  # the last layer but one reads as noise, the last as next to nothing
        model.distilbert.transformer.layer[-1].output_layer_norm.weight.zero_()
        model.distilbert.transformer.layer[-1].output_layer_norm.bias.zero_()
        model.pre_classifier.weight.mul_(100)
        model.classifier.weight.mul_(100)
    data = {"train_dataset": texts(tokenizer, 16, 0), "eval_dataset": texts(tokenizer, 40, 1)}
    ours = DescentTrainer(model, easy, processing_class=tokenizer, **data)
    ours.evaluate(texts(tokenizer, 30, 2))
    assert ours.verdict.feasible and not (tmp_path / "best_feasible").exists()
    ours.evaluate()
    assert ours.verdict.feasible and (tmp_path / "best_feasible" / "tokenizer.json").is_file()


def test_plain_arguments_stand_for_the_default_problem(tmp_path, tokenizer):
    ours = trainer(tmp_path, tokenizer, classifier(tokenizer), args={"weight_decay": 0.02})
    defaults = DescentConfig(output_dir=str(tmp_path), report_to="none")
    assert ours.args.weight_decay == 0.02 and ours.args.method == "constrained"
    assert ours.args.problem(3).alpha == defaults.problem(3).alpha
    assert ours.args.primal_dual(3)._kind == defaults.primal_dual(3)._kind


def test_a_number_for_the_noise_is_gaussian_and_follows_the_embedding(tmp_path, tokenizer):
    ours = trainer(tmp_path, tokenizer, classifier(tokenizer), noise=0.5)
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


@pytest.mark.parametrize("family", ["distilbert", "bert", "roberta"])
def test_activations_computed_again_change_nothing(tmp_path, tokenizer, family):
    drops = [
        "dropout",
        "attention_dropout",
        "seq_classif_dropout",
        "hidden_dropout_prob",
        "attention_probs_dropout_prob",
    ]
    models = [classifier(tokenizer, family, **dict.fromkeys(drops, 0.0)) for _ in range(2)]
    for model, again in zip(models, (False, True), strict=True):
        trainer(tmp_path / str(again), tokenizer, model, args={"gradient_checkpointing": again}).train()
    for one, other in zip(*(model.parameters() for model in models), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_what_scripts_ask_of_the_trainers_model(tmp_path, tokenizer):
    model = classifier(tokenizer)
    seen = []

    class Look(TrainerCallback):
        def on_train_begin(self, args, state, control, model=None, **kwargs):
            seen.append(model.config.model_type)

    ours = trainer(tmp_path, tokenizer, model, callbacks=[Look()], args={"neftune_noise_alpha": 5.0})
    ours.train()
    assert seen == ["distilbert"] and ours.model is model
    ours.create_model_card()
    ours.model.save_pretrained(tmp_path / "by hand")
    assert AutoModelForSequenceClassification.from_pretrained(tmp_path / "by hand").num_labels == 2
    metrics = ours.evaluate()
    assert {"eval_runtime", "eval_samples_per_second"} <= metrics.keys()


def test_the_trainers_model_is_the_users_before_in_and_after_training(tmp_path, tokenizer):
    model, seen = classifier(tokenizer), []

    class Look(TrainerCallback):
        def look(self, args, state, control, model=None, **kwargs):
            seen.append(model)

        on_train_begin = on_step_end = on_evaluate = on_save = on_train_end = look

    class Rates(DescentTrainer):
        def create_optimizer(self):
            head = [each for name, each in self.model.named_parameters() if name.startswith("classifier.")]
            rest = [each for name, each in self.model.named_parameters() if not name.startswith("classifier.")]
            self.optimizer = torch.optim.AdamW([{"params": head, "lr": 1e-2}, {"params": rest, "lr": 1e-3}])
            return self.optimizer

    args = {"save_strategy": "steps", "save_steps": 2, "eval_strategy": "steps", "eval_steps": 2, "bf16": True}
    ours = trainer(tmp_path, tokenizer, model, kind=Rates, callbacks=[Look()], args=args)
    batch = tokenizer(["the film was good", "dull"], padding=True, return_tensors="pt")
    batch["labels"] = torch.tensor([1, 0])
    forward = model.forward
    for _ in range(2):
        assert ours.model is model
        ours.predict(texts(tokenizer, 4, 2))
        ours.train()
        assert len(ours.optimizer.param_groups[0]["params"]) == 2
    ours.evaluate()
    assert ours.model is ours.callback_handler.model is model and {id(each) for each in seen} == {id(model)}
    assert len(seen) == 2 * (1 + 4 + 2 + 2 + 1) + 1
    assert not ours.model.training, "as Trainer leaves it after an evaluation"
    found = ours.model(**batch)
    assert found.loss.dtype == torch.float32 and torch.equal(found.loss, ours.model(**batch).loss)
    assert ours.model.forward == forward and ours.model.num_parameters() > 0
    assert ours.state.total_flos > 0


def test_metrics_keep_their_names_and_their_logits_are_prepared(tmp_path, tokenizer):
    ours = trainer(
        tmp_path,
        tokenizer,
        classifier(tokenizer),
        eval_dataset={"one": texts(tokenizer, 20, 1)},
        preprocess_logits_for_metrics=lambda logits, labels: logits.argmax(-1),
        compute_metrics=lambda given: {"eval_one_f1": 0.5, "shape": float(given.predictions.ndim)},
    )
    metrics = ours.evaluate()
    assert metrics["eval_one_f1"] == 0.5 and metrics["eval_one_shape"] == 1
    assert ours.evaluate("one")["eval_shape"] == 1
    with pytest.raises(InputError, match=r"eval_dataset.*one.*'two'"):
        ours.evaluate("two")


def test_streams_and_samples_made_when_fetched(tmp_path, tokenizer):
    stream = texts(tokenizer, 64, 0).to_iterable_dataset()
    ours = trainer(tmp_path, tokenizer, classifier(tokenizer), train_dataset=stream, noise=0.5)
    ours.train()
    assert ours.state.global_step == 4 and ours.evaluate()["eval_loss"] > 0
    lazy = Dataset.from_list(generate_reviews(32, 0)).with_transform(
        lambda rows: {**tokenizer(rows["text"], truncation=True, max_length=60), "labels": rows["label"]}
    )
    made = trainer(
        tmp_path, tokenizer, classifier(tokenizer), train_dataset=lazy, noise=0.5, args={"remove_unused_columns": False}
    )
    made.train()
    assert made.sigma > 0


def test_inputs_embeds_have_their_noise_through_the_objective(tokenizer):
    ids = tokenizer(["the film was good", "dull"], padding=True, return_tensors="pt")
    for family in ("distilbert", "bert", "roberta"):
        model = LayeredClassifier(classifier(tokenizer, family).eval())
        embedded = model.get_input_embeddings()(ids["input_ids"])
        inputs = {"inputs_embeds": embedded, "attention_mask": ids["attention_mask"]}
        mask, noise = ids["attention_mask"].bool(), GaussianNoise(1.0, 0.3, seed=1)
        with torch.no_grad():
            *_, clean = model.predictions(inputs)
            with noise.on(model, mask=mask, indices=[4, 5]):
                *_, layered = model.predictions(inputs)
                whole = model(**inputs).logits
            noisy = inputs | {"inputs_embeds": noise(embedded, mask, [4, 5])}
            expected = model(**noisy).logits
        assert not torch.allclose(layered, clean)
        torch.testing.assert_close(layered, expected)
        torch.testing.assert_close(whole, expected)


# --- PEFT


def adapted(tokenizer):
    return get_peft_model(
        classifier(tokenizer), LoraConfig(task_type=TaskType.SEQ_CLS, r=4, target_modules=["q_lin", "v_lin"])
    )


def test_adapters_are_what_is_trained_and_saved(tmp_path, tokenizer):
    model = adapted(tokenizer)
    frozen = model.get_base_model().distilbert.transformer.layer[0].attention.q_lin.base_layer.weight.clone()
    lora = [parameter.clone() for name, parameter in model.named_parameters() if "lora_A" in name]
    ours = trainer(tmp_path, tokenizer, model, noise=0.5, args={"save_strategy": "steps", "save_steps": 2})
    ours.train()
    certified = Path(ours.args.output_dir) / CERTIFIED_FILE
    certified.write_text('{"threshold": 0.9, "risk": 0.1, "confidence": 0.9, "noise": 0}')  # of the weights before
    ours.save_model()
    assert not certified.exists()
    assert (ours.dual.multipliers > 0).any()
    assert torch.equal(frozen, model.get_base_model().distilbert.transformer.layer[0].attention.q_lin.base_layer.weight)
    trained = [parameter for name, parameter in model.named_parameters() if "lora_A" in name]
    assert not any(torch.equal(one, other) for one, other in zip(lora, trained, strict=True))
    assert (tmp_path / "adapter_model.safetensors").is_file() and not (tmp_path / "model.safetensors").exists()
    loaded = PeftModel.from_pretrained(classifier(tokenizer), tmp_path).eval()
    batch = tokenizer(["the film was good", "dull plot"], return_tensors="pt", padding=True)
    expected = list(LayeredClassifier(model.eval()).predictions(batch))
    torch.testing.assert_close(list(LayeredClassifier(loaded).predictions(batch)), expected)
    torch.testing.assert_close(expected[-1], model(**batch).logits)
    again = trainer(
        tmp_path, tokenizer, adapted(tokenizer), noise=0.5, args={"save_strategy": "steps", "save_steps": 2}
    )
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    for one, other in zip(ours.objective.parameters(), again.objective.parameters(), strict=True):
        assert torch.equal(one, other)


def test_noise_reaches_the_embedding_under_adapters(tokenizer):
    model = adapted(tokenizer).eval()
    batch = tokenizer(["the film was good"], return_tensors="pt")
    noise = GaussianNoise(1.0, 0.1, seed=2)
    with torch.no_grad():
        clean = model(**batch).logits
        with noise.on(LayeredClassifier(model), mask=batch["attention_mask"], indices=[3]):
            *_, layered = LayeredClassifier(model).predictions(batch)
        with noise.on(model, indices=[3]):
            noisy = model(**batch).logits
        assert not torch.allclose(noisy, clean)
        assert torch.equal(model(**batch).logits, clean)
        x = model.get_base_model().get_input_embeddings()(batch["input_ids"])
        by_hand = model(inputs_embeds=noise(x, indices=[3]), attention_mask=batch["attention_mask"]).logits
    assert torch.equal(noisy, by_hand)
    torch.testing.assert_close(layered, noisy)


# --- bad input


def test_a_metric_that_no_evaluation_gives_is_named_with_those_there_are(tmp_path, tokenizer):
    """What compute_metrics returns is known when it was called: in a warm-up, too."""

    def train(name):
        best = {"eval_strategy": "steps", "eval_steps": 1, "metric_for_best_model": name}
        args = DescentConfig(str(tmp_path), max_steps=2, dual_warmup_steps=1, **QUIET | best)
        given = {"train_dataset": texts(tokenizer, 16, 0), "eval_dataset": texts(tokenizer, 8, 1)}
        ours = DescentTrainer(
            classifier(tokenizer), args, processing_class=tokenizer, compute_metrics=lambda _: {"share": 0.5}, **given
        )
        ours.train()
        return ours.state

    with pytest.raises(InputError, match=r"accuracy, .*loss, .*share.*; got 'f1'"):
        train("f1")
    assert train("share").best_metric == 0.5
