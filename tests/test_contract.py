"""Model, task, noise and data are checked as a whole, before the first step."""

import numpy as np
import pytest
import torch
from datasets import Dataset, DatasetDict
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import DataLoader, default_collate
from transformers import BertForSequenceClassification, LlamaForCausalLM, default_data_collator

from descend import DescentConfig, DescentTrainer, GaussianNoise, InputError, LayeredModel, Objective, Task, evaluate
from descend.tasks.text import Classification, TokenClassification
from tests.support.cases import slow_but
from tests.support.networks import QUIET, causal, network
from tests.support.own import Classes, ResidualMLP, Whole, layers, mlp, samples
from tests.support.tagging import Tagger


def trainer(folder, model=None, task=None, data=None, noise=0.5, held_out=None, collate=None, **settings):
    args = DescentConfig(str(folder), **{"max_steps": 3, "per_device_train_batch_size": 8, **QUIET, **settings})
    data = samples(32) if data is None else data
    return DescentTrainer(
        layers() if model is None else model,
        args,
        task=task or Classes(),
        noise=noise,
        train_dataset=data,
        eval_dataset=data if held_out is None else held_out,
        data_collator=collate,
    )


# --- what the first user met who brought a model and a task of their own


def tied():
    model = mlp()
    model.blocks[1].linear.weight = model.blocks[0].linear.weight
    return layers(model)


@pytest.mark.parametrize("model", [layers, Whole, tied])
def test_the_smallest_task_trains_measures_saves_and_resumes(tmp_path, model):
    """Of tied weights the file holds one."""
    settings = {"save_strategy": "steps", "save_steps": 2, "eval_strategy": "steps", "eval_steps": 2}
    ours = trainer(tmp_path, model(), **settings)
    saved = ours.objective.model.saved
    before = [each.clone() for each in saved.parameters()]
    ours.train()
    metrics = ours.evaluate()
    assert np.isfinite(metrics["eval_loss"]) and metrics["eval_feasible"] in (0.0, 1.0) and ours.sigma > 0
    assert not any(torch.equal(one, other) for one, other in zip(before, saved.parameters(), strict=True))
    ours.save_model(str(tmp_path / "saved"))
    loaded = load_file(tmp_path / "saved" / "model.safetensors")
    assert all(torch.equal(loaded[name], saved.state_dict()[name]) for name in loaded)
    assert saved.state_dict().keys() - loaded.keys() == ({"blocks.1.linear.weight"} if model is tied else set())
    trainer(tmp_path, model(), **settings).train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))


# --- one message for all that does not fit


def wrong(**methods):
    return type("Wrong", (Classes,), methods)()


def several(**methods):
    """A task with two targets for each sample, both its class."""
    twice = {
        "target": lambda self, batch: batch["labels"].repeat_interleave(2),
        "losses": lambda self, p, t: nn.functional.cross_entropy(p.repeat_interleave(2, 0), t, reduction="none"),
    }
    return type("Several", (Task,), twice | methods)()


class Bare(LayeredModel):
    get_input_embeddings = layer_outputs = lambda self: None


class Words(ResidualMLP):
    def __init__(self):
        super().__init__()
        self.words, self.embed = nn.Identity(), nn.Embedding(4, 8)

    def forward(self, x):
        return super().forward(self.words(x))


NUMBERS = [{"x": place % 4, "labels": place % 3} for place in range(8)]


class Times(nn.Module):
    """A recurrent kind of model: time steps before samples, as `nn.TransformerEncoder` has them by default."""

    def __init__(self, first="samples", calls=1):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.calls = first, calls
        self.embed, self.head = nn.Linear(3, 8), nn.Linear(8, 3)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(2))

    def forward(self, x, attention_mask=None):
        x = x.transpose(0, 1) if self.first == "turned" else x
        turned = {"times": x.transpose(0, 1), "both": x.flatten(0, 1), "none": x[:1]}.get(self.first, x)
        hidden = sum(self.embed(turned) for _ in range(self.calls))
        hidden = hidden.unflatten(0, x.shape[:2]) if self.first == "both" else hidden
        for block in self.blocks:
            hidden = block(hidden)
        return self.read(hidden)

    def read(self, hidden):
        return self.head(hidden.mean(0 if self.first == "times" else 1)).expand(hidden.shape[self.first == "times"], 3)


class Sized(ResidualMLP):
    """Keeps what it made for the first batch."""

    scale = None

    def forward(self, x):
        self.scale = torch.ones(len(x), 1) if self.scale is None else self.scale
        return super().forward(x * self.scale)


class Short(GaussianNoise):
    def draw(self, like, generator):
        return super().draw(like, generator)[missing]  # noqa: F821


def of_times(first="samples", calls=1):
    network = Times(first, calls)
    return layers(network, readout=network.read, embeddings="embed")


def sequences(times, count=16, **fields):
    torch.manual_seed(1)
    return [{"x": torch.rand(times, 3), "labels": place % 3, **fields} for place in range(count)]


def time_first(rows):
    """`pad_sequence` puts time first by default."""
    x = nn.utils.rnn.pad_sequence([row["x"] for row in rows])
    return {"x": x, "labels": torch.tensor([row["labels"] for row in rows])}


class Turned(Tagger):
    """Time steps before samples in every block."""

    def forward(self, input_ids):
        return super().forward(input_ids.T)


MISFITS = {
    "a data loader": (lambda: {"data": DataLoader(samples(8))}, "training data are a DataLoader; give the data set in"),
    "several data sets": (
        lambda: {"data": DatasetDict(train=Dataset.from_list(samples(8)), test=Dataset.from_list(samples(8)))},
        r"training data are several data sets: train, test. Give one, as data\['train'\]",
    ),
    "columns": (
        lambda: {"data": {"x": [[0.0] * 4] * 8, "labels": [0] * 8}},
        r"training data are a dictionary of x, labels. Give a list of samples, or datasets.Dataset.from_dict",
    ),
    "no data": (lambda: {"data": []}, r"train_dataset.*0"),
    "all at once": (
        lambda: {"model": mlp(), "task": 3, "noise": "loud"},
        r"(?s)ResidualMLP.*descend\.layered.*'loud'.*descend\.Task.*int.*guide 'Your own model'",
    ),
    "a task's class": (lambda: {"task": Classes}, r"Classes.*call it"),
    "a model without depth and readout": (lambda: {"model": Bare()}, r"(?s)Bare.depth.*Bare.readout"),
    "noise without a place": (lambda: {"model": layers(embeddings=None)}, "embeddings"),
    # The task.
    "a mean": (
        lambda: {"task": wrong(losses=lambda self, p, t: nn.functional.cross_entropy(p, t))},
        r"Wrong.losses.*\(2,\).*reduction='none'.*\(\)",
    ),
    "an expanded mean": (
        lambda: {"task": wrong(losses=lambda self, p, t: nn.functional.cross_entropy(p, t).expand(len(t)))},
        r"Wrong.losses.*\(2,\).*expanded",
    ),
    "complex losses": (
        lambda: {"task": wrong(losses=lambda self, p, t: torch.complex(p, p).mean(1))},
        r"Wrong.losses must return real numbers; got complex ones",
    ),
    "a score of classes": (lambda: {"task": wrong(score=lambda self, p, t: p)}, r"Wrong.score.*\(2,\).*\(2, 3\)"),
    "a target that is not there": (
        lambda: {"task": wrong(target=lambda self, batch: batch["clean"])},
        "Wrong.target.*'clean'.*x, labels.*Wrong.fields",
    ),
    "too many owners": (lambda: {"task": wrong(owners=lambda self, batch: torch.arange(3))}, "Wrong.owners.*2.*3"),
    "too few decisions": (
        lambda: {"task": wrong(decide=lambda self, p: (p.argmax(-1)[:1], p.amax(-1)))},
        "Wrong.decide.*2",
    ),
    "other inputs": (
        lambda: {"task": wrong(inputs=lambda self, batch: {"y": batch["x"]})},
        "ResidualMLP.*TypeError.*'x'",
    ),
    "a metric without a name": (lambda: {"task": wrong(metric=3)}, "metric.*3"),
    "two faults": (
        lambda: {"task": wrong(losses=lambda self, p, t: p.mean(), decide=lambda self, p: (p, p[:1]))},
        r"(?s)2 things.*losses.*decide.*Your own model",
    ),
    "targets without owners": (lambda: {"task": several()}, r"Several.target.*2 samples.*Several.owners.*4 rows"),
    # The readout and the embedding.
    "a readout that fails": (
        lambda: {"model": layers(readout=lambda hidden: hidden.nothing)},
        r"ResidualMLP or its readout fails on the training data: AttributeError",
    ),
    "a readout of several tensors": (
        lambda: {"model": layers(readout=lambda hidden: {"logits": hidden})},
        r"readout.*dict",
    ),
    **{
        f"noise after {name}": (lambda name=name: {"model": layers(embeddings=name)}, "embeddings.*before the first")
        for name in ("head", "norm", "blocks.1")
    },
    "noise on whole numbers": (
        lambda: {"model": layers(Words(), embeddings="words"), "data": NUMBERS},
        r"embeddings.*real numbers.*torch.int64.*nn.Embedding",
    ),
    "two calls of the embedding": (
        lambda: {"model": of_times(calls=2), "data": sequences(5)},
        r"embeddings must run once.*2 calls",
    ),
    "another mask": (
        lambda: {"model": of_times(), "data": sequences(5, attention_mask=torch.ones(4))},
        r"mask.*\(2, 5\).*\(2, 4\).*Classes.mask",
    ),
    "a noise that fails": (lambda: {"noise": Short(0.5)}, "Short.draw fails on the training data: NameError.*missing"),
    "a cache for one batch size": (
        lambda: {"model": layers(Sized()), "noise": None},
        r"Sized or its readout fails on the training data: RuntimeError.*\(4\).*\(2\)",
    ),
    "losses of another kind": (lambda: {"task": wrong(losses=lambda self, p, t: None)}, "Wrong.losses.*a NoneType"),
    # Samples.
    "a field of another name": (
        lambda: {"model": layers(), "data": [{"points": row["x"], "labels": row["labels"]} for row in samples(8)]},
        r"ResidualMLP.*'x'.*fields points, labels.*Classes.inputs",
    ),
    "a dictionary in a sample": (
        lambda: {
            "data": [{"batch": {"x": torch.rand(4)}, "labels": 1}] * 8,
            "task": wrong(fields=("batch",)),
            "collate": default_data_collator,
        },
        "batch is a dictionary: give its entries as fields, name them in Wrong.fields, .* in Wrong.inputs",
    ),
    "a compiled model": (lambda: {"model": torch.compile(mlp())}, "what torch.compile made of one"),
    "a model in DataParallel": (lambda: {"model": nn.DataParallel(mlp())}, r"a DataParallel around one.*its \.module"),
    "a name": (lambda: {"model": "bert-base-uncased"}, "got the text 'bert-base-uncased'"),
    "no labels": (lambda: {"data": [{"x": torch.rand(4)}] * 8}, r"every sample.*labels"),
    "labels alone": (lambda: {"data": [{"labels": 1}]}, None),
    "tensors": (lambda: {"data": [torch.rand(4)] * 2}, None),
    "tuples": (lambda: {"data": [(torch.rand(4), 1)] * 8}, r"tuple.*dictionaries"),
    # The default collator drops a text: each sample would be a group of its own.
    **{
        f"a group {group!r}": (
            lambda group=group: {"held_out": [row | {"group": group} for row in samples(8)]},
            f"group.*whole number.*{group!r}.*evaluation data",
        )
        for group in ("clip a", 1.5)
    },
    "a batch with time first": (
        lambda: {"model": of_times("turned"), "data": sequences(2), "collate": time_first},
        "first tensor of a batch must have a row for each sample",
    ),
    "places where time is first": (
        lambda: {
            "model": layers(Turned(), readout="head", embeddings="words"),
            "task": TokenClassification(),
            "data": [{"input_ids": [1, 2, 3], "labels": [0, 1, 2]}] * 4,
            "noise": None,
        },
        r"output of a block must have a row for each sample.*\(3, 2, 16\)",
    ),
}


@pytest.mark.parametrize("case", MISFITS)
def test_what_does_not_fit_is_refused_before_any_step(case, tmp_path):
    given, message = MISFITS[case]
    with pytest.raises(InputError, match=message):
        trainer(tmp_path, **given())


class Stream(torch.utils.data.IterableDataset):
    begun = 0

    def __iter__(self):
        Stream.begun += 1
        yield from samples(64)


FITTING = {
    "no noise and no place for it": lambda: {"model": layers(embeddings=None), "noise": None},
    "owners of several targets": lambda: {
        "task": several(owners=lambda self, batch: torch.arange(len(batch["labels"])).repeat_interleave(2))
    },
    "groups": lambda: {"held_out": [row | {"group": place // 2} for place, row in enumerate(samples(16))]},
    "an embedding of whole numbers": lambda: {"model": layers(Words()), "data": NUMBERS},
    "a field that the task names": lambda: {
        "task": wrong(
            fields=("clean",),
            target=lambda self, batch: batch["clean"],
            losses=lambda self, p, t: (p - t).square().mean(-1),
        ),
        "model": layers(),
        "data": [{"x": torch.rand(4), "clean": torch.rand(3), "name": 3} for _ in range(16)],
    },
    "a stream": lambda: {"data": Stream(), "held_out": samples(16)},
}


@pytest.mark.parametrize("case", FITTING)
def test_what_fits_is_trained_and_not_read_before(case, tmp_path):
    ours = trainer(tmp_path, **FITTING[case]())
    assert Stream.begun == 0
    ours.train()
    assert np.isfinite(ours.evaluate()["eval_loss"])


class Counting(ResidualMLP):
    """Counts its passes and draws from the global generator, in eval mode too."""

    def __init__(self):
        super().__init__()
        self.register_buffer("passes", torch.zeros(()))
        self.register_buffer("last", torch.zeros(()), persistent=False)

    def forward(self, x):
        self.passes += 1
        self.last = x.mean()
        return super().forward(nn.functional.dropout(x, 0.5))


def test_checking_leaves_the_model_its_noise_and_all_draws_as_they_were():
    model = layers(Counting()).train()
    model.saved.head.eval()
    objective = Objective(model, Classes(), GaussianNoise(0.5))
    parts = dict(model.named_parameters()) | dict(model.named_buffers())
    before, draws = {name: part.clone() for name, part in parts.items()}, torch.get_rng_state()
    objective.check_data({"data": samples(4)}, default_collate, noise=True)
    assert model.training and model.saved.embed.training and not model.saved.head.training
    after = dict(model.named_parameters()) | dict(model.named_buffers())
    assert all(after[name] is part and torch.equal(part, before[name]) for name, part in parts.items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(torch.get_rng_state(), draws) and not model.saved._forward_hooks
    clean = torch.zeros(2, 3)
    assert torch.equal(objective.noise(clean), GaussianNoise(0.5)(clean))  # it has drawn nothing yet


# --- noise follows the samples


@pytest.mark.parametrize("times", [1, 2, 3, 8])  # 2 and 3 are the trial's numbers of samples, 8 is that of a batch
@pytest.mark.parametrize("first", ["times", "both", "none"])
def test_noise_that_would_not_follow_the_samples_is_refused(tmp_path, first, times):
    """Samples before time steps, one row for each sample, are taken: their loss does not depend on the batch."""
    data = sequences(times)
    if (first, times) != ("both", 1):  # samples are the rows there
        with pytest.raises(InputError, match=r"embeddings, must have a row for each sample.*batch_first=True"):
            trainer(tmp_path, of_times(first), data=data)
        trainer(tmp_path, of_times("times"), data=data, noise=None)
    few, many = (trainer(tmp_path, of_times(), data=data, per_device_eval_batch_size=size) for size in (2, 8))
    assert few.evaluate()["eval_loss"] == pytest.approx(many.evaluate()["eval_loss"], rel=1e-6)


# --- subclasses of supported models with outputs of their own


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
        return lambda logits, labels, **others: 2 * nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def subclass(kind):
    """A model of this class; of None, one whose loss function is set."""
    torch.manual_seed(0)
    model = causal()
    model.loss_function = lambda logits, labels, **others: logits.sum()
    return model if kind is None else kind((model if kind is Smoothed else network("bert")).config)


@pytest.mark.parametrize(
    ("kind", "task", "match"),
    [
        (Penalized, None, r"Penalized.*loss.*task="),
        (Scaled, None, r"Scaled.*logits"),
        (Scaled, Classification(), r"Scaled.*logits"),
        (Smoothed, None, r"Smoothed.*loss"),
        (None, None, r"Llama.*loss"),
    ],
)
def test_outputs_of_a_subclass_are_refused_unless_a_task_gives_the_loss(kind, task, match):
    with pytest.raises(InputError, match=match):
        Objective(subclass(kind), task)


@pytest.mark.parametrize(("kind", "task"), [(Same, None), (Penalized, Classification())])
def test_a_subclass_with_known_outputs_is_taken_and_draws_nothing(kind, task):
    model = subclass(kind).train()
    before = torch.get_rng_state()
    objective = Objective(model, task)
    assert torch.equal(torch.get_rng_state(), before) and model.training and objective.model.depth == 3


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


def doubled(rows):
    """Labels that are the tokens, as `DataCollatorForLanguageModeling(mlm=False)` makes them."""
    ids = torch.tensor([row["input_ids"] for row in rows])
    return {"input_ids": ids, "labels": ids.clone()}


COLLATED = {
    "words": (Dataset.from_list(TEXTS), tokenized, {}, None),
    "long rows": (LONG, cut, {}, None),
    "tokens as labels": (Dataset.from_list([{"input_ids": [5, 6, 7]}] * 8), doubled, {}, None),
    "no such token": ([{"input_ids": [5, 6, 70]}] * 8, doubled, {}, r"sample 0 has token 70"),
    "no labels made": (TEXTS, lambda rows: tokenized(rows, labels=False), {}, r"must have input_ids; got text, kind"),
    "no labels": (
        Dataset.from_list([{"input_ids": [5]}] * 4), default_data_collator, {}, r"must have labels or label.*collator",
    ),
    "groups by name": (
        [{"input_ids": [5, 6], "labels": 1, "group": "text 0"}] * 8, default_data_collator, {}, r"group.*'text 0'",
    ),
    "neftune": (TEXTS, tokenized, {"method": "neftune"}, r"tokenized training data.*neftune_noise_alpha"),
}  # fmt: skip


@pytest.mark.parametrize("case", slow_but(["words", "no such token", "groups by name"], COLLATED))
def test_labels_and_tokens_may_come_from_the_collator(tmp_path, case):
    """As with Transformers' Trainer: what counts is the batch."""
    data, collate, settings, fault = COLLATED[case]
    model = causal() if collate is doubled else network("bert")
    settings = QUIET | {"max_steps": 1, "per_device_train_batch_size": 4, "remove_unused_columns": False} | settings
    args = DescentConfig(str(tmp_path), **settings)
    given = {"train_dataset": data, "eval_dataset": data, "data_collator": collate, "noise": 0.5}
    if fault:
        with pytest.raises(InputError, match=fault) as error:
            DescentTrainer(model, args, **given)
        assert "Your own model" not in str(error.value)  # the guide does not help here
        return
    ours = DescentTrainer(model, args, **given)
    ours.train()
    assert ours.sigma > 0 and np.isfinite(ours.evaluate()["eval_loss"])
    assert evaluate(ours.model, data, collate=collate, out=tmp_path / "plain").samples >= len(data)
