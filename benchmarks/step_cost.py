"""Compare a constrained step with an ERM step: ratios of time, peak memory and matrix-product FLOPs.

    python benchmarks/step_cost.py [--json] [--cases UT …] [--depth 7] [--repeats 20] [--compile]
    python benchmarks/step_cost.py [--json] --device cuda --dtype bfloat16 --shape 8b

All steps run in turn in one process, so that other load on the machine affects all alike. An ERM step is plain
training: the last layer's loss alone. A constrained step reads every layer, with all multipliers above 0, and takes the
dual step. A language model has three constrained steps: obvious (a loop over exits, all their logits at once), exact (a
tile of logits at a time) and sampled (the inner exits see a share of the tokens). The bound on their FLOPs counts
matrix products: (6P + 6HV(1 + (L−1)p)) / (6P + 6HV), with P the parameters of the blocks and HV those of the head.

``--shape 8b`` is Llama-3.1-8B itself with random weights, and 8,192 tokens a step: ERM, sampled and exact, without the
obvious step, which would not fit. It needs a GPU: it took 72 GiB on an H200 (``--batch 2`` halves the tokens). Its
optimizer is SGD, as Adam's state would not fit beside the weights and gradients. The peak is of all that is allocated,
and the TFLOP/s are by the matrix products of the formula: 6 FLOPs for each parameter and token that passes it.
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
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    DistilBertConfig,
    LlamaConfig,
    Qwen3Config,
    RobertaConfig,
)

from descend.core import DescentProblem, LossSums, PrimalDual
from descend.models import DUST, UT, DUSTConfig, LayeredCausalLM, LayeredClassifier, UTConfig
from descend.noise import GaussianNoise, Noise
from descend.objective import Objective
from descend.tasks.text import Classification, NextToken
from descend.tasks.video import VideoDenoising
from descend.tiles import TargetSample

SHARE = 1 / 16
"""Share of the tokens that a language model's inner exits see in a sampled step."""


class Case(NamedTuple):
    """A model with its task and noise, its batch, and the forward pass of plain training.

    A language model has no ``predict``: its plain training reads its logits by tiles, too.
    """

    depth: int
    batch: int
    model: Callable[[int], nn.Module]
    task: Any
    noise: Callable[[], Noise]
    samples: Callable[[int], dict[str, Tensor]]
    predict: Callable[[Any, dict[str, Tensor]], Tensor] | None = None
    obvious: bool = True
    """Whether a language model is also read the obvious way, which holds all logits of all exits."""
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.Adam


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
    """RoBERTa-large's depth and head size, at a quarter of its width."""
    sizes = {"hidden_size": 256, "intermediate_size": 1024, "num_attention_heads": 4}
    config = RobertaConfig(num_hidden_layers=depth, vocab_size=30522, pad_token_id=0, **sizes, num_labels=2)
    return LayeredClassifier(AutoModelForSequenceClassification.from_config(config))


def prompts(count: int) -> dict[str, Tensor]:
    """Texts of 128 tokens, all of them targets but the first."""
    ids = torch.randint(5, 10_000, (count, 128), generator=torch.Generator().manual_seed(0))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids.clone()}


def llama(depth: int) -> nn.Module:
    """An eighth of Llama-3.1-8B's width; its head has 2.4 times the parameters of a block."""
    sizes = {"hidden_size": 512, "intermediate_size": 1792, "num_attention_heads": 8, "num_key_value_heads": 2}
    config = LlamaConfig(vocab_size=16_032, num_hidden_layers=depth, **sizes)
    return LayeredCausalLM(AutoModelForCausalLM.from_config(config))


def qwen(depth: int) -> nn.Module:
    """Half of Qwen3-0.6B's width; its head has 9.9 times the parameters of a block, and is tied to its embedding."""
    sizes = {"hidden_size": 512, "intermediate_size": 1536, "num_attention_heads": 8, "num_key_value_heads": 4}
    config = Qwen3Config(vocab_size=75_968, num_hidden_layers=depth, head_dim=128, tie_word_embeddings=True, **sizes)
    return LayeredCausalLM(AutoModelForCausalLM.from_config(config))


def llama_8b(depth: int) -> nn.Module:
    """Llama-3.1-8B's shape, with random weights."""
    sizes = {"hidden_size": 4096, "intermediate_size": 14_336, "num_attention_heads": 32, "num_key_value_heads": 8}
    config = LlamaConfig(vocab_size=128_256, num_hidden_layers=depth, max_position_embeddings=8192, **sizes)
    return LayeredCausalLM(AutoModelForCausalLM.from_config(config))


def long_prompts(count: int) -> dict[str, Tensor]:
    """Texts of 2,048 tokens."""
    ids = torch.randint(5, 128_000, (count, 2048), generator=torch.Generator().manual_seed(0))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids.clone()}


def video(model: Callable[[int], nn.Module]) -> Case:
    task, noise = VideoDenoising(), lambda: GaussianNoise(0.8, 0.18)
    return Case(7, 4, model, task, noise, windows, lambda model, inputs: model(inputs).reconstruction)


def text(model: Callable[[int], nn.Module], depth: int) -> Case:
    task, noise = Classification(), lambda: GaussianNoise(1.0, 0.02)
    return Case(depth, 16, model, task, noise, texts, lambda model, inputs: model(**inputs).logits)


def language(model: Callable[[int], nn.Module]) -> Case:
    return Case(16, 8, model, NextToken(), lambda: GaussianNoise(1.5, 0.02), prompts)


CASES = {
    "UT": video(lambda depth: UT(UTConfig(depth=depth))),
    "DUST": video(lambda depth: DUST(DUSTConfig(depth=depth))),
    "DistilBERT": text(distilbert, 6),
    "RoBERTa-large": text(roberta, 24),
    "Llama-3.1-8B": language(llama),
    "Qwen3-0.6B": language(qwen),
}

SHAPES = {
    "8b": Case(
        32, 4, llama_8b, NextToken(), lambda: GaussianNoise(1.5, 0.02), long_prompts, None, False, torch.optim.SGD
    )
}


def model_of(case: Case, depth: int, device: str, dtype: torch.dtype) -> Any:
    """A new model with its weights made on the device in that type."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            return case.model(depth).to(dtype).train()
    finally:
        torch.set_default_dtype(before)


def steps(
    case: Case,
    depth: int,
    count: int,
    device: str,
    dtype: torch.dtype = torch.float32,
    model: Any = None,
    compiled: bool = False,
) -> dict[str, Callable[[], None]]:
    """The step of plain training and the constrained steps.

    Each has its own model and optimizer, or all share ``model`` where several would not fit.
    """
    batch = {
        name: value.to(device, dtype if value.is_floating_point() else value.dtype)
        for name, value in case.samples(count).items()
    }

    def ready(sample: TargetSample | None = None) -> Callable[[Callable[[Objective, PrimalDual], Tensor]], Any]:
        own = model_of(case, depth, device, dtype) if model is None else model
        objective = Objective(own, case.task, case.noise(), sample)
        if compiled:
            objective.compile()
        optimizer = case.optimizer(objective.parameters(), 1e-4)
        # Raise all multipliers so far that none returns to 0 within the benchmark.
        dual = PrimalDual(DescentProblem(depth, 0.99, stop_gradient=True), lr=1e-3, optimizer="adam")
        dual.observe(torch.ones(depth + 1))
        dual.step()

        def step_of(loss: Callable[[Objective, PrimalDual], Tensor]) -> Callable[[], None]:
            def step() -> None:
                loss(objective, dual).backward()
                torch.nn.utils.clip_grad_norm_(objective.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
                for losses in waiting:
                    dual.observe(losses)
                waiting.clear()
                dual.step()

            return step

        return step_of

    waiting: list[LossSums] = []
    last = [*[0.0] * depth, 1.0]

    def erm(objective: Objective, dual: PrimalDual) -> Tensor:
        dual.observe(torch.ones(depth + 1))
        if case.predict is None or compiled:
            result = objective(weights=last, inner=False, **batch)
            return result.lagrangian / result.targets
        with objective.noise.on(objective.model, mask=case.task.mask(batch)):
            prediction = case.predict(objective.model, case.task.inputs(batch))
        return case.task.losses(prediction, case.task.target(batch)).mean()

    def constrained(objective: Objective, dual: PrimalDual) -> Tensor:
        weights = dual.weights
        assert (weights[1:] > 0).all()
        result = objective(weights=weights.tolist(), **batch)
        # The optimizer's step waits for no number; the dual's does, as in training.
        waiting.append(result.losses)
        return result.lagrangian / result.targets

    def obvious(objective: Objective, dual: PrimalDual) -> Tensor:
        target = case.task.target(batch)
        with objective.noise.on(objective.model, mask=case.task.mask(batch)):
            predictions = list(objective.model.predictions(case.task.inputs(batch)))
        losses = torch.stack([case.task.losses(each, target).mean() for each in predictions])
        dual.observe(losses.detach() * len(target), len(target))
        return torch.dot(dual.weights.to(losses), losses)

    every = {"erm": ready()(erm)}
    if case.predict is None:
        if case.obvious:
            every["obvious"] = ready()(obvious)
        every["sampled"] = ready(TargetSample(SHARE))(constrained)
    every["exact"] = ready()(constrained)
    return every


def seconds(step: Callable[[], None], device: str) -> float:
    began = time.perf_counter()
    step()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began


def peak(step: Callable[[], None], device: str) -> int:
    """Peak bytes that a step allocates beyond what was allocated before it."""
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


def bound(case: Case, depth: int, every: dict[str, Callable[[], None]], mode: str) -> float:
    """Matrix-product FLOPs relative to plain training: counted, or by the formula above for a language model."""
    if case.predict is not None:
        return flops(every[mode]) / flops(every["erm"])
    with torch.device("meta"):
        model = case.model(depth)
    return passed(model, mode) / passed(model, "erm")


def passed(model: Any, mode: str) -> float:
    """How many parameters a token passes on its way to all exits, on average."""
    blocks = sum(each.numel() for each in model.library.base_model.layers.parameters())
    head = model.library.get_output_embeddings().weight.numel()
    others = {"erm": 0.0, "sampled": (model.depth - 1) * SHARE}.get(mode, model.depth - 1)
    return blocks + head * (1 + others)


def measure(name: str, options: argparse.Namespace) -> list[dict[str, float | str]]:
    case = CASES[name]
    depth = options.depth or case.depth
    dtype = getattr(torch, options.dtype)
    every = steps(case, depth, options.batch or case.batch, options.device, dtype, compiled=options.compile)
    for step in every.values():
        for _ in range(3 if options.compile else 1):
            step()
    memory = {mode: peak(step, options.device) for mode, step in every.items()}
    times: dict[str, list[float]] = {mode: [] for mode in every}
    for turn in range(options.repeats):
        for mode in sorted(every, reverse=bool(turn % 2)):
            times[mode].append(seconds(every[mode], options.device))
    return [
        {
            "case": f"{name}-{depth}",
            "mode": mode,
            "erm_s": statistics.median(times["erm"]),
            "constrained_s": statistics.median(times[mode]),
            "ratio": statistics.median(slow / fast for slow, fast in zip(times[mode], times["erm"], strict=True)),
            "peak_ratio": memory[mode] / memory["erm"],
            "flop_bound": bound(case, depth, every, mode),
        }
        for mode in every
        if mode != "erm"
    ]


def measure_shape(name: str, options: argparse.Namespace) -> list[dict[str, float | str]]:
    """Each kind of step of a model that fills a GPU, on one copy of its weights."""
    case = SHAPES[name]
    depth, count = options.depth or case.depth, options.batch or case.batch
    model = model_of(case, depth, options.device, getattr(torch, options.dtype))
    every = steps(case, depth, count, options.device, getattr(torch, options.dtype), model)
    tokens = case.samples(count)["input_ids"].numel()
    held: dict[str, int] = {}
    for mode, step in every.items():
        step()
        torch.cuda.reset_peak_memory_stats()
        step()
        held[mode] = torch.cuda.max_memory_allocated()
    times: dict[str, list[float]] = {mode: [] for mode in every}
    for turn in range(options.repeats):
        for mode in sorted(every, reverse=bool(turn % 2)):
            times[mode].append(seconds(every[mode], options.device))
    medians = {mode: statistics.median(taken) for mode, taken in times.items()}
    return [
        {
            "case": f"{name}-{depth}",
            "mode": mode,
            "device": torch.cuda.get_device_name(),
            "seconds": medians[mode],
            "ratio": medians[mode] / medians["erm"],
            "tflop_per_s": 6 * passed(model, mode) * tokens / medians[mode] / 1e12,
            "peak_gib": held[mode] / 2**30,
            "flop_bound": passed(model, mode) / passed(model, "erm"),
        }
        for mode in every
    ]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print a list of rows as JSON")
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--shape", choices=list(SHAPES), help="this shape alone, in place of the cases; needs a GPU")
    parser.add_argument(
        "--dtype", choices=["float32", "bfloat16"], default="float32", help="of weights and activations"
    )
    parser.add_argument("--depth", type=int, help="layers (default: the case's own)")
    parser.add_argument("--batch", type=int, help="samples in a batch (default: the case's own)")
    parser.add_argument("--compile", action="store_true", help="compile both steps, as torch_compile=True does")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parsed = parser.parse_args()
    if parsed.device.startswith("cuda") and not torch.cuda.is_available():
        parser.error("--device cuda needs a GPU that torch can use; there is none here. Leave it out.")
    if parsed.shape is not None and not parsed.device.startswith("cuda"):
        parser.error(f"--shape {parsed.shape} needs --device cuda; got {parsed.device}.")
    torch.set_num_threads(parsed.threads)
    if parsed.shape is not None:
        rows = measure_shape(parsed.shape, parsed)
    else:
        rows = [row for name in parsed.cases for row in measure(name, parsed)]
    if parsed.json:
        print(json.dumps(rows, indent=2))
    else:
        for row in rows:
            print(
                "  ".join(
                    f"{key} {value:.4g}" if isinstance(value, float) else f"{value}" for key, value in row.items()
                )
            )
