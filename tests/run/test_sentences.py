"""Exports as embedding models, which SentenceTransformers reads."""

import json

import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, Transformer

from descend import InputError, Run
from descend.run.exporting import export
from descend.run.sentences import refuse_modules
from tests.support.cases import slow

RECORDS = ("README.md", "written.json")
TEXTS = ["a good film", "the plot was bad and the cast was worse than the plot"]


@pytest.fixture(scope="module")
def embedder(models, tmp_path_factory):
    """A folder of SentenceTransformers with a dense layer and prompts."""
    encoder = Transformer(str(models / "long-bert-bare"), max_seq_length=12, model_kwargs={"dtype": torch.float32})
    torch.manual_seed(0)
    parts = [encoder, Pooling(encoder.get_embedding_dimension()), Dense(encoder.get_embedding_dimension(), 5)]
    folder = tmp_path_factory.mktemp("embedder") / "model"
    SentenceTransformer(modules=[*parts, Normalize()], prompts={"query": "good "}, device="cpu").save(str(folder))
    return folder


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


@pytest.mark.parametrize(
    ("kinds", "message"),
    [
        (["sentence_transformers.models.Transformer", "evil.Code"], "does not run: evil.Code"),
        (["sentence_transformers.models.Router"], "must begin with one Transformer; its modules are .*Router"),
        ([], "its modules are none"),
        (None, "its modules are none"),
    ],
)
def test_modules_of_other_code_and_routers_are_refused_unread(tmp_path, kinds, message):
    listed = 5 if kinds is None else [{"type": kind, "path": ""} for kind in kinds]
    (tmp_path / "modules.json").write_text(json.dumps(listed))
    (tmp_path / "evil.py").write_text("raise SystemExit('it ran')")
    with pytest.raises(InputError, match=message):
        refuse_modules(tmp_path)


@pytest.mark.parametrize(
    ("path", "message"), [("../other", "outside of it: .*other"), ("1_Dense", "bin is no safetens")]
)
def test_modules_elsewhere_and_pickles_are_refused_unread(tmp_path, path, message):
    (tmp_path / "model" / "1_Dense").mkdir(parents=True)
    (tmp_path / "model" / "1_Dense" / "pytorch_model.bin").write_bytes(b"cos\nsystem\n")
    kinds = ("Transformer", ""), ("Dense", path)
    listed = [{"type": f"sentence_transformers.models.{kind}", "path": place} for kind, place in kinds]
    (tmp_path / "model" / "modules.json").write_text(json.dumps(listed))
    with pytest.raises(InputError, match=message):
        refuse_modules(tmp_path / "model")
