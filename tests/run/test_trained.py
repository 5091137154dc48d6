"""What a model was trained with is saved with it, and read by whoever evaluates or cuts it later."""

import json
from importlib.metadata import version

import pytest
from transformers import AutoModelForSequenceClassification

import descend
from descend.results import TRAINED_FILE, read_trained
from tests.support import networks, ranks

ROWS = [{"input_ids": [5 + place % 3] * 7, "labels": place % 3 if place > 3 else 0} for place in range(24)]
PROBLEM = {"alpha": 0.001, "cap": 9.0, "first_layer": 1}
SETTINGS = {
    **PROBLEM,
    **{"dual_warmup_steps": 0.0, "calibrate": True, "seed": 3, "learning_rate": 5e-3, "max_steps": 20},
    **{"save_strategy": "steps", "save_steps": 20, "eval_strategy": "steps", "eval_steps": 20},
}


@pytest.fixture(scope="module")
def constrained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("constrained")
    ours = ranks.classifier(folder, noise=0.5, **SETTINGS)
    ours.train_dataset = ours.eval_dataset = ROWS  # a mistake in them can't be learned, so there is a temperature
    ours.train()
    ours.save_model(folder / "saved")
    return folder, ours


def test_every_saved_model_says_what_it_was_trained_with(constrained):
    folder, ours = constrained
    expected = {
        "version": version("descend"),
        "method": "constrained",
        "seed": 3,
        "noise": 0.5,
        "noise_is": "std",
        "problem": PROBLEM,
        "shift": "gaussian",
    }
    assert ours.temperature != 1 and (folder / "best_feasible").is_dir()
    for name, temperature in (("saved", ours.temperature), ("checkpoint-20", 1.0), ("best_feasible", ours.temperature)):
        assert json.loads((folder / name / "config.json").read_text())["descend"] == expected | {
            "temperature": pytest.approx(temperature)
        }
    for name in ("saved", "best_feasible"):
        card = (folder / name / "README.md").read_text()
        for words in ("`constrained`", "alpha 0.001", "cap 9.0", "γ = 0.5", f"Descend {version('descend')}"):
            assert words in card
        assert f"divided by the temperature {ours.temperature:.4g}" in card


@pytest.mark.slow
def test_a_saved_model_is_held_to_the_constraints_of_its_training(constrained, tmp_path):
    folder, ours = constrained
    again = AutoModelForSequenceClassification.from_pretrained(folder / "saved")
    whole, alone = (descend.evaluate(each, ROWS, out=tmp_path / "out") for each in (ours, again))
    assert [each.without_run for each in (whole, alone)] == [False, True]
    for summary in (whole, alone):
        assert (summary.method, summary.seed, summary.train_noise, summary.cap) == ("constrained", 3, 0.5, 9.0)
        assert summary.alpha == [0.001] * 3 and summary.first_layer == 1 and summary.temperature == ours.temperature
        assert "did not ask" not in summary.verdict


@pytest.mark.parametrize("entry", [None, "text", {"of": 1}, {"method": 3}], ids=repr)
def test_an_entry_that_is_not_descends_is_none(entry):
    model = networks.network("distilbert")
    model.config.descend = entry
    summary = descend.evaluate(model, ROWS)
    assert (summary.method, summary.alpha, summary.temperature) == ("plain", [0.01] * 3, None)


@pytest.mark.parametrize("make", [ranks.MADE["lora"], ranks.points])
def test_other_models_have_it_in_a_file_beside_them(tmp_path, make):
    ours = make(tmp_path, method="linear", max_steps=1)
    ours.save_model(tmp_path / "saved")
    known = read_trained(tmp_path / "saved")
    assert known is not None and (known.method, known.seed) == ("linear", 0)
    (tmp_path / "saved" / TRAINED_FILE).write_text('{"theirs": 1}')
    ours.save_model(tmp_path / "saved")
    assert json.loads((tmp_path / "saved" / "descend.edited-1.json").read_text()) == {"theirs": 1}
    assert read_trained(tmp_path / "saved") == known
