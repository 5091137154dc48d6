"""Data, small pretrained models and finished runs that the tests of runs share."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModel

from descend.cli import main
from descend.models import MeanPooledConfig, MeanPooledForSequenceClassification
from descend.tasks.text import generate_pairs, generate_reviews, learn_tokenizer
from tests.support.networks import PIXELS, causal, image_network, network
from tests.support.runs import SAVED, SMALL, train, trained
from tests.support.texts import review_folder


@pytest.fixture(scope="session")
def reviews(tmp_path_factory) -> Path:
    """60 reviews to train on, and as many to test."""
    return review_folder(tmp_path_factory.mktemp("reviews"))


@pytest.fixture(scope="session")
def models(tmp_path_factory) -> Path:
    """A folder of small pretrained models, each in half precision and with its tokenizer or processor.

    Families of texts have a head of 2 classes, ``-bare`` none; ``long-`` takes texts of the usual length and has 3.
    Of images ``backbone`` is a DINOv2 without a head, ``named`` has the classes dogs and cats, ``three`` a third.
    """
    place = tmp_path_factory.mktemp("models")
    texts = [*generate_reviews(100, 0), *generate_pairs(100, 0)]
    tokenizer = learn_tokenizer(text for row in texts for text in (row["text"], row.get("pair", "")))
    tokenizer.eos_token = tokenizer.sep_token
    sizes = {"vocab_size": len(tokenizer), "max_position_embeddings": 40, "pad_token_id": 0}
    made = {"causal": causal("llama", vocab_size=len(tokenizer))}
    for family in ("distilbert", "bert", "roberta", "modernbert", "deberta-v2", "llama"):
        made[family] = own = network(family, labels=2, **sizes)
        own.config.id2label, own.config.label2id = {0: "neg", 1: "pos"}, {"neg": 0, "pos": 1}
        made[f"{family}-bare"] = own.base_model
    for family in ("bert", "modernbert"):
        made[f"long-{family}"] = network(family, **sizes | {"max_position_embeddings": 200})
        made[f"long-{family}-bare"] = made[f"long-{family}"].base_model
    made["mean"] = MeanPooledForSequenceClassification(MeanPooledConfig(made["bert"].config))
    for name, model in made.items():
        model.half().save_pretrained(place / name)
        tokenizer.save_pretrained(place / name)
    torch.manual_seed(0)
    AutoModel.from_config(AutoConfig.for_model("dinov2", **PIXELS)).save_pretrained(place / "backbone")
    image_network("vit", id2label={0: "dogs", 1: "cats"}, labels=2).save_pretrained(place / "named")
    image_network("deit").save_pretrained(place / "three")
    processing = {
        "size": {"shortest_edge": 18},
        "crop_size": {"height": 16, "width": 16},
        "image_mean": [0.1] * 3,
        "image_processor_type": "BitImageProcessor",
    }
    (place / "backbone" / "preprocessor_config.json").write_text(json.dumps(processing))
    return place


@pytest.fixture(scope="session")
def embedder(models, tmp_path_factory):
    """A folder of SentenceTransformers with a dense layer and prompts."""
    from sentence_transformers import SentenceTransformer  # few test files need it
    from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, Transformer

    encoder = Transformer(str(models / "long-bert-bare"), max_seq_length=12, model_kwargs={"dtype": torch.float32})
    torch.manual_seed(0)
    parts = [encoder, Pooling(encoder.get_embedding_dimension()), Dense(encoder.get_embedding_dimension(), 5)]
    folder = tmp_path_factory.mktemp("embedder") / "model"
    SentenceTransformer(modules=[*parts, Normalize()], prompts={"query": "good "}, device="cpu").save(str(folder))
    return folder


@pytest.fixture(scope="session")
def finished(tmp_path_factory) -> Path:
    """A run of UT on videos, evaluated; read it, don't change it."""
    out = tmp_path_factory.mktemp("finished") / "run"
    assert train(out) == 0 and main(["evaluate", str(out), "--noise", "0,0.8,1.6"]) == 0
    return out


@pytest.fixture(scope="session")
def classifier(tmp_path_factory, reviews) -> Path:
    """A run of DistilBERT on reviews; it may be evaluated."""
    sizes = "--depth 3 --hidden-size 16 --max-length 30 --dual-lr 0.1 --learning-rate 0.01"
    return trained(tmp_path_factory.mktemp("text") / "run", "text-distilbert", f"{SAVED} {sizes}", "--data", reviews)


@pytest.fixture(scope="session")
def language(tmp_path_factory) -> Path:
    """A run of Llama on generated instructions; it may be evaluated."""
    flags = "--data generated --alpha 0.1 --cap 3 --dual-lr 0.5 --exit-share 0.25 --noise 0.5"
    return trained(tmp_path_factory.mktemp("llm") / "run", "llm-sft", f"{SMALL} {flags}")


@pytest.fixture
def here(models, reviews, working_directory) -> Path:
    """A working directory with nothing but links to ``MODELS`` and ``REVIEWS``."""
    (working_directory / "MODELS").symlink_to(models)
    (working_directory / "REVIEWS").symlink_to(reviews)
    return working_directory


@pytest.fixture
def out(finished, tmp_path) -> Path:
    """A copy of a file's finished run, to change."""
    return Path(shutil.copytree(finished, tmp_path / "run"))
