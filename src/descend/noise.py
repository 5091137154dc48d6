"""Noise on a model's input embedding: one mechanism for training, evaluation and inference."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from typing import Any, Self

import torch
from torch import Tensor, nn

from descend.errors import InputError
from descend.noise_scale import Number, check_noise_is, noise_std
from descend.seeds import Draws, Stream, of_sample


class Noise:
    """A corruption of the clean embedding x, with its own generator.

    The noise has its own generator, so that it changes neither dropout nor the order of the data. In training every
    draw is new, and in a trainer a function of its micro-batch, see `begin`. With ``indices`` a draw depends on the
    sample's number only: all models and levels see the same draw, in any batch.

    A subclass defines `draw`, a draw that does not depend on the level, so that it is made once for all levels, and if
    it is not additive `applied`. One whose draws depend on the level or on x defines `corrupt` instead.

    Args:
        level: γ ≥ 0.
        sigma: σ_x, the standard deviation of the clean embedding, in its own units. None measures it in every batch
            without padding: a trainable embedding then can't escape the noise by growing.
        seed: The user's seed, at least 0; each rank of a process group has its own stream.
        noise_is: Whether γσ_x is the noise's ``"std"`` or its ``"variance"``: see `noise_std`.

    Raises:
        InputError: If the level is negative or not finite, or ``noise_is`` is neither of the two.
    """

    def __init__(self, level: float, sigma: float | None = None, seed: int = 0, noise_is: str = "std"):
        self._check(level)
        check_noise_is(noise_is)
        self.level, self.sigma, self.seed, self.noise_is = level, sigma, seed, noise_is
        self._draws = Draws(Stream.NOISE, seed)

    @property
    def kind(self) -> str:
        """The noise's name, such as ``gaussian``."""
        return type(self).__name__.removesuffix("Noise").lower()

    def _check(self, level: float) -> None:
        if isinstance(level, bool) or not 0 <= level < math.inf:
            raise InputError(f"noise must be a level γ of at least 0, and finite; got {level}.")

    def std(self, sigma: Number) -> Number:
        """The noise's standard deviation at this level for σ_x, a number or a tensor: see `noise_std`."""
        return noise_std(self.level, sigma, self.noise_is)

    def draw(self, like: Tensor, generator: torch.Generator) -> Tensor:
        """A draw for x of the shape, type and device of ``like``."""
        raise NotImplementedError

    def applied(self, clean: Tensor, drawn: Tensor, std: Tensor | float) -> Tensor:
        """x̃ for a draw, which is left as it is: x + std · draw."""
        return drawn.mul(std).add_(clean)

    def corrupt(self, clean: Tensor, std: Tensor | float, generator: torch.Generator) -> Tensor:
        """x̃ for a new draw, of x's shape.

        Args:
            clean: x, shape (…, H).
            std: The noise's standard deviation.
            generator: The generator to draw from, on x's device.
        """
        return self.applied(clean, self.draw(clean, generator), std)

    def at(self, level: float, seed: int | None = None, sigma: float | None = None) -> Self:
        """The same kind of noise at another level, with a new generator; seed and σ_x as here unless given."""
        other = copy(self)
        sigma, seed = self.sigma if sigma is None else sigma, self.seed if seed is None else seed
        # Not the subclass's constructor, which may take other arguments.
        Noise.__init__(other, level, sigma, seed, self.noise_is)
        return other

    def begin(self, step: int, micro_batch: int = 0) -> None:
        """Say where training is: the next draws depend on the seed, the rank and this place alone.

        `DescentTrainer` calls this. In a loop of your own, call it before each batch for a run that can be resumed;
        without it draws follow one another from the seed on.

        Both numbers count from 0, the micro-batch's within its step.
        """
        self._draws.begin(step, micro_batch)

    def __call__(
        self, clean: Tensor, keep: Tensor | None = None, indices: "Sequence[int] | SampleDraws | None" = None
    ) -> Tensor:
        """Add the noise to a batch.

        Args:
            clean: x, shape (B, …, H).
            keep: Where to add noise, bool (B, T) over the first dimensions of x; False is padding.
            indices: The samples' numbers in the data set, for noise that depends on the sample only, or their draws, to
                reuse at every level; new draws by default.

        Returns:
            x̃, of x's shape.

        Raises:
            InputError: If ``indices`` are given and σ_x is not known: measured in the batch, it would depend on it. Or
                if there are more or fewer of them than rows of x.
        """
        if self.level == 0:
            return clean
        if indices is not None:
            if self.sigma is None:
                raise InputError(
                    "noise that belongs to samples needs a sigma, measured on the whole data set; got none."
                )
            draws = indices if isinstance(indices, SampleDraws) else SampleDraws(indices)
            if draws.rows != len(clean):
                raise InputError(
                    f"noise that belongs to samples needs a row of x for each of {draws.rows} samples; got the "
                    f"shape {tuple(clean.shape)}. The output of the input embedding must be (B, …)."
                )
            return self._of_samples(clean, self.sigma, keep, draws)
        std = self.std(_std(clean.detach(), keep)) if self.sigma is None else self.std(self.sigma)
        noisy = self.corrupt(clean, std, self._draws.generator(clean.device))
        return noisy if keep is None else torch.where(keep[..., None], noisy, clean)

    @contextmanager
    def on(
        self,
        model: Any,
        *,
        mask: Tensor | None = None,
        indices: "Sequence[int] | SampleDraws | None" = None,
    ) -> Iterator[None]:
        """Corrupt the output of the model's input embedding inside the ``with`` block.

        If the model is called with ``inputs_embeds``, which bypass the embedding, they are corrupted instead.

        Args:
            model: A module with `get_input_embeddings`; it may be wrapped by PEFT or be in half precision.
            mask: 0 for padding, (B, T); by default the ``attention_mask`` that the model is called with.
            indices: As in `__call__`.
        """
        masked, corrupted = mask, None
        inner: Any = getattr(model, "library", model)
        inner = inner.get_base_model() if hasattr(inner, "get_base_model") else inner
        inner = getattr(inner, "base_model", inner)

        def places(embedded: Tensor) -> Tensor | None:
            # In generation the mask also covers earlier tokens, which are not embedded again.
            return None if masked is None else masked[:, -embedded.shape[1] :].bool()

        def before(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
            nonlocal masked, corrupted
            given: Tensor | None = kwargs.get("attention_mask")
            if mask is None and (module is model or given is not None):
                masked = given if given is not None and given.dim() == 2 else None
            embedded: Tensor | None = kwargs.get("inputs_embeds")
            # The model with the head passes its embeddings on to the base model: corrupt them once.
            if embedded is not None and embedded is not corrupted:
                corrupted = self(embedded, places(embedded), indices)
                kwargs = kwargs | {"inputs_embeds": corrupted}
            return args, kwargs

        def after(module: nn.Module, args: Any, embedded: Tensor) -> Tensor:
            return self(embedded, places(embedded), indices)

        called = [model] if inner is model else [model, inner]
        handles = [each.register_forward_pre_hook(before, with_kwargs=True) for each in called]
        handles.append(model.get_input_embeddings().register_forward_hook(after))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _of_samples(self, clean: Tensor, sigma: float, keep: Tensor | None, draws: "SampleDraws") -> Tensor:
        """A batch in which each sample has the draw of its number, made on the CPU: see `SampleDraws.on`."""
        std = self.std(sigma)
        if type(self).corrupt is Noise.corrupt:
            noisy = self.applied(clean.float(), draws.on(self, clean, keep), std).to(clean)
            return noisy if keep is None else torch.where(keep[..., None], noisy, clean)
        rows = clean.clone()
        for row, index in enumerate(draws.indices):
            places = slice(None) if keep is None else keep[row]
            drawn = self.corrupt(clean[row][places].float().cpu(), std, _of_number(self.seed, index))
            rows[row, places] = drawn.to(clean)
        return rows


class SampleDraws:
    """The draws that belong to the samples of one batch, kept so that all levels of noise share them.

    Args:
        indices: The samples' numbers.
    """

    def __init__(self, indices: Sequence[int]):
        self.indices = indices
        self._kept: dict[tuple[type, int, torch.Size, torch.device], Tensor] = {}

    @property
    def rows(self) -> int:
        """B, the number of samples in the batch."""
        return len(self.indices)

    def on(self, noise: Noise, clean: Tensor, keep: Tensor | None) -> Tensor:
        """The draws (B, …) in single precision on the device of x, with 0 at padding.

        They are drawn on the CPU, so that they depend on neither the device nor the padding.

        Args:
            noise: Draws them, by its seed.
            clean: x, (B, …, H).
            keep: Where noise goes, bool (B, T); None for everywhere.
        """
        key = type(noise), noise.seed, clean.shape, clean.device
        if key not in self._kept:
            places = None if keep is None else keep.cpu()
            rows = []
            for row, index in enumerate(self.indices):
                generator = _of_number(noise.seed, index)
                if places is None:
                    rows.append(noise.draw(torch.empty(clean.shape[1:]), generator))
                    continue
                drawn = noise.draw(torch.empty(int(places[row].sum()), *clean.shape[2:]), generator)
                rows.append(drawn.new_zeros(clean.shape[1], *drawn.shape[1:]).index_put((places[row],), drawn))
            batch = torch.stack(rows)
            if clean.device.type == "cuda":
                batch = batch.pin_memory()
            self._kept[key] = batch.to(clean.device, non_blocking=True)
        return self._kept[key]


class GaussianNoise(Noise):
    """x̃ = x + ε, ε ~ N(0, s² I) with the standard deviation s of `std`: γσ_x, or √(γσ_x)."""

    def draw(self, like: Tensor, generator: torch.Generator) -> Tensor:
        """ε of standard deviation 1."""
        return torch.randn(like.shape, generator=generator, device=like.device, dtype=like.dtype)


class UniformNoise(Noise):
    """x̃ = x + ε, ε uniform with the standard deviation of `std`."""

    def draw(self, like: Tensor, generator: torch.Generator) -> Tensor:
        """Uniform numbers from −½ to ½."""
        return torch.rand(like.shape, generator=generator, device=like.device, dtype=like.dtype).sub_(0.5)

    def applied(self, clean: Tensor, drawn: Tensor, std: Tensor | float) -> Tensor:
        """x + √12 std · draw."""
        return super().applied(clean, drawn, math.sqrt(12) * std)


class LaplaceNoise(Noise):
    """x̃ = x + ε, ε from the Laplace distribution with the standard deviation of `std`."""

    def draw(self, like: Tensor, generator: torch.Generator) -> Tensor:
        """A random sign times an exponential draw of mean 1."""
        size = torch.empty_like(like).exponential_(generator=generator)
        return size * (torch.randint(2, like.shape, generator=generator, device=like.device) * 2 - 1)

    def applied(self, clean: Tensor, drawn: Tensor, std: Tensor | float) -> Tensor:
        """x + std / √2 · draw."""
        return super().applied(clean, drawn, std / math.sqrt(2))


class TokenDropout(Noise):
    """Sets each token's embedding to 0 with probability γ; σ_x and ``noise_is`` have no effect."""

    def __init__(self, level: float, sigma: float | None = 1.0, seed: int = 0, noise_is: str = "std"):
        super().__init__(level, 1.0, seed, noise_is)

    def _check(self, level: float) -> None:
        super()._check(level)
        if level > 1:
            raise InputError(f"the level of token dropout is a probability, at most 1; got {level}.")

    def draw(self, like: Tensor, generator: torch.Generator) -> Tensor:
        """A uniform number from 0 to 1 for each token."""
        return torch.rand(like.shape[:-1], generator=generator, device=like.device)

    def applied(self, clean: Tensor, drawn: Tensor, std: Tensor | float) -> Tensor:
        """x with some tokens at 0."""
        return clean * (drawn >= self.level)[..., None]


class Corruption(Noise):
    """A user-defined corruption, x̃ = function(x, std, generator).

    Args:
        function: Takes a tensor (…, H), the standard deviation of `std` and a generator on the tensor's device, and
            returns a tensor of the same shape. It must draw from that generator alone. At the level 0 it is not called.
        level, sigma, seed, noise_is: As in `Noise`.
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
        """The function's result.

        Raises:
            InputError: If the result's shape is not that of x.
        """
        noisy = self.function(clean, std, generator)
        if noisy.shape != clean.shape:
            raise InputError(f"a corruption must keep the shape {tuple(clean.shape)}; got {tuple(noisy.shape)}.")
        return noisy


def _std(clean: Tensor, keep: Tensor | None) -> Tensor:
    """The standard deviation of x (B, T, …) without padding, computed without a transfer to the host."""
    wide = clean.float()
    if keep is None:
        return wide.std(correction=0)
    data = keep.reshape(*keep.shape, *(1 for _ in range(wide.dim() - keep.dim()))).expand_as(wide)
    count = data.sum()
    mean = torch.where(data, wide, 0).sum() / count
    return (torch.where(data, wide - mean, 0).square().sum() / count).sqrt()


def _of_number(seed: int, index: int) -> torch.Generator:
    """A generator on the CPU for the sample of this number."""
    return torch.Generator("cpu").manual_seed(of_sample(seed, int(index)))
