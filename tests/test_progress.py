"""Progress of long work: a bar on a terminal, plain lines elsewhere, and nothing if quiet."""

import re
import sys

import pytest
from tqdm import tqdm

from descend import progress
from descend.cli import main
from descend.run.evaluating import reading_progress
from tests.support.networks import network
from tests.support.texts import review_folder, review_tokenizer


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
        for _ in range(5):  # 4 s each: a line after 8 s, and another 10 s later
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
    silent = ((4, False, "0", "0"), (100, True, "0", "0"), (100, False, "1", "0"), (100, False, "0", "1"))
    for seconds, quiet, value, rank in silent:  # the last is another process than the main one
        monkeypatch.setenv(progress.QUIET, value)
        monkeypatch.setenv("RANK", rank)
        with progress.progress(5, "evaluating", "sample", quiet=quiet) as shown:
            clock[0] += seconds
            shown.update(5)
    out, err = capsys.readouterr()
    assert out == "" and err.replace("a warning\n", "").splitlines() == [
        "training: 12 of 30 steps, 00:08 gone, 01:12 left, loss 1.250",
        "training: 15 of 30 steps, 00:20 gone, 01:00 left, loss 1.250",
        "decoding: 7 frames, 00:11 gone",
        "decoding: 6 frames, 00:11 gone",
    ]


@pytest.fixture
def encoder(tmp_path):
    """The folder of a small encoder, and that of reviews."""
    tokenizer = review_tokenizer()
    network("bert", vocab_size=len(tokenizer), max_position_embeddings=300).base_model.save_pretrained(
        tmp_path / "bert"
    )
    tokenizer.save_pretrained(tmp_path / "bert")
    return tmp_path / "bert", review_folder(tmp_path / "reviews")


def test_every_long_part_of_training_and_evaluation_shows_how_far_it_is(tmp_path, encoder, capsys, monkeypatch):
    """With lines at once each part has some: none is silent where it takes long."""
    for name in ("FIRST", "EVERY"):
        monkeypatch.setattr(progress, name, 0.0)
    model, data = map(str, encoder)

    def parts(*words):
        assert main([*words, "--data", data, "--max-length", "16"]) == 0
        return [re.match(r"(.*?): ", line)[1] for line in capsys.readouterr().err.splitlines() if " gone" in line]

    train = ["train", "text", "--model", model, "--method", "constrained", "--max-steps", "2", "--out"]
    shown = parts(*train, str(tmp_path / "run"))
    assert {"reading", "tokenizing", "training", "measuring layers"} <= {*shown}
    # Of the last step on: its evaluation, the temperature's, and the verdict's.
    assert [each for each in dict.fromkeys(shown[shown.index("training") :])] == [
        "training",
        "evaluating",
        "measuring layers",
    ] and shown[-1] == "evaluating"
    fitted = parts("layers", model, "--out", str(tmp_path / "as-is"))
    assert [*dict.fromkeys(fitted)] == [
        *("reading", "tokenizing", "reading layers", "fitting readouts", "reading samples", "evaluating"),
        *("timing layers", "drawing the page"),
    ]
    assert main(["evaluate", str(tmp_path / "run"), "--exit", "--probe"]) == 0
    assert {"choosing exits", "fitting readouts"} <= {*re.findall(r"^(.*?): \d", capsys.readouterr().err, re.MULTILINE)}


@pytest.mark.parametrize(
    ("levels", "line"),
    [(1, "evaluating: 112 of 500 samples, "), (5, "evaluating: 112 of 2500 readings, ")],
)
def test_a_line_counts_no_sample_twice(monkeypatch, capsys, levels, line):
    """500 texts at five noise levels are no 2,500 samples."""
    for name in ("FIRST", "EVERY"):
        monkeypatch.setattr(progress, name, 0.0)
    with reading_progress("evaluating", 500, levels) as bar:
        bar.update(112)
    shown = capsys.readouterr().err.splitlines()[-1]
    assert shown.startswith(line) and shown.endswith(", 500 samples at 5 noise levels") == (levels > 1)
