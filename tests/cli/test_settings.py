"""The options of a recipe: help in groups, settings as their classes declare them, and what generated data are."""

import re
from dataclasses import MISSING, fields

import pytest

from descend import configure
from descend.cli import main
from descend.cli.library import arguments_of
from descend.recipes import RECIPES
from descend.recipes.corpora import CORPORA
from descend.settings import DescentSettings, SFTSettings, settings_of


def help_of(capsys, *argv: str) -> str:
    with pytest.raises(SystemExit):
        main(argv)
    return capsys.readouterr().out


# --- help


@pytest.mark.parametrize("name", RECIPES)
def test_help_has_each_of_our_settings_once_and_the_long_help_all_of_transformers(capsys, name):
    out, every = (help_of(capsys, "train", name, flag) for flag in ("--help", "--help-all"))
    recipe = RECIPES[name].kind
    of_heads = {"exits", "head_lr_ratio"} if name.startswith("video-") else set()  # of Transformers
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


# --- a method's own settings, and data


def test_generated_data_are_a_word_and_no_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recipe = configure("video-ut", data="generated", output_dir="run").recipe.completed()
    assert (recipe.data, recipe.source) == ("generated", None)
    (tmp_path / "generated").mkdir()
    recipe = configure("video-ut", data="./generated", output_dir="run").recipe.completed()
    assert recipe.source == str(tmp_path / "generated")
