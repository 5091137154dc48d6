"""Progress of long work without a terminal: plain lines, and none if quiet."""

import pytest

from descend import progress


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test moves."""
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_a_line_every_few_seconds_with_the_time_left(capsys, clock):
    with progress.progress(30, "training", "step", initial=10) as shown:
        for _ in range(5):  # 4 s each
            clock[0] += 4
            shown.update()
            shown.set_postfix({"loss": "1.250"})
    first, *more = capsys.readouterr().err.splitlines()
    assert first == "training: 13 of 30 steps, 00:12 gone, 01:08 left, loss 1.250"
    assert more == []  # the next is due at 22 s


def test_work_of_unknown_length_and_work_that_is_short(capsys, clock):
    with progress.progress(None, "decoding", "frame") as shown:
        clock[0] += 11
        shown.update(7)
    assert capsys.readouterr().err == "decoding: 7 frames, 00:11 gone\n"
    with progress.progress(5, "evaluating", "sample") as shown:
        clock[0] += 9
        shown.update(5)
    assert capsys.readouterr().err == ""


def test_quiet_work_says_nothing(capsys, clock, monkeypatch):
    for quiet, value in ((True, "0"), (False, "1")):
        monkeypatch.setenv(progress.QUIET, value)
        with progress.progress(5, "training", "step", quiet=quiet) as shown:
            clock[0] += 100
            shown.update()
    assert capsys.readouterr().err == ""
