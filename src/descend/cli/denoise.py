"""The command ``descend denoise``: a trained model's frames of a person's videos."""

from collections.abc import Sequence
from pathlib import Path

from descend.cli.checks import check_run, is_exported_denoiser
from descend.cli.parsing import add_talk, command_parser, talk
from descend.errors import InputError
from descend.results import check_model


def denoise(words: Sequence[str]) -> None:
    """Write denoised frames of videos."""
    parser = command_parser(
        "denoise",
        "Denoise videos with a run of a video recipe, and write every frame as a grey PNG of 160x160 pixels.",
        "RUN --data PATH --out FOLDER [options]",
    )
    parser.add_argument("run", type=Path, help="a trained run of video-ut, video-dust or video-vit, or its export")
    parser.add_argument("--data", type=Path, required=True, help="videos or images, a folder or a file")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="folder to write; new or empty")
    parser.add_argument("--layer", type=int, metavar="K", help="stop after layer K [the last]")
    parser.add_argument(
        "--noise",
        type=float,
        metavar="X",
        help="for a trial: add noise of this γ first, in std of the training data, and measure the error [none]",
    )
    parser.add_argument("--model", default="model", metavar="NAME", help="model or best_feasible [model]")
    add_talk(parser)
    options = vars(talk(parser.parse_args(words)))
    layer, noise = options["layer"], options["noise"]
    if layer is not None and layer < 1:
        raise InputError(f"layer must be at least 1; got {layer}.")
    if noise is not None and not 0 <= noise < float("inf"):
        raise InputError(f"noise must be a level γ of at least 0, in std of the clean data; got {noise:g}.")
    if not is_exported_denoiser(options["run"]):
        recipe = check_run(options["run"], options["model"])
        if recipe is None or not recipe.startswith("video-"):
            kind = f"a run of {recipe}" if recipe else "no run"
            raise InputError(f"{options['run']} is {kind}; denoise takes video-ut, video-dust and video-vit.")
        check_model(options["run"], options["model"])
    if not options["data"].expanduser().exists():
        raise InputError(
            f"the data {options['data']} does not exist; expected a video, or a folder of videos or images."
        )
    from descend.run.denoising import denoise as write

    print("\n".join(write(**options)))
