"""The command ``descend demo``: two small cases, each trained plainly and so that inner layers are of use."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from descend.cli.parsing import check_data, read
from descend.cli.runs import check_free_for_page, compare_runs, finish
from descend.declared import GENERATED
from descend.errors import refuse

VIDEO: dict[str, Any] = {"depth": 5, "tied": False, "strength": 0.3}
"""UT with separate weights. Plain training leaves its first layers almost alike."""

LEVELS = [0.0, 0.8, 1.6]
"""γ that the denoisers are evaluated at; they are trained at the second."""

NEXT = """Next, on your own model:
  descend layers MODEL --data DATA
      says how many layers it needs as it is
  descend train text --model MODEL --data DATA --out RUN
      trains it so that fewer layers suffice; image in place of text for images
  descend.DescentTrainer in place of Trainer
      does this in Python, for your own PyTorch modules too"""


def demo(words: Sequence[str]) -> None:
    """Both cases, and the page."""
    options = read(
        words,
        "demo",
        "Train two small models, plainly and so that inner layers are of use, and show the page.",
        "[options]",
        {
            "--data": dict(metavar="PATH", default=GENERATED, help=f"folder or file of videos [{GENERATED}]"),
            "--out": dict(type=Path, default=Path("demo"), help="folder [demo]"),
            "--seed": dict(type=int, default=0, help="of all runs [0]"),
            "--max-steps": dict(type=int, default=100, help="training steps on video [100]"),
        },
        talks=True,
    )
    check_data(options.data)
    from descend.cli import digits as reader
    from descend.report import write_page  # noqa: F401  # a missing package shows before the training
    from descend.report.answer import Answer
    from descend.results import clear, refuse_strangers
    from descend.writing import locked

    digits = [options.out / f"digits-{method}" for method in ("erm", "linear")]
    videos = [options.out / method for method in ("erm", "constrained")]
    check_free_for_page(options.out)
    refuse_strangers(options.out, "another folder with --out")  # a demo replaces only what Descend wrote
    runs = [folder for folder in videos if folder.exists() and not digits[0].exists()]  # which a demo makes first
    refuse((bool(runs), f"{', '.join(map(str, runs))} is no demo's. Choose another folder with --out."))
    from descend.recipes import configure

    settings = VIDEO | {"data": options.data, "seed": options.seed, "max_steps": options.max_steps}
    built = [configure("video-ut", method=folder.name, output_dir=str(folder), **settings) for folder in videos]
    from descend.run import Run

    parts = reader.read()  # a missing package shows before anything is replaced
    options.out.mkdir(parents=True, exist_ok=True)
    for folder in digits + videos:
        with locked(folder):  # another demo may be at work in it
            clear(folder, "another folder with --out")
    print(
        "1 of 2: a residual network reads handwritten digits. It is trained by its last layer (erm), then by\n"
        "weighted losses of all layers (linear).\n",
        flush=True,
    )
    for folder in digits:
        reader.run(parts, folder.name.removeprefix("digits-"), folder, options.seed)
    page, read_by = compare_runs(digits, options.out)
    print("\n".join(reader.table(digits)))
    print(f"\nfirst figures: {page}. The video takes a minute or so, and is then on the same page.\n", flush=True)
    print(
        "2 of 2: UT-5, an unrolled transformer with separate weights, removes noise from video. It is trained\n"
        "plainly (erm), then under the constraints that every layer lowers the loss (constrained).\n",
        flush=True,
    )
    cleaned = []
    for folder, configured in zip(videos, built, strict=True):
        finish(configured.train())
        with locked(folder):
            cleaned.append(Run.read(folder).evaluate(noise=LEVELS))
    page, _ = compare_runs(digits + videos, options.out)
    print("\nWhat was learned")
    for summary in (each.summary for each in read_by):
        print(f"  digits, {summary.method}: within {', '.join(filter(None, Answer.of(summary).rows[-1].texts))}")
    for summary in cleaned:
        errors = " ".join(f"{value:.1f}" for value in summary.layer_metrics[summary.train_noise])
        print(f"  video, {summary.method}: RMSE of layers 0 to {summary.depth}: {errors}")
    print(f"\n{NEXT}\n\nopen {page}", flush=True)
