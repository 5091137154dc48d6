"""Kernel launches and host reads of a training step, counted on a CPU.

    python benchmarks/launches.py [--json] [--cases UT-7 …] [--sites]

On a GPU, small models wait for launches and for reads by the host, not for arithmetic. Both can be counted without
one. A simulated device holds its data on the CPU; a dispatch mode counts each operator on it as a launch, and each
time the host reads from it or copies to it without ``non_blocking`` as a sync. Three trainers train the same model:
Transformers' own `Trainer` (``plain``), and `DescentTrainer` with ``--method erm`` and with constraints that all bind.

The counts are an estimate: a launch here is an ATen operator, which is one kernel or a few.
"""

import argparse
import json
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils import _foreach_utils
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    DistilBertConfig,
    LlamaConfig,
    RobertaConfig,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from descend import UT, DescentConfig, DescentTrainer, UTConfig
from descend.noise import GaussianNoise
from descend.tasks.text import Classification, NextToken
from descend.tasks.video import VideoDenoising

NAME = "counted"
WARMUP, STEPS = 2, 4
"""Steps before the count, in which optimizers allocate their state, and steps that are counted."""

_VIEWS = frozenset(
    [
        "alias",
        "as_strided",
        "chunk",
        "detach",
        "diagonal",
        "expand",
        "lift",
        "lift_fresh",
        "movedim",
        "narrow",
        "permute",
        "reshape",
        "_reshape_alias",
        "select",
        "slice",
        "split",
        "split_with_sizes",
        "squeeze",
        "t",
        "transpose",
        "unbind",
        "unfold",
        "unsqueeze",
        "_unsafe_view",
        "view",
        "view_as",
        "empty",
        "empty_like",
        "empty_strided",
        "new_empty",
        "new_empty_strided",
        "resize_",
        "set_",
        "is_same_size",
        "_has_compatible_shallow_copy_type",
    ]
)
"""Operators that start no kernel: views, and memory without content."""
_READS = frozenset(
    [
        "_local_scalar_dense",
        "is_nonzero",
        "equal",
        "nonzero",
        "masked_select",
        "unique_dim",
        "_unique2",
        "unique_consecutive",
    ]
)
"""Operators after which the host knows a value of the device, and so waits for it."""
_COPIES = frozenset(("_to_copy", "copy_"))


class Count:
    """Launches and syncs by operator and by place in the code, while `counting`."""

    def __init__(self) -> None:
        self.counting = False
        self.launches: Counter[str] = Counter()
        self.syncs: Counter[str] = Counter()

    def launch(self, name: str) -> None:
        if self.counting and name not in _VIEWS:
            self.launches[name] += 1

    def sync(self, kind: str) -> None:
        if self.counting:
            self.syncs[f"{kind} at {_caller()}"] += 1


COUNT = Count()


def _caller() -> str:
    """The innermost line of the stack outside torch and this file."""
    for frame in reversed(traceback.extract_stack()):
        if not any(part in frame.filename for part in ("/torch/", "launches.py", "<frozen", "contextlib")):
            return f"{'/'.join(frame.filename.split('/')[-2:])}:{frame.lineno}"
    return "?"


class CountedTensor(Tensor):
    """A tensor on the simulated device: a CPU tensor behind a wrapper."""

    data_on_cpu: Tensor

    @staticmethod
    def __new__(cls, data: Tensor) -> "CountedTensor":
        wrapper = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, data.size(), strides=data.stride(), storage_offset=data.storage_offset(), dtype=data.dtype,
            layout=data.layout, device=DEVICE,
        )  # fmt: skip
        wrapper.data_on_cpu = data
        return wrapper

    def tolist(self) -> Any:
        """As of any tensor: torch's own looks at memory, which a wrapper has none of."""
        return self.detach().to("cpu").tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


class Counting(TorchDispatchMode):
    """Sends what is made on the simulated device there; a wrapper alone is not asked about new tensors."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Carry out an operator on the CPU, and count it if it touches the simulated device."""
    if func is torch.ops.prim.device.default:
        return args[0].device
    wrappers = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, CountedTensor)]
    target = kwargs.get("device")
    onto = target is not None and torch.device(target).type == NAME
    if not wrappers and not onto:
        return func(*args, **kwargs)
    name = func._schema.name.split("::")[1]
    kind = _sync_of(name, args, kwargs, bool(wrappers), onto)
    if kind is not None:
        COUNT.sync(kind)
    if name not in ("_local_scalar_dense", "is_nonzero"):
        COUNT.launch(name)
    on_cpu = kwargs | {"device": torch.device("cpu")} if onto else kwargs
    plain_args, plain_kwargs = tree_map(_unwrapped, (args, on_cpu))
    result = func(*plain_args, **plain_kwargs)
    leaves = target is not None and not onto  # a copy to the host
    if leaves or name in ("_local_scalar_dense", "is_nonzero", "equal"):
        return result
    if name == "copy_" and not isinstance(args[0], CountedTensor):
        return args[0]
    written = {id(wrapper.data_on_cpu): wrapper for wrapper in wrappers} if _writes(func) else {}

    def wrapped(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        return written[id(leaf)] if id(leaf) in written else CountedTensor(leaf)

    return tree_map(wrapped, result)


def _writes(func: Any) -> bool:
    return any(each.alias_info is not None and each.alias_info.is_write for each in func._schema.arguments)


def _unwrapped(leaf: Any) -> Any:
    return leaf.data_on_cpu if isinstance(leaf, CountedTensor) else leaf


def _sync_of(name: str, args: Any, kwargs: dict[str, Any], reads: bool, onto: bool) -> str | None:
    """What the host waits for in an operator; None for nothing."""
    if name in _READS:
        return name
    if name in _COPIES:
        if kwargs.get("non_blocking") or (name == "copy_" and len(args) > 2 and args[2]):
            return None
        target = kwargs.get("device")
        if name == "copy_":
            sides = isinstance(args[0], CountedTensor), isinstance(args[1], CountedTensor)
            return {(True, False): "upload", (False, True): "download"}.get(sides)
        if reads and target is not None and torch.device(target).type != NAME:
            return "download"
        return "upload" if onto and not reads else None
    if name in ("index", "index_put", "index_put_", "_index_put_impl_"):
        masks = [leaf for leaf in tree_leaves(args[1]) if isinstance(leaf, Tensor) and leaf.dtype == torch.bool]
        return f"{name} by a mask" if masks else None
    return None


class _FusedAttention(torch.autograd.Function):
    """Scaled dot-product attention as one kernel forward and one backward, which is what a GPU has for it."""

    @staticmethod
    def forward(ctx: Any, call: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        with _one_launch("attention"), torch.enable_grad():
            ctx.inputs = [each.detach().requires_grad_() for each in inputs]
            ctx.result = call(*ctx.inputs)
            return ctx.result.detach()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        with _one_launch("attention_backward"):
            return None, *torch.autograd.grad(ctx.result, ctx.inputs, grads[0])


@contextmanager
def _one_launch(name: str) -> Iterator[None]:
    """Count what happens inside as one launch."""
    COUNT.launch(name)
    counting, COUNT.counting = COUNT.counting, False
    try:
        yield
    finally:
        COUNT.counting = counting


class _Event:
    """An event of a device that is never behind."""

    def __init__(self, device: Any = None):
        self.device = device

    def record(self) -> None:
        """Nothing is under way."""

    def synchronize(self) -> None:
        """Nothing to wait for."""


class _Kernels(TorchFunctionMode):
    """The kernels of a GPU that this device would otherwise not be offered."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is functional.scaled_dot_product_attention:
            query, key, value, *others = args
            options = kwargs or {}
            return _FusedAttention.apply(lambda q, k, v: func(q, k, v, *others, **options), query, key, value)
        return func(*args, **(kwargs or {}))


def onto_device(module: nn.Module) -> nn.Module:
    """Move a module's parameters and buffers, in place; `to` then has nothing left to do."""
    moved: dict[int, nn.Parameter] = {}
    for child in module.modules():
        for name, parameter in child._parameters.items():
            if parameter is not None:
                if id(parameter) not in moved:
                    wrapper = CountedTensor(parameter.detach())
                    moved[id(parameter)] = nn.Parameter(wrapper, requires_grad=parameter.requires_grad)
                child._parameters[name] = moved[id(parameter)]
        for name, buffer in child._buffers.items():
            if buffer is not None:
                child._buffers[name] = CountedTensor(buffer)
        child.to = lambda *args, self=child, **kwargs: self  # type: ignore[method-assign]
    return module


class Case(NamedTuple):
    """A model, samples for it, its task and noise, and the loss by which Transformers' Trainer trains it."""

    model: Callable[[], nn.Module]
    samples: Callable[[], list[dict[str, Any]]]
    batch: int
    task: Any
    noise: GaussianNoise
    plain: Callable[[nn.Module], nn.Module]
    targets: float = 0.0
    """The most that launches of a constrained step may be of a plain one."""


class PlainVideo(nn.Module):
    """UT as a model that returns its loss, which is what `Trainer` asks for."""

    def __init__(self, model: nn.Module, noise: GaussianNoise):
        super().__init__()
        self.model, self.noise, self.task = model, noise, VideoDenoising()

    def forward(self, patches: Tensor) -> dict[str, Tensor]:
        """The mean loss of a batch of windows (B, T, N, P)."""
        with self.noise.on(self.model):
            prediction = self.model(patches).reconstruction
        return {"loss": self.task.losses(prediction, patches).mean()}


class PlainText(nn.Module):
    """A Transformers model with noise on its word embeddings."""

    def __init__(self, model: nn.Module, noise: GaussianNoise):
        super().__init__()
        self.model, self.noise = model, noise

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor, **others: Any) -> Any:
        """The model's own loss, with ``num_items_in_batch`` among the others."""
        with self.noise.on(self.model, mask=attention_mask):
            return self.model(input_ids=input_ids, attention_mask=attention_mask, labels=labels, **others)


def windows() -> list[dict[str, Any]]:
    """Windows of 5 frames."""
    return [{"patches": torch.rand(5, 100, 256)} for _ in range(4 * (WARMUP + STEPS))]


def texts(length: int, count: int, classes: bool) -> Callable[[], list[dict[str, Any]]]:
    """Texts of one length, as a tokenizer gives them."""

    def samples() -> list[dict[str, Any]]:
        ids = torch.randint(5, 1000, (count * (WARMUP + STEPS), length))
        return [
            {"input_ids": row, "attention_mask": torch.ones_like(row), "labels": number % 2 if classes else row}
            for number, row in enumerate(ids)
        ]

    return samples


def distilbert() -> nn.Module:
    """Six layers; narrow, as width changes no count."""
    sizes = {"n_layers": 6, "dim": 64, "hidden_dim": 128, "n_heads": 2}
    return AutoModelForSequenceClassification.from_config(DistilBertConfig(vocab_size=1000, **sizes, num_labels=2))


def roberta() -> nn.Module:
    """RoBERTa-large's 24 layers."""
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 2}
    config = RobertaConfig(num_hidden_layers=24, vocab_size=1000, pad_token_id=0, **sizes, num_labels=2)
    return AutoModelForSequenceClassification.from_config(config)


def llama() -> nn.Module:
    """Sixteen layers."""
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 2, "num_key_value_heads": 2}
    return AutoModelForCausalLM.from_config(LlamaConfig(vocab_size=1000, num_hidden_layers=16, **sizes))


CASES = {
    "UT-7": Case(
        lambda: UT(UTConfig(depth=7)), windows, 4, VideoDenoising(), GaussianNoise(0.8, 0.18),
        lambda model: PlainVideo(model, GaussianNoise(0.8, 0.18)), 1.10,
    ),
    "DistilBERT-6": Case(
        distilbert, texts(32, 8, True), 8, Classification(), GaussianNoise(1.0, 0.02),
        lambda model: PlainText(model, GaussianNoise(1.0, 0.02)), 1.10,
    ),
    "RoBERTa-24": Case(
        roberta, texts(32, 8, True), 8, Classification(), GaussianNoise(1.0, 0.02),
        lambda model: PlainText(model, GaussianNoise(1.0, 0.02)), 1.10,
    ),
    "Llama-16": Case(
        llama, texts(64, 8, False), 8, NextToken(), GaussianNoise(1.0, 0.02),
        lambda model: PlainText(model, GaussianNoise(1.0, 0.02)), 1.25,
    ),
}  # fmt: skip
TRAINERS = ("plain", "erm", "constrained")


class _Window(TrainerCallback):
    """Counts from the end of the warm-up's last step to the end of the last."""

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        COUNT.counting = WARMUP <= state.global_step < WARMUP + STEPS


@contextmanager
def simulated(args: TrainingArguments) -> Iterator[None]:
    """Let a trainer with these arguments believe that its device is the simulated one."""
    vars(args)["_setup_devices"] = DEVICE
    state = args.distributed_state
    before, state.device = state.device, DEVICE
    generator, event = torch.Generator, torch.Event
    torch.Generator = lambda device="cpu": generator("cpu")  # type: ignore[assignment,misc,return-value]
    try:
        torch.Event = _Event  # type: ignore[misc,assignment]
        with Counting(), _Kernels():
            yield
    finally:
        state.device, torch.Generator, torch.Event = before, generator, event  # type: ignore[misc]
        COUNT.counting = False


def counted(case: Case, kind: str) -> dict[str, Any]:
    """Train a case by one of the trainers.

    Args:
        case: What to train.
        kind: One of `TRAINERS`.

    Returns:
        Launches and syncs of one optimizer step, and how often each place in the code had the host wait in a step.
    """
    torch.manual_seed(0)
    COUNT.__init__()  # type: ignore[misc]
    samples, model = case.samples(), onto_device(case.model())
    with tempfile.TemporaryDirectory() as folder:
        shared: dict[str, Any] = {
            "output_dir": folder, "max_steps": WARMUP + STEPS, "per_device_train_batch_size": case.batch,
            "report_to": "none", "save_strategy": "no", "logging_steps": 100, "disable_tqdm": True, "use_cpu": True,
            "learning_rate": 1e-4,
        }  # fmt: skip
        if kind == "plain":
            args = TrainingArguments(**shared, remove_unused_columns=False, label_names=["labels"])
        else:
            # Constraints that can't be met: every multiplier is above 0, so that every exit has a gradient.
            args = DescentConfig(**shared, method=kind, alpha="0.99", dual_warmup_steps=0)
        # Data of the simulated device have no storage, so the check that the model can be saved has nothing to read.
        with simulated(args), patch("descend.models.modules.refuse_unsavable"):
            trainer: Trainer
            if kind == "plain":
                trainer = Trainer(case.plain(model), args, train_dataset=samples, callbacks=[_Window()])
            else:
                trainer = DescentTrainer(
                    model, args, task=case.task, noise=case.noise, train_dataset=samples, callbacks=[_Window()]
                )
            trainer.train()
    sites = {site: number / STEPS for site, number in COUNT.syncs.most_common()}
    launches = {name: number / STEPS for name, number in COUNT.launches.most_common()}
    return {
        "launches": sum(launches.values()),
        "syncs": sum(sites.values()),
        "sites": sites,
        "operators": launches,
    }


def main() -> None:
    """Read the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="a row of JSON for each case and trainer")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES), help="(default: all)")
    parser.add_argument("--sites", action="store_true", help="where the host waits, too")
    options = parser.parse_args()
    for name in options.cases:
        with redirect_stdout(sys.stderr):  # Transformers prints its log to stdout
            rows = {kind: counted(CASES[name], kind) for kind in TRAINERS}
        for kind, row in rows.items():
            if options.json:
                print(json.dumps({"case": name, "trainer": kind} | row))
                continue
            ratio = row["launches"] / rows["plain"]["launches"]
            print(f"{name:14}{kind:12}{row['launches']:8.0f} launches ({ratio:.2f})  {row['syncs']:5.1f} syncs")
            if options.sites:
                for site, number in row["sites"].items():
                    print(f"{'':26}{number:8.2f}  {site}")


_setup_privateuseone_for_python_backend(NAME)
DEVICE = torch.device(NAME, 0)
_foreach_utils._foreach_supported_types.append(CountedTensor)  # a norm of many tensors is one kernel
torch._C._set_only_lift_cpu_tensors(True)  # torch.tensor(…, device=…) is made on the CPU, then copied

if __name__ == "__main__":
    main()
