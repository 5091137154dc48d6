"""Exports as embedding models, which SentenceTransformers reads."""

import json
from shutil import copytree

import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling

from descend import InputError, Run
from descend.run.exporting import export
from descend.run.sentences import SentenceTransformers
from tests.support.cases import slow
from tests.support.runs import trained

RECORDS = ("README.md", "written.json")
TEXTS = ["a good film", "the plot was bad and the cast was worse than the plot"]


def embeddings_by_hand(folder, layers):
    """Of the whole SentenceTransformer, whose list of blocks is cut."""
    whole = SentenceTransformer(str(folder), device="cpu")
    whole[0].model.encoder.layer = whole[0].model.encoder.layer[:layers]
    return whole.encode(TEXTS, prompt_name="query", convert_to_tensor=True)


@pytest.mark.parametrize("layers", [1, slow(3)])
def test_the_first_layers_of_a_sentence_transformer_are_one_with_all_its_modules(
    embedder, reviews, tmp_path, layers, capfd
):
    run = Run.frozen(str(embedder), str(reviews), most=40)
    run.evaluate()
    said = export(run, layers, tmp_path / "small", "sentence-transformers")
    assert f'SentenceTransformer("{tmp_path / "small"}")' in said[-1]
    assert "Transformer, Pooling, Dense, Normalize, and no readout" in said[-2]
    small = SentenceTransformer(str(tmp_path / "small"), device="cpu")
    assert (small.prompts["query"], small.max_seq_length, len(small[0].model.encoder.layer)) == ("good ", 12, layers)
    found = small.encode(TEXTS, prompt_name="query", convert_to_tensor=True)
    torch.testing.assert_close(found, embeddings_by_hand(embedder, layers), rtol=1e-5, atol=1e-5)
    card = (tmp_path / "small" / "README.md").read_text()
    size = sum(file.stat().st_size for file in (tmp_path / "small").rglob("*.*") if file.name not in RECORDS) / 1e6
    assert "library_name: sentence-transformers" in card and f"The folder takes {size:.3g} MB." in card
    assert f" ms a sample until layer {layers}, and " in card and " ms for all 3 layers." in card


def test_an_encoder_gets_the_pooling_that_its_readouts_have(models, reviews, tmp_path):
    run = Run.frozen(str(models / "long-bert-bare"), str(reviews), most=40)
    export(run, 2, tmp_path / "small", "sentence-transformers")
    small = SentenceTransformer(str(tmp_path / "small"), device="cpu")
    inputs = small.tokenize(TEXTS)
    states = run.model.layer_outputs({name: inputs[name] for name in ("input_ids", "attention_mask")})
    mask = inputs["attention_mask"][..., None]
    expected = (states[2] * mask).sum(1) / mask.sum(1)
    torch.testing.assert_close(small(dict(inputs))["sentence_embedding"], expected, rtol=1e-5, atol=1e-5)


def test_a_run_keeps_what_its_start_has_and_refuses_a_start_that_is_gone(embedder, reviews, tmp_path):
    start = tmp_path / "start"
    copytree(embedder, start)
    run = Run.read(
        trained(tmp_path / "run", "text", "--max-steps 1 --max-length 12", "--model", start, "--data", reviews)
    )
    run.export(2, tmp_path / "small", "sentence-transformers")
    small = SentenceTransformer(str(tmp_path / "small"), device="cpu")
    assert [type(module) for module in small][1:] == [Pooling, Dense, Normalize] and small.prompts["query"] == "good "
    card = (tmp_path / "small" / "README.md").read_text()
    assert "2 of 3 layers, without their readout." in card and "model-index" not in card
    start.rename(tmp_path / "moved")
    with pytest.raises(InputError, match="start is gone"):
        run.export(2, tmp_path / "other", "sentence-transformers")


def changed(folder, file, **entries):
    """A JSON file of a copied model with other entries."""
    content = json.loads((folder / file).read_text()) if (folder / file).exists() else {}
    (folder / file).write_text(json.dumps(content | entries))


def test_settings_of_a_strangers_encoder_are_not_obeyed(embedder, reviews, tmp_path):
    """Those would open a pickle, and read the tokenizer of another folder."""
    folder = tmp_path / "stranger"
    copytree(embedder, folder)
    (folder / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'touch ran'\ntR.")
    unsafe = {"use_safetensors": False, "weights_only": False}
    changed(folder, "sentence_bert_config.json", model_kwargs=unsafe, tokenizer_name_or_path="/elsewhere")
    changed(folder, "tokenizer_config.json", auto_map={"AutoTokenizer": ["evil.Code", None]})
    export(Run.frozen(str(folder), str(reviews), most=40), 1, tmp_path / "small", "sentence-transformers")
    small = SentenceTransformer(str(tmp_path / "small"), device="cpu")
    found = small.encode(TEXTS, prompt_name="query", convert_to_tensor=True)
    torch.testing.assert_close(found, embeddings_by_hand(embedder, 1), rtol=1e-5, atol=1e-5)
    settings = "".join(file.read_text() for file in (tmp_path / "small").glob("*.json"))
    assert "auto_map" not in settings and "use_safetensors" not in settings and "elsewhere" not in settings


OURS = "sentence_transformers.models"


@pytest.mark.parametrize("name", ["bert", "roberta"])
def test_a_start_that_lower_cases_by_itself_is_refused(embedder, tmp_path, name):
    copytree(embedder, tmp_path / "start")
    (tmp_path / "start" / "sentence_bert_config.json").unlink()
    settings = {"max_seq_length": 50, "do_lower_case": True}
    (tmp_path / "start" / f"sentence_{name}_config.json").write_text(json.dumps(settings))
    with pytest.raises(InputError, match="asks for texts in small letters"):
        SentenceTransformers.check("text", str(tmp_path / "start"))


@pytest.mark.parametrize(
    ("modules", "message"),
    [
        ([(f"{OURS}.Transformer", ""), ("evil.Pooling", "1_Pooling")], "has evil.Pooling behind its encoder"),
        ([(f"{OURS}.Transformer", ""), (f"{OURS}.WordWeights", "1_W")], "has .*WordWeights behind its encoder"),
        ([(f"{OURS}.Router", "")], "must begin with one Transformer; its modules are .*Router"),
        ([(f"{OURS}.Transformer", "")], "has nothing behind its encoder; expected a Pooling first"),
        ([(f"{OURS}.Transformer", ""), (f"{OURS}.Dense", "../other")], r"outside of it: \.\./other"),
        ([(f"{OURS}.Transformer", ""), (f"{OURS}.Dense", "2_Pickle")], "bin is no safetensors"),
        ([(f"{OURS}.Transformer", ""), (f"{OURS}.Dense", "3_Code")], "asks for os.system, which is not run"),
        ([(f"{OURS}.Transformer", ""), (f"{OURS}.Dense", "4_None")], "has no folder 4_None of its Dense"),
        ([(f"{OURS}.Transformer", ""), (f"{OURS}.Pooling", "3_Code")], "can't be read as a Pooling"),
        ([], "its modules are none"),
        (None, "its modules are none"),
    ],
)
def test_modules_that_can_not_be_kept_are_refused_before_any_work(tmp_path, modules, message):
    for place in ("2_Pickle", "3_Code"):
        (tmp_path / place).mkdir()
    (tmp_path / "2_Pickle" / "pytorch_model.bin").write_bytes(b"cos\nsystem\n")
    (tmp_path / "3_Code" / "config.json").write_text('{"activation_function": "os.system", "pooling_mode": 7}')
    listed = 5 if modules is None else [{"type": kind, "path": path} for kind, path in modules]
    (tmp_path / "modules.json").write_text(json.dumps(listed))
    if message.startswith("can't"):
        changed(tmp_path, "3_Code/config.json", activation_function="torch.nn.Tanh")
    with pytest.raises(InputError, match=message):
        SentenceTransformers.check("text", str(tmp_path))
