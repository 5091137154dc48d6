"""What the command line offers and the package exports, held to `golden.txt`; and its page, whose commands run.

python -m tests.cli.test_golden        # writes golden.txt anew; say in the changelog what changed
"""

import contextlib
import io
import os
import re
from pathlib import Path

import descend
from descend.cli import COMMANDS, main
from descend.cli.settings import GROUPS
from descend.recipes import RECIPES
from tests.support.documented import ROOT, commands, python_blocks, words_of

FILE = Path(__file__).with_name("golden.txt")
PAGE = ROOT / "docs" / "reference" / "command_line.md"


def offered() -> str:
    """The package's names, and the help of each command and recipe, 100 columns wide."""
    os.environ["COLUMNS"] = "100"
    parts = [f"descend.__all__ = {' '.join(sorted(descend.__all__))}\n"]
    for words in ([], *([name] for name in COMMANDS), *(["train", name] for name in RECIPES)):
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
            main([*words, "--help"])
        parts.append(f"$ descend {' '.join([*words, '--help'])}\n{out.getvalue()}")
    return "\n".join(parts)


def test_names_and_help_are_as_they_were(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    assert offered().splitlines() == FILE.read_text().splitlines()


def test_the_commands_and_the_python_of_the_page_run_in_their_order(tmp_path, monkeypatch, capsys):
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


def test_every_command_and_group_is_in_the_pages_tables_and_every_long_command_where_progress_is():
    text = PAGE.read_text("utf-8")
    cells = [re.findall(r"`(\w+)`", line.split("|")[1]) for line in text.splitlines() if line.startswith("| `")]
    assert COMMANDS.keys() <= {name for names in cells for name in names}
    assert all(f"\n| {group} |" in text for group in GROUPS)
    helps = FILE.read_text("utf-8").split("\n$ descend ")
    quiet = {each.split()[0] for each in helps if "--quiet" in each and "--log-level" in each}
    told = re.search(r"## Progress and logging\n\n(.*?)take these options", text, re.DOTALL)[1]
    assert {"train", "evaluate", "denoise"} < quiet | {"sweep"} == set(re.findall(r"`(\w+)`", told))


if __name__ == "__main__":
    FILE.write_text(offered())
