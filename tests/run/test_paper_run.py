"""`descend paper` on texts and images of one's own, which have no printed settings."""

import pytest

from descend.results import read_config, read_summary
from tests.support.runs import said

SHORT = """--max-steps 4 --use-cpu --eval-strategy no --save-strategy no --no-load-best-model-at-end --logging-steps 1
    --dual-warmup-steps 1 --test-noise 0,1 --per-device-train-batch-size 8"""


@pytest.mark.slow
@pytest.mark.parametrize(("recipe", "model"), [("text", "bert-bare"), ("image", "backbone")])
def test_the_cap_is_that_of_the_first_losses(models, reviews, tmp_path, capsys, recipe, model):
    data = [reviews, "--max-length", "40"] if recipe == "text" else ["generated"]
    words = [*SHORT.split(), "--model", models / model, "--data", *data, "--out", tmp_path / "out"]
    out, _ = said(capsys, "paper", recipe, *words)
    assert ("BERT-3, 3 layers: " if recipe == "text" else "Dinov2-3, 3 layers: ") in out
    assert f"No form of the paper's constraints is known to hold for {recipe}" in out and "  constrained" in out
    config = read_config(tmp_path / "out" / "constrained")
    assert config.training["cap"] > 0 and config.training["stop_gradient"] is False and config.preset == "paper"
    runs = {name: read_summary(tmp_path / "out" / name) for name in ("plain", "constrained")}
    assert runs["constrained"].cap == pytest.approx(config.training["cap"]) and runs["plain"].asked is False
    assert "accuracy" in out and (tmp_path / "out" / "report.html").is_file()
