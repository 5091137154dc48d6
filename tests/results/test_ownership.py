"""Descend knows its own files, those of older versions too, and takes no other file for its own."""

import json
import sqlite3
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from descend.errors import InputError
from descend.results.ownership import (
    atomic_folder,
    clear,
    free_name,
    refuse_foreign,
    remove,
    written_by_descend,
)
from tests.support.files import FILES, RECORD, SUMMARY

OLDER = {key: value for key, value in SUMMARY.items() if key != "layers_needed"}
PAGE = "<!doctype html>\n<html lang='en'>\n<head>\n<meta charset='utf-8'>\n"
OLD_POLICY = "default-src 'none'; img-src data: blob:; script-src 'unsafe-inline'; style-src 'unsafe-inline'"


def arrays(*names):
    return lambda path: np.savez(path, **dict.fromkeys(names, np.zeros(1, np.uint8)))


def tensors(*names):
    return lambda path: save_file({name: torch.zeros(2) for name in names}, path)


def database(table):
    def make(path):
        with sqlite3.connect(path) as opened:
            opened.execute(f"CREATE TABLE {table} (x)")
        opened.close()

    return make


OURS = {
    **{name: [content] for name, (_, content) in FILES.items()},
    "summary.json": [SUMMARY, OLDER, {"runs": [SUMMARY, OLDER], "folders": ["a", "b"]}],
    "sweep.json": [
        {"recipe": "a", "model": "b", "metric": "rmse", "higher_is_better": False, "rule": "", "methods": {}}
    ],
    "records.jsonl": [json.dumps(RECORD) + "\n", json.dumps(RECORD)[:30], ""],
    "report.html": [PAGE + '<meta name="generator" content="Descend">', PAGE + f'<meta content="{OLD_POLICY}">'],
    "frames.npz": [arrays("clean", "noisy", "reconstruction", "noise")],
    "dual.safetensors": [tensors("multipliers", "slack", "sigma"), tensors("multipliers", "slack")],
    "sweep.db": [database("studies"), ""],
    ".descend-part-summary.json": ["half"],
}
OTHERS = {
    "summary.json": [{"mine": 1}, {"recipe": "bread", "method": "bake", "seed": 1, "model": "oven"}, "cut off {"],
    "groups.json": [[1]],
    "decisions.json": [[2], {"noise": 0.0}],
    "config.json": [{"model_type": "bert"}],
    "certified_exit.json": [{"threshold": 0.9}],
    "sweep.json": [{"recipe": "a"}],
    "records.jsonl": ['{"id": 1, "text": "my data"}\n{"id": 2}\n', "my notes", b"\xff\n"],
    "report.html": ["<h1>my report</h1>", PAGE + "<title>Descend</title>"],
    "frames.npz": [arrays("mine"), "no archive"],
    "dual.safetensors": [tensors("weight"), "nothing"],
    "sweep.db": [database("mine"), "no database"],
    "summary.part.json": ["my draft"],
    ".lock": ["my lock"],
}


def make(path: Path, content) -> Path:
    if callable(content):
        content(path)
    elif isinstance(content, bytes):
        path.write_bytes(content)
    else:
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


@pytest.mark.parametrize(
    ("name", "content", "ours"),
    [(name, each, ours) for kind, ours in ((OURS, True), (OTHERS, False)) for name in kind for each in kind[name]],
)
def test_a_file_is_recognised_by_what_it_holds(tmp_path, name, content, ours):
    path = make(tmp_path / name, content)
    before = path.read_bytes()
    assert written_by_descend(path) is ours
    if ours:
        refuse_foreign([path], "another folder")
    else:
        with pytest.raises(InputError, match=f"holds {name}, which .* Choose another folder, or move it"):
            refuse_foreign([path, tmp_path / "none"], "another folder")
    assert remove(path) is ours and path.exists() is not ours
    assert ours or path.read_bytes() == before


LISTED = {
    "../dual.safetensors": lambda path: save_file(
        {name: torch.zeros(2) for name in ("multipliers", "slack")}, path, {"files": '["weights"]'}
    ),
    "weights": "x",
}
FOLDERS = {
    "a feasible model": ("best_feasible", {"dual.safetensors": tensors("multipliers", "slack")}, True),
    "somebody's folder": ("best_feasible", {"notes.txt": "mine"}, False),
    "a model with its card": ("model", {"README.md": "x\n<!-- Written by descend, checksum a1. Edited. -->\n"}, True),
    "somebody's model": ("model", {"config.json": {"model_type": "bert"}, "README.md": "mine"}, False),
    "a model and what it lists": ("model", {**LISTED, "README.md": "edited"}, True),
    "a model and a note": ("model", {**LISTED, "notes.txt": "mine"}, False),
    "a checkpoint": ("checkpoint-4", {"manifest.json": {"sha256": {"a.bin": "1"}}, "a.bin": "x"}, True),
    "a checkpoint and a note": ("checkpoint-4", {"manifest.json": {"sha256": {}}, "notes.txt": "mine"}, False),
    "a damaged one, whose files nothing lists": (
        "checkpoint-4",
        {"manifest.json": "{", "descent_0.json": "x"},
        False,
    ),
    "another trainer's": ("checkpoint-4", {"trainer_state.json": {}}, False),
    "another manifest": ("checkpoint-4", {"manifest.json": {"files": []}}, False),
    "an empty one": ("anything", {}, True),
}


@pytest.mark.parametrize("case", FOLDERS)
def test_a_folder_is_replaced_if_it_is_ours_and_kept_otherwise(tmp_path, case, caplog):
    name, files, ours = FOLDERS[case]
    (folder := tmp_path / name).mkdir()
    for file, content in files.items():
        make(folder / file, content)
    assert written_by_descend(folder) is ours
    if not ours:
        with pytest.raises(InputError, match=rf"holds {name}.*Choose another folder"):
            clear(tmp_path, "another folder")
    (tmp_path / ".part").mkdir()
    make(tmp_path / ".part" / "draft.txt", "my draft")
    with atomic_folder(folder) as part:
        make(part / "new.txt", "new")
    assert [path.name for path in folder.iterdir()] == ["new.txt"]
    kept = {path.name for path in tmp_path.glob("kept-*/*")}
    assert kept == (set() if ours else set(files) - {"../dual.safetensors"})
    assert (tmp_path / ".part" / "draft.txt").exists() and not (tmp_path / ".descend-part").exists()
    assert ours or f"It is now kept-{name}." in caplog.text
    assert free_name(folder) == tmp_path / f"{name}-2"
