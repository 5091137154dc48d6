"""Model, task, noise and data are checked as a whole, before the first step."""

import json
import random

import numpy as np
import pytest
import torch
from datasets import Dataset
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader
from transformers import BertForSequenceClassification, LlamaForCausalLM, default_data_collator

from descend import DescentConfig, DescentTrainer, GaussianNoise, Task, evaluate
from descend.errors import InputError
from descend.models import LayeredModel
from descend.objective import Objective
from descend.tasks.text import Classification, TokenClassification
from tests.support.networks import QUIET, causal, network
from tests.support.own import Classes, ResidualMLP, layers, mlp, samples


def trainer(folder, model=None, task=None, data=None, noise=0.5, held_out=None, **settings):
    args = DescentConfig(str(folder), **{"max_steps": 3, "per_device_train_batch_size": 8, **QUIET, **settings})
    data = samples(32) if data is None else data
    model = layers() if model is None else model
    held_out = samples(16, 1) if held_out is None else held_out
    return DescentTrainer(model, args, task=task or Classes(), noise=noise, train_dataset=data, eval_dataset=held_out)


def test_a_data_loader_is_no_data_set(tmp_path):
    with pytest.raises(InputError, match="the training data are a DataLoader; give the data set in it"):
        trainer(tmp_path, data=DataLoader(samples(8)))


# --- the seven attempts of the first user who brought a model and a task of their own


def test_the_smallest_task_trains_measures_and_saves(tmp_path):
    """`check`, `sigma`, `owners`, `decide` and `save_pretrained` were each an AttributeError after some steps."""
    ours = trainer(tmp_path, save_strategy="steps", save_steps=2, eval_strategy="steps", eval_steps=2)
    ours.train()
    metrics = ours.evaluate()
    assert np.isfinite(metrics["eval_loss"]) and metrics["eval_feasible"] in (0.0, 1.0)
    assert ours.sigma > 0
    ours.save_model(str(tmp_path / "saved"))
    saved = ResidualMLP()
    saved.load_state_dict(load_file(tmp_path / "saved" / "model.safetensors"))
    for one, other in zip(saved.parameters(), ours.objective.model.saved.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_resumed_run_of_ones_own_model_is_bit_identical(tmp_path):
    settings = {"save_strategy": "steps", "save_steps": 2, "max_steps": 4}
    whole = trainer(tmp_path / "whole", **settings)
    whole.train()
    again = trainer(tmp_path / "whole", **settings)
    again.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2"))
    for one, other in zip(whole.objective.parameters(), again.objective.parameters(), strict=True):
        assert torch.equal(one, other)
    assert torch.equal(whole.dual.multipliers, again.dual.multipliers)


def test_tied_weights_of_ones_own_model_are_stored_once_and_loaded(tmp_path):
    model = mlp()
    model.blocks[1].linear.weight = model.blocks[0].linear.weight
    settings = {"save_strategy": "steps", "save_steps": 2, "max_steps": 2}
    trainer(tmp_path, layers(model), **settings).train()
    names = load_file(tmp_path / "checkpoint-2" / "model.safetensors").keys()
    assert "blocks.0.linear.weight" in names and "blocks.1.linear.weight" not in names
    again = mlp()
    again.blocks[1].linear.weight = again.blocks[0].linear.weight
    trainer(tmp_path, layers(again), **(settings | {"max_steps": 3})).train(
        resume_from_checkpoint=str(tmp_path / "checkpoint-2")
    )


def test_blocks_in_self_blocks_are_all_trained(tmp_path):
    ours = trainer(tmp_path)
    before = [each.clone() for each in ours.objective.model.saved.blocks.parameters()]
    ours.train()
    assert ours.objective.model.depth == 3
    after = ours.objective.model.saved.blocks.parameters()
    assert all(not torch.equal(one, other) for one, other in zip(before, after, strict=True))


# --- one message for all that is missing


def test_all_that_is_missing_is_named_at_once(tmp_path):
    class Loose:
        def losses(self, prediction, target):
            return prediction

    args = DescentConfig(str(tmp_path), **QUIET)
    with pytest.raises(InputError) as error:
        DescentTrainer(mlp(), args, task=Loose(), noise="loud", train_dataset=samples(4))
    for word in ("ResidualMLP", "descend.layered", "descend.Task", "Loose", "'loud'", "guide 'Your own model'"):
        assert word in str(error.value)


@pytest.mark.parametrize(
    ("task", "names"),
    [(None, "task.*descend.Task"), (Classes, "Classes.*call it"), (3, "descend.Task.*int")],
)
def test_a_task_that_is_none(task, names):
    with pytest.raises(InputError, match=names):
        Objective(layers(), task)


def test_noise_without_a_place_is_refused_before_any_step(tmp_path):
    with pytest.raises(InputError, match="embeddings"):
        trainer(tmp_path, layers(embeddings=None))
    assert trainer(tmp_path, layers(embeddings=None), noise=None).sigma is None


def wrong(**methods):
    return type("Wrong", (Classes,), methods)()


@pytest.mark.parametrize(
    ("methods", "names"),
    [
        ({"losses": lambda self, p, t: F.cross_entropy(p, t)}, r"Wrong.losses.*\(2,\).*reduction='none'.*\(\)"),
        ({"score": lambda self, p, t: p}, r"Wrong.score.*\(2,\).*\(2, 3\)"),
        ({"target": lambda self, batch: batch["clean"]}, "Wrong.target.*'clean'.*x, labels.*Wrong.fields"),
        ({"owners": lambda self, batch: torch.arange(3)}, "Wrong.owners.*2.*3"),
        ({"decide": lambda self, p: (p.argmax(-1)[:1], p.amax(-1))}, "Wrong.decide.*2"),
        ({"inputs": lambda self, batch: {"y": batch["x"]}}, "ResidualMLP.*TypeError.*'x'"),
        ({"metric": 3}, "metric.*3"),
    ],
)
def test_a_task_that_does_not_fit_is_refused_before_any_step(tmp_path, methods, names):
    with pytest.raises(InputError, match=names):
        trainer(tmp_path, task=wrong(**methods))


def test_a_readout_that_fails_is_not_blamed_on_the_module_alone(tmp_path):
    with pytest.raises(InputError, match=r"ResidualMLP or its readout fails on the training data: AttributeError"):
        trainer(tmp_path, layers(readout=lambda hidden: hidden.nothing))


def several(**methods):
    """A task with two targets for each sample, both its class."""
    twice = {"target": lambda self, batch: batch["labels"].repeat_interleave(2)}
    twice["losses"] = lambda self, p, t: F.cross_entropy(p.repeat_interleave(2, 0), t, reduction="none")
    return type("Several", (Task,), twice | methods)()


def test_several_targets_of_a_sample_need_owners(tmp_path):
    """Without them each target would count as a sample of its own, and intervals would be too narrow."""
    with pytest.raises(InputError, match=r"Several.target.*2 samples.*Several.owners.*4 rows"):
        trainer(tmp_path, task=several())
    owners = lambda self, batch: torch.arange(len(batch["labels"])).repeat_interleave(2)  # noqa: E731
    trainer(tmp_path, task=several(owners=owners))


def test_one_loss_for_all_targets_is_refused_although_it_has_their_shape(tmp_path):
    mean = wrong(losses=lambda self, p, t: F.cross_entropy(p, t).expand(len(t)))
    with pytest.raises(InputError, match=r"Wrong.losses.*\(2,\).*expanded"):
        trainer(tmp_path, task=mean)


@pytest.mark.parametrize("group", ["clip a", 1.5])
def test_a_group_is_a_whole_number(tmp_path, group):
    """The default collator drops a text: each sample would be a group of its own."""
    data = [sample | {"group": group} for sample in samples(16)]
    with pytest.raises(InputError, match=f"group.*whole number.*{group!r}.*evaluation data"):
        trainer(tmp_path, held_out=data)
    trainer(tmp_path, held_out=[sample | {"group": place // 2} for place, sample in enumerate(data)])


def test_groups_of_a_known_model_are_checked_too(tmp_path):
    data = [{"input_ids": [5, 6, 7], "labels": place % 3, "group": f"text {place}"} for place in range(8)]
    args = DescentConfig(str(tmp_path), **QUIET)
    with pytest.raises(InputError, match=r"group.*'text 0'"):
        DescentTrainer(network("bert"), args, train_dataset=data)


@pytest.mark.parametrize("name", ["head", "norm", "blocks.1"])
def test_noise_after_the_first_block_is_refused(tmp_path, name):
    with pytest.raises(InputError, match=r"embeddings.*before the first block"):
        trainer(tmp_path, layers(embeddings=name))


def test_noise_on_whole_numbers_names_their_type(tmp_path):
    class Words(ResidualMLP):
        def __init__(self):
            super().__init__()
            self.words, self.embed = nn.Identity(), nn.Embedding(4, 8)

        def forward(self, x):
            return super().forward(self.words(x))

    data = [{"x": place % 4, "labels": place % 3} for place in range(8)]
    model = Words()
    with pytest.raises(InputError, match=r"embeddings.*real numbers.*torch.int64.*nn.Embedding"):
        trainer(tmp_path, layers(model, embeddings="words"), data=data, held_out=data)
    trainer(tmp_path, layers(model), data=data, held_out=data)


def test_a_field_of_another_name_is_told_with_those_there_are(tmp_path):
    data = [{"points": sample["x"], "labels": sample["labels"]} for sample in samples(8)]
    with pytest.raises(InputError, match=r"ResidualMLP.*'x'.*fields points, labels.*Classes.inputs"):
        trainer(tmp_path, data=data, held_out=data)


def test_several_faults_of_a_task_come_together(tmp_path):
    faults = wrong(losses=lambda self, p, t: p.mean(), decide=lambda self, p: (p, p[:1]))
    with pytest.raises(InputError, match=r"(?s)2 things.*losses.*decide.*Your own model"):
        trainer(tmp_path, task=faults)


def test_the_guide_to_your_own_model_is_named_only_where_it_helps(tmp_path):
    for task, named in ((None, False), (Classes(), True)):
        with pytest.raises(InputError) as error:
            Objective(network("bert"), task, noise="loud")
        assert ("Your own model" in str(error.value)) is named
    rows = [{"input_ids": [5, 6]}]
    with pytest.raises(InputError, match="label") as error:
        DescentTrainer(network("bert"), DescentConfig(str(tmp_path), **QUIET), train_dataset=rows)
    assert "Your own model" not in str(error.value)


@pytest.mark.parametrize("data", [[{"x": torch.rand(4)}], [{"labels": 1}], [torch.rand(4), torch.rand(4)]])
def test_samples_that_do_not_fit(tmp_path, data):
    with pytest.raises(InputError):
        trainer(tmp_path, data=data)


def test_samples_without_names_are_told_what_they_need(tmp_path):
    with pytest.raises(InputError, match=r"tuple.*dictionaries"):
        trainer(tmp_path, data=[(torch.rand(4), 1)] * 8)
    with pytest.raises(InputError, match=r"every sample.*labels"):
        trainer(tmp_path, data=[{"x": torch.rand(4)}] * 8)


def test_no_training_sample_is_refused_before_training(tmp_path):
    with pytest.raises(InputError, match=r"train_dataset.*0"):
        trainer(tmp_path, data=[])


def test_a_readout_of_several_tensors_is_refused(tmp_path):
    network = mlp()
    model = layers(network, readout=lambda hidden: {"logits": network.head(network.norm(hidden))})
    with pytest.raises(InputError, match=r"readout.*dict"):
        trainer(tmp_path, model=model)


def test_a_field_that_the_task_names_is_not_dropped(tmp_path):
    class Restored(Task):
        fields = ("clean",)

        def target(self, batch):
            return batch["clean"]

        def losses(self, prediction, target):
            return (prediction - target).square().mean(-1)

    data = [{"x": torch.rand(4), "clean": torch.rand(3), "name": 3} for _ in range(16)]
    ours = trainer(tmp_path, task=Restored(), data=data, held_out=data)
    ours.train()
    assert np.isfinite(ours.evaluate()["eval_loss"])


def test_checking_draws_no_random_number_and_leaves_the_model_as_it_was(tmp_path):
    class Drawing(list):
        def __getitem__(self, place):
            random.random(), np.random.rand(), torch.rand(3)
            return super().__getitem__(place)

    model = layers().train()
    model.saved.head.eval()
    objective = Objective(model, Classes(), GaussianNoise(0.5))
    states = random.getstate(), np.random.get_state()[1].copy(), torch.get_rng_state()
    collate = torch.utils.data.default_collate
    objective.check_data({"data": Drawing(samples(4))}, collate, noise=True)
    assert random.getstate() == states[0] and (np.random.get_state()[1] == states[1]).all()
    assert torch.equal(torch.get_rng_state(), states[2])
    assert model.training and model.saved.embed.training and not model.saved.head.training
    clean = torch.zeros(2, 3)
    assert torch.equal(objective.noise(clean), GaussianNoise(0.5)(clean))  # it has drawn nothing yet


def test_a_subclass_without_depth_or_readout():
    class Bare(LayeredModel):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def get_input_embeddings(self):
            return self.linear

        def layer_outputs(self, inputs):
            return (self.linear(inputs["x"]),)

    with pytest.raises(InputError, match=r"(?s)Bare.depth.*Bare.readout"):
        Objective(Bare(), Classes())


class Subclass(LayeredModel):
    """A model of ones own without `descend.layered`, and without a forward pass."""

    def __init__(self):
        super().__init__()
        self.inside = mlp()
        self.depth = len(self.inside.blocks)

    def get_input_embeddings(self):
        return self.inside.embed

    def layer_outputs(self, inputs):
        states = [self.inside.embed(inputs["x"])]
        for block in self.inside.blocks:
            states.append(block(states[-1]))
        return tuple(states)

    def readout(self, hidden):
        return self.inside.head(self.inside.norm(hidden))


def test_a_subclass_needs_no_forward(tmp_path):
    ours = trainer(tmp_path, Subclass())
    ours.train()
    assert np.isfinite(ours.evaluate()["eval_loss"])


class OwnLoss(DescentTrainer):
    """As many scripts around Transformers' Trainer have it."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        return F.cross_entropy(model(x=inputs["x"]), inputs["labels"])


def test_a_compute_loss_that_calls_the_model_is_told_what_to_do(tmp_path):
    args = DescentConfig(str(tmp_path), max_steps=1, **QUIET)
    with pytest.raises(InputError, match=r"compute_loss.*task=.*super\(\)\.compute_loss"):
        OwnLoss(layers(), args, task=Classes(), train_dataset=samples(8)).train()


def test_a_function_that_makes_the_model_is_refused(tmp_path):
    args = DescentConfig(str(tmp_path), **QUIET)
    for given in ({}, {"model": None}):
        with pytest.raises(InputError, match=r"model_init.*model=model_init\(\)"):
            DescentTrainer(args=args, model_init=layers, train_dataset=samples(8), **given)


def test_a_stream_is_not_read_before_training(tmp_path):
    class Stream(torch.utils.data.IterableDataset):
        begun = 0

        def __iter__(self):
            Stream.begun += 1
            yield from samples(64)

    ours = trainer(tmp_path, data=Stream())
    assert Stream.begun == 0
    ours.train()


# --- subclasses of supported models with outputs of their own


class Weighted(BertForSequenceClassification):
    """Class weights in the loss, as many notebooks have it."""

    def forward(self, input_ids=None, attention_mask=None, labels=None, **kwargs):
        found = super().forward(input_ids=input_ids, attention_mask=attention_mask, **kwargs)
        if labels is not None:
            found["loss"] = F.cross_entropy(found.logits, labels, weight=torch.tensor([1.0, 1.0, 5.0]))
        return found


class Scaled(BertForSequenceClassification):
    def forward(self, *args, **kwargs):
        found = super().forward(*args, **kwargs)
        found.logits = found.logits / 2
        return found


class Same(BertForSequenceClassification):
    def forward(self, *args, **kwargs):
        return super().forward(*args, **kwargs)


class Penalized(BertForSequenceClassification):
    """A penalty that is next to nothing while logits are near 0, as those of a new head are."""

    def forward(self, input_ids=None, attention_mask=None, labels=None, **kwargs):
        found = super().forward(input_ids=input_ids, attention_mask=attention_mask, labels=labels, **kwargs)
        if labels is not None:
            found["loss"] = found.loss + 0.1 * found.logits.square().mean()
        return found


class Smoothed(LlamaForCausalLM):
    @property
    def loss_function(self):
        return lambda logits, labels, **others: 2 * F.cross_entropy(logits.flatten(0, 1), labels.flatten())


class WeightedTask(Classification):
    def losses(self, prediction, target):
        return F.cross_entropy(prediction, target, weight=torch.tensor([1.0, 1.0, 5.0]), reduction="none")


def subclass(kind):
    torch.manual_seed(0)
    return kind((causal() if kind is Smoothed else network("bert")).config)


@pytest.mark.parametrize(
    ("kind", "task", "match"),
    [
        (Weighted, None, r"Weighted.*loss.*task="),
        (Penalized, None, r"Penalized.*loss.*task="),
        (Scaled, None, r"Scaled.*logits"),
        (Scaled, Classification(), r"Scaled.*logits"),
        (Smoothed, None, r"Smoothed.*loss"),
    ],
)
def test_outputs_of_a_subclass_are_refused_unless_a_task_gives_the_loss(kind, task, match):
    with pytest.raises(InputError, match=match):
        Objective(subclass(kind), task)
    if kind is Weighted:
        assert Objective(subclass(kind), WeightedTask()).model.depth == 3


def test_a_loss_function_that_is_set_is_refused():
    model = causal()
    model.loss_function = lambda logits, labels, **others: logits.sum()
    with pytest.raises(InputError, match=r"Llama.*loss"):
        Objective(model)


def test_a_subclass_that_changes_nothing_is_taken_and_draws_nothing():
    model = subclass(Same).train()
    torch.manual_seed(5)
    before = torch.get_rng_state()
    objective = Objective(model)
    assert torch.equal(torch.get_rng_state(), before) and model.training and objective.model.depth == 3
    assert Objective(network("bert")).model.depth == Objective(causal()).model.depth == 3


def test_records_of_ones_own_run_are_those_of_any_other(tmp_path):
    trainer(tmp_path, logging_steps=1).train()
    rows = [json.loads(line) for line in (tmp_path / "records.jsonl").read_text().splitlines()]
    assert {row["layer"] for row in rows if row["metric"] == "loss"} == {0, 1, 2, 3}


# --- noise and places follow the samples


class Times(nn.Module):
    """A recurrent kind of model: time steps before samples, as `nn.TransformerEncoder` has them by default."""

    def __init__(self, first="samples", calls=1):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.calls = first, calls
        self.embed, self.head = nn.Linear(3, 8), nn.Linear(8, 3)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(2))

    def forward(self, x, attention_mask=None):
        turned = {"samples": x, "times": x.transpose(0, 1), "both": x.flatten(0, 1), "none": x[:1]}[self.first]
        hidden = sum(self.embed(turned) for _ in range(self.calls))
        hidden = hidden.unflatten(0, x.shape[:2]) if self.first == "both" else hidden
        for block in self.blocks:
            hidden = block(hidden)
        return self.read(hidden)

    def read(self, hidden):
        return self.head(hidden.mean(0 if self.first == "times" else 1)).expand(hidden.shape[self.first == "times"], 3)


def of_times(first="samples", calls=1):
    network = Times(first, calls)
    return layers(network, readout=network.read, embeddings="embed")


def sequences(times, count=16, **fields):
    torch.manual_seed(1)
    return [{"x": torch.rand(times, 3), "labels": place % 3, **fields} for place in range(count)]


@pytest.mark.parametrize("times", [1, 2, 3, 8])  # 2 and 3 are the trial's numbers of samples, 8 is that of a batch
@pytest.mark.parametrize("first", ["times", "both", "none"])
def test_noise_that_would_not_follow_the_samples_is_refused(tmp_path, first, times):
    """Samples before time steps, one row for each sample, are taken: their loss does not depend on the batch."""
    if (first, times) != ("both", 1):  # samples are the rows there
        data = sequences(times)
        with pytest.raises(InputError, match=r"embeddings, must have a row for each sample.*batch_first=True"):
            trainer(tmp_path, of_times(first), data=data, held_out=data)
        trainer(tmp_path, of_times("times"), data=data, held_out=data, noise=None)
    few, many = (
        trainer(tmp_path, of_times(), data=sequences(times), held_out=sequences(times), per_device_eval_batch_size=size)
        for size in (2, 8)
    )
    assert few.evaluate()["eval_loss"] == pytest.approx(many.evaluate()["eval_loss"], rel=1e-6)


@pytest.mark.parametrize(
    ("model", "fields", "match"),
    [
        (of_times(calls=2), {}, r"embeddings must run once.*2 calls"),
        (of_times(), {"attention_mask": torch.ones(4)}, r"mask.*\(2, 5\).*\(2, 4\).*Classes.mask"),
    ],
)
def test_noise_has_one_output_and_its_mask(tmp_path, model, fields, match):
    data = sequences(5, **fields)
    with pytest.raises(InputError, match=match):
        trainer(tmp_path, model, data=data, held_out=data)


def test_a_batch_with_time_first_is_refused(tmp_path):
    """`pad_sequence` puts time first by default; the model may turn it."""

    class Turning(Times):
        def forward(self, x):
            return super().forward(x.transpose(0, 1))

    def collate(rows):
        x = nn.utils.rnn.pad_sequence([row["x"] for row in rows])
        return {"x": x, "labels": torch.tensor([row["labels"] for row in rows])}

    network = Turning()
    model = layers(network, readout=network.read, embeddings="embed")
    args, data = DescentConfig(str(tmp_path), **QUIET), sequences(2)
    with pytest.raises(InputError, match=r"first tensor of a batch must have a row for each sample"):
        DescentTrainer(model, args, task=Classes(), noise=1.0, train_dataset=data, data_collator=collate)


def test_places_of_targets_are_found_only_where_samples_come_first(tmp_path):
    class Tags(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.blocks = nn.Embedding(9, 8), nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8)])
            self.head = nn.Linear(8, 3)

        def forward(self, input_ids):
            hidden = self.words(input_ids.T)
            for block in self.blocks:
                hidden = block(hidden)
            return self.head(hidden)

    data = [{"input_ids": [1, 2, 3], "labels": [0, 1, 2]}] * 4
    model = layers(Tags(), readout="head", embeddings="words")
    with pytest.raises(InputError, match=r"output of a block must have a row for each sample.*\(3, 2, 8\)"):
        trainer(tmp_path, model, TokenClassification(), data, noise=None, held_out=data)


def test_noise_of_samples_needs_a_row_for_each():
    with pytest.raises(InputError, match=r"each of 2 samples.*\(5, 2, 8\)"):
        GaussianNoise(1.0, 1.0)(torch.zeros(5, 2, 8), indices=[0, 1])


# --- what the collator makes


def tokenized(rows, labels=True):
    """Makes tokens of words, cuts long texts, and makes classes of names."""
    ids = torch.tensor([[5 + len(word) % 9 for word in row["text"].split()[:4]] for row in rows])
    return {"input_ids": ids} | ({"labels": torch.tensor([len(row["kind"]) % 3 for row in rows])} if labels else {})


TEXTS = [{"text": "a good film of mine", "kind": "good"}, {"text": "no very bad film", "kind": "bad"}] * 8
LONG = [{"input_ids": [5] * (30 if place == 9 else 3), "label": "abc"[place % 3]} for place in range(16)]


def cut(rows):
    """Cuts long rows, and numbers their classes."""
    return {
        "input_ids": torch.tensor([row["input_ids"][:3] for row in rows]),
        "labels": torch.tensor(["abc".index(row["label"]) for row in rows]),
    }


def test_neftunes_strength_follows_from_tokens_that_samples_have(tmp_path):
    args = DescentConfig(str(tmp_path), method="neftune", remove_unused_columns=False, **QUIET)
    with pytest.raises(InputError, match=r"tokenized training data.*neftune_noise_alpha"):
        DescentTrainer(network("bert"), args, noise=0.5, train_dataset=TEXTS, data_collator=tokenized)


def doubled(rows):
    """Labels that are the tokens, as `DataCollatorForLanguageModeling(mlm=False)` makes them."""
    ids = torch.tensor([row["input_ids"] for row in rows])
    return {"input_ids": ids, "labels": ids.clone()}


@pytest.mark.parametrize("kind", [Dataset.from_list, list])
@pytest.mark.parametrize(
    ("model", "rows", "collate", "fault"),
    [
        ("bert", TEXTS, tokenized, None),
        ("bert", LONG, cut, None),
        ("llama", [{"input_ids": [5, 6, 7]}] * 8, doubled, None),
        ("llama", [{"input_ids": [5, 6, 70]}] * 8, doubled, r"sample 0 has token 70"),
        ("bert", TEXTS, lambda rows: tokenized(rows, labels=False), r"must have input_ids; got text, kind"),
        ("bert", [{"input_ids": [5]}] * 4, default_data_collator, r"must have labels or label.*data_collator"),
    ],
)
def test_labels_and_tokens_may_come_from_the_collator(tmp_path, kind, model, rows, collate, fault):
    """As with Transformers' Trainer: what counts is the batch."""
    model = network("bert") if model == "bert" else causal()
    data, noise = kind(rows), 0.5
    args = DescentConfig(
        str(tmp_path), max_steps=1, per_device_train_batch_size=4, remove_unused_columns=False, **QUIET
    )
    given = {"train_dataset": data, "eval_dataset": data, "data_collator": collate, "noise": noise}
    if fault:
        with pytest.raises(InputError, match=fault):
            DescentTrainer(model, args, **given)
        return
    ours = DescentTrainer(model, args, **given)
    ours.train()
    assert ours.sigma > 0 and np.isfinite(ours.evaluate()["eval_loss"])
    assert evaluate(ours.model, data, collate=collate, out=tmp_path / "plain").samples >= len(data)
