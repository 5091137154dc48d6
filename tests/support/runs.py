"""Short runs through the command line, and what their folders must have in common."""

import json
import signal
from collections import Counter
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from descend import DescentTrainer
from descend.cli import main

# 18 windows in steps of 6: three steps an epoch.
SETTINGS = """--depth 2 --window 2 --stride 10 --per-device-train-batch-size 6 --use-cpu --dual-warmup-steps 0
    --alpha 0.6 --logging-steps 2 --eval-steps 3 --save-total-limit 9"""
UNSAVED = "--use-cpu --eval-strategy no --save-strategy no --no-load-best-model-at-end"
SAVED = """--max-steps 4 --eval-strategy steps --eval-steps 2 --save-strategy steps --save-steps 2 --use-cpu
    --logging-steps 1 --dual-warmup-steps 0"""
SMALL = f"--depth 3 --hidden-size 32 --heads 2 --max-length 60 --max-steps 12 {UNSAVED}"
# The config.json of a run that nobody carried out.
RUN = '{"recipe": "video-ut", "method": "erm", "seed": 0, "model": "UT-2", "settings": {"depth": 2}, "training": {}}'
TINY = ["video-ut", "--data", "generated", *SETTINGS.split()]


def said(capsys: pytest.CaptureFixture, *words: object, status: int = 0) -> tuple[str, str]:
    """What a command prints, on stdout and on stderr."""
    capsys.readouterr()
    assert main([str(word) for word in words]) == status
    return tuple(capsys.readouterr())


def refused(capsys: pytest.CaptureFixture, *words: object) -> str:
    """The one line with which a command is refused."""
    (line,) = said(capsys, *words, status=2)[1].splitlines()
    return line


def put(folder: Path, files: dict[str, str]) -> None:
    """Write files into a folder, whose names may lead through others."""
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)


def train(out: Path, *flags: str, steps: int = 8, every: int = 3) -> int:
    """`descend train` of a tiny UT; its exit status."""
    return main(["train", *TINY, "--out", str(out), "--max-steps", str(steps), "--save-steps", str(every), *flags])


def trained(out: Path, recipe: str, settings: str, *more: object) -> Path:
    """The folder of a run that `descend train` has finished."""
    assert main(["train", recipe, *settings.split(), *map(str, more), "--out", str(out)]) == 0
    return out


def rows(out: Path) -> list[str]:
    """The lines of a run's records."""
    return (out / "records.jsonl").read_text().splitlines()


def run_state(checkpoint: Path, rank: int = 0) -> dict:
    """What a rank's file in a checkpoint says beside Transformers' own."""
    return json.loads((checkpoint / f"descent_{rank}.json").read_text())


def assert_same(one: object, other: object) -> None:
    """Bit-equal, tensors inside containers too; `seconds` is not compared."""
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one.keys() - {"seconds"}:
            assert_same(one[key], other[key])
    elif isinstance(one, list | tuple):
        for pair in zip(one, other, strict=True):
            assert_same(*pair)
    else:
        assert torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


def assert_same_end(one: Path, other: Path, last: str = "checkpoint-8") -> None:
    """Two runs end bit-equal: parameters, multipliers, slack, both optimizers and all records."""
    for name in ("model/model.safetensors", "dual.safetensors", f"{last}/model.safetensors"):
        assert_same(*(load_file(folder / name) for folder in (one, other)))
    for name in ("optimizer.pt", "scheduler.pt"):
        assert_same(*(torch.load(folder / last / name, weights_only=True) for folder in (one, other)))
    assert_same(*(run_state(folder / last) for folder in (one, other)))
    assert rows(one) == rows(other)
    keys = [(row["step"], row["split"], row["layer"], row["metric"]) for row in map(json.loads, rows(one))]
    assert set(Counter(keys).values()) == {1}
    assert (one / "best_feasible").exists() == (other / "best_feasible").exists()


def stop_after(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Send a real SIGINT during a step, once."""
    original, signals = DescentTrainer.compute_loss, [signal.SIGINT]

    def interrupted(self, *args, **kwargs):
        if self.dual.steps + 1 == step and signals:
            signal.raise_signal(signals.pop())
        return original(self, *args, **kwargs)

    monkeypatch.setattr(DescentTrainer, "compute_loss", interrupted)
