"""Noise on a model's input embedding: one mechanism for training, evaluation and inference."""

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from copy import copy
from itertools import count
from typing import Any, Self

import torch
from torch import Tensor, nn

from descend.errors import InputError
from descend.noise_scale import Number, check_noise_is, noise_std
from descend.seeds import Draws, Stream, derived, of_sample


class SampleDraws:
    """The draws of one batch's samples, made once for all levels of noise.

    Args:
        indices: The samples' numbers in the data set.
    """

    def __init__(self, indices: Sequence[int]):
        self.indices = indices
        self._batches: dict[tuple[object, int, torch.Size, torch.device], Tensor] = {}

    def __len__(self) -> int:
        """B, the number of samples in the batch."""
        return len(self.indices)

    def corrupted(self, noise: "Noise", clean: Tensor, keep: Tensor | None) -> Tensor:
        """x̃ in which each sample has the draws of its number; padding has any value.

        Args:
            noise: The noise, at one level.
            clean: x, (B, …, H).
            keep: Where noise goes, bool (B, T); None for everywhere.

        Raises:
            InputError: If the noise has no σ_x, or x has more or fewer rows than there are samples.
        """
        if noise.sigma is None:
            raise InputError("noise that belongs to samples needs a sigma, measured on the whole data set; got none.")
        if len(self) != len(clean):
            raise InputError(
                f"noise that belongs to samples needs a row of x for each of {len(self)} samples; got the "
                f"shape {tuple(clean.shape)}. The output of the input embedding must be (B, …)."
            )
        drawn = self.tensor(noise, clean, keep)
        return noise.applied(clean.float(), drawn, noise.std(noise.sigma)).to(clean)

    def tensor(self, noise: "Noise", clean: Tensor, keep: Tensor | None) -> Tensor:
        """The draws (B, …) of `Noise.draw` in single precision on the device of x, with 0 at padding.

        Its arguments are those of `corrupted`. Noises that `Noise.at` made of one another share the draws. They are
        made on the CPU and without the sample's padding, so that they depend on neither.
        """
        key = noise.origin, noise.seed, clean.shape, clean.device
        if key not in self._batches:
            like = torch.empty((), dtype=torch.float32, device="cpu").expand(clean.shape)  # no memory for its shape
            places = None if keep is None else keep.cpu()
            rows = []
            for row, index in enumerate(self.indices):
                generator = torch.Generator("cpu").manual_seed(of_sample(noise.seed, int(index)))
                if places is None:
                    rows.append(noise.draw(like[row], generator))
                    continue
                drawn = noise.draw(like[row, places[row]], generator)
                rows.append(drawn.new_zeros(clean.shape[1], *drawn.shape[1:]).index_put((places[row],), drawn))
            batch = torch.stack(rows)
            if clean.device.type == "cuda":
                batch = batch.pin_memory()
            self._batches[key] = batch.to(clean.device, non_blocking=True)
        return self._batches[key]


class Noise:
    """A corruption of the clean embedding x, with its own generator.

    The generator keeps the noise from changing dropout or the order of the data. In training every draw is new, and in
    a trainer a function of its micro-batch, see `begin`. With ``indices`` a draw depends on the sample's number only:
    all models and levels see the same draw, in any batch, see `SampleDraws`.

    A subclass defines `draw`, a draw that does not depend on the level, so that it is made once for all levels, and if
    it is not additive `applied`. It may have further parameters, which `at` keeps.

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
        check_noise_is(noise_is)
        self.noise_is = noise_is
        self.origin = object()
        """What noises that `at` made of one another share, and with it their samples' draws."""
        self._set(level, sigma, seed)

    def _set(self, level: float, sigma: float | None, seed: int) -> None:
        """Check and set the values that `at` changes, with a new generator."""
        if isinstance(level, bool | str | None) or not 0 <= level < math.inf:
            raise InputError(f"noise must be a level γ of at least 0, and finite; got {level!r}.")
        self.level, self.sigma, self.seed = level, sigma, seed
        self._draws = Draws(Stream.NOISE, seed)

    @property
    def kind(self) -> str:
        """The noise's name, such as ``gaussian``."""
        return type(self).__name__.removesuffix("Noise").lower()

    def std(self, sigma: Number) -> Number:
        """The noise's standard deviation at this level for σ_x, a number or a tensor: see `noise_std`."""
        return noise_std(self.level, sigma, self.noise_is)

    def draw(self, like: Tensor, generator: torch.Generator) -> Tensor:
        """A draw for x of the shape, type and device of ``like``.

        ``like`` is x itself in training. In evaluation it is a single-precision tensor on the CPU, whatever the type
        and device of x and torch's defaults are.
        """
        raise NotImplementedError(f"{type(self).__name__} must define draw, which training and evaluation call.")

    def applied(self, clean: Tensor, drawn: Tensor, std: Tensor | float) -> Tensor:
        """x̃ for a draw, which is left as it is: x + std · draw."""
        return drawn.mul(std).add_(clean)

    def at(self, level: float, seed: int | None = None, sigma: float | None = None) -> Self:
        """The same kind of noise at another level, with a new generator; seed and σ_x as here unless given."""
        other = copy(self)
        other._set(level, self.sigma if sigma is None else sigma, self.seed if seed is None else seed)
        return other

    def begin(self, step: int, micro_batch: int = 0) -> None:
        """Say where training is: the next draws depend on the seed, the rank and this place alone.

        `DescentTrainer` calls this. In a loop of your own, call it before each batch for a run that can be resumed;
        without it draws follow one another from the seed on. Both numbers count from 0, the micro-batch's in its step.
        """
        self._draws.begin(step, micro_batch)

    def __call__(
        self, clean: Tensor, keep: Tensor | None = None, indices: Sequence[int] | SampleDraws | None = None
    ) -> Tensor:
        """Add the noise to a batch: x̃, of x's shape.

        Args:
            clean: x, shape (B, …, H).
            keep: Where to add noise, bool (B, T) over the first dimensions of x; False is padding.
            indices: The samples' numbers in the data set, for noise that depends on the sample only, or their draws, to
                reuse at every level; new draws by default.

        Raises:
            InputError: If ``indices`` are given and σ_x is not known, or they are not as many as rows of x.
        """
        if self.level == 0:
            return clean
        places = None
        if keep is not None:
            places = keep.reshape(keep.shape + (1,) * (clean.dim() - keep.dim()))
        if indices is None:
            sigma: Any = self._sigma_of(clean, places)
            drawn = self.draw(clean, self._draws.generator(clean.device))
            noisy = self.applied(clean, drawn, self.std(sigma))
        else:
            draws = indices if isinstance(indices, SampleDraws) else SampleDraws(indices)
            noisy = draws.corrupted(self, clean, keep)
        return noisy if places is None else torch.where(places, noisy, clean)

    def _sigma_of(self, clean: Tensor, places: Tensor | None) -> Tensor | float:
        """σ_x, or the standard deviation of a batch where it is not known."""
        return _std(clean.detach(), places) if self.sigma is None else self.sigma

    @contextmanager
    def on(
        self, model: Any, *, mask: Tensor | None = None, indices: Sequence[int] | SampleDraws | None = None
    ) -> Iterator[None]:
        """Corrupt the output of the model's input embedding inside the ``with`` block.

        If the model is called with ``inputs_embeds``, which bypass the embedding, they are corrupted instead.

        Args:
            model: A module with `get_input_embeddings`; it may be wrapped by PEFT or be in half precision.
            mask: 0 for padding, (B, T); by default the ``attention_mask`` that the model is called with.
            indices: As in `__call__`.
        """
        masked = mask
        corrupted: Tensor | None = None
        inner: Any = getattr(model, "library", model)
        if hasattr(inner, "get_base_model"):
            inner = inner.get_base_model()
        inner = getattr(inner, "base_model", inner)

        def noisy(embedded: Tensor) -> Tensor:
            # In generation the mask also covers earlier tokens, which are not embedded again.
            keep = None if masked is None else masked[:, -embedded.shape[1] :].bool()
            return self(embedded, keep, indices)

        def before(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
            nonlocal masked, corrupted
            given: Tensor | None = kwargs.get("attention_mask")
            if mask is None and (module is model or given is not None):
                masked = given if given is not None and given.dim() == 2 else None
            embedded: Tensor | None = kwargs.get("inputs_embeds")
            # The model with the head passes its embeddings on to the base model: corrupt them once.
            if embedded is not None and embedded is not corrupted:
                corrupted = noisy(embedded)
                kwargs = kwargs | {"inputs_embeds": corrupted}
            return args, kwargs

        embedding = model.get_input_embeddings()
        with ExitStack() as hooks:
            for module in {model, inner}:
                hooks.enter_context(module.register_forward_pre_hook(before, with_kwargs=True))
            hooks.enter_context(embedding.register_forward_hook(lambda module, args, embedded: noisy(embedded)))
            yield


class GaussianNoise(Noise):
    """x̃ = x + ε, ε ~ N(0, s² I) with the standard deviation s of `std`: γσ_x, or √(γσ_x)."""

    def draw(self, like: Tensor, generator: torch.Generator) -> Tensor:
        """ε of standard deviation 1."""
        return torch.randn(like.shape, generator=generator, device=like.device, dtype=like.dtype)


class StateNoise(GaussianNoise):
    """As `GaussianNoise`, and as much again on the state that every layer is given, drawn anew for each layer.

    It is for models whose layers are modules that are called with a tensor first. An exit reads what its layer makes of
    the noisy state before it, without noise of its own. Activation checkpointing would compute the layers again without
    the noise.
    """

    _last: Tensor | float | None = None
    """σ_x of the last input."""

    def _sigma_of(self, clean: Tensor, places: Tensor | None) -> Tensor | float:
        self._last = super()._sigma_of(clean, places)
        return self._last

    @contextmanager
    def on(
        self, model: Any, *, mask: Tensor | None = None, indices: Sequence[int] | SampleDraws | None = None
    ) -> Iterator[None]:
        """Corrupt the input and what every layer is given inside the ``with`` block.

        Args:
            model: A layered model.
            mask: See `Noise.on`.
            indices: As in `__call__`.

        Raises:
            InputError: If the layers are no modules, or are not called with a tensor.
        """
        layers = dict.fromkeys(getattr(model, "layer_modules", ()))
        if not layers:
            raise InputError(
                f"noise between layers needs layers that are modules; those of {type(model).__name__} are none."
            )
        keep = None if mask is None else mask.bool()
        calls = count()

        def before(layer: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
            if not (args and isinstance(args[0], Tensor)):
                raise InputError(
                    f"noise between layers needs layers that are called with a tensor first; got a "
                    f"{type(layer).__name__} that is called with {type(args[0]).__name__ if args else 'names alone'}."
                )
            number = next(calls)
            if not number:
                return args  # the input, which is noisy already
            noise: Any = copy(self)
            noise.sigma = self._last  # the input's, not the state's
            if indices is not None:
                noise = self.at(self.level, seed=derived(Stream.STATES, self.seed, number))
            return (noise(args[0], keep, indices), *args[1:])

        with super().on(model, mask=mask, indices=indices), ExitStack() as hooks:
            for layer in layers:
                hooks.enter_context(layer.register_forward_pre_hook(before))
            yield


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
    """Sets each token's embedding to 0 with probability γ.

    It takes the arguments of every kind, but ``sigma`` and ``noise_is`` have no effect: its `sigma` is always 1.
    """

    def _set(self, level: float, sigma: float | None, seed: int) -> None:
        super()._set(level, 1.0, seed)
        if level > 1:
            raise InputError(f"the level of token dropout is a probability, at most 1; got {level}.")

    def draw(self, like: Tensor, generator: torch.Generator) -> Tensor:
        """A uniform number from 0 to 1 for each token."""
        return torch.rand(like.shape[:-1], generator=generator, device=like.device, dtype=torch.float32)

    def applied(self, clean: Tensor, drawn: Tensor, std: Tensor | float) -> Tensor:
        """x with some tokens at 0."""
        return clean * (drawn >= self.level)[..., None]


SHIFTS: dict[str, type[Noise]] = {
    "gaussian": GaussianNoise,
    "uniform": UniformNoise,
    "laplace": LaplaceNoise,
    "dropout": TokenDropout,
    "states": StateNoise,
}
"""Kinds of noise that a model can be evaluated under, by name."""


def _std(clean: Tensor, places: Tensor | None) -> Tensor:
    """The standard deviation of x (B, T, …) without padding, computed without a transfer to the host."""
    wide = clean.float()
    if places is None:
        return wide.std(correction=0)
    data = places.expand_as(wide)
    count = data.sum()
    mean = torch.where(data, wide, 0).sum() / count
    return (torch.where(data, wide - mean, 0).square().sum() / count).sqrt()
