"""The page of the command line: its commands and its code run, and its tables are complete."""

import re
import shlex
from pathlib import Path

import pytest

from descend.cli import COMMANDS, main
from descend.cli.settings import GROUPS

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "command_line.md").read_text(encoding="utf-8")
LINES = re.findall(r"^    (descend .*)$", PAGE, re.MULTILINE)


def test_its_commands_run_in_their_order(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert len(LINES) == 4
    for line in LINES:
        try:
            assert main([*shlex.split(line)[1:]]) == 0, capsys.readouterr().err
        except SystemExit as ended:  # --help
            assert not ended.code
    assert (tmp_path / "runs" / "first" / "report.html").is_file()


def test_its_python_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(code, {})
    assert capsys.readouterr().out == "generated runs/pairs\n"


def test_every_command_and_group_is_in_its_tables():
    cells = [re.findall(r"`(\w+)`", line.split("|")[1]) for line in PAGE.splitlines() if line.startswith("| `")]
    assert COMMANDS.keys() <= {name for names in cells for name in names}
    assert all(f"\n| {group} |" in PAGE for group in GROUPS)


@pytest.mark.parametrize("command", ["train", "evaluate", "sweep", "demo", "complete", "tasks", "export"])
def test_every_long_command_takes_quiet_and_log_level(command, capsys):
    with pytest.raises(SystemExit):
        main([command, *(["video-ut"] if command in ("train", "sweep") else []), "--help"])
    out = capsys.readouterr().out
    assert "--quiet" in out and "--log-level" in out
    assert f"`{command}`" in re.search(r"## Progress and logging\n\n(.*?):", PAGE, re.DOTALL)[1]
