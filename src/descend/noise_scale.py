"""From a noise level γ to the standard deviation of the noise. Nothing slow is imported."""

from typing import TYPE_CHECKING, TypeVar

from descend.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

Number = TypeVar("Number", float, "Tensor")


def check_noise_is(noise_is: str) -> None:
    """Raise an error if ``noise_is`` is neither ``"std"`` nor ``"variance"``."""
    if noise_is not in ("std", "variance"):
        raise InputError(f"noise_is must be 'std' or 'variance', what γσ_x is of the noise; got {noise_is!r}.")


def noise_std(level: float, sigma: Number, noise_is: str) -> Number:
    """The noise's standard deviation s, in the units of the data.

    With ``"std"`` it is γσ_x, as in the paper's text (Sec. 4): γ has no unit, and the noise scales with the data.
    With ``"variance"`` it is √(γσ_x), as on the paper's poster, N(μ, γσ_x I): γ has the unit of the data.

    Args:
        level: γ ≥ 0.
        sigma: σ_x, the standard deviation of the clean data, a number or a tensor.
        noise_is: What γσ_x is of the noise: its ``"std"`` or its ``"variance"``.
    """
    scale = level * sigma
    return scale if noise_is == "std" else scale**0.5
