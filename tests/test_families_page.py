"""docs/reference/families.md: its table is the code's, and its Python blocks train."""

import re
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from transformers import DataCollatorForTokenClassification, TrainingArguments

from descend.models import causal, images
from descend.models.encoders import FAMILIES
from descend.tasks.text import generate_reviews, learn_tokenizer
from tests.support.networks import QUIET, network
from tests.support.tagging import HEADS, Tagger, texts

PAGE = (Path(__file__).parents[1] / "docs" / "reference" / "families.md").read_text(encoding="utf-8")
*TRAINS, JUDGES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_its_table_is_the_codes():
    rows = re.findall(r"^\| [^|]+ \| `([\w-]+)` \|([^|]*)\|([^|]*)\|([^|]*)\|$", PAGE, re.MULTILINE)
    listed = {name: tuple(cell.strip() == "yes" for cell in cells) for name, *cells in rows[1:]}
    names = [*FAMILIES, *causal.FAMILIES]
    assert listed == {
        name: (name in FAMILIES, name in FAMILIES and bool(FAMILIES[name].token_head), name in causal.FAMILIES)
        for name in names
    }
    assert re.findall(r"^\| [^|]+ \| `(\w+)` \| [^|]+ \|$", PAGE, re.MULTILINE)[1:] == [*images.FAMILIES]
    assert all(bool(family.token_head) == bool(family.answer_head) for family in FAMILIES.values())


@pytest.mark.parametrize("block", TRAINS, ids=["tokens", "answer", "own"])
def test_its_code_trains(block, tmp_path):
    torch.manual_seed(0)
    head = "answer" if "start_positions" in block else "tokens"
    network("bert", labels=3 if head == "tokens" else 2, auto=HEADS[head]).save_pretrained(tmp_path / "model")
    tokenizer = learn_tokenizer(["one two three"])
    tokenizer.model_input_names = ["input_ids", "attention_mask"]
    given = {
        "args": TrainingArguments(str(tmp_path / "run"), **QUIET | {"max_steps": 1}),
        "train": texts(head),
        "validation": texts(head, 8),
        "tokenizer": tokenizer,
        "collator": DataCollatorForTokenClassification(tokenizer),
        "tagger": Tagger(),
    }
    exec(block.replace('"MODEL"', repr(str(tmp_path / "model"))), given)
    assert given["trainer"].state.global_step == 1


def test_its_code_judges_a_plain_classifier(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    reviews = generate_reviews(12, 0)
    tokenizer = learn_tokenizer([row["text"] for row in reviews])
    rows = Dataset.from_list(reviews).map(lambda row: tokenizer(row["text"][:60]))
    network("bert", labels=2, vocab_size=len(tokenizer), max_position_embeddings=80).save_pretrained("MODEL")
    given = {"test": rows, "tokenizer": tokenizer}
    exec(JUDGES, given)
    assert given["summary"].samples == 12 and (tmp_path / "plain" / "summary.json").is_file()
