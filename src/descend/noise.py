"""Noise on what a model takes in: one mechanism for training, evaluation and inference."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from typing import Any, Self

import torch
from torch import Tensor, distributed, nn

from descend.errors import InputError


class Noise:
    """A corruption of the clean embedding x, with its own generator.

    A model's dropout and the order of the data don't move when the noise does. In training it is fresh; with
    ``indices`` it belongs to the samples: every model and every level meets the same draw for the same sample,
    whatever the batch it comes in.

    Args:
        level: γ ≥ 0.
        sigma: σ_x, the standard deviation of the clean embedding, in its own units. None measures it in every batch,
            padding left out: an embedding that learns can't outgrow its noise.
        seed: Of the noise; every rank of a process group draws its own.
        noise_is: What γσ_x is of the noise, its ``"std"`` or its ``"variance"``: see `std`.

    Raises:
        InputError: If the level is negative or not finite, or ``noise_is`` is neither of the two.
    """

    def __init__(self, level: float, sigma: float | None = None, seed: int = 0, noise_is: str = "std"):
        self._check(level)
        if noise_is not in ("std", "variance"):
            raise InputError(f"noise_is must be 'std' or 'variance', what γσ_x is of the noise; got {noise_is!r}.")
        self.level, self.sigma, self.seed, self.noise_is = level, sigma, seed, noise_is
        self._generator: torch.Generator | None = None
        self._state: Tensor | None = None

    def _check(self, level: float) -> None:
        if not 0 <= level < math.inf:
            raise InputError(f"noise must be a level γ of at least 0, and finite; got {level}.")

    def std(self, sigma: Any) -> Any:
        """The noise's standard deviation at this level, in the units of the data.

        By ``"std"`` it is γσ_x, as the paper's text has it (Sec. 4): γ has no unit, and scaled data have scaled noise.
        By ``"variance"`` it is √(γσ_x), as the paper's poster reads, N(μ, γσ_x I): γ has the unit of the data.

        Args:
            sigma: σ_x, a number or a tensor.
        """
        scale = self.level * sigma
        return scale if self.noise_is == "std" else scale**0.5

    def corrupt(self, clean: Tensor, std: Tensor | float, generator: torch.Generator) -> Tensor:
        """x̃ for x of any shape (…, H) and noise of this standard deviation, from ``generator`` on x's device."""
        raise NotImplementedError

    def at(self, level: float, seed: int | None = None, sigma: float | None = None) -> Self:
        """The same kind of noise at another level, with a generator of its own; seed and σ_x as here unless given."""
        other = copy(self)
        sigma, seed = self.sigma if sigma is None else sigma, self.seed if seed is None else seed
        Noise.__init__(other, level, sigma, seed, self.noise_is)
        return other

    def __call__(self, clean: Tensor, keep: Tensor | None = None, indices: Sequence[int] | None = None) -> Tensor:
        """The data with noise.

        Args:
            clean: x, shape (B, …, H).
            keep: What may be corrupted, bool (B, T) over the first dimensions of x; the rest, padding, is left alone.
            indices: The samples' numbers, for noise that belongs to them; fresh noise unless given.

        Raises:
            InputError: If noise is to belong to samples and σ_x is not known: it would depend on their batch.
        """
        if self.level == 0:
            return clean
        if indices is not None:
            if self.sigma is None:
                raise InputError(
                    "noise that belongs to samples needs a sigma, measured on the whole data set; got none."
                )
            return torch.stack(
                [
                    self._own(sample, int(index), None if keep is None else keep[place])
                    for place, (sample, index) in enumerate(zip(clean, indices, strict=True))
                ]
            )
        sigma = _std(clean.detach(), keep) if self.sigma is None else self.sigma
        noisy = self.corrupt(clean, self.std(sigma), self._on(clean.device))
        return noisy if keep is None else torch.where(keep[..., None], noisy, clean)

    @contextmanager
    def on(
        self, model: nn.Module, *, mask: Tensor | None = None, indices: Sequence[int] | None = None
    ) -> Iterator[None]:
        """Inside the ``with`` block the output of the model's input embedding is corrupted; after it no more.

        Where the model is called with ``inputs_embeds``, which pass the embedding by, these are corrupted instead.

        Args:
            model: A model with `get_input_embeddings`; wrapped by PEFT or in half precision alike.
            mask: What is no padding, (B, T); by default the ``attention_mask`` that the model is called with.
            indices: As in `__call__`.
        """
        called: dict[str, Any] = {"mask": mask, "embeds": None}
        inner: Any = getattr(model, "library", model)
        inner = inner.get_base_model() if hasattr(inner, "get_base_model") else inner
        inner = getattr(inner, "base_model", inner)

        def places(embedded: Tensor) -> Tensor | None:
            found = called["mask"]
            # In generation the mask is longer than what is embedded: it covers the tokens before.
            return None if found is None else found[:, -embedded.shape[1] :].bool()

        def before(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
            given = kwargs.get("attention_mask")
            if mask is None and (module is model or given is not None):
                called["mask"] = given if given is not None and given.dim() == 2 else None
            embedded = kwargs.get("inputs_embeds")
            # A head passes on what it was called with: the same embeddings get their noise once.
            if embedded is not None and embedded is not called["embeds"]:
                called["embeds"] = self(embedded, places(embedded), indices)
                kwargs = kwargs | {"inputs_embeds": called["embeds"]}
            return args, kwargs

        def after(module: nn.Module, args: Any, embedded: Tensor) -> Tensor:
            return self(embedded, places(embedded), indices)

        handles = [
            *(
                each.register_forward_pre_hook(before, with_kwargs=True)
                for each in {id(model): model, id(inner): inner}.values()
            ),
            model.get_input_embeddings().register_forward_hook(after),  # type: ignore[operator]
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def state_dict(self) -> dict[str, Any]:
        """Where the generator stands, so that a resumed run draws what it would have drawn."""
        return {"generator": self._generator.get_state() if self._generator else self._state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        self._generator, self._state = None, state["generator"]

    def _own(self, clean: Tensor, index: int, keep: Tensor | None) -> Tensor:
        """A sample with its own noise, the same on every device and however long it is padded."""
        generator = torch.Generator().manual_seed((self.seed + 1) * 1_000_003 + index)
        std = self.std(self.sigma)
        if keep is None:
            return self.corrupt(clean.float().cpu(), std, generator).to(clean)
        noisy = clean.clone()
        noisy[keep] = self.corrupt(clean[keep].float().cpu(), std, generator).to(clean)
        return noisy

    def _on(self, device: torch.device) -> torch.Generator:
        if self._generator is None or self._generator.device != device:
            rank = distributed.get_rank() if distributed.is_available() and distributed.is_initialized() else 0
            self._generator = torch.Generator(device).manual_seed(self.seed * 8191 + rank)
            if self._state is not None:
                try:
                    self._generator.set_state(self._state)
                except RuntimeError as error:
                    raise InputError(
                        f"the noise of this run was drawn on another kind of device than {device.type}, and can't go "
                        "on there. Resume where it was begun, or start it anew with another --out."
                    ) from error
                self._state = None
        return self._generator


class GaussianNoise(Noise):
    """x̃ = x + ε, ε ~ N(0, s² I) with the standard deviation s of `std`: γσ_x, or √(γσ_x)."""

    def corrupt(self, clean: Tensor, std: Tensor | float, generator: torch.Generator) -> Tensor:
        """x + ε."""
        draw = torch.randn(clean.shape, generator=generator, device=clean.device, dtype=clean.dtype)
        return draw.mul_(std).add_(clean)


class UniformNoise(Noise):
    """x̃ = x + ε, ε uniform with the standard deviation of `std`."""

    def corrupt(self, clean: Tensor, std: Tensor | float, generator: torch.Generator) -> Tensor:
        """x + ε."""
        draw = torch.rand(clean.shape, generator=generator, device=clean.device, dtype=clean.dtype)
        return draw.sub_(0.5).mul_(math.sqrt(12) * std).add_(clean)


class LaplaceNoise(Noise):
    """x̃ = x + ε, ε from the Laplace distribution with the standard deviation of `std`."""

    def corrupt(self, clean: Tensor, std: Tensor | float, generator: torch.Generator) -> Tensor:
        """x + ε: a random sign times an exponential draw of mean std / √2."""
        size = torch.empty_like(clean).exponential_(generator=generator)
        sign = torch.randint(2, clean.shape, generator=generator, device=clean.device) * 2 - 1
        return clean + size * sign * (std / math.sqrt(2))


class TokenDropout(Noise):
    """x̃ has each token's embedding, with probability γ, at 0; neither σ_x nor ``noise_is`` matters."""

    def __init__(self, level: float, sigma: float | None = 1.0, seed: int = 0, noise_is: str = "std"):
        super().__init__(level, 1.0, seed, noise_is)

    def _check(self, level: float) -> None:
        super()._check(level)
        if level > 1:
            raise InputError(f"the level of token dropout is a probability, at most 1; got {level}.")

    def corrupt(self, clean: Tensor, std: Tensor | float, generator: torch.Generator) -> Tensor:
        """x with tokens at 0."""
        kept = torch.rand(clean.shape[:-1], generator=generator, device=clean.device) >= self.level
        return clean * kept[..., None]


class Corruption(Noise):
    """x̃ = function(x, std, generator), a corruption of the user's own.

    Args:
        function: Of a tensor (…, H), the standard deviation of `std` and a generator on the tensor's device; what it
            draws, it must draw from there.
        level: γ ≥ 0; at 0 the function is not called.
        sigma: σ_x; None measures it in every batch.
        seed: Of the noise.
        noise_is: What γσ_x is, ``"std"`` or ``"variance"``.
    """

    def __init__(
        self,
        function: Callable[[Tensor, Tensor | float, torch.Generator], Tensor],
        level: float,
        sigma: float | None = None,
        seed: int = 0,
        noise_is: str = "std",
    ):
        super().__init__(level, sigma, seed, noise_is)
        self.function = function

    def corrupt(self, clean: Tensor, std: Tensor | float, generator: torch.Generator) -> Tensor:
        """What the function makes of x."""
        noisy = self.function(clean, std, generator)
        if noisy.shape != clean.shape:
            raise InputError(f"a corruption must keep the shape {tuple(clean.shape)}; got {tuple(noisy.shape)}.")
        return noisy


def _std(clean: Tensor, keep: Tensor | None) -> Tensor:
    """The standard deviation of x (B, T, …) where it is no padding, without a look at the values from the host."""
    wide = clean.float()
    if keep is None:
        return wide.std(correction=0)
    kept = keep.reshape(*keep.shape, *(1 for _ in range(wide.dim() - keep.dim()))).expand_as(wide)
    count = kept.sum()
    mean = torch.where(kept, wide, 0).sum() / count
    return (torch.where(kept, wide - mean, 0).square().sum() / count).sqrt()
