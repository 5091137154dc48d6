"""The command ``descend demo``: plain and constrained training of one model, and the page that compares them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from descend.cli.checks import check_data
from descend.cli.parsing import read
from descend.cli.runs import check_free_for_page, compare_runs, finish, line_of
from descend.errors import InputError
from descend.recipes import GENERATED


def demo(words: Sequence[str]) -> None:
    """Both methods on one video, and the page."""
    options = read(
        words,
        "demo",
        "Train a ViT with and without constraints on one video, and show the page.",
        "[options]",
        {
            "--data": dict(metavar="PATH", default=GENERATED, help=f"folder or file of videos [{GENERATED}]"),
            "--out": dict(type=Path, default=Path("demo"), help="folder [demo]"),
            "--seed": dict(type=int, default=0, help="of both runs [0]"),
            "--max-steps": dict(type=int, help="training steps [the recipe's]"),
            "--resume": dict(action="store_true", help="go on with a demo that was interrupted"),
        },
        talks=True,
    )
    check_data(options.data)
    import descend.report  # noqa: F401  # a missing package shows before the training
    from descend.results import locked
    from descend.results.ownership import clear, refuse_foreign

    folders = [options.out / method for method in ("erm", "constrained")]
    mark = options.out / ".descend-demo"  # a demo replaces only what an earlier demo wrote
    if any(folder.exists() for folder in folders) and not mark.is_file():
        raise InputError(f"{options.out} holds runs that are not a demo's; choose another folder with --out.")
    check_free_for_page(options.out)
    for folder in () if options.resume else folders:
        refuse_foreign(sorted(folder.glob("*")), "another folder with --out")
    from descend.recipes import configure

    # Six blocks: plain training leaves their inner exits far behind the last one.
    settings: dict[str, Any] = {"data": options.data, "depth": 6, "seed": options.seed}
    settings |= {} if options.max_steps is None else {"max_steps": options.max_steps}
    built = [configure("video-vit", method=folder.name, output_dir=str(folder), **settings) for folder in folders]
    from descend import run

    options.out.mkdir(parents=True, exist_ok=True)
    mark.touch()
    usual = options.data == GENERATED and options.max_steps is None
    takes = " On one idle core this takes about two minutes." if usual else ""
    print(
        f"Trains two models and evaluates them: plain training (erm), then constrained.{takes}\n"
        f"{options.out / 'report.html'} is written after the first, and again after the second.\n",
        flush=True,
    )
    for place, (folder, configured) in enumerate(zip(folders, built, strict=True)):
        if not options.resume and folder.is_dir():
            with locked(folder):
                clear(folder, "another folder with --out")
        print(f"training {folder.name} …", flush=True)
        finish(run.train(*configured, resume=options.resume))
        with locked(folder):
            summary = run.evaluate(folder)
        print(line_of(summary), flush=True)
        page, _ = compare_runs(folders[: place + 1], options.out)
        print(f"\nopen {page}" if place else f"first figures, of plain training alone: {page}\n", flush=True)
