"""Self-speculative decoding: the first k layers draft, the whole model checks (Elhoushi et al., 2024)."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from transformers.utils import logging

from descend.evaluation.evaluate import Levels, Subject
from descend.evaluation.latency import now
from descend.evaluation.layers import evenly
from descend.models.causal import LayeredCausalLM
from descend.results import Drafts, Speculation
from descend.tiles import rows_per_tile

PROMPTS, NEW_TOKENS = 16, 64


@torch.no_grad()
def speculation(
    subject: Subject, levels: Levels, *, ignored: int, prompts: int = PROMPTS
) -> Iterator[tuple[str, Speculation]]:
    """The share of tokens on which the first k layers agree with the whole model, and the time that drafting saves.

    The whole model answers some prompts greedily, on clean inputs. One forward pass over each answer reads the tokens
    that every exit would have drafted. Drafting is timed at the depth that promises most, by Transformers'
    ``generate(..., assistant_early_exit=k)``, whose answers are the whole model's own by construction.

    Args:
        subject: A causal language model, and tokenized samples with ``input_ids`` and ``labels``; what comes before the
            first target is the prompt.
        levels: What was measured.
        ignored: The label of a token that is no target.
        prompts: How many samples to answer, evenly chosen.

    Yields:
        ``speculation``: ``tokens_per_second`` at full depth; and for every k = 1 … L−1 in ``layers`` its
        ``acceptance``, the share of the answers' tokens that exit k predicts from the tokens before them. ``speed``,
        the tokens per second against full depth, is measured for the k of the greatest expected speed, see
        `expected_speed`, and None for others and for families that Transformers can't draft with.
    """
    model, dataset = subject.model, subject.data
    if not isinstance(model, LayeredCausalLM) or model.depth < 2:
        return
    chosen = [dataset[place] for place in evenly(len(dataset), prompts)]
    asked = [_prompt(sample, ignored, subject.batches.device) for sample in chosen]
    model.saved.eval()
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()  # Transformers warns about arguments that it passes itself
    try:
        _answers(model, asked[:1])  # warm before it is timed
        answers, seconds = _answers(model, asked)
        written = _length(answers, asked)
        agreed = sum((agreements(model, *each) for each in zip(answers, asked, strict=True)), torch.zeros(()))
        layers = [
            Drafts(layer=layer, acceptance=share, speed=None)
            for layer, share in enumerate((agreed / max(written, 1)).tolist() if written else [], start=1)
        ]
        if layers and model.family.drafts and model.own_exits is None:  # Transformers drafts with the last readout
            best = max(layers, key=lambda each: expected_speed(each.layer / model.depth, each.acceptance))
            drafted, spent = _answers(model, asked, assistant_early_exit=best.layer)
            speed = (_length(drafted, asked) / spent) / (written / seconds)
            layers[best.layer - 1] = best.model_copy(update={"speed": speed})
    finally:
        logging.set_verbosity(verbosity)
    yield "speculation", Speculation(prompts=len(asked), tokens_per_second=written / seconds, layers=layers)


def expected_speed(cost: float, acceptance: float) -> float:
    """Tokens for the time of one whole forward pass, where drafts stop at the first token that is not accepted.

    Every token of the answer is drafted once, and every token that is not accepted costs a check.

    Args:
        cost: Of a drafted token, in whole forward passes.
        acceptance: The share of drafted tokens that are accepted.
    """
    return 1 / (cost + 1 - acceptance)


def agreements(model: LayeredCausalLM, answer: Tensor, prompt: Tensor) -> Tensor:
    """On how many tokens of an answer each exit 1 … L−1 agrees with the whole model, (L−1,), from one forward pass.

    Args:
        model: The model.
        answer: The prompt and the tokens that the whole model wrote, (1, P + N).
        prompt: The prompt, (1, P).
    """
    count = torch.zeros(model.depth - 1, dtype=torch.float64)
    start, written = prompt.shape[1], answer[0, prompt.shape[1] :]
    if not len(written):
        return count
    tokens = answer[:, :-1]
    states = model.layer_outputs({"input_ids": tokens, "attention_mask": torch.ones_like(tokens)})
    size = rows_per_tile(model.limits["vocabulary"])
    for layer, hidden in enumerate(states[1:-1], start=1):
        for rows, right in zip(hidden[0, start - 1 :].split(size), written.split(size), strict=True):
            count[layer - 1] += (model.readout(rows, layer=layer).argmax(-1) == right).sum().item()
    return count


def _prompt(sample: dict[str, Any], ignored: int, device: torch.device | str) -> Tensor:
    ids, labels = sample["input_ids"], sample["labels"]
    start = next((place for place, label in enumerate(labels) if label != ignored), len(ids))
    return torch.tensor([ids[: max(1, start)]], device=device)


def _answers(model: LayeredCausalLM, asked: list[Tensor], **how: Any) -> tuple[list[Tensor], float]:
    """Each prompt with what was written after it, and seconds."""
    answers, began = [], now(asked[0].device)
    for ids in asked:
        room = min(NEW_TOKENS, model.limits["length"] - ids.shape[1])
        settings = {"max_new_tokens": room, "do_sample": False, "attention_mask": torch.ones_like(ids), **how}
        network: Any = model.saved
        answers.append(network.generate(input_ids=ids, **settings) if room > 1 else ids)
    return answers, now(asked[0].device) - began


def _length(answers: list[Tensor], asked: list[Tensor]) -> int:
    """How many tokens were written."""
    return sum(answer.shape[1] - ids.shape[1] for answer, ids in zip(answers, asked, strict=True))
