"""Generated reviews, in a folder and under a small classifier with its trainer."""

from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import DataCollatorWithPadding, PreTrainedTokenizerFast

from descend import DescentConfig, DescentTrainer, GaussianNoise
from descend.models import LayeredClassifier
from descend.tasks.text import Classification, generate_reviews
from tests.support.networks import network

SPECIAL = ["[PAD]", "[UNK]", "[CLS]"]


def review_tokenizer():
    """A tokenizer whose words are those of the generated reviews."""
    words = sorted({word for row in generate_reviews(200, 0) for word in row["text"].split()})
    vocabulary = {word: place for place, word in enumerate([*SPECIAL, *words])}
    raw = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]")


def samples(tokenizer, count, seed):
    """Generated reviews in tokens, with labels."""
    return [
        {**tokenizer("[CLS] " + row["text"], return_token_type_ids=False), "labels": row["label"]}
        for row in generate_reviews(count, seed)
    ]


def build(folder, tokenizer, family="distilbert", model=None, **args):
    """A trainer of a small classifier on generated reviews; ``args`` are training arguments."""
    settings = {"max_steps": 6, "save_steps": 3, "per_device_train_batch_size": 8, "learning_rate": 1e-3}
    settings |= {"alpha": "0.1", "stop_gradient": True, "dual_warmup_steps": 0.0, "dual_lr": 0.05, "logging_steps": 1}
    settings |= {"use_cpu": True, "report_to": "none", "disable_tqdm": True, "seed": 0} | args
    size = {"vocab_size": len(tokenizer), "max_position_embeddings": 80} | (model or {})
    return DescentTrainer(
        LayeredClassifier(network(family, labels=2, **size)),
        DescentConfig(output_dir=str(folder), **settings),
        task=Classification(),
        noise=GaussianNoise(0.5, 0.02, seed=1),
        train_dataset=samples(tokenizer, 64, 0),
        eval_dataset=samples(tokenizer, 40, 1),
        data_collator=DataCollatorWithPadding(tokenizer),
    )


def review_folder(folder: Path) -> Path:
    """Write 60 generated reviews a side into a folder like aclImdb; returns it."""
    for seed, side in enumerate(("train", "test")):
        for number, row in enumerate(generate_reviews(60, seed)):
            file = folder / side / ("neg", "pos")[row["label"]] / f"{number}_5.txt"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(row["text"])
    return folder
