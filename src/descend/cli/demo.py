"""The command ``descend demo``: the paper's constraints beside plain training, and how many layers suffice."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from descend.cli.parsing import check_data, read
from descend.cli.runs import carry_out, check_free_for_page, compare_runs, refuse_ranks
from descend.declared import GENERATED
from descend.errors import refuse

VIDEO: dict[str, Any] = {
    "preset": "paper",
    "depth": 3,
    "tied": False,
    "noise": 0.8,
    "noise_is": "std",
    "learning_rate": 3e-3,
    "per_device_train_batch_size": 1,
    "eval_strategy": "no",
    "save_strategy": "no",
    "load_best_model_at_end": False,
}
"""UT with separate weights under the paper's constraints, small enough to train in seconds."""

CONSTRAINED = {"dual_optimizer": "sgd", "dual_warmup_steps": 0}
"""Projected ascent from the first step on."""

LEVELS = [0.0, VIDEO["noise"], 1.6]
"""γ that the denoisers are evaluated at; they are trained at the second."""

NEXT = """Next:
  descend paper video-ut --data VIDEOS --out OUT
      plain training beside the paper's constraints on your clips; text and image take texts and images
  descend layers MODEL --data DATA
      how many layers your pretrained model needs as it is
  descend.DescentTrainer in place of Trainer
      trains your own PyTorch modules under constraints"""


def demo(words: Sequence[str]) -> None:
    """Both cases, and the page."""
    options = read(
        words,
        "demo",
        "The paper's constraints beside plain training on video, and how many layers a network needs for digits.",
        "[options]",
        {
            "--data": dict(metavar="PATH", default=GENERATED, help=f"folder or file of videos [{GENERATED}]"),
            "--out": dict(type=Path, default=Path("demo"), help="folder [demo]"),
            "--seed": dict(type=int, default=0, help="of all runs [0]"),
            "--max-steps": dict(type=int, default=300, help="training steps on video [300]"),
        },
        talks=True,
    )
    refuse_ranks("demo")
    check_data(options.data)
    from descend.cli import digits as reader
    from descend.report import write_page  # noqa: F401  # a missing package shows before the training
    from descend.report.answer import Answer
    from descend.report.terminal import comparison_lines
    from descend.results import Results, clear, refuse_strangers
    from descend.writing import locked

    digits = [options.out / f"digits-{method}" for method in ("erm", "linear")]
    videos = {options.out / "constrained": "constrained", options.out / "plain": "erm"}
    check_free_for_page(options.out)
    refuse_strangers(options.out, "another folder with --out")  # a demo replaces only what Descend wrote
    runs = [folder for folder in videos if folder.exists() and not digits[0].exists()]  # a demo has both
    refuse((bool(runs), f"{', '.join(map(str, runs))} is no demo's. Choose another folder with --out."))
    from descend.recipes import configure

    settings = VIDEO | {"data": options.data, "seed": options.seed, "max_steps": options.max_steps}
    built = {
        folder: configure(
            "video-ut", method=method, output_dir=str(folder), **settings | (CONSTRAINED if method != "erm" else {})
        )
        for folder, method in videos.items()
    }

    parts = reader.read()  # a missing package shows before anything is replaced
    options.out.mkdir(parents=True, exist_ok=True)
    for folder in (*digits, *videos):
        with locked(folder):  # another demo may be at work in it
            clear(folder, "another folder with --out")
    for folder in digits:  # so that a demo that was stopped is known as one
        folder.mkdir(exist_ok=True)
    print(
        "1 of 2: the paper's constraints. UT-3, an unrolled transformer, removes noise from video. It is trained so\n"
        "that every layer after the first lowers the loss by 22 % or more, then plainly (erm).\n",
        flush=True,
    )
    cleaned = []
    for folder, configured in built.items():
        carry_out(configured, LEVELS)
        cleaned.append(Results.read(folder))
        print("\n".join(["", *comparison_lines(cleaned), ""]), flush=True)
    page, _ = compare_runs(list(videos), options.out)
    print(
        f"the picture: {page}\n\n"
        "2 of 2: how many layers? A residual network of 8 blocks reads handwritten digits. It is trained by its last\n"
        "layer (erm), then by the losses of all layers, weighted by l/L (linear).\n",
        flush=True,
    )
    for folder in digits:
        reader.run(parts, folder.name.removeprefix("digits-"), folder, options.seed)
    page, compared = compare_runs([*videos, *digits], options.out)
    print("\n".join(reader.table(digits)))
    print("\nWhat was learned")
    by_name = {each.name: each for each in compared}
    losses = {name: by_name[name].summary.layer_losses[LEVELS[1]] for name in ("constrained", "plain")}
    for name, row in losses.items():
        changes = ", ".join(f"{after / before - 1:+.0%}" for before, after in pairwise(row[1:])).replace("-", "−")
        print(f"  video, {name}: each layer after the first changes the loss by {changes}")
    for folder in digits:
        summary = by_name[folder.name].summary
        print(f"  digits, {summary.method}: within {', '.join(filter(None, Answer.of(summary).rows[1].texts))}")
    print(f"\n{NEXT}\n\nopen {page}", flush=True)
