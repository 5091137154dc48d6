"""A new method and a new recipe are one file each: dropped into a copy of the package, they work like the others."""

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

RECIPE = '''
from dataclasses import dataclass

from descend.declared import Count, setting
from descend.recipes.base import Data, Recipe, load_pretrained


@dataclass(frozen=True)
class ParityRecipe(Recipe):
    """Whether the first word is odd."""

    name = "parity"
    help = "whether the first word is odd"
    data_help = "NOTHING"
    family = "DistilBERT"

    depth: Count = setting(3, "L, the number of layers")
    words: Count = setting(4, "words of a text")

    training = Recipe.training | {"max_steps": 2, "logging_steps": 1, "eval_strategy": "steps", "eval_steps": 2,
                                  "save_steps": 2, "per_device_train_batch_size": 8}

    def load(self, model=None, tokenizer=None):
        import torch

        texts = torch.arange(96 * self.words).view(96, -1) % 7
        ones = torch.ones_like(texts[0])
        samples = [{"input_ids": text, "attention_mask": ones, "labels": text[0] % 2} for text in texts]
        return Data(samples[:32], samples[32:64], samples[64:], "parity", labels=("even", "odd"))

    def load_test(self, data, model, tokenizer):
        return self.load().test, "parity"

    def task(self):
        from descend.tasks.text import Classification

        return Classification()

    def network(self, data):
        from transformers import DistilBertConfig, DistilBertForSequenceClassification

        from descend.models import LayeredClassifier

        sizes = {"dim": 8, "n_heads": 2, "hidden_dim": 8, "max_position_embeddings": self.words}
        config = DistilBertConfig(vocab_size=7, n_layers=self.depth, **sizes)
        return LayeredClassifier(DistilBertForSequenceClassification(config))

    def restore(self, folder):
        from transformers import DistilBertForSequenceClassification

        from descend.models import LayeredClassifier

        return LayeredClassifier(load_pretrained(DistilBertForSequenceClassification, folder)), None
'''


@pytest.fixture(scope="module")
def tree(tmp_path_factory) -> Path:
    """A copy of the package with two new files in it."""
    tree = tmp_path_factory.mktemp("tree")
    shutil.copytree(ROOT / "src" / "descend", tree / "descend", ignore=shutil.ignore_patterns("__pycache__"))
    (tree / "descend" / "methods" / "last_two.py").write_text(METHOD)
    (tree / "descend" / "recipes" / "parity.py").write_text(RECIPE)
    return tree


def descend(tree: Path, *commands: list[str]) -> subprocess.CompletedProcess[str]:
    """Run commands of this copy, in one process; the last one's status is the process's."""
    code = f"import sys; sys.path.insert(0, {str(tree)!r})\nfrom descend.cli import main\n"
    code += f"for words in {commands!r}:\n    status = main(words)\nprint('torch' in sys.modules)\nsys.exit(status)"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600, cwd=tree)


@pytest.mark.slow
def test_a_recipe_and_a_method_in_a_file_each_are_trained_evaluated_and_shown(tree, tmp_path):
    run = tree / "run"
    train = ["train", "parity", "--data", "generated", "--out", str(run), "--words", "5", "--use-cpu"]
    train += ["--method", "last-two", "--before-last", "0.25"]
    done = descend(tree, train, ["evaluate", str(run), "--noise", "0,0.8"])
    assert done.returncode == 0, done.stderr
    weights = [each.value for each in read_records(run / "records.jsonl") if each.metric == "weight"]
    config = read_config(run)
    assert weights == [0, 0, 0.25, 1] * 2 and config.training["before_last"] == 0.25
    assert (config.recipe, config.settings["words"], config.model) == ("parity", 5, "DistilBERT-3")
    page = (run / "report.html").read_text()
    assert "Two &lt;last&gt; exits" in page and "--c123456: #abcdef" in page and "DistilBERT-3" in page
    assert read_summary(run).method == "last-two"
    # This version knows no such method: its run is grey, under its own name.
    page = write_page([run], tmp_path / "page.html").read_text()
    assert "last-two" in page and "&lt;last&gt;" not in page
    assert f"fill: var(--c{GREY.light[1:]}, {GREY.light})" in page and f"--c{GREY.light[1:]}: {GREY.dark}" in page


def test_both_are_in_the_help_and_refuse_what_they_do_not_take(tree):
    parity = ["train", "parity", "--out", "new"]
    done = descend(tree, [*parity, "--data", "generated", "--before-last", "2"])
    assert (done.returncode, done.stdout.split()[-1]) == (2, "False")
    assert "--before-last: a setting of the method last-two" in done.stderr
    done = descend(tree, parity)
    assert "parity needs data; expected --data NOTHING, or --data generated" in done.stderr
    done = descend(tree, ["recipes"])
    assert re.search(r"^parity +whether the first word is odd$", done.stdout, re.MULTILINE)
    done = descend(tree, ["train", "parity", "--help"])
    assert re.search(r"--method NAME .*\bprobe,\s+last-two\b", done.stdout, re.DOTALL)
    assert re.search(r"\nmodel:\n.*--words N +words of a text \[4\]\n.*\nconstraints:\n", done.stdout, re.DOTALL)
    assert re.search(r"\nsettings of one method:\n.*--before-last X +last-two: weight", done.stdout, re.DOTALL)
