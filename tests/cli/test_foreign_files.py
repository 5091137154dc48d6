"""No command replaces a file that Descend did not write: it is refused in one line before any work."""

import json

import pytest

from descend.cli import main

CONFIG = {"recipe": "video-ut", "method": "erm", "seed": 0, "model": "UT-2", "settings": {"depth": 2}, "training": {}}
ANSWERS = [{"instruction": "a", "output": "b"}]
UT = ["video-ut", "--data", "generated", "--use-cpu"]


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["train", *UT, "--resume", "--out", "OUT"], "model/weights.pt"),
        (["train", *UT, "--resume", "--out", "OUT"], "dual.safetensors"),
        (["evaluate", "OUT"], "summary.json"),
        (["evaluate", "OUT"], "report.html"),
        (["evaluate", "OUT", "--data", "DATA"], "on-DATA/groups.json"),
        (["compare", "a", "b", "--out", "OUT/page"], "page/report.html"),
        (["compare", "a", "b", "--out", "OUT/page"], "page/summary.json"),
        (["demo", "--out", "OUT/demo"], "demo/report.html"),
        (["demo", "--out", "OUT/demo"], "demo/erm/notes.txt"),
        (["sweep", *UT, "--trials", "1", "--out", "OUT/sweep"], "sweep/sweep.db"),
        (["sweep", *UT, "--trials", "1", "--out", "OUT/sweep"], "sweep/sweep.json"),
        (["complete", "--compare", "OUT/answers.json", "--out", "OUT/page.html"], "page.html"),
    ],
)
def test_a_command_is_refused(tmp_path, monkeypatch, capsys, command, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "DATA").mkdir()
    out = tmp_path / "OUT"
    (out / name).parent.mkdir(parents=True, exist_ok=True)
    (out / name).write_text("mine")
    (out / "config.json").write_text(json.dumps(CONFIG))
    (out / "answers.json").write_text(json.dumps(ANSWERS))
    if "demo" in command:
        (out / "demo" / ".descend-demo").touch()
    assert main(command) == 2
    *_, line = capsys.readouterr().err.splitlines()
    words = set(name.split("/"))
    assert line.startswith("descend: ") and any(word in line for word in words) and "hoose " in line
    assert (out / name).read_text() == "mine"
