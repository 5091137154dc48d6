"""The privacy that noise on token embeddings gives."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from descend.cli.parsing import levels, read
from descend.errors import InputError


def privacy(words: Sequence[str]) -> None:
    """Print ε of noise on token embeddings, by noise level."""
    options = read(
        words,
        "privacy",
        "Local differential privacy of Gaussian noise on token embeddings: ε by noise level, for one token and for a "
        "whole text. It holds only if every embedding is clipped to a norm C, which descend does not do.",
        "[RUN] [options]",
        {
            "run": dict(type=Path, nargs="?", help="a run on text or a saved model: its noise, dimension …"),
            "--noise": dict(type=levels, metavar="LEVELS", help="levels γ: 1,20,200 or 0:200:50 [the run's]"),
            "--noise-is": dict(choices=("std", "variance"), help="what γσ_x is of the noise [the run's, or std]"),
            "--delta": dict(type=float, default=1e-5, help="δ, strictly between 0 and 1 [1e-5]"),
            "--dimension": dict(type=int, help="d of a token's embedding [the run's, or 768]"),
            "--sigma": dict(type=float, help="σ_x, std of the clean embedding [the run's, or 1]"),
            "--clip": dict(type=float, help="C, the norm that embeddings are clipped to [σ_x√d]"),
            "--tokens": dict(type=int, default=128, help="T, the length of a text [128]"),
        },
    )
    if options.run is None and options.noise is None:
        raise InputError("expected --noise with levels γ such as 1,20,200, or the folder of a run; got neither.")
    chosen: dict[str, Any] = {"sigma": 1.0, "noise_is": "std", "dimension": 768}
    gammas = options.noise or []
    if options.run is not None:
        trained, chosen["sigma"], chosen["noise_is"] = _trained_noise(options.run)
        gammas = gammas or [trained]
        if (options.dimension, options.clip) == (None, None):
            chosen["dimension"] = _width(options.run)
    chosen |= {name: value for name, value in vars(options).items() if name in chosen and value is not None}
    if chosen["sigma"] is None:
        if chosen["noise_is"] == "variance" or options.clip is not None:
            raise InputError(f"{options.run} is a saved model, which does not hold σ_x of its embedding. Give --sigma.")
        chosen["sigma"] = 1.0  # ε does not depend on it
    from descend.privacy import page

    print(page(gammas, options.delta, clip=options.clip, tokens=options.tokens, **chosen))


def _trained_noise(run: Path) -> tuple[float, float | None, str]:
    """Training noise γ of a run or a saved model; σ_x, which only a run holds; and what γσ_x is of the noise."""
    from descend.results import CONFIG_FILE, read_config, read_trained

    if (saved := read_trained(run)) is not None:
        return saved.noise, None, saved.noise_is
    config = read_config(run)
    if config.sigma is None:
        raise InputError(f"{run} is not finished: σ_x of its embedding is known at its end. Resume it with --resume.")
    noise = config.settings.get("noise")
    if not isinstance(noise, int | float):
        raise InputError(f"{run / CONFIG_FILE} must hold settings.noise, a number; got {noise!r:.60}. Give --noise.")
    return float(noise), config.sigma, str(config.settings.get("noise_is", "std"))


def _width(run: Path) -> int:
    """The dimension of a run's token embeddings."""
    from descend.reading import read_json
    from descend.results import read_trained

    file = (run if read_trained(run) is not None else run / "model") / "config.json"
    if not file.is_file():
        raise InputError(f"{run} has no model to read the dimension from; finish the run first, or give --dimension.")
    config = read_json(file)
    # A denoiser of video may have a hidden size too, but its noise is on pixels: token embeddings need a vocabulary.
    entries = config if isinstance(config, dict) and config.get("vocab_size") else {}
    width = entries.get("hidden_size") or entries.get("dim")
    if not isinstance(width, int):
        raise InputError(
            f"expected a model with token embeddings and their hidden_size or dim; {file} names none. Give "
            "--dimension, the length of each vector that the noise is added to."
        )
    return width
