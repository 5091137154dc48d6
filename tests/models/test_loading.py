"""Models from folders: no code, no pickles, and no more memory than their weights."""

import json
import resource

import pytest
import torch
from safetensors.torch import save_file
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
    "shard", ["../weights.safetensors", "/tmp/weights.safetensors", "weights.bin", "a/b.safetensors"]
)
def test_an_index_names_no_file_outside_and_no_pickle(folder, shard):
    (folder / "model.safetensors").rename(folder / "model-1.safetensors")
    index = {"metadata": {}, "weight_map": {"a": "model-1.safetensors", "b": shard}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(InputError, match=r"expected names of \*\.safetensors beside it"):
        DescentClassifier.from_pretrained(folder)


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
        ({"dim": 2**20}, "asks for .* weights|classifier"),
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


@pytest.mark.parametrize(
    "entries",
    [{"hidden_dim": 2**23}, {"dim": 2**16, "n_heads": 2}, {"vocab_size": 2**23}, {"max_position_embeddings": 2**24}],
    ids=str,
)
def test_a_config_that_claims_more_than_its_weights_takes_no_memory(folder, entries):
    """Before the model is built: the largest of these would take 32 GB."""
    change(folder, **entries)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InputError, match=r"asks for [\d,]+ numbers of weights; the files beside it hold"):
        DescentClassifier.from_pretrained(folder)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**17  # kB


@pytest.mark.parametrize(
    "entries",
    [{"num_hidden_layers": 1000, "num_experts": 1000}, {"depths": [1000, 1000]}, {"hidden_sizes": [2**24] * 2000}],
    ids=list,
)
def test_products_and_sums_of_sizes_are_bounded(folder, entries):
    change(folder, **entries)
    with pytest.raises(InputError, match="at most"):
        refuse_unsafe(folder)


@pytest.fixture
def adapter(folder):
    """Adapters of rank 2 on the model."""
    place = folder.parent / "adapter"
    place.mkdir()
    save_file({"a.lora_A.weight": torch.zeros(2, 8)}, place / "adapter_model.safetensors")
    entries = {"base_model_name_or_path": str(folder), "peft_type": "LORA", "r": 2, "target_modules": ["q_lin"]}
    (place / "adapter_config.json").write_text(json.dumps(entries))
    return place


@pytest.mark.parametrize(
    "entries",
    [
        {"target_modules": "(a+)+$"},
        {"target_modules": "(.*a){30}b"},
        {"exclude_modules": "([a-z]*)*x"},
        {"rank_pattern": {"((x*)y*)*": 2}},
        {"alpha_pattern": {"(?:(?:a*)b)*c": 1}},
        {"layers_pattern": ["(layer+)+"]},
        {"target_modules": ".*" * 20 + "x"},
        {"target_modules": ".*.*.*.*.*.*!"},  # 10 seconds for each module
        {"target_modules": r"(?:.|\w)*!"},
        {"modules_to_save": ["(a+)+$"]},
        {"num_virtual_tokens": 2**40},
        {"layer_replication": [[0, 2]] * 10_000},
        {"target_modules": "("},
        {"r": 2**23},
        {"rank_pattern": {"q_lin": 2**23}},
        {"r": "2"},
    ],
    ids=str,
)
def test_an_adapters_expressions_end_and_its_rank_is_that_of_its_weights(adapter, entries):
    refuse_unsafe(adapter)
    change(adapter, "adapter_config.json", **entries)
    with pytest.raises(InputError, match=r"regular expression that may not end|has the rank|asks for 20,000 layers"):
        refuse_unsafe(adapter)


@pytest.mark.parametrize("pattern", ["all-linear", r".*decoder.*(SA|CA).*proj$", r"model\.layers\.\d+\.mlp\.up_proj"])
def test_usual_expressions_of_adapters_are_taken(adapter, pattern):
    change(adapter, "adapter_config.json", target_modules=pattern)
    refuse_unsafe(adapter)
