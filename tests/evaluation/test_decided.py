"""What each layer decides on a few texts, kept for the page."""

import json

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from descend.cli import main
from descend.errors import InputError
from descend.evaluation.decided import MOST_CHARACTERS, decided
from descend.evaluation.layers import LayerLosses
from descend.results import read_decisions
from tests.support.texts import review_folder

SMALL = "--depth 3 --hidden-size 16 --max-length 30 --use-cpu --max-steps 4 --eval-strategy no --save-strategy no"


def measured(count: int) -> LayerLosses:
    numbers = torch.arange(count)
    decisions = torch.stack([numbers % 2, torch.ones(count, dtype=torch.long)], 1)
    return LayerLosses(
        losses=torch.zeros(count, 2),
        groups=numbers,
        metrics=[0.5, 0.5],
        scores=(decisions == 1).double(),
        decisions=decisions,
        confidences=torch.full((count, 2), 0.75),
    )


def test_texts_are_taken_evenly_and_cut():
    samples = [{"input_ids": [place] * (1 if place < 5 else MOST_CHARACTERS)} for place in range(8)]
    kept = decided(measured(8), samples, 0.5, decode=lambda ids: " ".join(map(str, ids)), names={0: "no", 1: "yes"})
    assert kept.noise == 0.5 and kept.texts[0].text == "2"
    assert kept.texts[1].text.startswith("6 6") and len(kept.texts[1].text) == MOST_CHARACTERS + 2
    first = [(each.answer, each.confidence, each.right) for each in kept.texts[0].decisions]
    assert first == [("no", 0.75, False), ("yes", 0.75, True)]
    assert decided(measured(2), [{"pixels": 1}] * 2, 0, decode=str, names=None) is None


def test_evaluate_keeps_what_the_saved_model_decides(tmp_path):
    run, flags = tmp_path / "run", [*SMALL.split(), "--no-load-best-model-at-end", "--noise", "0"]
    data = ["--data", str(review_folder(tmp_path)), "--out", str(run)]
    assert main(["train", "text-distilbert", *flags, *data]) == 0
    assert main(["evaluate", str(run), "--noise", "0", "--frames", "3"]) == 0
    kept = read_decisions(run / "decisions.json")
    model = AutoModelForSequenceClassification.from_pretrained(run / "model").eval()
    tokenizer = AutoTokenizer.from_pretrained(run / "model")
    assert len(kept.texts) == 3
    for each in kept.texts:
        assert len(each.decisions) == model.config.n_layers + 1
        if each.text.endswith(" …"):
            continue
        with torch.no_grad():
            sure, answer = model(**tokenizer(each.text, return_tensors="pt")).logits.softmax(-1)[0].max(-1)
        assert each.decisions[-1].answer == model.config.id2label[int(answer)]
        assert each.decisions[-1].confidence == pytest.approx(float(sure), abs=1e-4)


def test_a_damaged_file_is_one_line(tmp_path):
    file = tmp_path / "decisions.json"
    answer = {"answer": "yes", "confidence": 0.5, "right": True}
    for content in ([], {"noise": 0}, {"noise": 0, "texts": [{"text": "a", "decisions": [answer]}]}):
        file.write_text(json.dumps(content))
        with pytest.raises(InputError, match=r"decisions\.json"):
            read_decisions(file)
    uneven = [{"text": "a", "decisions": [answer] * 2}, {"text": "b", "decisions": [answer] * 3}]
    file.write_text(json.dumps({"noise": 0, "texts": uneven}))
    with pytest.raises(InputError, match="each layer"):
        read_decisions(file)
