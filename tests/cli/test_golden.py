"""What the command line offers and the package exports, held to `golden.txt`; its page, whose commands run;
and each recipe's settings, which its help lists and its classes declare.

python -m tests.cli.test_golden        # writes golden.txt anew; say in the changelog what changed
"""

import os
import re
from dataclasses import MISSING, fields
from pathlib import Path

import pytest

import descend
from descend.cli import COMMANDS, main
from descend.cli.library import arguments_of
from descend.cli.settings import GROUPS
from descend.recipes import RECIPES
from descend.recipes.corpora import CORPORA
from descend.settings import DescentSettings, SFTSettings, settings_of
from tests.support.documented import ROOT, commands, help_of, python_blocks, words_of

FILE = Path(__file__).with_name("golden.txt")
PAGE = ROOT / "docs" / "reference" / "command_line.md"


def offered() -> str:
    """The package's names, and the help of each command and recipe, 100 columns wide."""
    os.environ["COLUMNS"] = "100"
    calls = ([], *([name] for name in COMMANDS), ["paper", "video-ut"], *(["train", name] for name in RECIPES))
    helps = (f"$ descend {' '.join([*words, '--help'])}\n{help_of(*words, '--help')}" for words in calls)
    return "\n".join([f"descend.__all__ = {' '.join(sorted(descend.__all__))}\n", *helps])


def test_names_and_help_are_as_they_were(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    assert offered().splitlines() == FILE.read_text().splitlines()


@pytest.mark.usefixtures("working_directory")
def test_the_commands_and_the_python_of_the_page_run_in_their_order(capsys):
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


# --- the settings of recipes


@pytest.mark.parametrize("name", RECIPES)
def test_help_has_each_of_our_settings_once_and_the_long_help_all_of_transformers(name):
    out, every = (help_of("train", name, flag) for flag in ("--help", "--help-all"))
    recipe = RECIPES[name].kind
    of_heads = {"exits", "head_lr_ratio"} if not RECIPES[name].settings.has_head else set()  # of Transformers
    for setting in {each.name for each in fields(recipe)} | DescentSettings.__annotations__.keys():
        shown = re.findall(rf"^  --(?:\[no-\])?{setting.replace('_', '-')}\b(?!-)", out, re.MULTILINE)
        assert len(shown) == (setting not in of_heads | {"dataloader_pin_memory"}), setting
    options = set(re.findall(r"--(?:\[no-\])?([\w-]+)", every))
    settable = {field.name for field in fields(recipe.arguments()) if field.init}
    replaced = {"output_dir", "resume_from_checkpoint", "disable_tqdm", "log_level_replica"}
    assert {setting for setting in settable if setting.replace("_", "-") not in options} == replaced | of_heads


@pytest.mark.parametrize("name", RECIPES)
def test_settings_are_read_from_source_as_their_classes_declare_them(name):
    recipe, kind = RECIPES[name].kind, RECIPES[name].settings
    of_trl = arguments_of("trl") if kind.arguments_kind is SFTSettings else {}
    of_trainer = arguments_of("transformers") | of_trl | settings_of(kind.arguments_kind)
    for declared, read in ((recipe, settings_of(kind)), (recipe.arguments(), of_trainer)):
        settable = {each.name: each for each in fields(declared) if each.init}
        assert read.keys() == settable.keys()
        assert all(each.default in (MISSING, settable[each.name].default) for each in read.values())
        helps = {each.name: each.metadata["help"] for each in settable.values() if "help" in each.metadata}
        assert helps == {each: read[each].metadata["help"] for each in helps}
    assert kind.training == recipe.training


def test_the_kinds_of_texts_are_those_that_are_known():
    assert settings_of(RECIPES["text-ut"].settings)["dataset"].metadata["choices"] == tuple(CORPORA)


def test_generated_data_are_a_word_and_no_folder(working_directory):
    recipe = descend.configure("video-ut", data="generated", output_dir="run").recipe.completed()
    assert (recipe.data, recipe.source) == ("generated", None)
    (working_directory / "generated").mkdir()
    recipe = descend.configure("video-ut", data="./generated", output_dir="run").recipe.completed()
    assert recipe.source == str(working_directory / "generated")


if __name__ == "__main__":
    FILE.write_text(offered())
