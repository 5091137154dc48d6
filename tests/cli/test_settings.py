"""The options of a recipe: help in groups, one spelling of each, and data that must be named."""

import json
import re
from dataclasses import MISSING, fields

import pytest

from descend import InputError, configure, run
from descend.cli import main
from descend.cli.settings import library_settings, read_recipe
from descend.recipes import RECIPES
from descend.recipes.corpora import CORPORA
from descend.results import read_config
from descend.settings import DescentSettings, options, settings_of

TRAIN = ["train", "video-ut", "--data", "generated", "--out", "OUT"]


def help_of(capsys, *argv: str) -> str:
    with pytest.raises(SystemExit):
        main(argv)
    return capsys.readouterr().out


def refusal(capsys, *argv: str) -> str:
    """The one line that refuses a command."""
    capsys.readouterr()
    assert main(argv) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


# --- help


@pytest.mark.parametrize("name", RECIPES)
def test_train_help_is_our_settings_in_groups_of_lines(capsys, monkeypatch, name):
    monkeypatch.setenv("COLUMNS", "80")
    out = help_of(capsys, "train", name, "--help")
    assert len(out.splitlines()) <= 80 and max(map(len, out.splitlines())) <= 80
    titles = re.findall(r"^(\w[\w ]+):$", out, re.MULTILINE)
    assert titles == ["data", "model", "constraints", "settings of one method", "training", "output"]
    recipe = RECIPES[name]
    for setting in {each.name for each in fields(recipe)} | DescentSettings.__annotations__.keys():
        shown = re.findall(rf"^  --(?:\[no-\])?{setting.replace('_', '-')}\b(?!-)", out, re.MULTILINE)
        left_out = ["dataloader_pin_memory", *(["exits", "head_lr_ratio"] if name.startswith("video-") else [])]
        assert len(shown) == (setting not in left_out), setting
    assert f"[{recipe.training.learning_rate}]" in out  # Transformers' own, as the recipe sets it
    assert "--adam-beta1" not in out and not re.search(r"--[\w-]*_", out)


@pytest.mark.parametrize("name", ["video-vit", "llm-sft"])
def test_all_arguments_of_transformers_are_in_the_long_help(capsys, name):
    out = help_of(capsys, "train", name, "--help-all")
    replaced = {"output_dir", "resume_from_checkpoint", "disable_tqdm", "log_level_replica"}
    replaced |= {"exits", "head_lr_ratio"} if name.startswith("video-") else set()  # of heads of Transformers
    for field in fields(RECIPES[name].arguments()):
        if field.init and field.name not in replaced:
            assert re.search(rf"--(\[no-\])?{field.name.replace('_', '-')}\b", out), field.name


@pytest.mark.parametrize("name", RECIPES)
def test_settings_are_read_from_source_as_their_classes_declare_them(name):
    recipe, kind = RECIPES[name], RECIPES.settings(name)
    of_trainer = library_settings(kind.arguments_kind) | settings_of(kind.arguments_kind)
    for declared, read in ((recipe, settings_of(kind)), (recipe.arguments(), of_trainer)):
        settable = {each.name: each for each in fields(declared) if each.init}
        assert read.keys() == settable.keys()
        assert all(each.default in (MISSING, settable[each.name].default) for each in read.values())
        helps = {each.name: each.metadata["help"] for each in settable.values() if "help" in each.metadata}
        assert helps == {each: read[each].metadata["help"] for each in helps}
    assert kind.training.arguments() == recipe.training.arguments()


def test_the_kinds_of_texts_are_those_that_are_known():
    assert settings_of(RECIPES.settings("text-ut"))["dataset"].metadata["choices"] == tuple(CORPORA)


# --- one spelling


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([*TRAIN, "--output_dir", "run"], "no setting --output-dir; give --out instead"),
        ([*TRAIN, "--resume-from-checkpoint", "run"], "give --resume instead"),
        ([*TRAIN, "--disable-tqdm"], "give --quiet instead"),
        ([*TRAIN, "--tied", "false"], "--tied takes no value; give --tied or --no-tied"),
        ([*TRAIN, "--no-tied=True"], "give --tied or --no-tied"),
        ([*TRAIN, "--preset", "pape"], "invalid choice: 'pape'"),
        ([*TRAIN, "--method", "erm", "--layer-dropout", "0.1"], "--layer-dropout: a setting of the method layerskip"),
        ([*TRAIN, "--r-drop", "2"], "--r-drop: a setting of the method r-drop; the method is constrained"),
    ],
)
def test_another_spelling_is_refused_with_the_right_one(capsys, tmp_path, monkeypatch, argv, message):
    monkeypatch.chdir(tmp_path)
    assert message in refusal(capsys, *argv)
    assert not list(tmp_path.iterdir())


def test_an_underscore_is_read_as_a_hyphen():
    _, recipe, args, _ = read_recipe([*TRAIN[1:], "--learning_rate=0.5", "--no_tied", "--lr_scheduler_type", "cosine"])
    assert (recipe.tied, args.learning_rate, args.lr_scheduler_type) == (False, 0.5, "cosine")


def test_settings_as_typed_are_read_again():
    given = {"tied": False, "alpha": [0.3, 0.2, 0.1], "max_steps": 7, "noise": 0.25, "use_cpu": True, "depth": 3}
    _, recipe, args, _ = read_recipe([*TRAIN[1:], *options(given)])
    assert "--no-tied" in options(given) and "--use-cpu" in options(given)
    assert {name: getattr(recipe, name, getattr(args, name, None)) for name in given} == given


def test_a_setting_of_a_searched_method_is_given_once_for_a_sweep(capsys, tmp_path):
    sweep = ["sweep", "text-ut", "--data", "generated", "--trials", "1", "--layer-dropout", "0.1", "--no-tied"]
    line = refusal(capsys, *sweep, "--out", str(tmp_path / "a"), "--method", "erm")
    assert "--layer-dropout" in line and not (tmp_path / "a").exists()
    tiny = ["--hidden-size", "8", "--depth", "2", "--max-length", "12", "--max-steps", "1", "--use-cpu"]
    tiny += ["--eval-strategy", "no", "--save-strategy", "no", "--judge-noise", "0"]
    for _ in range(2):  # the second call goes on
        assert main([*sweep, *tiny, "--out", str(tmp_path / "b"), "--method", "erm,layerskip"]) == 0
    rates = {each.name[:3]: read_config(each).training["layer_dropout"] for each in (tmp_path / "b/trials").iterdir()}
    assert rates == {"erm": 0.2, "lay": 0.1}


# --- data


def test_data_must_be_named(capsys):
    for name in RECIPES:
        line = refusal(capsys, "train", name, "--out", "OUT")
        assert f"{name} needs data" in line and "--data generated" in line
        with pytest.raises(InputError, match=rf"{name}.*--data generated"):
            configure(name, output_dir="run")
        with pytest.raises(TypeError, match="data"):
            RECIPES[name]()


def test_generated_data_are_a_word_and_no_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recipe = configure("video-ut", data="generated", output_dir="run").recipe.completed()
    assert (recipe.data, recipe.source) == ("generated", None)
    (tmp_path / "generated").mkdir()
    recipe = configure("video-ut", data="./generated", output_dir="run").recipe.completed()
    assert recipe.source == str(tmp_path / "generated")


def test_a_run_from_before_data_had_a_name_is_judged_and_resumed(tmp_path):
    flags = ["--depth", "2", "--window", "2", "--stride", "40", "--max-steps", "1", "--use-cpu"]
    whole, file = [*TRAIN[:-1], str(tmp_path / "run"), *flags], tmp_path / "run" / "config.json"
    assert main(whole) == 0
    config = json.loads(file.read_text())
    assert config["settings"].pop("data") == "generated"
    for data in ({"data": None}, {}):
        file.write_text(json.dumps(config | {"settings": config["settings"] | data}))
        own = run.evaluate(tmp_path / "run", noise=[0.0])
        assert (
            own.dataset == "scenes"
            and own.values == run.evaluate(tmp_path / "run", noise=[0.0], data="generated").values
        )
        assert main([*whole, "--resume"]) == 0
