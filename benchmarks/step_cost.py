"""What a constrained step costs against an ERM step: time, memory and matrix-product FLOPs, as ratios.

    python benchmarks/step_cost.py [--json] [--cases UT …] [--depth 7] [--repeats 20]

Both steps run in turn in one process, so that a machine's mood meets both. An ERM step is plain training: the last
layer's loss alone. A constrained step reads every layer, with every multiplier at work, and takes the dual step.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForSequenceClassification, DistilBertConfig, RobertaConfig

from descend.core import DescentProblem, PrimalDual
from descend.models import DUST, UT, DUSTConfig, LayeredClassifier, UTConfig
from descend.noise import GaussianNoise, Noise
from descend.objective import Objective
from descend.tasks.text import Classification
from descend.tasks.video import VideoDenoising


class Case(NamedTuple):
    """A model of a depth, its task and noise, a batch of so many samples, and how plain training runs it."""

    depth: int
    batch: int
    model: Callable[[int], nn.Module]
    task: Any
    noise: Callable[[], Noise]
    samples: Callable[[int], dict[str, Tensor]]
    predict: Callable[[Any, dict[str, Tensor]], Tensor]


def windows(count: int) -> dict[str, Tensor]:
    return {"patches": torch.rand(count, 5, 100, 256, generator=torch.Generator().manual_seed(0))}


def texts(count: int) -> dict[str, Tensor]:
    """Texts of 64 to 128 tokens, padded."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(64, 129, (count, 1), generator=generator)
    mask = (torch.arange(128) < lengths).long()
    ids = torch.randint(5, 30522, (count, 128), generator=generator) * mask
    return {"input_ids": ids, "attention_mask": mask, "labels": torch.randint(2, (count,), generator=generator)}


def distilbert(depth: int) -> nn.Module:
    config = DistilBertConfig(n_layers=depth, dim=384, hidden_dim=1536, n_heads=6, num_labels=2)
    return LayeredClassifier(AutoModelForSequenceClassification.from_config(config))


def roberta(depth: int) -> nn.Module:
    """RoBERTa-large's depth, and heads of its size; a quarter of its width."""
    sizes = {"hidden_size": 256, "intermediate_size": 1024, "num_attention_heads": 4}
    config = RobertaConfig(num_hidden_layers=depth, vocab_size=30522, pad_token_id=0, **sizes, num_labels=2)
    return LayeredClassifier(AutoModelForSequenceClassification.from_config(config))


def video(model: Callable[[int], nn.Module]) -> Case:
    task, noise = VideoDenoising(), lambda: GaussianNoise(0.8, 0.18)
    return Case(7, 4, model, task, noise, windows, lambda model, inputs: model(inputs).reconstruction)


def text(model: Callable[[int], nn.Module], depth: int) -> Case:
    task, noise = Classification(), lambda: GaussianNoise(1.0, 0.02)
    return Case(depth, 16, model, task, noise, texts, lambda model, inputs: model(**inputs).logits)


CASES = {
    "UT": video(lambda depth: UT(UTConfig(depth=depth))),
    "DUST": video(lambda depth: DUST(DUSTConfig(depth=depth))),
    "DistilBERT": text(distilbert, 6),
    "RoBERTa-large": text(roberta, 24),
}


def steps(case: Case, depth: int, count: int, device: str) -> dict[str, Callable[[], None]]:
    """An ERM step and a constrained one, each with a model and an optimiser of its own."""
    batch = {name: value.to(device) for name, value in case.samples(count).items()}
    task = case.task

    def ready() -> tuple[Objective, torch.optim.Optimizer]:
        objective = Objective(case.model(depth).to(device).train(), task, case.noise())
        return objective, torch.optim.Adam(objective.parameters(), 1e-4)

    plain, plain_optimizer = ready()

    def erm() -> None:
        with plain.noise.on(plain.model, mask=task.mask(batch)):
            prediction = case.predict(plain.model, task.inputs(batch))
        task.losses(prediction, task.target(batch)).mean().backward()
        finish(plain, plain_optimizer)

    constrained_objective, constrained_optimizer = ready()
    # A step of the multipliers that none of them can undo within the benchmark: all stay at work.
    dual = PrimalDual(DescentProblem(depth, 0.99, stop_gradient=True), lr=1e-3)
    dual.observe(torch.ones(depth + 1))
    dual.step()

    def constrained() -> None:
        weights = dual.weights
        assert (weights[1:] > 0).all()
        lagrangian, sums, count, _ = constrained_objective(weights=weights, **batch)
        (lagrangian / count).backward()
        dual.observe(sums / count, count)
        finish(constrained_objective, constrained_optimizer)
        dual.step()

    def finish(objective: Objective, optimizer: torch.optim.Optimizer) -> None:
        torch.nn.utils.clip_grad_norm_(objective.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return {"erm": erm, "constrained": constrained}


def seconds(step: Callable[[], None], device: str) -> float:
    began = time.perf_counter()
    step()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began


def peak(step: Callable[[], None], device: str) -> int:
    """Bytes that a step holds at its highest, over what it starts with."""
    if device == "cuda":
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        step()
        return torch.cuda.max_memory_allocated() - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        step()
    held = highest = 0
    memory = [each for each in recorded.profiler.kineto_results.events() if each.name() == "[memory]"]
    for event in sorted(memory, key=lambda each: each.start_ns()):
        held += event.nbytes()
        highest = max(highest, held)
    return highest


def flops(step: Callable[[], None]) -> int:
    with FlopCounterMode(display=False) as counter:
        step()
    return counter.get_total_flops()


def measure(name: str, options: argparse.Namespace) -> dict[str, float | str]:
    case = CASES[name]
    depth = options.depth or case.depth
    both = steps(case, depth, options.batch or case.batch, options.device)
    for step in both.values():
        step()
    bound = flops(both["constrained"]) / flops(both["erm"])
    memory = {mode: peak(step, options.device) for mode, step in both.items()}
    times: dict[str, list[float]] = {mode: [] for mode in both}
    for turn in range(options.repeats):
        for mode in ("erm", "constrained") if turn % 2 else ("constrained", "erm"):
            times[mode].append(seconds(both[mode], options.device))
    pairs = zip(times["constrained"], times["erm"], strict=True)
    return {
        "case": f"{name}-{depth}",
        "mode": "exact",
        "erm_s": statistics.median(times["erm"]),
        "constrained_s": statistics.median(times["constrained"]),
        "ratio": statistics.median(slow / fast for slow, fast in pairs),
        "peak_ratio": memory["constrained"] / memory["erm"],
        "flop_bound": bound,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print a list of rows as JSON")
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--depth", type=int, help="layers (default: the case's own)")
    parser.add_argument("--batch", type=int, help="samples in a batch (default: the case's own)")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parsed = parser.parse_args()
    torch.set_num_threads(parsed.threads)
    rows = [measure(name, parsed) for name in parsed.cases]
    if parsed.json:
        print(json.dumps(rows, indent=2))
    else:
        for row in rows:
            print(
                "  ".join(
                    f"{key} {value:.4g}" if isinstance(value, float) else f"{value}" for key, value in row.items()
                )
            )
