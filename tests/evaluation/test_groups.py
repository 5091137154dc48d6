"""groups.json: the metric by group of samples, from which a run's own values and intervals over runs come."""

import json
from itertools import pairwise

import pytest
import torch

from descend import run
from descend.cli import main
from descend.evaluation.evaluate import EDGES, ratios
from descend.evaluation.layers import LayerLosses, evenly

STEPS = ["--use-cpu", "--max-steps", "2", "--dual-warmup-steps", "0"]
RUNS = {
    "video": "video-ut --data generated --depth 2 --window 2 --stride 10 --save-strategy no",
    "pairs": "text-ut --data generated --dataset mnli --hidden-size 16 --max-length 30 --depth 2",
    "answers": "llm-sft --data generated --hidden-size 16 --depth 2",
}


def recombined(groups: dict) -> list[float]:
    means = [sum(scores) / sum(groups["counts"]) for scores in groups["scores"]]
    return [mean**0.5 for mean in means] if groups["root"] else means


@pytest.mark.parametrize("kind", RUNS)
def test_the_groups_recombine_to_the_values_of_the_summary(tmp_path, kind):
    out = tmp_path / "run"
    assert main(["train", *RUNS[kind].split(), *STEPS, "--out", str(out)]) == 0
    summary = run.evaluate(out, noise=[0.0, 2.0])
    groups = json.loads((out / "groups.json").read_text())
    assert groups["noise"] == summary.noise == [0, 2]  # without the training noise, where it is not asked for
    assert recombined(groups) == pytest.approx(summary.values, rel=1e-5)
    assert (sum(groups["counts"]), len(groups["counts"])) == (summary.samples, summary.groups)
    assert len(groups["counts"]) < summary.samples
    assert [len(level) for level in groups["scores"]] == [summary.groups] * 2
    again = run.evaluate(out, noise=[2.0])  # the same groups and the same noise, whatever is measured beside them
    alone = json.loads((out / "groups.json").read_text())
    assert alone["layers"].pop("noise") == sorted({2.0, summary.train_noise})
    assert alone["layers"]["losses"][-1] == groups["layers"]["losses"][-1]
    assert alone | {"layers": 0} == groups | {"noise": [2], "scores": groups["scores"][1:], "layers": 0}
    assert again.values == summary.values[1:]


def test_losses_and_scores_of_all_layers_stand_there_by_blocks(tmp_path):
    """So many that no text has a line of its own; their means are the summary's."""
    out = tmp_path / "run"
    flags = ["--depth", "2", "--max-steps", "1", "--hidden-size", "8", "--max-length", "12", "--dataset", "imdb"]
    assert main(["train", "text-ut", "--data", "generated", "--method", "erm", *flags, "--out", str(out)]) == 0
    summary = run.evaluate(out, noise=[0.0, 2.0], most=150)
    layers = json.loads((out / "groups.json").read_text())["layers"]
    assert summary.samples == summary.groups == sum(layers["counts"]) == 150
    assert len(layers["counts"]) == 30 and layers["noise"] == [0, 1, 2]
    for sums, by_layer in ((layers["losses"], summary.layer_losses), (layers["scores"], summary.layer_metrics)):
        for level, rows in zip(layers["noise"], sums, strict=True):
            assert [sum(layer) / 150 for layer in rows] == pytest.approx(by_layer[level], rel=1e-5)


def test_the_histogram_of_ratios_counts_by_layer_and_its_outer_bins_are_open():
    losses = torch.tensor([[1.0, 0.5, 0.0], [1.0, 1.0, 100.0], [0.0, 0.0, 1.0], [1.0, float("nan"), 1.0]])
    found = ratios(LayerLosses(losses.double(), torch.arange(4), [], losses)).histogram
    edges, first, second = found.edges, *found.counts
    assert edges == list(EDGES) and len(edges) == len(first) + 1 and edges[24] == 1
    assert {edges[bin]: count for bin, count in enumerate(first) if count} == {0.5: 1, 1: 2}  # 0 after 0 is as before
    assert {bin: count for bin, count in enumerate(second) if count} == {0: 1, len(second) - 1: 2}  # 0, and 100 and ∞


@pytest.mark.parametrize(("size", "count"), [(70, 80), (70, 70), (205, 80), (3, 1)])
def test_samples_are_taken_evenly_and_each_once(size, count):
    places = evenly(size, count)
    assert len(set(places)) == len(places) == min(size, count) and places == sorted(places)
    assert max(places) < size and (size > count or places == list(range(size)))
    gaps = {after - before for before, after in pairwise(places)}
    assert not gaps or max(gaps) - min(gaps) <= 1
