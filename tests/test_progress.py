"""Progress of long work: a bar on a terminal, plain lines elsewhere, and nothing if quiet."""

import sys

import pytest
from tqdm import tqdm

from descend import progress
from descend.evaluation.evaluate import reading_progress


def test_a_terminal_has_a_bar(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with progress.progress(3, "training", "step") as shown:
        shown.update()
    line = capsys.readouterr().err
    assert "training:" in line and "1/3" in line


def test_lines_of_work_of_known_and_unknown_length_and_none_of_short_or_quiet_work(capsys, monkeypatch):
    clock = [100.0]
    monkeypatch.setattr("tqdm.std.time", lambda: clock[0])
    with progress.progress(30, "training", "step", initial=10) as shown:
        for _ in range(5):  # 4 s each: a line after 12 s, and the next would be due at 22 s
            clock[0] += 4
            shown.update()
            shown.set_postfix_str("loss 1.250", refresh=False)
            tqdm.write("a warning", file=sys.stderr)
    with progress.progress(None, "decoding", "frame") as shown:
        clock[0] += 11
        shown.update(7)
    with progress.progress(5, "decoding", "frame") as shown:  # a clip may have more frames than it says
        clock[0] += 11
        shown.update(6)
    for seconds, quiet, value in ((9, False, "0"), (100, True, "0"), (100, False, "1")):
        monkeypatch.setenv(progress.QUIET, value)
        with progress.progress(5, "evaluating", "sample", quiet=quiet) as shown:
            clock[0] += seconds
            shown.update(5)
    out, err = capsys.readouterr()
    assert out == "" and err.replace("a warning\n", "").splitlines() == [
        "training: 13 of 30 steps, 00:12 gone, 01:08 left, loss 1.250",
        "decoding: 7 frames, 00:11 gone",
        "decoding: 6 frames, 00:11 gone",
    ]


@pytest.mark.parametrize(
    ("levels", "line"),
    [(1, "evaluating: 112 of 500 samples, "), (5, "evaluating: 112 of 2500 readings, ")],
)
def test_a_line_counts_no_sample_twice(monkeypatch, capsys, levels, line):
    """500 texts at five noise levels are no 2,500 samples."""
    monkeypatch.setattr(progress, "EVERY", 0.0)
    with reading_progress("evaluating", 500, levels) as bar:
        bar.update(112)
    shown = capsys.readouterr().err.splitlines()[-1]
    assert shown.startswith(line) and shown.endswith(", 500 samples at 5 noise levels") == (levels > 1)
