"""Which recipe makes inner layers useful and leaves the last one unharmed? The runs of benchmarks/layers_plan.md.

    python benchmarks/gate.py --work FOLDER --models FOLDER --data FOLDER [--settings minilm …] [--part 0/2]

A cell is one training run: setting, recipe, learning rate, seed. It runs the cells that FOLDER does not hold yet:
first the search of learning rates, then the seeds at the rates that it chose. Cells of reproduction/records/layers.json
are not run again. Each cell is one file with the losses and scores of every test sample at every exit. Models are those
of Transformers in FOLDER/minilm, FOLDER/dinov2 and FOLDER/smollm2, in single precision; data are aclImdb, MNIST's IDX
files, Alpaca's JSON and UCSD Ped1.
"""

import argparse
import copy
import functools
import gzip
import json
import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer

from descend import GaussianNoise, GeometricTarget, PrimalDual
from descend.core import DescentProblem
from descend.evaluation.probes import RIDGES, _fit
from descend.models import UT, UTConfig
from descend.tasks.text import read_imdb, read_instructions
from descend.tasks.text.instructions import prompt
from descend.tasks.video import VideoDenoising, load_video

RESULTS = Path(__file__).parent.parent / "reproduction" / "records" / "layers.json"
"""What `gate_table.py` collected, also on other machines."""

SEARCH_SEED = 1000
"""The seed of the search of learning rates, which no other run has."""

RECIPES = ("plain", "two-stage", "linear-1", "linear-.05", "descent-.2", "descent-.8", "keep-last")
"""Recipes that train the whole model. `plain` also gives both kinds of probes, trained on its detached layers."""


@dataclass
class Plan:
    """A setting's numbers.

    Attributes:
        exits: The layers that are read, the last of them L.
        steps: T of each run.
        batch: Samples in a step.
        rates: Learning rates of the search, for the model.
        seeds: The seeds of the comparison.
        cuts: K of the models that are cut and trained.
        heads: The rate of heads is so many times the model's.
        gamma: γ of the noisy evaluation; UT is trained with it too.
        new: Whether the model is new, so that multipliers and keep-last start where they do for new models.
    """

    exits: tuple[int, ...]
    steps: int
    batch: int
    rates: tuple[float, ...]
    seeds: int
    cuts: tuple[int, ...]
    heads: float = 10.0
    gamma: float = 1.0
    new: bool = False


PLANS = {
    "minilm": Plan((0, 1, 2, 3, 4, 5, 6), 150, 16, (5e-5, 1e-4, 2e-4), 5, (2, 3, 4)),
    "dinov2": Plan(tuple(range(13)), 200, 32, (2e-5, 5e-5, 1e-4), 5, (4, 6, 8)),
    "smollm2": Plan((6, 12, 18, 24, 30), 60, 4, (2e-5, 5e-5), 3, (18, 24), 5.0),
    "ut": Plan((1, 2, 3, 4, 5, 6, 7), 400, 4, (3e-4, 1e-3, 3e-3), 5, (2, 3, 4), 1.0, 0.8, new=True),
}


class Exits(nn.Module):
    """A trunk and an own head for each exit; a setting says how states are made and losses taken.

    Attributes:
        trunk: The model.
        heads: One for each of E exits.
        probes: A second set, which is trained on detached states to say what the last exit says.
    """

    def __init__(self, trunk: nn.Module, heads: list[nn.Module]):
        super().__init__()
        self.trunk, self.heads = trunk, nn.ModuleList(heads)
        self.probes = nn.ModuleList([copy.deepcopy(head) for head in heads[:-1]])


class Setting:
    """Data and model of a comparison."""

    plan: Plan

    def network(self, depth: int | None, seed: int) -> Exits:
        """A model to train, cut to ``depth`` blocks if given."""
        raise NotImplementedError

    def batch(self, part: str, numbers: list[int]) -> dict[str, Tensor]:
        """Inputs and ``target`` of samples of ``train``, ``validation`` or ``test``."""
        raise NotImplementedError

    def size(self, part: str) -> int:
        """The number of samples of a part."""
        raise NotImplementedError

    def states(self, network: Exits, batch: dict[str, Tensor]) -> list[Tensor]:
        """The states of the exits."""
        raise NotImplementedError

    def losses(self, logits: Tensor, batch: dict[str, Tensor]) -> Tensor:
        """The losses of the samples of an exit's output, (N,); a language model's are of targets."""
        return F.cross_entropy(logits, batch["target"], reduction="none")

    def scores(self, logits: Tensor, batch: dict[str, Tensor]) -> Tensor:
        """The metric of the samples, (N,): by default whether the class is right."""
        return (logits.argmax(-1) == batch["target"]).float()

    def per_sample(self, values: Tensor, batch: dict[str, Tensor]) -> Tensor:
        """Means over the targets of each sample, (B,)."""
        return values

    def read(self, head: nn.Module, state: Tensor, last: bool) -> Tensor:
        """An exit's output."""
        return head(state)

    def refitted(self, network: Exits) -> list[nn.Module]:
        """The heads, those of inner exits fitted once more to the trained model's states of some training samples."""
        raise NotImplementedError

    def embedding(self, network: Exits) -> Any:
        """What noise is put on."""
        return network.trunk


class Classifier(Setting):
    """A setting whose inner readouts can be fitted: logistic regressions, whose ridge 200 validation samples choose."""

    def features(self, head: nn.Module, state: Tensor) -> Tensor:
        """What the linear layer of a head reads."""
        return state

    def linear(self, head: Any) -> nn.Linear:
        """The linear layer of a head."""
        return head[-1]

    def refitted(self, network: Exits) -> list[nn.Module]:
        network.eval()
        heads = copy.deepcopy(network.heads)
        sides: dict[str, tuple[list[Tensor], Tensor]] = {}
        for part, count in (("train", 800), ("validation", 200)):
            parts: list[list[Tensor]] = []
            targets = []
            for start in range(0, count, 50):
                batch = self.batch(part, list(range(start, start + 50)))
                with torch.no_grad():
                    states = self.states(network, batch)
                    parts.append([self.features(*pair) for pair in zip(network.heads, states, strict=True)])
                targets.append(batch["target"])
            sides[part] = [torch.cat(each).double() for each in zip(*parts, strict=True)], torch.cat(targets)
        (fitted, target), (held, held_target) = sides["train"], sides["validation"]
        for head, features, held_features in zip(heads[:-1], fitted, held, strict=False):
            candidates = [_fit(features, target, self.linear(head).out_features, ridge) for ridge in RIDGES]
            losses = [F.cross_entropy(probe(held_features), held_target).item() for probe in candidates]
            best = candidates[losses.index(min(losses))].float()
            self.linear(head).load_state_dict(best.state_dict())
        return list(heads)


class MiniLM(Classifier):
    """MiniLM on IMDb: mean pooling and a linear head for each exit."""

    plan, length = PLANS["minilm"], 96

    def __init__(self, models: Path, data: Path):
        self.folder = models / "minilm"
        tokenizer = AutoTokenizer.from_pretrained(self.folder)
        parts = read_imdb(data / "imdb")
        order = np.random.default_rng(0).permutation(len(parts["train"]))
        rows = {"train": (parts["train"], order[:3200]), "validation": (parts["train"], order[3200:])}
        rows["test"] = (parts["test"], np.random.default_rng(0).permutation(len(parts["test"]))[:1000])
        self.parts = {}
        for name, (texts, chosen) in rows.items():
            texts = texts.select([int(number) for number in chosen])
            coded = tokenizer(
                list(texts["text"]), truncation=True, max_length=self.length, padding="max_length", return_tensors="pt"
            )
            self.parts[name] = coded["input_ids"], coded["attention_mask"], torch.tensor(list(texts["label"]))

    def size(self, part: str) -> int:
        return len(self.parts[part][0])

    def batch(self, part: str, numbers: list[int]) -> dict[str, Tensor]:
        ids, mask, target = (values[numbers] for values in self.parts[part])
        longest = int(mask.sum(1).max())
        return {"ids": ids[:, :longest], "mask": mask[:, :longest], "target": target}

    def network(self, depth: int | None, seed: int) -> Exits:
        trunk = AutoModel.from_pretrained(self.folder, dtype=torch.float32, add_pooling_layer=False)
        if depth is not None:
            trunk.encoder.layer = trunk.encoder.layer[:depth]
        count = len(self.plan.exits) if depth is None else 1
        torch.manual_seed(seed)
        return Exits(trunk, [nn.Sequential(nn.Dropout(0.1), nn.Linear(384, 2)) for _ in range(count)])

    def states(self, network: Exits, batch: dict[str, Tensor]) -> list[Tensor]:
        output = network.trunk(input_ids=batch["ids"], attention_mask=batch["mask"], output_hidden_states=True)
        mask = batch["mask"][..., None].float()
        return [(hidden * mask).sum(1) / mask.sum(1) for hidden in output.hidden_states][-len(network.heads) :]


class DINOv2(Classifier):
    """DINOv2-S on MNIST at 28×28 pixels, four patches: norm and a linear head on [CLS] and the mean patch."""

    plan = PLANS["dinov2"]

    def __init__(self, models: Path, data: Path):
        self.folder = models / "dinov2"
        sides = {side: _idx(data / "mnist" / f"{side}-images-idx3-ubyte.gz") for side in ("train", "t10k")}
        labels = {side: _idx(data / "mnist" / f"{side}-labels-idx1-ubyte.gz") for side in ("train", "t10k")}
        order = np.random.default_rng(0).permutation(len(labels["train"]))
        chosen = {"train": ("train", order[:6000]), "validation": ("train", order[6000:])}
        chosen["test"] = ("t10k", np.arange(len(labels["t10k"])))
        self.parts = {
            name: (torch.tensor(sides[side][rows]), torch.tensor(labels[side][rows].astype(np.int64)))
            for name, (side, rows) in chosen.items()
        }

    def size(self, part: str) -> int:
        return len(self.parts[part][1])

    def batch(self, part: str, numbers: list[int]) -> dict[str, Tensor]:
        images, target = (values[numbers] for values in self.parts[part])
        pixels = (images.float() / 255 - 0.45) / 0.225
        return {"pixels": pixels[:, None].expand(-1, 3, -1, -1), "target": target}

    def network(self, depth: int | None, seed: int) -> Exits:
        trunk = AutoModel.from_pretrained(self.folder, dtype=torch.float32)
        if depth is not None:
            trunk.encoder.layer = trunk.encoder.layer[:depth]
        count = len(self.plan.exits) if depth is None else 1
        torch.manual_seed(seed)
        return Exits(trunk, [_PatchHead(trunk.layernorm, 10) for _ in range(count)])

    def states(self, network: Exits, batch: dict[str, Tensor]) -> list[Tensor]:
        output = network.trunk(pixel_values=batch["pixels"], output_hidden_states=True)
        return list(output.hidden_states)[-len(network.heads) :]

    def features(self, head: Any, state: Tensor) -> Tensor:
        return head.read(state)

    def linear(self, head: Any) -> nn.Linear:
        return head.linear


class _PatchHead(nn.Module):
    def __init__(self, norm: nn.LayerNorm, classes: int):
        super().__init__()
        self.norm, self.linear = copy.deepcopy(norm), nn.Linear(2 * norm.normalized_shape[0], classes)

    def read(self, hidden: Tensor) -> Tensor:
        hidden = self.norm(hidden)
        return torch.cat([hidden[:, 0], hidden[:, 1:].mean(1)], -1)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.linear(self.read(hidden))


class SmolLM2(Setting):
    """SmolLM2-135M on Alpaca: a norm and a translator for each inner exit, and the one wide head of the model."""

    plan, length, sampled = PLANS["smollm2"], 48, 64
    fitting, refitting, ridge = 200, 100, 0.01
    fitted: list[Tensor] | None = None

    def __init__(self, models: Path, data: Path):
        self.folder = models / "smollm2"
        tokenizer = AutoTokenizer.from_pretrained(self.folder)
        rows = read_instructions(data / "alpaca" / "alpaca_data.json").rows
        coded = []
        for row in rows:
            asked = tokenizer(prompt(tokenizer, row["instruction"], row["input"]))["input_ids"]
            answer = tokenizer(row["output"])["input_ids"]
            if len(asked) + 8 <= self.length:
                tokens = (asked + answer)[: self.length]
                coded.append((tokens, len(asked)))
        order = np.random.default_rng(0).permutation(len(coded))
        cuts = {"train": order[:600], "validation": order[600:700], "test": order[700:900]}
        self.parts = {name: [coded[number] for number in chosen] for name, chosen in cuts.items()}

    def size(self, part: str) -> int:
        return len(self.parts[part])

    def batch(self, part: str, numbers: list[int]) -> dict[str, Tensor]:
        rows = [self.parts[part][number] for number in numbers]
        longest = max(len(tokens) for tokens, _ in rows)
        ids = torch.zeros(len(rows), longest, dtype=torch.long)
        wanted, mask = torch.full_like(ids, -100), torch.zeros_like(ids)
        for row, (tokens, asked) in enumerate(rows):
            ids[row, : len(tokens)], mask[row, : len(tokens)] = torch.tensor(tokens), 1
            wanted[row, asked - 1 : len(tokens) - 1] = torch.tensor(tokens[asked:])
        places = (wanted != -100).flatten().nonzero().flatten()
        owners = (places // longest).long()
        return {"ids": ids, "mask": mask, "places": places, "target": wanted.flatten()[places], "owners": owners}

    def network(self, depth: int | None, seed: int) -> Exits:
        trunk = AutoModelForCausalLM.from_pretrained(self.folder, dtype=torch.float32)
        width = trunk.config.hidden_size
        if depth is not None:
            trunk.model.layers = trunk.model.layers[:depth]
            return Exits(trunk, [_Translator(trunk.model.norm, None)])
        inner: list[nn.Module] = [_Translator(trunk.model.norm, width) for _ in self.plan.exits[:-1]]
        network = Exits(trunk, [*inner, _Translator(trunk.model.norm, None)])
        if self.fitted is None:  # the same for all cells
            self.fitted = self.translators(network, self.fitting)
        for head, matrix in zip(network.heads, self.fitted, strict=False):
            head.translate.weight.data.copy_(matrix)
        network.probes = nn.ModuleList()
        return network

    @torch.no_grad()
    def translators(self, network: Exits, rows: int) -> list[Tensor]:
        """Square matrices that turn each inner exit's normed state into the last one's, by least squares on tokens."""
        network.eval()
        sums: list[list[Tensor]] = []
        for start in range(0, rows, 10):
            batch = self.batch("train", list(range(start, min(rows, start + 10))))
            everywhere = batch | {"places": batch["mask"].flatten().nonzero().flatten()}
            states = self.states(network, everywhere)
            normed = [head.norm(state).double() for head, state in zip(network.heads, states, strict=True)]
            sums.append([torch.stack([x.T @ x, x.T @ normed[-1]]) for x in normed[:-1]])
        found = []
        for grams in zip(*sums, strict=True):
            gram, cross = sum(grams).unbind()
            ridge = self.ridge * gram.diagonal().mean() * torch.eye(len(gram), dtype=gram.dtype)
            found.append(torch.linalg.solve(gram + ridge, cross).T.float())
        return found

    def refitted(self, network: Exits) -> list[nn.Module]:
        heads = copy.deepcopy(network.heads)
        for head, matrix in zip(heads, self.translators(network, self.refitting), strict=False):
            head.translate.weight.data.copy_(matrix)
        return list(heads)

    def states(self, network: Exits, batch: dict[str, Tensor]) -> list[Tensor]:
        base, kept = network.trunk.model, []
        wanted = self.plan.exits if len(network.heads) > 1 else (len(base.layers),)
        hooks = [
            base.layers[exit - 1].register_forward_hook(
                lambda module, args, output: kept.append(output if isinstance(output, Tensor) else output[0])
            )
            for exit in wanted
        ]
        base(input_ids=batch["ids"], attention_mask=batch["mask"], use_cache=False)
        for hook in hooks:
            hook.remove()
        return [hidden.flatten(0, 1)[batch["places"]] for hidden in kept]

    def read(self, head: nn.Module, state: Tensor, last: bool) -> Tensor:
        return F.linear(head(state), self.wide if last else self.wide.detach())

    def per_sample(self, values: Tensor, batch: dict[str, Tensor]) -> Tensor:
        count = int(batch["owners"].max()) + 1
        sums = torch.zeros(count).index_add(0, batch["owners"], values.float())
        return sums / torch.zeros(count).index_add(0, batch["owners"], torch.ones(len(values)))


class _Translator(nn.Module):
    def __init__(self, norm: nn.Module, width: int | None):
        super().__init__()
        self.norm = copy.deepcopy(norm)
        self.translate = nn.Identity() if width is None else nn.Linear(width, width, bias=False)
        if width is not None:
            nn.init.eye_(self.translate.weight)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.translate(self.norm(hidden))


class Video(Setting):
    """UT on Ped1, trained with noise; inner exits have a linear readout that starts as the identity."""

    plan, task = PLANS["ut"], VideoDenoising()

    def __init__(self, models: Path, data: Path):
        folder = data / "video" / "UCSD_Anomaly_Dataset.v1p2" / "UCSDped1" / "Test"
        video = load_video(str(folder), 5, stride=5, validation_share=0.25)
        self.parts = {"train": video.train, "validation": video.validation, "test": video.test}
        self.sigma = video.sigma

    def size(self, part: str) -> int:
        return len(self.parts[part])

    def batch(self, part: str, numbers: list[int]) -> dict[str, Tensor]:
        patches = torch.stack([torch.as_tensor(self.parts[part][number]["patches"]) for number in numbers])
        return {"patches": patches, "target": patches}

    def network(self, depth: int | None, seed: int) -> Exits:
        torch.manual_seed(seed)
        trunk = UT(UTConfig(depth=depth or len(self.plan.exits)))
        inner: list[nn.Module] = [_identity(256) for _ in self.plan.exits[:-1]] if depth is None else []
        return Exits(trunk, [*inner, nn.Identity()])

    def states(self, network: Exits, batch: dict[str, Tensor]) -> list[Tensor]:
        return list(network.trunk.predictions(batch["patches"]))[-len(network.heads) :]

    def losses(self, logits: Tensor, batch: dict[str, Tensor]) -> Tensor:
        return self.task.losses(logits, batch["target"])

    def scores(self, logits: Tensor, batch: dict[str, Tensor]) -> Tensor:
        return self.task.score(logits, batch["target"])


def _identity(width: int) -> nn.Linear:
    layer = nn.Linear(width, width)
    nn.init.eye_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def _idx(path: Path) -> np.ndarray:
    content = gzip.decompress(path.read_bytes())
    dimensions = content[3]
    shape = [int.from_bytes(content[4 + 4 * place : 8 + 4 * place], "big") for place in range(dimensions)]
    return np.frombuffer(content, np.uint8, offset=4 + 4 * dimensions).reshape(shape)


SETTINGS: dict[str, Callable[[Path, Path], Setting]] = {
    "minilm": MiniLM, "dinov2": DINOv2, "smollm2": SmolLM2, "ut": Video,
}  # fmt: skip


class KeepLast:
    """The weight c of inner layers by which the last loss stays within ε of a reference's, see the plan."""

    def __init__(self, steps: int, start: float, reference: list[float], epsilon: float = 0.02):
        self.steps, self.log_c, self.reference, self.epsilon = steps, math.log(start), reference, epsilon
        self.harm = self.scale = 0.0
        self.seen, self.excess = 0, 0.5

    def weight(self) -> float:
        return min(1.0, math.exp(self.log_c - min(3.0, max(-1.0, self.excess - 0.5))))

    def observe(self, last: float) -> None:
        decay = min(0.95, self.seen / (self.seen + 1))
        expected = self.reference[self.seen]
        self.seen += 1
        self.harm = decay * self.harm + (1 - decay) * (last - expected)
        self.scale = decay * self.scale + (1 - decay) * expected
        self.excess = self.harm / self.scale / (self.epsilon * self.steps / self.seen)
        moved = self.log_c + 8 / self.steps * min(0.5, max(-2.0, 0.5 - self.excess))
        self.log_c = min(0.0, max(math.log(0.008), moved))


def train(setting: Setting, recipe: str, rate: float, seed: int) -> tuple[Exits, dict[str, Any]]:
    """Train one cell; returns the model, and the processor's seconds, which other jobs do not lengthen."""
    plan, began = setting.plan, time.process_time()
    cut = int(recipe.removeprefix("cut-")) if recipe.startswith("cut-") else None
    network = setting.network(cut, seed)
    steps = plan.steps // 2 if recipe == "keep-last" else plan.steps
    reference: list[float] = []
    if recipe == "keep-last":  # its reference takes the other half of the cost
        stage(setting, setting.network(None, seed), "plain", rate, seed, steps, reference)
        stage(setting, network, recipe, rate, seed, steps, reference)
    elif recipe == "two-stage":
        first = 2 * steps // 3
        stage(setting, network, "plain", rate, seed, first, [])
        stage(setting, network, "linear-.1", rate, seed + 1, steps - first, [])
    else:
        stage(setting, network, recipe, rate, seed, steps, reference)
    return network, {"seconds": round(time.process_time() - began, 1)}


def stage(setting: Setting, network: Exits, recipe: str, rate: float, seed: int, steps: int, last: list[float]) -> None:
    """Train for some steps with one schedule of the rate; `last` gets, or for keep-last holds, f_L by step."""
    plan, exits = setting.plan, setting.plan.exits
    count = len(network.heads)
    if isinstance(setting, SmolLM2):
        setting.wide = network.trunk.lm_head.weight
    heads = [*network.heads.parameters(), *network.probes.parameters()]
    inner = [*network.heads[:-1].parameters(), *network.probes.parameters()]
    groups = [{"params": list(network.trunk.parameters()), "lr": rate}, {"params": heads, "lr": plan.heads * rate}]
    optimizer = torch.optim.AdamW([group for group in groups if group["params"]], weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / max(1, steps // 10)) * (1 - step / steps)
    )
    dual, keep = None, None
    if recipe.startswith("descent-"):
        target = GeometricTarget(float(recipe.removeprefix("descent-")))
        options = {} if plan.new else {"start": 0.0}
        problem = DescentProblem(count - 1, target=target)
        dual = PrimalDual(problem, optimizer="price", horizon=steps, options=options)
    if recipe == "keep-last":
        keep = KeepLast(steps, 1.0 if plan.new else 0.025, last)
    scale = float(recipe.removeprefix("linear-")) if recipe.startswith("linear-") else 1.0
    noise = GaussianNoise(plan.gamma, setting.sigma, seed) if isinstance(setting, Video) else None
    network.train()
    torch.manual_seed(seed)
    for step, numbers in enumerate(batches(setting.size("train"), plan.batch, seed, steps)):
        batch = setting.batch("train", numbers)
        if noise is not None:
            noise.begin(step)
        states = noisy_states(setting, network, batch, noise, None)
        plain = recipe == "plain" or recipe.startswith("cut-")
        if dual is not None:
            weights = dual.weights.tolist()
        elif plain:
            weights = [0.0] * (count - 1) + [1.0]
        else:
            c = keep.weight() if keep is not None else scale
            weights = [*(c * exit / exits[-1] for exit in exits[:-1]), 1.0]
        outputs, values = [], []
        for place, (head, state) in enumerate(zip(network.heads, states, strict=True)):
            final, weight = place == count - 1, weights[place]
            chosen, batch_here = (state, batch) if final else sampled(setting, state, batch)
            if not final:  # its head learns with weight 1, the model hears w_l
                chosen = weight * chosen + (1 - weight) * chosen.detach()
            output = setting.read(head, chosen, final)
            outputs.append(output)
            values.append(setting.losses(output, batch_here).mean())
        losses = torch.stack(values)
        loss = losses[:-1].sum() + weights[-1] * losses[-1]
        if plain and count > 1 and not isinstance(setting, SmolLM2 | Video):
            said = outputs[-1].detach().softmax(-1)
            for probe, state in zip(network.probes, states[:-1], strict=True):
                loss = loss + F.cross_entropy(setting.read(probe, state.detach(), False), said)
        loss.backward()
        for part in ([*network.trunk.parameters(), *network.heads[-1].parameters()], inner):
            nn.utils.clip_grad_norm_(part, 1.0)  # apart, so that probes change no step of the model
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if dual is not None:
            dual.observe(losses.detach())
            dual.step()
        if keep is not None:
            keep.observe(losses[-1].item())
        elif recipe == "plain":
            last.append(losses[-1].item())


def sampled(setting: Setting, state: Tensor, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    """Inner exits of a language model see a sample of the targets."""
    if not isinstance(setting, SmolLM2) or len(state) <= setting.sampled:
        return state, batch
    rows = torch.randperm(len(state))[: setting.sampled]
    return state[rows], batch | {"target": batch["target"][rows]}


def noisy_states(
    setting: Setting, network: Exits, batch: dict[str, Tensor], noise: GaussianNoise | None, numbers: list[int] | None
) -> list[Tensor]:
    """The states of a batch with noise on the embedding."""
    if noise is None:
        return setting.states(network, batch)
    with noise.on(setting.embedding(network), indices=numbers):
        return setting.states(network, batch)


def batches(size: int, batch: int, seed: int, steps: int) -> Iterator[list[int]]:
    """The samples of each step: a new order every epoch, the same for all recipes."""
    order: list[int] = []
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        while len(order) < batch:
            order += rng.permutation(size).tolist()
        yield order[:batch]
        order = order[batch:]


def read_all(setting: Setting, heads: Iterable[nn.Module], states: list[Tensor]) -> list[Tensor]:
    """What heads say of the states of their exits."""
    pairs = enumerate(zip(heads, states, strict=True))
    return [setting.read(head, state, place == len(states) - 1) for place, (head, state) in pairs]


@torch.no_grad()
def measure(
    setting: Setting, network: Exits, part: str, gamma: float, refitted: list[nn.Module] | None = None
) -> dict[str, np.ndarray]:
    """Losses and scores of every sample at every exit, (N, E), at the distilled probes and at refitted heads."""
    network.eval()
    if isinstance(setting, SmolLM2):
        setting.wide = network.trunk.lm_head.weight
    noise = GaussianNoise(gamma, spread(setting, network), seed=7) if gamma else None
    numbers, rows = list(range(setting.size(part))), {"losses": [], "scores": [], "distilled": [], "refitted": []}
    if gamma and not isinstance(setting, Video):
        numbers = numbers[: len(numbers) // 2]
    for start in range(0, len(numbers), 50):
        chosen = numbers[start : start + 50]
        batch = setting.batch(part, chosen)
        states = noisy_states(setting, network, batch, noise, chosen)
        outputs = read_all(setting, network.heads, states)
        rows["losses"].append(torch.stack([setting.per_sample(setting.losses(o, batch), batch) for o in outputs], 1))
        rows["scores"].append(torch.stack([setting.per_sample(setting.scores(o, batch), batch) for o in outputs], 1))
        if len(outputs) > 1 and not isinstance(setting, SmolLM2 | Video):
            outputs = [setting.read(head, state, False) for head, state in zip(network.probes, states, strict=False)]
            rows["distilled"].append(torch.stack([setting.losses(output, batch) for output in outputs], 1))
        if refitted is not None:
            losses = [setting.losses(output, batch) for output in read_all(setting, refitted, states)]
            rows["refitted"].append(torch.stack([setting.per_sample(each, batch) for each in losses], 1))
    return {name: torch.cat(values).numpy().astype(np.float32) for name, values in rows.items() if values}


@torch.no_grad()
def spread(setting: Setting, network: Exits) -> float:
    """σ_x, the standard deviation of the input embedding on 64 training samples."""
    if isinstance(setting, Video):
        return setting.sigma
    seen: list[Tensor] = []
    hook = network.trunk.get_input_embeddings().register_forward_hook(lambda module, args, output: seen.append(output))
    setting.states(network, setting.batch("train", list(range(64))))
    hook.remove()
    return seen[0].float().std().item()


def cell_file(work: Path, name: str, recipe: str, rate: float, seed: int) -> Path:
    return work / f"{name}_{recipe}_{rate:g}_{seed}.npz"


def do(setting: Setting, work: Path, name: str, recipe: str, rate: float, seed: int) -> None:
    """Carry out a cell, unless its file is there."""
    file = cell_file(work, name, recipe, rate, seed)
    if file.is_file() or str(seed) in known()["seeds"].get(name, {}).get(named(recipe), {}):
        return
    if seed == SEARCH_SEED and validation(work, name, recipe, rate) is not None:
        return
    network, cost = train(setting, recipe, rate, seed)
    found: dict[str, Any] = {"cost": json.dumps(cost)}
    if seed == SEARCH_SEED:
        found["validation"] = measure(setting, network, "validation", 0.8 if name == "ut" else 0.0)["losses"].mean(0)
        shown = found["validation"]
    else:
        again = None if recipe.startswith("cut-") or name == "ut" else setting.refitted(network)
        for level, heads in ((0.0, again), (setting.plan.gamma, None)):
            for key, values in measure(setting, network, "test", level, heads).items():
                found[f"{key}_{level:g}"] = values
        shown = found["losses_0"].mean(0)
    part = file.with_suffix(".part.npz")
    np.savez_compressed(part, **found)
    part.rename(file)
    losses = " ".join(f"{value:.4g}" for value in shown)
    print(f"{name} {recipe} {rate:g} seed {seed}: {cost['seconds']} s, losses {losses}", flush=True)


def named(recipe: str) -> str:
    """A recipe's name in the results: plain training comes with probes."""
    return "probe" if recipe == "plain" else recipe


@functools.cache
def known() -> dict[str, Any]:
    """The results that were collected before, on any machine."""
    return json.loads(RESULTS.read_text()) if RESULTS.is_file() else {"search": {}, "seeds": {}}


def validation(work: Path, name: str, recipe: str, rate: float) -> np.ndarray | None:
    """The validation losses of a cell of the search, from its file or from the results; None where it is not done."""
    file = cell_file(work, name, recipe, rate, SEARCH_SEED)
    if file.is_file():
        return np.load(file)["validation"]
    losses = known()["search"].get(name, {}).get(recipe, {}).get(f"{rate:g}")
    return None if losses is None else np.array(losses)


def chosen_rate(work: Path, name: str, recipe: str) -> float | None:
    """The rate with the last loss within 2 % of plain training's best and the least mean; None if not all are done."""
    plan, losses = PLANS[name], {}
    for each in (recipe, "plain"):
        for rate in plan.rates:
            found = validation(work, name, each, rate)
            if found is None:
                return None
            losses[each, rate] = found
    best = min(losses["plain", rate][-1] for rate in plan.rates)
    if recipe == "plain":
        return min(plan.rates, key=lambda rate: losses["plain", rate][-1])
    kept = [rate for rate in plan.rates if losses[recipe, rate][-1] <= 1.02 * best]
    if kept:
        return min(kept, key=lambda rate: losses[recipe, rate].mean())
    return min(plan.rates, key=lambda rate: losses[recipe, rate][-1])


def excluded(work: Path, name: str, recipe: str) -> bool:
    """Whether a recipe harms the last layer at every rate of the search, so that it gets no seeds, see the plan."""
    plan = PLANS[name]
    last = {
        each: min(losses[-1] for rate in plan.rates if (losses := validation(work, name, each, rate)) is not None)
        for each in (recipe, "plain")
    }
    return last[recipe] > 1.02 * last["plain"]


def run(args: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    args.work.mkdir(parents=True, exist_ok=True)
    part, parts = map(int, args.part.split("/"))
    for name in args.settings:
        setting, plan = SETTINGS[name](args.models, args.data), PLANS[name]
        cells = [(recipe, rate, SEARCH_SEED) for rate in plan.rates for recipe in RECIPES]
        for place, cell in enumerate(cells):
            if place % parts == part:
                do(setting, args.work, name, *cell)
        later = [(recipe, seed) for seed in range(plan.seeds) for recipe in RECIPES]
        later += [(f"cut-{k}", seed) for seed in range(plan.seeds) for k in plan.cuts]
        for place, (recipe, seed) in enumerate(later):
            if place % parts != part:
                continue
            while (rate := chosen_rate(args.work, name, "plain" if recipe.startswith("cut-") else recipe)) is None:
                time.sleep(20)  # another part still searches
            if not recipe.startswith("cut-") and excluded(args.work, name, recipe):
                continue
            do(setting, args.work, name, recipe, rate, seed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--models", type=Path, default=Path("models"))
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--settings", nargs="+", choices=list(PLANS), default=list(PLANS))
    parser.add_argument("--part", default="0/1", help="which share of the cells, such as 0/2 [%(default)s]")
    args = parser.parse_args()
    run(args)


if __name__ == "__main__":
    main()
