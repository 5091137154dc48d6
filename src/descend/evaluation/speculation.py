"""Self-speculative decoding: the first k layers draft, the whole model checks (Elhoushi et al., 2024)."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from descend.evaluation.evaluate import Levels, Subject
from descend.evaluation.layers import evenly
from descend.models.causal import LayeredCausalLM
from descend.results import Drafts, Speculation
from descend.tiles import rows_per_tile

PROMPTS, NEW_TOKENS = 16, 64


@torch.no_grad()
def speculation(
    subject: Subject, levels: Levels, *, ignored: int, prompts: int = PROMPTS
) -> Iterator[tuple[str, Speculation]]:
    """The share of tokens on which the first k layers agree with the whole model.

    The whole model answers some prompts greedily, on clean inputs. One forward pass over each answer reads the tokens
    that every exit would have drafted.

    Args:
        subject: A causal language model, and tokenized samples with ``input_ids`` and ``labels``; what comes before the
            first target is the prompt.
        levels: What was measured.
        ignored: The label of a token that is no target.
        prompts: How many samples to answer, evenly chosen.

    Yields:
        ``speculation``: for every k = 1 … L−1 in ``layers`` its ``acceptance``, the share of the answers' tokens that
        exit k predicts from the tokens before them.
    """
    model, dataset = subject.model, subject.data
    if not isinstance(model, LayeredCausalLM) or model.depth < 2:
        return
    chosen = [dataset[place] for place in evenly(len(dataset), prompts)]
    asked = [_prompt(sample, ignored, subject.batches.device) for sample in chosen]
    model.saved.eval()
    answers = [_answer(model, ids) for ids in asked]
    written = sum(answer.shape[1] - ids.shape[1] for answer, ids in zip(answers, asked, strict=True))
    agreed = sum((agreements(model, *each) for each in zip(answers, asked, strict=True)), torch.zeros(()))
    layers = [
        Drafts(layer=layer, acceptance=share)
        for layer, share in enumerate((agreed / max(written, 1)).tolist() if written else [], start=1)
    ]
    yield "speculation", Speculation(prompts=len(asked), layers=layers)


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


def _answer(model: LayeredCausalLM, ids: Tensor) -> Tensor:
    """A prompt (1, P) with what the model writes after it, (1, P + N)."""
    room = min(NEW_TOKENS, model.limits["length"] - ids.shape[1])
    network: Any = model.saved
    settings = {"max_new_tokens": room, "do_sample": False, "attention_mask": torch.ones_like(ids)}
    return network.generate(input_ids=ids, **settings) if room > 1 else ids
