"""`python -m reproduction --dry-run`, and cells that are too large for one process."""

import json
import shlex

import pytest
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError
from requests import Response

from descend.cli import main as descend
from descend.results import read_config
from reproduction import cell_store, grid
from reproduction.__main__ import main
from reproduction.dry_run import hub_state
from reproduction.grid import Wanted, cells

NAME = "meta-llama/Llama-3.1-8B"


@pytest.fixture
def no_hub(monkeypatch):
    """Without a network."""

    def refuse(name):
        raise ConnectionError(name)

    monkeypatch.setattr("huggingface_hub.auth_check", refuse)
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *_: None)


def test_a_dry_run_of_scale_paper_tells_all_that_is_needed(no_hub, tmp_path, capsys):
    words = ["table-1", "table-5", "--scale", "paper", "--out", str(tmp_path / "study"), "--dry-run"]
    assert main([*words, "--tflops", "40"]) == 0
    said = capsys.readouterr().out
    rows = {line.split()[0]: line.split() for line in said.splitlines() if line.split()}
    assert rows["llm-sft"][2:4] == ["137.4", "4"] and rows["video-ut"][3] == "1"
    assert "at 40 sustained TFLOP/s" in said
    assert f"{NAME} (llm-sft): not checked, the Hub can't be reached; access to it is gated" in said
    assert "needed: video/ped2: training, testing (ucsd)" in said
    llama = [cell for cell in cells(["table-5"], "paper") if cell.recipe == "llm-sft"]
    launched = [line for line in said.splitlines() if line.startswith("  accelerate launch")]
    assert len(launched) == len(llama) and f"{len(llama)} cells need several cards of 80 GB" in said
    assert all("--mixed_precision no --num_processes 4 " in line for line in launched)
    assert all("--per-device-train-batch-size 1 " in line for line in launched), "four processes, a batch of four"
    assert "DATA/alpaca/alpaca_data.json" in launched[0] and "{root}" not in said
    assert "DATA is the folder that --data-root names." in said
    assert not (tmp_path / "study").exists()
    assert main([*words, "--card", "48"]) == 0
    said = capsys.readouterr().out
    assert f"{len(llama)} cells are too large for any number of cards of 48 GB" in said
    assert all(f"  {cell.name}\n" in said for cell in llama) and "accelerate launch" not in said
    assert main([*words, "--card", "200"]) == 0
    assert "accelerate launch" not in capsys.readouterr().out
    assert main([*words, "--card", "0"]) == 2
    assert "card must be above 0; got 0." in capsys.readouterr().err


def test_what_the_hub_says_of_a_model(no_hub, monkeypatch):
    def answer(error):
        def check(name):
            if error is not None:
                raise error

        monkeypatch.setattr("huggingface_hub.auth_check", check)
        return hub_state(NAME)

    assert answer(None) == "can be downloaded"
    assert answer(GatedRepoError("", response=Response())).startswith("gated: accept its licence")
    assert answer(RepositoryNotFoundError("", response=Response())).startswith("not found")
    assert answer(TimeoutError()).startswith("not checked")
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *_: "/cache/config.json")
    assert answer(TimeoutError()) == "in the local cache"


def test_a_cell_that_was_trained_by_hand_is_judged_and_stored(tmp_path, monkeypatch, capsys):
    """A card so small that the cell needs two processes; the printed command is then given to `descend train`."""
    cell = next(cell for cell in cells(["figure-3"], "smoke") if (cell.model, cell.depth) == ("UT", 2))
    monkeypatch.setattr(grid, "WANTED", {"figure-1": Wanted("one", lambda _: [cell])})
    out = tmp_path / "study"
    words = ["figure-1", "--scale", "smoke", "--out", str(out), "--workers", "1", "--card", "0.03"]
    assert main(words) == 1
    said = capsys.readouterr()
    assert "1 cells need several processes and were not run." in said.err
    assert cell_store.read(out) == {} and not (out / "runs" / cell.name).exists()

    (command,) = (line for line in said.out.splitlines() if "accelerate launch" in line)
    launch, train = command.split(" -m descend ")
    assert launch.endswith("--num_processes 2")
    assert descend(shlex.split(train)) == 0
    config = read_config(out / "runs" / cell.name)
    assert config.finished and config.training["per_device_train_batch_size"] == 2
    before = (out / "runs" / cell.name / "config.json").read_bytes()  # with the seconds of its training

    assert main(words) == 0
    line = cell_store.read(out)[cell.name]
    assert line.cell == cell and line.summary is not None
    assert line.summary.settings["per_device_train_batch_size"] == 2
    assert (out / "runs" / cell.name / "config.json").read_bytes() == before, "it was judged and not trained again"


def test_a_run_that_was_begun_by_hand_is_resumed_by_hand(tmp_path, monkeypatch, capsys):
    cell = next(cell for cell in cells(["figure-3"], "smoke") if (cell.model, cell.depth) == ("UT", 2))
    monkeypatch.setattr(grid, "WANTED", {"figure-1": Wanted("one", lambda _: [cell])})
    folder = tmp_path / "study" / "runs" / cell.name
    folder.mkdir(parents=True)
    config = {"recipe": cell.recipe, "method": "erm", "seed": 0, "model": "UT-2", "settings": {}, "training": {}}
    (folder / "config.json").write_text(json.dumps(config))
    words = [
        "figure-1",
        "--scale",
        "smoke",
        "--out",
        str(tmp_path / "study"),
        "--dry-run",
        "--card",
        "0.03",
    ]
    assert main(words) == 0
    assert f"--out {folder} --resume" in capsys.readouterr().out
