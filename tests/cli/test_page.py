"""The page of the command line: its commands and its code run, and its tables are complete."""

import re
from pathlib import Path

from descend.cli import COMMANDS, main
from descend.cli.settings import GROUPS
from tests.support.documented import ROOT, commands, python_blocks, words_of

PAGE = ROOT / "docs" / "reference" / "command_line.md"
HELP = ROOT / "tests" / "cli" / "golden.txt"


def test_its_commands_and_its_python_run_in_their_order(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    helps, short, *lines = commands(PAGE)
    assert len(lines) == 2 and helps.endswith("--help") and short.endswith("--help")  # of the golden help
    for line in lines:
        assert main(words_of(line)) == 0, capsys.readouterr().err
    assert Path("runs/first/report.html").is_file()
    capsys.readouterr()
    (code,) = python_blocks(PAGE)
    exec(code, {})
    assert capsys.readouterr().out == "generated runs/pairs\n"


def test_every_command_and_group_is_in_its_tables_and_every_long_command_where_progress_is():
    text = PAGE.read_text("utf-8")
    cells = [re.findall(r"`(\w+)`", line.split("|")[1]) for line in text.splitlines() if line.startswith("| `")]
    assert COMMANDS.keys() <= {name for names in cells for name in names}
    assert all(f"\n| {group} |" in text for group in GROUPS)
    helps = HELP.read_text("utf-8").split("\n$ descend ")
    quiet = {each.split()[0] for each in helps if "--quiet" in each and "--log-level" in each}
    told = re.search(r"## Progress and logging\n\n(.*?)take these options", text, re.DOTALL)[1]
    assert {"train", "evaluate", "denoise"} < quiet | {"sweep"} == set(re.findall(r"`(\w+)`", told))
