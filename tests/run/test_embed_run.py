"""The recipe of embedding models: SentenceTransformers read at every layer, trained, saved, exported and refused."""

import json
from shutil import copytree

import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer
from transformers import AutoTokenizer, T5Config, T5Model

from descend import InputError, Run, configure
from descend.recipes import RECIPES
from tests.support.networks import change
from tests.support.runs import refused, said, trained

TEXTS = ["a good film", "the plot was bad and the cast was worse than the plot", "good"]
WORDS = ("a", "good", "film", "with", "a", "bad", "plot", "the", "cast", "was", "worse", "than", "it")


@pytest.fixture(scope="module")
def triplets(tmp_path_factory):
    """A file of 40 triplets, and a row with twice the same text."""
    file = tmp_path_factory.mktemp("triplets") / "triplets.jsonl"
    rows = [{name: f"{WORDS[row % 7]} {name} {WORDS[row % 5 + 7]} {row}" for name in NAMES} for row in range(40)]
    rows.append(dict.fromkeys(NAMES, "same"))
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


NAMES = ("anchor", "positive", "negative")


@pytest.fixture(scope="module")
def prompted(embedder, tmp_path_factory):
    """The SentenceTransformer with a prompt put before all texts, another similarity, and its first numbers alone."""
    folder = tmp_path_factory.mktemp("prompted") / "model"
    copytree(embedder, folder)
    about = {"default_prompt_name": "query", "similarity_fn_name": "dot", "truncate_dim": 3}
    change(folder, "config_sentence_transformers.json", **about)
    return folder


@pytest.fixture(scope="module")
def run(prompted, triplets, tmp_path_factory):
    """A run of it with noise, that may be evaluated."""
    settings = "--max-steps 2 --use-cpu --per-device-train-batch-size 8 --noise 0.1"
    return trained(tmp_path_factory.mktemp("embed") / "run", "embed", settings, "--model", prompted, "--data", triplets)


def changed(folder, tmp_path, file="config_sentence_transformers.json", **entries):
    """A copy of a model with other entries in one of its files."""
    copy = tmp_path / "changed"
    copytree(folder, copy)
    change(copy, file, **entries)
    return copy


def cut(folder, layers):
    """The embeddings of a SentenceTransformer whose list of blocks is cut."""
    whole = SentenceTransformer(str(folder), device="cpu")
    whole[0].model.encoder.layer = whole[0].model.encoder.layer[:layers]
    return whole.encode(TEXTS, convert_to_tensor=True)


def exits_of(run):
    """The embeddings of the texts, with the default prompt, at every layer."""
    prompt, _ = run.recipe._prompts(run.model)
    tokens = [run.tokenizer(f"{prompt}{text}", truncation=True, max_length=12)["input_ids"] for text in TEXTS]
    batch = run.recipe.collate(run.tokenizer)([{"input_ids": tokens, "labels": 1.0, "group": 0}])
    with torch.no_grad():
        return list(run.model.predictions(run.task.inputs(batch)))


def test_every_exit_is_the_sentence_transformer_cut_there_with_its_prompt(prompted, triplets):
    run = Run.frozen(str(prompted), str(triplets), task="embed")
    exits = exits_of(run)
    for layer in range(1, 4):
        torch.testing.assert_close(exits[layer], cut(prompted, layer), rtol=1e-5, atol=1e-5)
    begun = {tuple(text[:2]) for sample in run.samples for text in sample["input_ids"]}
    assert begun == {tuple(run.tokenizer("good")["input_ids"][:2])}  # every text has the prompt
    assert run.recipe.max_length == 12 and (run.task.metric, run.depth) == ("triplet_accuracy", 3)


def test_a_query_and_its_documents_have_their_own_prompts(embedder, triplets, tmp_path, capsys):
    prompts = {"query": "good ", "document": "bad "}
    model = changed(embedder, tmp_path, prompts=prompts, default_prompt_name=None)
    run = Run.frozen(str(model), str(triplets), task="embed")
    begun = [{tuple(sample["input_ids"][place][:2]) for sample in run.samples} for place in range(3)]
    assert begun == [{tuple(run.tokenizer(word)["input_ids"][:2])} for word in ("good", "bad", "bad")]
    assert "is read with the prompt 'good ', the others with 'bad '." in capsys.readouterr().err


def test_layers_tells_what_it_read_and_saves_a_sentence_transformer(prompted, triplets, tmp_path, capsys):
    words = ("layers", prompted, "--task", "embed", "--data", triplets, "--out", tmp_path / "out")
    out, err = said(capsys, *words, "--save", tmp_path / "small", "--layers", 2)
    assert err.count("Rows that have twice the same text are left out: 1.") == 1
    assert err.count("The model compares texts by dot; here cosines are measured.") == 1
    assert "Every layer is read by what is behind the encoder: Pooling, Dense, Normalize." in err
    assert "triplet_accuracy" in out and f'SentenceTransformer("{tmp_path / "small"}").encode(texts)' in out
    small = SentenceTransformer(str(tmp_path / "small"), device="cpu")
    assert (small.default_prompt_name, small.similarity_fn_name, small.max_seq_length) == ("query", "dot", 12)
    assert small.truncate_dim == 3
    found = small.encode(TEXTS, convert_to_tensor=True)
    torch.testing.assert_close(found, cut(prompted, 2), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_a_trained_run_is_restored_evaluated_and_exported_alike(run, triplets, tmp_path, capsys, caplog):
    out, err = said(capsys, "evaluate", run, "--noise", "0,0.1")
    assert "BERT-3 linear on triplets, triplets.jsonl" in out and "WARNING" not in err
    loaded = Run.read(run)
    exits = exits_of(loaded)
    for one, other in zip(exits, exits_of(Run.read(run)), strict=True):
        assert torch.equal(one, other)
    said(capsys, "export", run, "--layers", 2, "--out", tmp_path / "small")
    small = SentenceTransformer(str(tmp_path / "small"), device="cpu")
    assert [type(each).__name__ for each in small] == ["Transformer", "Pooling", "Dense", "Normalize"]
    torch.testing.assert_close(small.encode(TEXTS, convert_to_tensor=True), exits[2], rtol=1e-5, atol=1e-5)
    again = Run.frozen(str(run / "model"), str(triplets), task="embed")
    torch.testing.assert_close(torch.stack(exits_of(again)), torch.stack(exits))
    assert again.recipe.about_model()[0].endswith("Pooling, Dense, Normalize.")
    other = tmp_path / "other.jsonl"
    other.write_text(triplets.read_text())
    caplog.clear()
    said(capsys, "evaluate", run, "--data", other)
    assert caplog.text.count("Rows that have twice the same text are left out: 1") == 1


def test_training_tells_what_it_read_once(prompted, triplets, tmp_path, capsys):
    flags = ("--max-steps", 1, "--use-cpu", "--method", "erm")
    words = ("train", "embed", *flags, "--model", prompted, "--data", triplets, "--out", tmp_path / "run")
    _, err = said(capsys, *words)
    assert err.count("Rows that have twice the same text are left out: 1.") == 1
    assert "The model is saved as an Embedder, which loads where Descend is installed." in err


def test_commands_that_make_no_sense_are_refused_in_a_line(run, prompted, triplets, tmp_path, capsys):
    sure = "an embedding model has no classes to be probed or sure of; leave out --probe and --exit"
    for flag in ("--exit", "--probe"):
        assert sure in refused(capsys, "evaluate", run, flag)
    out = tmp_path / "out"
    train = ("train", "embed", "--model", prompted, "--data", triplets, "--out", out)
    assert "are read alike, without own exits" in refused(capsys, *train, "--method", "probe")
    assert "no setting --exits" in refused(capsys, *train, "--exits", "own")
    with pytest.raises(InputError, match="are read alike, without own exits"):
        configure("embed", model=str(prompted), data=str(triplets), exits="own", output_dir=str(out))
    layers = ("layers", prompted, "--task", "embed", "--data", triplets, "--out", out)
    for command in (("export", run, "--layers", 2, "--out", out), (*layers, "--save", tmp_path / "small")):
        line = refused(capsys, *command, "--format", "onnx")
        assert "--format onnx takes classifiers of texts and images; got a model of embed. Leave --format out." in line
        line = refused(capsys, *command, "--format", "transformers")
        assert "a model of embed is written by --format sentence-transformers; got transformers. Leave" in line
    certified = (*layers, "--save", tmp_path / "small", "--layers", "certified")
    line = said(capsys, *certified, status=2)[1].splitlines()[-1]
    assert "too few test samples to certify a layer: 8, at least" in line and "--layers auto" in line
    assert "is an embedding model: add --task embed" in refused(
        capsys, "layers", run / "model", "--data", triplets, "--out", out
    )
    assert "is none of descend train embed" in refused(capsys, *layers, "--image-size", 8)
    assert "dataset must be one of triplets, scored; got 'imdb'" in refused(capsys, *layers, "--dataset", "imdb")
    assert "expected a file or folder, or generated." in refused(
        capsys, "layers", prompted, "--task", "embed", "--data", tmp_path / "nowhere"
    )
    assert not out.exists() and not (tmp_path / "small").exists()


def test_other_data_of_a_run_must_be_of_its_kind(run, tmp_path, capsys):
    file = tmp_path / "scored.csv"
    file.write_text("anchor,positive,score\n" + "".join(f"one {row},other {row},{row}\n" for row in range(20)))
    assert "holds pairs with scores; expected triplets, which the run" in refused(
        capsys, "evaluate", run, "--data", file
    )


def test_an_encoder_alone_gets_mean_pooling(models, triplets):
    run = Run.frozen(str(models / "long-bert-bare"), str(triplets), task="embed")
    encoder = Transformer(str(models / "long-bert-bare"), max_seq_length=12, model_kwargs={"dtype": torch.float32})
    expected = SentenceTransformer(modules=[encoder, Pooling(16, "mean")], device="cpu")
    torch.testing.assert_close(exits_of(run)[3], expected.encode(TEXTS, convert_to_tensor=True), rtol=1e-5, atol=1e-5)
    assert run.recipe.max_length == 128 and "the mean over tokens" in run.recipe.about_model()[0]


@pytest.mark.parametrize(
    ("file", "entries", "message"),
    [
        (
            "1_Pooling/config.json",
            {"include_prompt": False},
            "puts 'good ' before texts and leaves it out of the pooling",
        ),
        (
            "config_sentence_transformers.json",
            {"default_prompt_name": "no"},
            "has no prompt 'no', its default_prompt_nam",
        ),
        ("config_sentence_transformers.json", {"similarity_fn_name": "evil"}, "must be one of cosine, .*; got 'evil'"),
        (
            "config_sentence_transformers.json",
            {"truncate_dim": 0},
            "truncate_dim of .* must be a whole number from 1 on",
        ),
        ("config_sentence_transformers.json", {"prompts": [5]}, "prompts of .* must be texts by their names"),
        ("2_Dense/config.json", {"activation_function": "evil.Code"}, "asks for evil.Code, which is not run"),
        ("2_Dense/config.json", {"activation_function": "torch.nn.functional"}, "asks for torch.nn.functional, which"),
        (
            "2_Dense/config.json",
            {"activation_function": "torch.nn.Linear"},
            "asks for torch.nn.Linear, which is not run",
        ),
    ],
)
def test_a_model_that_can_not_be_read_at_every_layer_is_refused(prompted, triplets, tmp_path, file, entries, message):
    folder = changed(prompted, tmp_path, file, **entries)
    with pytest.raises(InputError, match=message):
        Run.frozen(str(folder), str(triplets), task="embed")


@pytest.mark.parametrize(
    ("kinds", "message"),
    [
        (["Router"], "must begin with one Transformer; its modules are .*Router. A router, several encoders and bags"),
        (["Transformer", "Transformer", "Pooling"], "has sentence_transformers.models.Transformer behind its encoder"),
        (["Transformer", "Pooling"], "has its encoder in 0_Transformer, by modules.json; expected it in the folder"),
        (["Transformer", "WeightedLayerPooling"], "has .*WeightedLayerPooling behind its encoder; what can be kept is"),
    ],
)
def test_modules_without_one_chain_of_layers_are_refused(prompted, triplets, tmp_path, kinds, message):
    folder = tmp_path / "model"
    copytree(prompted, folder)
    paths = ["0_Transformer", "1_Pooling"] if kinds == ["Transformer", "Pooling"] else [""] * len(kinds)
    listed = [
        {"type": f"sentence_transformers.models.{kind}", "path": path} for kind, path in zip(kinds, paths, strict=True)
    ]
    (folder / "modules.json").write_text(json.dumps(listed))
    with pytest.raises(InputError, match=message):
        RECIPES["embed"].kind(model=str(folder), data=str(triplets)).completed()


def test_a_decoder_beside_the_encoder_is_refused(models, triplets, tmp_path):
    T5Model(T5Config(d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=1, vocab_size=99)).save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(models / "bert").save_pretrained(tmp_path)
    with pytest.raises(InputError, match="has an encoder and a decoder, whose layers form no one chain"):
        Run.frozen(str(tmp_path), str(triplets), task="embed")


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (
            {"type": "Evil", "config": {}},
            "the modules behind an encoder must be some of Pooling, .* with a config; got",
        ),
        (
            {"type": "Dense", "config": {"in_features": 16, "out_features": 5, "activation_function": "os.system"}},
            "the configuration asks for os.system, which is not run",
        ),
    ],
)
def test_a_strangers_saved_embedder_runs_no_code(run, triplets, tmp_path, entry, message):
    later = json.loads((run / "model" / "config.json").read_text())["later"]
    folder = changed(run / "model", tmp_path, "config.json", later=[later[0], entry])
    with pytest.raises(InputError, match=message):
        Run.frozen(str(folder), str(triplets), task="embed")


def test_an_embedder_is_no_start_of_a_classifier(run, tmp_path, capsys):
    file = tmp_path / "texts.csv"
    file.write_text("text,label\n" + "".join(f"text {row},{row % 2}\n" for row in range(20)))
    words = ("train", "text", "--model", run / "model", "--data", file, "--out", tmp_path / "out")
    assert "is an embedding model, trained by descend train embed" in refused(capsys, *words)


def test_scored_pairs_are_measured_by_spearman_and_certify_nothing(models, tmp_path, capsys):
    file = tmp_path / "scored.tsv"
    rows = [f"{WORDS[row % 12]} one {row}\t{WORDS[row * 5 % 12]} other {row}\t{row % 6}\n" for row in range(150)]
    file.write_text("sentence1\tsentence2\tscore\n" + "".join(rows))
    words = ("layers", models / "long-bert-bare", "--task", "embed", "--data", file, "--out", tmp_path / "out")
    out, err = said(capsys, *words, "--compare-with", "last")
    assert "Scores from 0 to 5 are scaled to 0 … 1 for the loss." in err and "spearman" in out
    assert "Spearman is not known to be a share of the samples, so no test can certify it." in out
    certified = (*words, "--save", tmp_path / "small", "--layers", "certified")
    assert "no test certifies layers by spearman" in said(capsys, *certified, status=2)[1].splitlines()[-1]
    run = Run.frozen(str(models / "long-bert-bare"), str(file), task="embed")
    assert len(run.samples) == 30 and not run.task.bounded and Normalize.__name__ not in run.recipe.about_model()[0]
