"""Local differential privacy of Gaussian noise on token embeddings."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal

import numpy as np

from descend.errors import refuse
from descend.extras import required
from descend.noise_scale import check_noise_is, noise_std

# The noisy copy may change an attacker's odds of one text against another by a factor e^ε. Above ε = 10 it exceeds
# 22,000, so such a guarantee is practically empty.
VACUOUS = 10.0

# Up to this Δ/s dp-accounting is exact. From 5e7 on its ε is too small (by a relative 2e-8 at 1e10), and at much larger
# values it fails.
_EXACT = 1e7

# Bounds of dp-accounting's error, relative and absolute, against arithmetic of 60 digits.
_RELATIVE, _ABSOLUTE = Decimal("1e-9"), Decimal("1e-12")

# More tokens or dimensions than any model has: a larger number is a typing error.
_MOST = 10**12


def epsilon(noise_std: float, sensitivity: float, delta: float) -> float:
    """The smallest ε ≥ 0 for which adding N(0, s² I) to a vector of sensitivity Δ is (ε, δ)-differentially private.

    Balle and Wang (2018), Theorem 8: Φ(Δ/(2s) − εs/Δ) − e^ε Φ(−Δ/(2s) − εs/Δ) ≤ δ. Where Δ/s is above 10⁷ it is the
    bound of Bun and Steinke (2016), ε = Δ²/(2s²) + (Δ/s) √(2 ln 1/δ), larger by less than a millionth if δ ≤ 1/2.

    Args:
        noise_std: s ≥ 0, the noise's standard deviation per coordinate; at 0 ε is infinite.
        sensitivity: Δ > 0, the largest distance in L2 norm, in the same units.
        delta: δ, strictly between 0 and 1.

    Raises:
        InputError: If a number is out of its range, or the package dp-accounting is missing.
    """
    refuse(
        (
            not 0 <= noise_std < math.inf,
            f"the noise's standard deviation must be finite and at least 0; got {noise_std}.",
        ),
        _positive("sensitivity", sensitivity),
        _share(delta),
    )
    if noise_std == 0:
        return math.inf
    with required("The ε of a noise level"):
        from dp_accounting.gaussian_mechanism import get_epsilon_gaussian
    ratio = sensitivity / noise_std
    if ratio > _EXACT:
        return ratio * ratio / 2 + ratio * math.sqrt(-2 * math.log(delta))
    with np.errstate(divide="ignore"):  # if δ(ε) rounds to 0, its logarithm is −∞, as intended
        return float(get_epsilon_gaussian(noise_std / sensitivity, delta))


@dataclass(frozen=True)
class Guarantee:
    """The privacy of one noise level.

    Args:
        level: γ.
        std: s, the noise's standard deviation: γσ_x, or √(γσ_x) where γσ_x is its variance.
        token: ε for one token in place of another, Δ = 2C.
        text: ε for a whole text of T tokens in place of another, Δ = 2C√T.
    """

    level: float
    std: float
    token: float
    text: float


def guarantee(
    level: float, delta: float, clip: float, *, tokens: int = 128, sigma: float = 1.0, noise_is: str = "std"
) -> Guarantee:
    """ε of one release of a text's embeddings, each of norm C at most, with Gaussian noise.

    Args:
        level: γ ≥ 0.
        delta: δ, strictly between 0 and 1.
        clip: C > 0, the norm that every token's embedding is clipped to.
        tokens: T ≥ 1, the length of the text; the guarantee does not hide it.
        sigma: σ_x > 0, the standard deviation of the clean embedding per coordinate, in units of C.
        noise_is: Whether γσ_x is the noise's ``"std"`` or its ``"variance"``.

    Raises:
        InputError: If a number is out of its range.
    """
    refuse(_share(delta), _positive("sigma", sigma), _positive("clip", clip), _count("tokens", tokens))
    std, reach = noise_std(level, sigma, noise_is), 2 * clip
    # All T tokens together have the sensitivity √T·2C, which is exact for Gaussian noise; composition is looser.
    text = epsilon(std, reach * math.sqrt(tokens), delta)
    return Guarantee(level, std, epsilon(std, reach, delta), text)


def page(
    levels: Sequence[float],
    delta: float,
    *,
    clip: float | None = None,
    dimension: int = 768,
    tokens: int = 128,
    sigma: float = 1.0,
    noise_is: str = "std",
) -> str:
    """Several lines of text: a table of ε by level, the assumptions, and what each range of ε means.

    Args:
        levels: γ of each row.
        delta: δ, as are the others but for ``dimension`` of `guarantee`.
        clip: C; None for σ_x√d, the root mean square of the norm. ε then depends on γ and not on σ_x if γσ_x is the
            noise's std; if it is the variance, on γ/σ_x.
        dimension: d ≥ 1, the dimension of a token's embedding.
        tokens: T.
        sigma: σ_x.
        noise_is: What γσ_x is of the noise.

    Raises:
        InputError: If a number is out of its range.
    """
    refuse(_positive("sigma", sigma), _count("dimension", dimension))
    check_noise_is(noise_is)
    clip_from = f"σ_x√{dimension}, the default" if clip is None else "as given"
    clip = sigma * math.sqrt(dimension) if clip is None else clip
    guarantees = [guarantee(each, delta, clip, tokens=tokens, sigma=sigma, noise_is=noise_is) for each in levels]
    head = ("γ", "std", "ε per token", f"ε per text, T = {tokens:,}")
    rows = [
        head,
        *((_exact(g.level), _four_digits(g.std, ROUND_CEILING), _shown(g.token), _shown(g.text)) for g in guarantees),
    ]
    wide = [max(map(len, column)) for column in zip(*rows, strict=True)]
    norm = f"C = {_four_digits(clip, ROUND_FLOOR)} ({clip_from}; σ_x = {sigma:.4g})"
    lines = ["   ".join(cell.rjust(width) for cell, width in zip(row, wide, strict=True)) for row in rows]
    assumed = (
        f"These ε, at δ = {_exact(delta)} and with γσ_x as the noise's {noise_is}, are for one noisy copy of a text, "
        f"its length known, and hold only if no token's embedding is longer than {norm}: each must be clipped to that "
        "norm before the noise, which descend does not do by itself."
    )
    return "\n".join([*lines, "", assumed, *_regimes(guarantees)])


def _regimes(guarantees: Sequence[Guarantee]) -> list[str]:
    """One sentence for each kind of guarantee that occurs."""
    odds = f"e^{VACUOUS:g} = {math.exp(VACUOUS):,.0f} times"
    sentences = (
        ([g for g in guarantees if g.std == 0], "no noise, so ε is infinite: no privacy to speak of."),
        (
            [g for g in guarantees if g.std > 0 and g.token > VACUOUS],
            f"vacuous. ε is above {VACUOUS:g} even for a single token, so an attacker's odds may change by more than "
            f"{odds}: no privacy to speak of.",
        ),
        (
            [g for g in guarantees if g.token <= VACUOUS < g.text],
            "an attacker's odds for one token against another change by e^ε at most, but for a chance δ, with the "
            f"token's ε. For the whole text ε is above {VACUOUS:g}, vacuous: no privacy to speak of.",
        ),
        (
            [g for g in guarantees if g.text <= VACUOUS],
            "an attacker's odds for one whole text against another change by e^ε at most, but for a chance δ.",
        ),
    )
    return [f"γ = {', '.join(_exact(g.level) for g in some)}: {what}" for some, what in sentences if some]


def _shown(value: float) -> str:
    """ε in three digits or in whole numbers, rounded up: a smaller one would promise too much."""
    if value == math.inf:
        return "∞"
    above = Decimal(value) * (1 + _RELATIVE) + _ABSOLUTE
    digits = max(3, above.adjusted() + 1) if above < 10**6 else 3
    rounded = Context(prec=digits, rounding=ROUND_CEILING).plus(above)
    return f"{rounded:,f}" if 100 <= rounded < 10**6 else f"{float(rounded):.3g}"


def _exact(value: float) -> str:
    """A number in all its digits."""
    return repr(float(value)).removesuffix(".0")


def _four_digits(value: float, rounding: str) -> str:
    """A number in four digits, rounded to the side on which the printed ε still holds."""
    return f"{float(Context(prec=4, rounding=rounding).plus(Decimal(f'{value:.12g}'))):.4g}"


def _share(delta: float) -> tuple[bool, str]:
    """The rule for δ, as `refuse` takes it; so are the other two for a name and a value."""
    return not 0 < delta < 1, f"delta must lie strictly between 0 and 1, such as 1e-5; got {delta}."


def _positive(name: str, value: float) -> tuple[bool, str]:
    return not 0 < value < math.inf, f"{name} must be a finite number above 0; got {value}."


def _count(name: str, value: int) -> tuple[bool, str]:
    return not 1 <= value <= _MOST, f"{name} must be from 1 to {_MOST:,}; got {value}."
