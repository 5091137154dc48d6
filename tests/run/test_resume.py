"""Every recipe in a folder: trained, resumed to the same bits, evaluated in one line, and its first layer exported."""

import re
import shutil
from pathlib import Path

import pytest

from descend.cli import main
from descend.recipes import RECIPES
from descend.results import read_summary
from descend.results.config import PRETRAINED
from tests.support.cases import slow_but
from tests.support.runs import SAVED, SETTINGS, assert_same_end, said

TEXT = "--depth 2 --hidden-size 16 --max-length 30 --learning-rate 0.01 --dual-warmup-steps 0"
CUT = "--keep-layers 2 --dual-warmup-steps 0"
CASES = {
    "video-ut": f"--data generated {SETTINGS}",
    "video-dust": f"--data generated --atoms 64 {SETTINGS}",
    "video-vit": f"--data generated --hidden-size 16 --warmup-steps 0 {SETTINGS}",
    "text-ut": f"--data REVIEWS {TEXT}",
    "text-distilbert": f"--data REVIEWS {TEXT} --readout linear",
    "text-roberta": f"--data REVIEWS {TEXT} --readout linear",
    "text": f"--data REVIEWS --model MODELS/bert-bare --max-length 30 {CUT}",
    "image": f"--data generated --model MODELS/backbone --noise 0.2 --learning-rate 0.003 {CUT}",
    "llm-sft": f"--data generated {TEXT.replace('30', '60')}",
    "lm": f"--data generated --model MODELS/causal --max-length 60 {CUT}",
}


@pytest.mark.parametrize("recipe", slow_but(["video-ut", "text", "image"], RECIPES))
def test_a_resumed_run_ends_in_the_same_bits_and_is_evaluated_and_exported(recipe, here, capsys):
    words = ["train", recipe, *CASES[recipe].split(), *SAVED.split(), "--out"]
    ends = "\n" if recipe in PRETRAINED else ": "  # without a verdict, which was not asked for
    assert said(capsys, *words, "whole/run")[0].startswith(f"trained whole/run{ends}")
    shutil.copytree("whole", "half")
    for name in ("model", "checkpoint-4"):  # as it was after two steps
        shutil.rmtree(Path("half/run", name))
    Path("half/run/dual.safetensors").unlink()
    assert main([*words, "half/run", "--resume"]) == 0
    assert_same_end(Path("half/run"), Path("whole/run"), "checkpoint-4")
    out, err = said(capsys, "evaluate", "half/run", "--noise", "0,0.8")
    summary = read_summary(Path("half/run"))
    assert summary.depth == 2 and summary.recipe == recipe and err == ""
    assert summary.asked == (summary.method == "constrained") != (recipe in PRETRAINED)
    line, *_, page = out.splitlines()
    known = rf"{summary.model} {summary.method} on {summary.dataset}: {summary.metric} "
    assert re.match(rf"{known}[\d.]+ at γ = 0, [\d.]+ at γ = 0.8", line) and page == "half/run/report.html"
    said(capsys, "export", "half/run", "--layers", "1", "--out", "one")
