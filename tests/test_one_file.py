"""A new method is one file: dropped into a copy of the package, it is trained, shown and refused like the others."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from descend.methods import GREY
from descend.report import write_page
from descend.results import read_config, read_records, read_summary
from tests.support.documented import ROOT

METHOD = '''
from dataclasses import dataclass

from descend.declared import NotNegative, setting
from descend.methods.base import Method, Style


class LastTwo(Method):
    """The last two exits."""

    name = "last-two"
    about = "f_L and a share of f_{L-1}"
    label = "Two <last> exits"
    style = Style("#123456", "#abcdef", "8")

    @dataclass
    class Settings:
        before_last: NotNegative = setting(1.0, "last-two: weight of the layer before the last")

    @staticmethod
    def objective_weights(depth, settings):
        return [0.0] * (depth - 1) + [settings.before_last, 1.0]
'''


@pytest.fixture(scope="module")
def tree(tmp_path_factory) -> Path:
    """A copy of the package with a new file in it."""
    tree = tmp_path_factory.mktemp("tree")
    shutil.copytree(ROOT / "src" / "descend", tree / "descend", ignore=shutil.ignore_patterns("__pycache__"))
    (tree / "descend" / "methods" / "last_two.py").write_text(METHOD)
    return tree


def descend(tree: Path, *commands: list[str]) -> subprocess.CompletedProcess[str]:
    """Run commands of this copy, in one process; the last one's status is the process's."""
    code = f"import sys; sys.path.insert(0, {str(tree)!r})\nfrom descend.cli import main\n"
    code += f"for words in {commands!r}:\n    status = main(words)\nprint('torch' in sys.modules)\nsys.exit(status)"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, cwd=tree)


def test_a_method_in_a_file_is_trained_and_shown(tree, tmp_path):
    run = tree / "run"
    train = ["train", "video-ut", "--data", "generated", "--out", str(run), "--depth", "3", "--max-steps", "2"]
    given = ["--method", "last-two", "--before-last", "0.25", "--use-cpu", "--eval-steps", "2", "--save-steps", "2"]
    done = descend(tree, [*train, *given, "--logging-steps", "1"], ["evaluate", str(run), "--noise", "0.8"])
    assert done.returncode == 0, done.stderr
    weights = [each.value for each in read_records(run / "records.jsonl") if each.metric == "weight"]
    assert weights == [0, 0, 0.25, 1] * 2 and read_config(run).training["before_last"] == 0.25
    page = (run / "report.html").read_text()
    assert "Two &lt;last&gt; exits" in page and "--c123456: #abcdef" in page
    assert read_summary(run).method == "last-two"
    # This version knows no such method: its run is grey, under its own name.
    page = write_page([run], tmp_path / "page.html").read_text()
    assert "last-two" in page and "&lt;last&gt;" not in page
    assert f"var(--c{GREY.light[1:]})" in page and f"--c{GREY.light[1:]}: {GREY.dark}" in page


def test_a_method_in_a_file_is_in_the_help_and_refuses_settings_of_others(tree):
    done = descend(tree, ["train", "video-ut", "--data", "generated", "--out", "new", "--before-last", "2"])
    assert (done.returncode, done.stdout.split()[-1]) == (2, "False")
    assert "--before-last: a setting of the method last-two" in done.stderr
    done = descend(tree, ["train", "video-ut", "--help"])
    assert re.search(r"--method NAME .*\bprobe,\s+last-two\b", done.stdout)
    assert re.search(r"\nsettings of one method:\n.*--before-last X +last-two: weight", done.stdout, re.DOTALL)
