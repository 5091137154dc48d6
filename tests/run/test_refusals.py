"""What runs are not made of: each mistake is one line with its remedy, and nothing is written."""

import contextlib
import json
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.runs import refused
from tests.support.sources import image_folder, write_video

TRAINED = [
    # New models of texts.
    ("text-distilbert --dataset sst", "'sst'"),
    ("text-distilbert --max-length 2", "max_length must be at least 3"),
    ("text-distilbert --readout deep", "'deep'"),
    ("text-distilbert --dropout 1", "dropout must lie in [0, 1)"),
    ("text-distilbert --validation-share 2", "validation_share must lie between 0 and 1"),
    ("text-distilbert --hidden-size 18", "hidden_size must be a multiple of heads; got 18 and 4"),
    ("text-distilbert --heads 0", "heads must be at least 1; got 0"),
    ("text-distilbert --hidden-size 0", "hidden_size must be at least 1; got 0"),
    ("text-distilbert --noise inf", "noise must be a level"),
    (
        "text-distilbert --metric-for-best-model f1",
        "metric_for_best_model must be one of accuracy, feasible, loss, merit, violation; got 'f1'",
    ),
    ("text-distilbert --data ./none", "does not exist"),
    ("text-distilbert --data REVIEWS --max-length 12 --no-truncate", "tokens; expected at most 12"),
    # Pretrained ones in their place.
    ("text-distilbert --model MODELS/bert", "expected a DistilBERT, model_type 'distilbert'; MODELS/bert is of"),
    ("text-distilbert --model MODELS/distilbert --max-length 99", "takes texts of at most 40 tokens; got --max-length"),
    (
        "text-distilbert --model MODELS/distilbert --dataset mnli --max-length 20",
        "has a head of 2 labels; mnli has 3: entailment, neutral, contradiction",
    ),
    (
        "text-distilbert --model MODELS/distilbert --max-length 20 --tokenizer words",
        "Give the model's own tokenizer",
    ),
    ("text-ut --model MODELS/bert --tokenizer words", "Give the model's own tokenizer"),
    ("text-distilbert --model nobody/nothing", "can't load a model from 'nobody/nothing': expected a folder with"),
    # Any pretrained model of texts.
    ("text", "text trains a pretrained model; expected --model PATH_OR_NAME"),
    ("text --model nobody/nothing", "can't load a model from 'nobody/nothing'"),
    ("text --model MODELS/bert --keep-layers 0", "keep_layers must be at least 1; got 0"),
    (
        "text --model MODELS/bert --keep-layers 4 --max-length 30",
        "layers must be 1 to 3, the number of layers of the model; got 4",
    ),
    ("text --model MODELS/bert", "takes texts of at most 40 tokens; got --max-length 128"),
    ("text --model MODELS/causal --max-length 300", "takes texts of at most 64 tokens"),
    ("text --model MODELS/bert --dataset mnli --max-length 30", "a head of 2 labels; mnli has 3"),
    (
        "text --model MODELS/bert --data moods.csv --max-length 30",
        "has a head of 2 labels; labelled has 3: calm, fear, joy",
    ),
    ("text --model t5", "'t5' can't be read by its head: it has an encoder and a decoder"),
    ("text --model mpnet", "model_type must be one of distilbert, bert,"),
    ("text --model MODELS/bert --pooling max", "choice: 'max'"),
    ("text --model MODELS/bert --depth 2", "no setting --depth"),
    ("text --model MODELS/mean --pooling cls --max-length 30", "can't be replaced; leave out --pooling cls"),
    ("text-distilbert --model MODELS/mean", "expected a DistilBERT, model_type 'distilbert'; "),
    # Language models.
    ("lm", "lm needs data; expected --data FILE"),
    ("lm --model MODELS/causal --keep-layers 9 --max-length 60", "layers must be 1 to 3"),
    (
        "lm --model MODELS/causal --keep-layers 2 --lora q_proj --max-length 60",
        "--keep-layers and --lora exclude",
    ),
    ("lm --model MODELS/causal --lora no --max-length 60", "--lora must name modules of the model: "),
    ("lm --model MODELS/bert", "model_type must be one of llama"),
    ("llm-sft --exit-share 0", "must lie in (0, 1]; got 0.0"),
    ("llm-sft --lora q_proj", "--lora needs a pretrained --model"),
    ("llm-sft --packing --dual-warmup-steps 200", "dual_warmup_steps"),
    ("llm-sft --head-lr-ratio 2", "head_lr_ratio is of a classifier's head and own exits"),
    ("llm-sft --dataset-text-field foo", "--dataset-text-field has no effect"),
    ("llm-sft --dataloader-num-workers -1", "dataloader_num_workers must be at least 0"),
    ("llm-sft --report-to wandb", "wandb"),
    ("llm-sft --heads 3", "hidden_size must be a multiple of heads"),
    ("llm-sft --max-length 4", "max_length must be at least 8"),
    ("llm-sft --model nowhere/at/all", "can't load a model"),
    ("llm-sft --data none.json", "none.json does not exist"),
    ("llm-sft --validation-share 0.7", "validation_share must lie between"),
    # Images.
    ("image --model MODELS/three --data digits", "head of 3 labels; digits has 10"),
    (
        "image --model MODELS/named --data FARM",
        "knows the classes dogs, cats; data has cows, dogs, and of cows the model has none".replace("data", "FARM"),
    ),
    ("image --model MODELS/three --image-size 30", "multiple of 4"),
    ("image --model MODELS/three --keep-layers 4", "layers must be 1 to 3"),
    ("image --model MODELS/three --data nowhere", "does not exist; expected a file or folder, digits"),
    ("image --model MODELS/three --method neftune", "word embeddings"),
    ("image --model MODELS/three --validation-share 1", "between 0 and 1"),
]
OTHERS = [
    # Models as they are.
    ("evaluate RUN --layers --data REVIEWS", "RUN is the folder of a run; give RUN/model"),
    ("evaluate MODELS/long-bert --layers --data REVIEWS --out RUN", "RUN holds a run or a model, whose evaluation"),
    ("evaluate MODELS/long-bert --layers --data REVIEWS --out other", "other holds results that are not those of"),
    ("evaluate MODELS/long-bert --layers --data REVIEWS --out t5/config.json", "t5/config.json is a file"),
    (
        "evaluate MODELS/long-bert --layers --data t5/config.json --dataset labelled",
        "must be a folder with a folder of .txt",
    ),
    ("evaluate MODELS/long-bert --layers --data REVIEWS --image-size 8", "--image-size is none of descend train text"),
    ("evaluate nobody/nothing --layers --data REVIEWS", "can't load a model from 'nobody/nothing'"),
    # Pictures and answers.
    ("denoise RUN --data clips --out new", "two clips of clips have the name a"),
    ("denoise unfinished --data clips --out new", "finish the run first: the same descend train with --resume"),
    ("complete RUN --prompts none.json --out new.json", "must be a JSON file of prompts"),
    ("complete --compare none.json --out new.json", "none.json must be a file; it is not there"),
    ("complete --out new.json", "expected the folder of a run and --prompts"),
    # Exports.
    *(
        (f"export RUN --out new --layers={layers}", f"1 to 2, the layers of RUN, or auto; got {layers}")
        for layers in (0, 3, 99)
    ),
    *((f"export RUN --out new --layers={layers}", layers) for layers in ("two", "-1", "1.5")),
    *((f"export RUN --out new --layers auto --tolerance={tolerance}", tolerance) for tolerance in ("-1", "101", "nan")),
    ("export clips --out new --layers 1", "config.json"),
    ("export RUN/model --out new --layers 1", "give the run: RUN"),
    ("export RUN --out RUN/model --layers 1", "new or an empty folder"),
    ("export RUN --out t5/config.json --layers 1", "new or an empty folder"),
    ("export unfinished --out new --layers 1", "--resume"),
    ("export RUN --out new --layers 1 --model nothing", "its models: model"),
]


MOODS = ("joy", "calm", "fear")
FILES = {
    "t5/config.json": '{"model_type": "t5"}',
    "mpnet/config.json": '{"model_type": "mpnet"}',
    "words/vocab.txt": "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *map(str, range(900))]),
    "moods.csv": "\n".join(["text,label", *(f"{place} {mood},{mood}" for place in range(20) for mood in MOODS)]),
}


@pytest.fixture(scope="module")
def there(finished, models, reviews, tmp_path_factory) -> Iterator[dict[Path, int]]:
    """All files of a working directory with runs, data and models of many kinds, and when each was written."""
    with contextlib.chdir(tmp_path_factory.mktemp("there")):
        Path("MODELS").symlink_to(models)
        Path("REVIEWS").symlink_to(reviews)
        shutil.copytree(finished, "RUN", ignore=shutil.ignore_patterns("checkpoint-*"))
        config = json.loads(Path("RUN/config.json").read_text()) | {"seconds": None}
        copied = {
            "unfinished/config.json": json.dumps(config),
            "other/summary.json": Path("RUN/summary.json").read_text(),
        }
        for name, text in (FILES | copied).items():
            Path(name).parent.mkdir(exist_ok=True)
            Path(name).write_text(text)
        for suffix in ("avi", "mp4"):
            write_video(Path(f"clips/a.{suffix}"), 2)
        image_folder(Path("FARM"), classes=("cows", "dogs"))
        yield files()


def files() -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in Path().rglob("*")}


@pytest.mark.parametrize(("words", "remedy"), TRAINED, ids=[words for words, _ in TRAINED])
def test_what_cant_be_trained_is_one_line(words, remedy, there, capsys):
    data = [] if "--data " in words or words == "lm" else ["--data", "generated"]
    line = refused(capsys, "train", *shlex.split(words), *data, "--out", "new")
    assert remedy in line.replace(f"{Path.cwd()}/", "") and files() == there


@pytest.mark.parametrize(("words", "remedy"), OTHERS, ids=[words for words, _ in OTHERS])
def test_what_cant_be_made_of_a_run_is_one_line(words, remedy, there, capsys):
    line = refused(capsys, *shlex.split(words))
    assert remedy in line.replace(f"{Path.cwd()}/", "") and files() == there
