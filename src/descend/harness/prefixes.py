"""Noise drawn by the prefix: whoever reads the same tokens gets the same draws."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor, nn

from descend.models.modules import changed
from descend.noise import Noise, SampleDraws
from descend.seeds import Stream, derived

WIDTH = 8
"""Bytes of a token, and of a prefix's hash."""


class PrefixDraws(SampleDraws):
    """Draws for a causal language model: that of a token depends on the tokens up to it and on the seed alone.

    Answer options therefore share the draws of their common context, and a batch's size, order and padding change
    nothing, nor does the KV cache. The level only scales a draw. A draw's seed is the prefix's hash, of which torch's
    CPU generator uses 32 bits: two of n different prefixes get the same draw with a probability of about n² / 2³³.

    Give it to `Noise.on` as ``indices``, and tell it by `follow` which tokens the next forward pass reads.
    """

    def __init__(self) -> None:
        super().__init__(())
        self._ids: Tensor | None = None
        self._mask: Tensor | None = None

    def __len__(self) -> int:
        """B, the number of texts that are read."""
        return 0 if self._ids is None else len(self._ids)

    def follow(self, ids: Tensor, mask: Tensor | None = None) -> None:
        """The tokens of the next forward pass.

        Args:
            ids: The tokens from the start of each text, (B, S). A forward pass with a KV cache embeds the last ones.
            mask: 0 for padding, (B, S); None if it is all on the right, where no other token sees it.
        """
        self._ids, self._mask = ids.cpu(), None if mask is None else mask.cpu().bool()

    @contextmanager
    def following(self, network: nn.Module) -> Iterator[None]:
        """Follow a Hugging Face model's ``generate`` inside the ``with`` block."""
        prepare: Callable[..., Any] = network.prepare_inputs_for_generation  # type: ignore[assignment]

        @wraps(prepare)
        def prepared(input_ids: Tensor, *args: Any, **kwargs: Any) -> Any:
            self.follow(input_ids, kwargs.get("attention_mask"))
            return prepare(input_ids, *args, **kwargs)

        with changed(network, prepare_inputs_for_generation=prepared):
            yield

    def tensor(self, noise: Noise, clean: Tensor, keep: Tensor | None) -> Tensor:
        """The draws (B, T, …) in single precision on the device of x, with 0 at padding that the mask shows.

        Args:
            noise: Draws them, by its seed.
            clean: x, (B, T, H), the embeddings of the last T tokens.
            keep: Where noise goes; not used, since the mask of all tokens says it.
        """
        assert self._ids is not None, "follow() tells which tokens are read"
        key = derived(Stream.PREFIX_NOISE, noise.seed).to_bytes(WIDTH, "little")
        start, like = self._ids.shape[1] - clean.shape[1], torch.empty(1, clean.shape[-1])
        rows = []
        for row, ids in enumerate(self._ids):
            real = torch.ones_like(ids, dtype=torch.bool) if self._mask is None else self._mask[row]
            state = blake2b(ids[:start][real[:start]].numpy().tobytes(), digest_size=WIDTH, key=key)
            drawn = []
            for token, counts in zip(ids[start:].tolist(), real[start:].tolist(), strict=True):
                if counts:
                    state.update(token.to_bytes(WIDTH, "little"))
                generator = torch.Generator("cpu").manual_seed(int.from_bytes(state.digest(), "little"))
                draw = noise.draw(like, generator)[0]
                drawn.append(draw if counts else torch.zeros_like(draw))
            rows.append(torch.stack(drawn))
        return torch.stack(rows).to(clean.device)
