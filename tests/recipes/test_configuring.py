"""Recipes: frozen settings that mean the same in Python and on the command line."""

import pytest
from transformers import PreTrainedConfig

from descend import InputError, configure
from descend.cli.settings import read_recipe
from descend.recipes import RECIPES
from descend.recipes.base import class_numbers
from descend.results.config import PRETRAINED
from descend.run import stored
from descend.settings import method_of
from descend.tasks.folders import class_order

ALIKE = [
    ("video-ut", "--data . --window 3", {"data": ".", "window": 3}),
    ("video-ut", "--data . --alpha 0.3,0.2 --cap 3", {"data": ".", "alpha": [0.3, 0.2], "cap": 3.0}),
    (
        "video-ut",
        "--data . --alpha_decay=0.5 --alpha 0.2 --first-layer 1",
        {"data": ".", "alpha": 0.2, "alpha_decay": 0.5, "first_layer": 1},
    ),
    ("video-dust", "--data . --strength 0.1 --dual-every epoch", {"data": ".", "strength": 0.1, "dual_every": "epoch"}),
    ("video-vit", "--data . --depth 3 --num-train-epochs 2", {"data": ".", "depth": 3, "num_train_epochs": 2.0}),
    (
        "video-ut",
        "--data . --no_tied --lr_scheduler_type cosine",
        {"data": ".", "tied": False, "lr_scheduler_type": "cosine"},
    ),
    (
        "text-ut",
        "--data generated --preset paper --dataset mnli",
        {"data": "generated", "preset": "paper", "dataset": "mnli"},
    ),
    (
        "text-distilbert",
        "--data generated --model some/model --learning-rate 0.001",
        {"data": "generated", "model": "some/model", "learning_rate": 0.001},
    ),
    (
        "llm-sft",
        "--data generated --model some/model --max-length 99 --packing",
        {"data": "generated", "model": "some/model", "max_length": 99, "packing": True},
    ),
]


@pytest.mark.parametrize(("name", "words", "settings"), ALIKE, ids=[words for _, words, _ in ALIKE])
def test_python_and_the_command_line_mean_the_same(name, words, settings):
    typed, _ = read_recipe([name, *words.split(), "--out", "run"])
    called = configure(name, **settings, output_dir="run")
    assert typed.recipe == called.recipe and set(typed.given) == set(called.given)
    assert type(typed.arguments) is type(called.arguments)
    assert stored(typed.arguments) == stored(called.arguments)
    assert typed.arguments.problem(2).limits == called.arguments.problem(2).limits


@pytest.mark.parametrize(
    ("name", "given", "method", "exits", "ratio", "strength"),
    [
        ("text", {}, "linear", "own", 10.0, 0.8),
        ("image", {}, "linear", "own", 10.0, 0.8),
        ("text", {"strength": 0.5}, "useful", "own", 10.0, 0.5),
        ("image", {"inner_weight": 0.05}, "linear", "own", 10.0, 0.8),
        ("lm", {}, "erm", "own", 10.0, 0.8),  # constraints on 30 exits harmed the last
        ("lm", {"method": "useful"}, "useful", "own", 10.0, 0.8),
        ("text", {"method": "erm", "strength": 0.5}, "erm", "own", 10.0, 0.5),
        ("image", {"alpha": 0.1}, "constrained", "own", 10.0, None),  # whoever states bounds asks for them
        ("lm", {"strength": 0.2}, "useful", "own", 10.0, 0.2),
        ("embed", {"strength": 0.2}, "useful", None, 1.0, 0.2),
        ("embed", {"inner_weight": 0.5}, "linear", None, 1.0, None),  # a setting of the default method
        ("text", {"preset": "paper", "dataset": "imdb"}, "constrained", "shared", 1.0, None),
        ("lm", {"preset": "paper"}, "constrained", "shared", 1.0, None),
        # A probe trains own exits.
        ("text", {"preset": "paper", "dataset": "imdb", "method": "probe"}, "probe", None, 1.0, None),
        ("lm", {"lora": "q_proj"}, "erm", None, 1.0, None),  # own exits are not saved beside adapters
        ("llm-sft", {"model": "a/b", "lora": "q_proj"}, "constrained", None, 1.0, None),
        ("text-distilbert", {"model": "a/b"}, "constrained", None, 1.0, None),  # the paper's recipes
        ("video-ut", {}, "constrained", None, 1.0, 0.7),
    ],
)
def test_recipes_of_pretrained_models_ask_for_useful_layers(name, given, method, exits, ratio, strength):
    settings = {
        "data": "generated",
        "output_dir": "run",
        **({"model": "a/b"} if RECIPES[name].settings.needs_model else {}),
    }
    found = configure(name, **settings | given).arguments
    expected = (method, exits, ratio, strength)
    assert (found.method, found.exits, found.head_lr_ratio, found.strength) == expected


@pytest.mark.parametrize(
    ("given", "of_linear", "of_constrained"),
    [
        ({}, "linear", "constrained"),
        ({"strength": None, "alpha": None}, "linear", "constrained"),
        ({"strength": 0.5}, "useful", "constrained"),
        ({"strength": (0.2, 1.0)}, "useful", "constrained"),  # a range that a sweep searches
        ({"within": 0.1, "strength": 0.5}, "constrained", "constrained"),
        ({"preset": "paper"}, "constrained", "constrained"),
        ({"method": "erm", "alpha": 0.1}, "erm", "erm"),
    ],
)
def test_whoever_states_bounds_or_a_strength_asks_for_a_method(given, of_linear, of_constrained):
    assert (method_of(given, "linear"), method_of(given, "constrained")) == (of_linear, of_constrained)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("video-tu", {}, "no recipe 'video-tu'"),
        *((name, {"data": None}, f"{name} needs data.*--data generated") for name in RECIPES),
        ("text", {}, "text trains a pretrained model; expected --model"),
        ("video-ut", {"depht": 3}, "depht"),
        ("video-ut", {"eval_strategy": "sometimes"}, "eval_strategy|sometimes"),
        ("video-ut", {"depth": 0}, "depth must be from 1 to 1024; got 0"),
        ("video-ut", {"window": 2.5}, "window must be a whole number; got 2.5"),
        ("video-ut", {"depth": "3"}, "depth must be a number; got the text '3'"),
        ("video-ut", {"tied": "no"}, "tied must be True or False; got 'no'"),
        ("video-ut", {"kernel": "gausian"}, "kernel must be one of softmax, gaussian; got 'gausian' .did you mean gau"),
        ("video-ut", {"method": "useful", "alpha": 0.1}, "alpha states bounds.*--method constrained"),
        ("embed", {"model": "a/b", "inner_weight": 0.5, "within": 0.1}, "inner-weight: a setting of the method linear"),
        ("video-dust", {"l1": None}, "l1 must be a number; got None"),
        ("video-vit", {"pretrained": 3}, "pretrained must be a text; got 3"),
        ("text-ut", {"noise": float("nan")}, "noise must be a level γ of at least 0, and finite; got nan"),
        ("text-ut", {"learning_rate": -1.0}, "learning_rate must be at least 0; got -1.0"),
        ("text-roberta", {"heads": 3}, "hidden_size must be a multiple of heads; got 128 and 3"),
        ("llm-sft", {"validation_share": 0.5}, "validation_share must lie between 0 and 0.5; got 0.5"),
    ],
)
def test_a_name_or_value_that_its_declaration_does_not_allow_is_refused(name, settings, message):
    """In Python; a config.json that was edited is read by the same classes."""
    with pytest.raises(InputError, match=message):
        configure(name, **{"data": "generated", "output_dir": "run"} | settings)


def test_a_given_value_decides_over_the_defaults_of_a_recipe():
    def arguments(**settings):
        return configure("video-ut", data="generated", output_dir="run", **settings).arguments

    usual, with_alpha, epochs = arguments(), arguments(alpha=0.2), arguments(num_train_epochs=2)
    assert (usual.strength, usual.max_steps, usual.load_best_model_at_end) == (0.7, 400, True)
    assert with_alpha.strength is None and with_alpha.problem(3).limits[1:] == pytest.approx([0.8] * 3)
    assert epochs.max_steps == -1 and arguments(num_train_epochs=2, max_steps=5).max_steps == 5
    assert arguments(alpha=0.2, alpha_decay=0.5).problem(3).limits[1:] == pytest.approx([0.8, 0.9, 0.95])
    for model, start in (("small", 1.0), ("some/model", 0.0)):  # a pretrained model's multipliers start at 0
        given = configure("text-distilbert", data="generated", output_dir="run", model=model).arguments
        assert given.primal_dual(3).multipliers[1:].tolist() == [start] * 3
    unsaved = arguments(save_strategy="no")
    assert not unsaved.load_best_model_at_end and unsaved.metric_for_best_model is None


@pytest.mark.parametrize(
    ("head", "names", "numbers"),
    [
        (12, {str(number) for number in range(12)}, list(range(12))),  # 2 before 10, each its own number
        (12, {"10", "2", "0"}, [0, 2, 10]),
        (12, {f"LABEL_{number}" for number in range(12)}, [0, 1, 10, 11, *range(2, 10)]),  # in the data's order
        (["label_a", "other"], {"label_a", "other"}, [0, 1]),
        (3, {"1", "2", "3"}, [0, 1, 2]),  # LABEL_3 is not there: by place
        (3, {"-1", "0", "1"}, [0, 1, 2]),
        (2, {"pos", "neg"}, [0, 1]),
        (["10", "9", "11"], {"9", "10", "11"}, [1, 0, 2]),
        (["POSITIVE", "NEGATIVE"], {"neg", "pos"}, [1, 0]),
        (["cats", "dogs", "cows"], {"Dogs", "cats"}, [1, 0]),
        (["POSITIVE", "NEGATIVE"], {"Neg", "POS"}, [1, 0]),
        (["polish", "Polish"], {"Polish", "polish"}, [1, 0]),  # two classes
        (["polish", "Polish", "Thai"], {"thai", "polish"}, [0, 2]),
        (["polish", "Polish", "Thai"], {"thai", "POLISH"}, None),
        (["cafe\u0301", "bar"], {"café", "bar"}, [1, 0]),
        (["caterpillar", "dog"], {"cat", "dog"}, None),  # another class, whose name begins so
        (["catfish", "cat"], {"cat", "catfish"}, [1, 0]),
        (["cats", "caterpillars", "dogs"], {"caterpillar", "dogs"}, None),
        (["negative", "neutral"], {"ne", "neg"}, None),
        (["neg", "pos"], {"neg", "neutral"}, None),
        (3, {"neg", "pos"}, None),
    ],
)
def test_classes_are_met_by_their_names_in_a_head(head, names, numbers):
    labels = {"num_labels": head} if isinstance(head, int) else {"id2label": dict(enumerate(head))}
    config, classes = PreTrainedConfig(**labels), class_order(names)
    if numbers is not None:
        assert list(class_numbers(config, classes, "model", "data")) == numbers
        return
    with pytest.raises(InputError, match=r"model knows the classes .* the model has none"):
        class_numbers(config, classes, "model", "data")


def test_results_know_the_recipes_of_pretrained_models():
    assert set(PRETRAINED) == {name for name in RECIPES if RECIPES[name].settings.needs_model}
