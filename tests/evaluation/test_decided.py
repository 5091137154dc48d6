"""What each layer decides on a few texts, kept for the page."""

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from descend.cli import main
from descend.evaluation.evaluators import MOST_CHARACTERS
from descend.results import Decisions
from tests.support.texts import review_folder

SMALL = "--depth 3 --hidden-size 16 --max-length 30 --use-cpu --max-steps 4 --eval-strategy no --save-strategy no"


def test_evaluate_keeps_what_the_saved_model_decides(tmp_path):
    run, flags = tmp_path / "run", [*SMALL.split(), "--no-load-best-model-at-end", "--noise", "0"]
    data = ["--data", str(review_folder(tmp_path)), "--out", str(run)]
    assert main(["train", "text-distilbert", *flags, *data]) == 0
    assert main(["evaluate", str(run), "--noise", "0", "--frames", "3"]) == 0
    kept = Decisions.read(run / "decisions.json")
    model = AutoModelForSequenceClassification.from_pretrained(run / "model").eval()
    tokenizer = AutoTokenizer.from_pretrained(run / "model")
    assert len(kept.texts) == 3 and kept.noise == 0
    for each in kept.texts:
        assert len(each.decisions) == model.config.n_layers + 1
        if each.text.endswith(" …"):
            assert len(each.text) == MOST_CHARACTERS + 2
            continue
        with torch.no_grad():
            sure, answer = model(**tokenizer(each.text, return_tensors="pt")).logits.softmax(-1)[0].max(-1)
        assert each.decisions[-1].answer == model.config.id2label[int(answer)]
        assert each.decisions[-1].confidence == pytest.approx(float(sure), abs=1e-4)
