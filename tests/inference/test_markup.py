"""What a classifier reads of a text is what its training read, and the card says it."""

import shutil

import pytest

from descend import DescentClassifier
from descend.cli import main
from descend.results import read_config
from tests.support.texts import review_folder

RAW, PLAIN = "a <br /><br />bad film\n", "a   bad film"


@pytest.mark.parametrize(
    ("flag", "said"), [((), "A blank takes the place of `<br />`"), (("--keep-markup",), "left in")]
)
def test_inference_reads_texts_as_training_did(tmp_path, flag, said):
    data, run = review_folder(tmp_path / "reviews"), tmp_path / "run"
    words = ["--data", str(data), "--max-steps", "1", "--max-length", "12", "--quiet", "--out", str(run), *flag]
    assert main(["train", "text-distilbert", "--hidden-size", "8", "--heads", "2", "--depth", "1", *words]) == 0
    card = (run / "model" / "README.md").read_text("utf-8")
    assert said in card and "Texts were cut after 12 tokens." in card
    assert read_config(run).settings["keep_markup"] is bool(flag)
    exported = tmp_path / "exported"
    shutil.copytree(run / "model", exported)  # without its run, as who serves it has it
    for place in (run, exported):
        raw, plain = DescentClassifier.from_pretrained(place).predict([RAW, PLAIN])
        assert (raw == plain) is not bool(flag)
