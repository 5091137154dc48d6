"""What the command line offers and the package exports, held to `golden.txt`.

python -m tests.cli.test_golden        # writes golden.txt anew; say in the changelog what changed
"""

import contextlib
import io
import os
from pathlib import Path

import descend
from descend.cli import COMMANDS, main
from descend.recipes import RECIPES

FILE = Path(__file__).with_name("golden.txt")


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


if __name__ == "__main__":
    FILE.write_text(offered())
