"""Self-speculative decoding: the first k layers draft, the whole model checks (Elhoushi et al., 2024)."""

import time
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers.utils import logging

from descend.evaluation.layers import evenly
from descend.records.schema import Drafts, Speculation

if TYPE_CHECKING:
    from datasets import Dataset

PROMPTS, NEW_TOKENS = 16, 64


@torch.no_grad()
def speculation(
    model: Any, dataset: "Dataset", ignored: int, *, device: torch.device | str = "cpu", prompts: int = PROMPTS
) -> Speculation:
    """The share of tokens drafted by the first k layers that the whole model accepts, and the time that saves.

    The answers are those of Transformers' ``generate(..., assistant_early_exit=k)``, greedy, on clean inputs; they
    are the whole model's own by construction.

    Args:
        model: A causal language model in layers.
        dataset: Tokenized samples with ``input_ids`` and ``labels``; what comes before the first token to be told is
            the prompt.
        ignored: The label of a token that is not to be told.
        device: Where the model is.
        prompts: How many samples to answer, evenly chosen.

    Returns:
        ``tokens_per_second`` at full depth; and for every k = 1 … L−1 in ``layers`` its ``acceptance``, the share of
        drafted tokens that are kept, and ``speed``, the tokens per second against full depth.
    """
    chosen = [dataset[place] for place in evenly(len(dataset), prompts)]
    asked = [_prompt(sample, ignored, device) for sample in chosen]
    network = model.saved.eval()
    blocks = model.library.base_model.layers
    calls = {"first": 0, "last": 0}
    handles = [_count(blocks[0], calls, "first"), _count(blocks[model.depth - 1], calls, "last")]
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()  # Transformers warns about arguments that it passes itself
    try:
        _answer(network, asked[:1], model.limits["length"])  # warm before it is timed
        written, seconds = _answer(network, asked, model.limits["length"])
        layers = []
        for layer in range(1, model.depth if written else 1):
            calls.update(first=0, last=0)
            drafted, spent = _answer(network, asked, model.limits["length"], assistant_early_exit=layer)
            # A check keeps what it accepts of a draft, and one token of its own.
            drafts, accepted = calls["first"] - calls["last"], drafted - calls["last"]
            layers.append(
                Drafts(
                    layer=layer,
                    acceptance=max(0.0, accepted / drafts) if drafts else 0.0,
                    speed=(drafted / spent) / (written / seconds),
                )
            )
    finally:
        logging.set_verbosity(verbosity)
        for handle in handles:
            handle.remove()
    return Speculation(prompts=len(asked), tokens_per_second=written / seconds, layers=layers)


def _prompt(sample: dict[str, Any], ignored: int, device: torch.device | str) -> Tensor:
    ids, labels = sample["input_ids"], sample["labels"]
    start = next((place for place, label in enumerate(labels) if label != ignored), len(ids))
    return torch.tensor([ids[: max(1, start)]], device=device)


def _answer(network: Any, asked: list[Tensor], longest: int, **how: Any) -> tuple[int, float]:
    """Tokens written, and seconds."""
    written, began = 0, time.perf_counter()
    for ids in asked:
        room = min(NEW_TOKENS, longest - ids.shape[1])
        if room > 1:
            settings = {"max_new_tokens": room, "do_sample": False, "attention_mask": torch.ones_like(ids), **how}
            written += network.generate(input_ids=ids, **settings).shape[1] - ids.shape[1]
    if asked[0].device.type == "cuda":
        torch.cuda.synchronize()
    return written, time.perf_counter() - began


def _count(block: nn.Module, calls: dict[str, int], name: str) -> Any:
    def called(*_: Any) -> None:
        calls[name] += 1

    return block.register_forward_hook(called)
