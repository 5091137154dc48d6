"""Models from folders: no code, no pickles, and no more memory than their weights."""

import json

import pytest
import torch
from transformers import BertTokenizer, DistilBertConfig, DistilBertForSequenceClassification

from descend import DescentClassifier, InputError
from descend.models import MOST_LAYERS, refuse_unsafe
from descend.recipes import RECIPES
from descend.tasks.text import load_tokenizer
from tests.support import ranks, runs
from tests.support.networks import change

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad"]


@pytest.fixture
def folder(tmp_path):
    config = DistilBertConfig(vocab_size=len(WORDS), dim=8, n_layers=2, n_heads=2, hidden_dim=8, num_labels=2)
    DistilBertForSequenceClassification(config).save_pretrained(tmp_path / "model")
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS))
    BertTokenizer(str(tmp_path / "vocab.txt")).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize(
    "load",
    [
        DescentClassifier.from_pretrained,
        RECIPES["video-ut"].kind(data="generated").restore,
        lambda place: RECIPES["text-distilbert"].kind(data="generated", model=str(place)).completed(),
        lambda place: RECIPES["video-vit"].kind(data="generated", pretrained=str(place)).network(None),
        lambda place: RECIPES["llm-sft"].kind(data="generated", model=str(place)).completed(),
        lambda place: ranks.language(place.parent / "run", model=str(place)),  # a trainer goes through the same door
    ],
)
def test_a_folder_of_pickles_is_refused_by_name_and_not_opened(folder, tmp_path, load):
    class Bomb:
        def __reduce__(self):
            return (open, (str(tmp_path / "ran"), "w"))

    assert DescentClassifier.from_pretrained(folder).predict("good")
    (folder / "model.safetensors").unlink()
    torch.save({"weight": Bomb()}, folder / "pytorch_model.bin")
    with pytest.raises(InputError, match=r"pytorch_model\.bin.*safetensors"):
        load(folder)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "load",
    [
        DescentClassifier.from_pretrained,
        load_tokenizer,
        lambda place: RECIPES["text-distilbert"].kind(data="generated", model=str(place)).completed(),
        lambda place: RECIPES["llm-sft"].kind(data="generated", model=str(place)).completed(),
    ],
)
def test_a_folders_own_code_is_neither_run_nor_asked_about(folder, tmp_path, monkeypatch, load):
    (folder / "theirs.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Config: ...\nclass Model: ...\n")
    change(
        folder,
        model_type="theirs",
        auto_map={"AutoConfig": "theirs.Config", "AutoModelForSequenceClassification": "theirs.Model"},
    )
    change(
        folder, "tokenizer_config.json", tokenizer_class="Theirs", auto_map={"AutoTokenizer": ["theirs.Model", None]}
    )
    asked = []
    monkeypatch.setattr("builtins.input", lambda question="": asked.append(question) or "y")
    with pytest.raises(InputError, match="custom code"):
        load(folder)
    assert not asked and not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"n_layers": 10**9}, rf"n_layers.*{MOST_LAYERS}"),
        ({"n_layers": 900}, "900 layers"),
        ({"n_layers": "2"}, r"n_layers.*whole number"),
        ({"n_layers": -1}, r"n_layers.*whole number"),
        ({"n_layers": True}, r"n_layers.*whole number"),
        ({"text_config": {"num_hidden_layers": 10**9}}, "text_config: num_hidden_layers"),
        ({"inner_group_num": 10**6}, rf"inner_group_num.*{MOST_LAYERS}"),
        ({"num_experts": 10**6}, rf"num_experts.*{MOST_LAYERS}"),
        ({"num_labels": 10**9}, "num_labels"),
        ({"vocab_size": 10**12}, "vocab_size"),
        ({"max_position_embeddings": 2**40}, "max_position_embeddings"),
        ({"dim": 2**20}, "classifier"),
        ({"dim": None}, "classifier"),
        ({"attn_implementation": "somebody/kernels"}, r"code.*Hub"),
        ({"activation": "no such thing"}, "classifier"),
    ],
)
def test_a_config_that_asks_for_more_than_there_is_is_refused(folder, entries, message):
    change(folder, **entries)
    with pytest.raises(InputError, match=message):
        DescentClassifier.from_pretrained(folder)


def test_adapters_are_held_to_the_same(folder, tmp_path):
    known = json.dumps({"base_model_name_or_path": str(folder)})
    runs.put(tmp_path / "lora", {"adapter_config.json": known, "adapter_model.bin": ""})
    with pytest.raises(InputError, match=r"adapter_model\.bin.*safetensors"):
        refuse_unsafe(tmp_path / "lora")
    (tmp_path / "lora" / "adapter_model.bin").rename(tmp_path / "lora" / "adapter_model.safetensors")
    refuse_unsafe(tmp_path / "lora")
    change(folder, n_layers=10**9)
    with pytest.raises(InputError, match="n_layers must be at most"):
        refuse_unsafe(tmp_path / "lora")
