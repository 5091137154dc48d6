"""`descend paper`: plain training beside the paper's constraints, on one page."""

import json
import re

import numpy as np
import pytest

from descend.errors import InputError
from descend.recipes import RECIPES, configure
from descend.results import read_config, read_summary
from descend.training.preset import HELD, paper
from reproduction.table import read
from tests.support.documented import ROOT
from tests.support.runs import refused, said

SHORT = (
    "--data generated --max-steps 4 --depth 2 --window 2 --stride 10 --use-cpu --eval-strategy no --save-strategy no "
    "--no-load-best-model-at-end --dual-warmup-steps 1 --logging-steps 1"
)


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """Two seeds of UT-2, trained and compared; the folder and the output."""
    from contextlib import redirect_stderr, redirect_stdout
    from io import StringIO

    from descend.cli import main

    out, told = tmp_path_factory.mktemp("paper") / "out", StringIO()
    with redirect_stdout(told), redirect_stderr(StringIO()):
        words = ["paper", "video-ut", *SHORT.split(), "--seeds", "2", "--test-noise", "0,0.8,1.6", "--out", str(out)]
        assert main(words) == 0
    return out, told.getvalue()


def test_both_have_the_same_settings_but_for_the_method(compared):
    out, told = compared
    runs = {each: read_config(out / each) for each in ("plain-0", "constrained-0", "plain-1", "constrained-1")}
    assert {name: (run.method, run.seed) for name, run in runs.items()} == {
        **{"plain-0": ("erm", 0), "constrained-0": ("constrained", 0)},
        **{"plain-1": ("erm", 1), "constrained-1": ("constrained", 1)},
    }
    plain, ours = runs["plain-0"], runs["constrained-0"]
    assert plain.settings == ours.settings and not ours.settings["tied"] and ours.settings["noise"] == 0.8
    ours_alone = {"method", "dual_optimizer", "dual_lr", "cap", "stop_gradient", "output_dir"}
    apart = {name for name, value in ours.training.items() if plain.training[name] != value}
    assert apart <= ours_alone and {"dual_optimizer"} < apart | {"dual_lr"}
    assert ours.training["dual_optimizer"] == HELD["video-ut"].constrained["dual_optimizer"] == "sgd"
    assert ours.training["alpha"] == paper("video-ut").training["alpha"] and ours.preset == "paper"
    (yours,) = re.findall(r"held in 10 of 13 runs of our study, but for your ([^.]*)\.", told)
    assert {"--depth", "--max-steps"} < {*yours.split(", ")} and "eval_steps" not in told
    assert "tied False (True)" in told and "dual_optimizer sgd (adam)" in told and "--printed takes that." in told
    # What the person gave is no departure of ours, and stands in the runs.
    assert ours.settings["depth"] == 2 and ours.training["max_steps"] == 4


@pytest.mark.parametrize("command", ["paper video-ut --data generated", "demo"])
def test_several_processes_are_refused_before_any_training(command, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("WORLD_SIZE", "2")
    line = refused(capsys, *command.split(), "--out", tmp_path / "out")
    assert "runs in one process; got 2. Start it without torchrun" in line and not any(tmp_path.iterdir())


def test_its_lines_are_those_of_the_runs(compared):
    out, told = compared
    assert told.startswith("UT-2, 2 layers: trained under noise γ = 0.8, tested at 0, 0.8, 1.6, in units of the clean ")
    losses = [read_summary(out / f"constrained-{seed}").layer_losses[0.8] for seed in (0, 1)]
    metrics = [read_summary(out / f"constrained-{seed}").values for seed in (0, 1)]
    lines = [line.split()[1:] for line in told.splitlines() if line.startswith("  constrained")]
    assert lines == [[f"{sum(each) / 2:.2f}" for each in zip(*rows, strict=True)] for rows in (losses, metrics)]
    assert "constraints missed" in told and "; 16 groups of test samples, 2 seeds." in told
    values = {name: [read_summary(out / f"{name}-{seed}").mean for seed in (0, 1)] for name in ("plain", "constrained")}
    gain = 100 * (1 - sum(values["constrained"]) / sum(values["plain"]))
    change = f"{round(gain, 1) + 0.0:+.1f}".replace("-", "−")
    assert f"gain over plain training in mean RMSE from γ = 0 to 1.6: {change} % (95 %: " in told
    assert "Asked: α = 0.22, " in told and told.count("  bounds") == 1
    plain = [read_summary(out / f"plain-{seed}").layer_losses[0.8] for seed in (0, 1)]
    shares = [f"{each:.0f}" for each in 100 * np.sum(losses, 0) / np.sum(plain, 0)]
    assert f"  % of plain  {'  '.join(shares)}" in re.sub(" {2,}", "  ", told)
    cap, given = read_config(out / "constrained-0").training["cap"], losses[0][0]
    assert ("that layer may be worse than the input. A lower --cap" in told) == (cap > given)
    page = (out / "report.html").read_text()
    assert told.splitlines()[-1] == str(out / "report.html")
    heads = [
        "What was asked, and whether it holds",
        "Under noise",
        "How many layers suffice",
        "What each layer answers",
    ]
    places = [page.index(f"<h2>{head}</h2>") for head in heads]
    assert places == sorted(places) and "Gain over plain training" in page and "Multipliers" in page


@pytest.mark.slow
def test_it_goes_on_with_what_it_began_and_refuses_other_settings(compared, capsys):
    out, _ = compared
    words = ["paper", "video-ut", *SHORT.split(), "--seeds", "2", "--test-noise", "0,0.8,1.6", "--out", out]
    before = (out / "plain-0" / "model" / "model.safetensors").read_bytes()
    assert "was made with other settings: " in refused(capsys, *words, "--noise", "0.5")
    said(capsys, *words)
    assert (out / "plain-0" / "model" / "model.safetensors").read_bytes() == before
    assert json.loads((out / "summary.json").read_text())["folders"] == [
        *("constrained-0", "plain-0", "constrained-1", "plain-1")
    ]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--method", "erm"], "no setting --method"),
        (["--preset", "paper"], "no setting --preset"),
        (["--seeds", "0"], "--seeds must be at least 1; got 0."),
        (["--test-noise", "-1"], "at least 0"),
    ],
)
def test_what_it_decides_itself_is_refused(capsys, tmp_path, words, line):
    assert line in refused(capsys, "paper", "video-ut", *SHORT.split(), "--out", tmp_path / "out", *words)
    assert not (tmp_path / "out").exists()


def test_a_recipe_without_the_papers_form_is_refused(capsys, tmp_path):
    line = refused(capsys, "paper", "pgd", "--data", "generated", "--out", tmp_path / "out")
    assert "the paper has no recipe 'pgd'; expected one of video-ut," in line and not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_says_whether_the_paper_has_a_form_for_it(name):
    if RECIPES[name].settings.in_paper:
        assert paper(name).training["preset"] == "paper"
    else:
        with pytest.raises(InputError, match="preset paper is for the recipes"):
            paper(name)


@pytest.mark.parametrize(("recipe", "model", "depth"), [("video-ut", "UT", 5), ("video-dust", "DUST", 3)])
def test_the_form_that_held_is_that_of_the_study(recipe, model, depth, tmp_path):
    """Every setting of both methods, but for those that say how often it was logged."""
    study = read(ROOT / "reproduction" / "records" / "study.jsonl")
    for arm, method, form in (("algorithm-1", "constrained", "untied"), ("erm", "erm", "tied")):
        form = "untied" if recipe == "video-ut" else form
        rows = study.where(model=model, depth=depth, gamma=0.8, arm=arm, form=form, data="ped2")
        held = HELD[recipe]
        own = {**held.shared, **(held.constrained if method == "constrained" else held.plain)}
        place = {"data": "generated", "method": method, "output_dir": str(tmp_path)}
        run = configure(recipe, preset="paper", **own | place)
        for settings in rows.settings:
            found = {name: getattr(run.recipe, name, getattr(run.arguments, name, None)) for name in settings}
            apart = {name for name, value in settings.items() if found[name] != value}
            assert apart <= {"data", "seed", "preset", "logging_steps", "calibrate"}, (arm, apart)
    hold = study.where(model=model, depth=depth, gamma=0.8, arm="algorithm-1", form="untied")
    hold = hold[hold.data != "shanghaitech"].holds
    assert held.runs == f"{hold.sum()} of {len(hold)} runs"


def test_given_settings_replace_those_of_the_form_under_any_name():
    form = HELD["video-ut"].beside({"num_train_epochs": 3, "dual_optimizer": "adam"})
    assert not {"max_steps", "dual_lr"} & {*form.shared, *form.constrained} and form.runs == HELD["video-ut"].runs
