"""What a study reads under the data root: each path and each side of a data set."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from descend import InputError
from reproduction.data_check import SIDES, data_lines, hub_names, needed_paths
from reproduction.grid import cells, names, settings
from reproduction.study import Study

STUDY = Study.of(["all"], "paper", Path("none"), None)

FILES = {
    "video/ped2/training/frames/01/001.jpg",
    "video/ped2/testing/frames/01/001.jpg",
    "video/Avenue Dataset/training_videos/01.avi",
    "video/Avenue Dataset/testing_videos/01.avi",
    "video/shanghaitech/training/videos/01.mp4",
    "video/shanghaitech/testing/videos/01.mp4",
    *(f"imdb/aclImdb/{side}/{label}/1_1.txt" for side in ("train", "test") for label in ("pos", "neg")),
    "mnli/glue_format/MNLI/train.tsv",
    "mnli/glue_format/MNLI/dev_matched.tsv",
    "alpaca/alpaca_data.json",
    "alpaca_eval/alpaca_eval.json",
}
SIDE_OF = {
    "video/ped2/training/frames/01/001.jpg": "video/ped2: training (ucsd)",
    "video/Avenue Dataset/testing_videos/01.avi": "video/Avenue Dataset: testing (avenue)",
    "video/shanghaitech/training/videos/01.mp4": "video/shanghaitech: training (shanghaitech)",
    "imdb/aclImdb/test/neg/1_1.txt": "imdb: test/neg (imdb)",
    "mnli/glue_format/MNLI/dev_matched.tsv": "mnli/glue_format: dev_matched (mnli)",
    "mnli/glue_format/MNLI/train.tsv": "mnli/glue_format: train (mnli)",
    "alpaca_eval/alpaca_eval.json": "alpaca_eval/alpaca_eval.json (alpaca)",
}


def paths(scale="paper"):
    found = STUDY.missing if scale == "paper" else cells(names(["all"]), scale)
    return needed_paths(found, settings()[scale].get("converted", {}))


def remove(root: Path, file: str) -> None:
    """Remove a file and the folders that are empty then."""
    path = root / file
    path.unlink()
    for folder in path.parents:
        if folder == root or any(folder.iterdir()):
            return
        folder.rmdir()


@pytest.fixture
def root(tmp_path):
    for name in FILES:
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps([{}] * 805) if name.endswith("eval.json") else "[]")
    return tmp_path


def test_a_whole_root_lacks_nothing(root):
    lines = data_lines(paths(), root)
    assert len(lines) == 7 and all(line.startswith("there: ") for line in lines)
    assert "there: video/ped2: training, testing (ucsd)" in lines
    assert "there: imdb: train/pos, train/neg, test/pos, test/neg (imdb)" in lines
    replace(STUDY, root=root).check_data()


@pytest.mark.parametrize(("file", "words"), SIDE_OF.items())
def test_one_missing_side_is_named_and_no_other(root, file, words):
    remove(root, file)
    lines = data_lines(paths(), root)
    assert [line for line in lines if line.startswith("missing")] == [f"missing: {words}"]
    with pytest.raises(InputError, match="must hold") as told:
        replace(STUDY, root=root).check_data()
    assert f"must hold {words}; it does not" in str(told.value)


def test_hidden_files_and_empty_folders_are_no_side(root):
    remove(root, "video/ped2/training/frames/01/001.jpg")
    (root / "video" / "ped2" / "training").mkdir()
    (root / "video" / "ped2" / "training" / ".DS_Store").touch()
    shadow = root / "mnli" / "glue_format" / "__MACOSX" / "MNLI"
    remove(root, "mnli/glue_format/MNLI/train.tsv")
    shadow.mkdir(parents=True)
    (shadow / "train.tsv").touch()  # an archive of macOS names its litter like the data
    lines = data_lines(paths(), root)
    assert "missing: video/ped2: training (ucsd)" in lines and "missing: mnli/glue_format: train (mnli)" in lines


def test_fewer_prompts_than_alpaca_eval_has_are_counted(root):
    (root / "alpaca_eval" / "alpaca_eval.json").write_text(json.dumps([{}] * 600))
    assert "there: alpaca_eval/alpaca_eval.json (alpaca), 600 of 805 prompts" in data_lines(paths(), root)


def test_without_a_root_all_that_is_needed_is_listed():
    lines = data_lines(paths(), None)
    assert all(line.startswith("needed: ") for line in lines)
    assert "needed: video/shanghaitech: training, testing (shanghaitech)" in lines
    assert data_lines(paths("smoke"), None) == []


def test_a_folder_that_is_one_side_is_a_collection():
    """Scale small reads ShanghaiTech's test clips alone; a converted model stands for its source."""
    small = {each.path: each for each in paths("small")}
    assert small["video/shanghaitech/testing/videos"].sides == {}
    assert small["video/ped2"].sides == SIDES["ucsd"]
    assert "weights/stories260K" in small and small["tokenizers/bert-base-uncased"].data == {"imdb", "mnli"}


def test_models_of_the_hub_are_those_that_cells_name():
    assert hub_names(cells(names(["all"]), "paper")) == {
        "google/vit-base-patch16-224": {"video-vit"},
        "distilbert-base-uncased": {"text-ut", "text-distilbert"},
        "FacebookAI/roberta-large": {"text-roberta"},
        "meta-llama/Llama-3.1-8B": {"llm-sft"},
    }
    assert hub_names(cells(names(["all"]), "small")) == {}
