"""Laws of the grid: every cell has its own name, and the arms of a setting differ in nothing but what an arm is."""

import json
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path

import pytest

from descend import configure
from reproduction.cells import ARMS, FIXED, FORMS, PAPER_ARMS, REPLAYS, SEARCH, SEARCHED, cells, options, search_key
from reproduction.grids import SCALES

SMALL, METHODS = SCALES["small"], SCALES["methods"]


SHARED = (
    *("max_steps", "per_device_train_batch_size", "head_lr_ratio", "optim", "weight_decay", "max_grad_norm"),
    *("lr_scheduler_type", "warmup_steps", "adam_beta1", "adam_beta2", "label_smoothing_factor"),
    *("load_best_model_at_end", "gradient_accumulation_steps"),
)
"""Training arguments that all arms of a model have alike."""


def choices(scale):
    """What the searches of a scale would choose if the first trial were the best, and of all the last."""
    replayed = {"searched": {"settings": {"layer_weights": "-0.1,0,0,0,0,0,1"}}}
    replays = [cell for cell in cells(scale, {}) if cell.arm in REPLAYS]
    return {search_key(scale, cell, cell.arm): replayed for cell in replays} | {
        search_key(scale, cell, cell.arm): {
            "fixed": {"settings": scale.models[cell.model].trials[cell.arm][0]},
            "searched": {"settings": scale.models[cell.model].trials[cell.arm][-1]},
            "last": {"settings": scale.models[cell.model].trials[cell.arm][0]},
        }
        for cell in cells(scale, {})
        if cell.panel == SEARCH
    }


@pytest.mark.parametrize("scale", SCALES.values(), ids=SCALES)
def test_names_are_unique_and_hold_no_path(scale):
    for chosen in ({}, choices(scale)):
        planned = cells(scale, chosen)
        assert max(Counter(cell.name for cell in planned).values()) == 1
        assert not any("/" in cell.name or "{" in cell.name for cell in planned)


def test_a_name_follows_from_the_commands_but_not_from_the_machine():
    cell = cells(SMALL, choices(SMALL))[0]
    assert replace(cell, settings={**cell.settings, "learning_rate": 1.0}).name != cell.name
    assert replace(cell, evaluate={**cell.evaluate, "most": 7}).name != cell.name
    one, other = (cell.commands(Path(place), {"data": Path(place)}) for place in ("/here", "/there"))
    assert one != other and json.dumps(one).replace("/here", "/there") == json.dumps(other)


def test_test_runs_are_read_on_validation_data_at_every_level_and_trials_on_nothing_else():
    for cell in cells(SMALL, choices(SMALL)):
        words = cell.commands(Path("run"), {})[-1]
        assert ("--validation-noise all" in " ".join(words)) == (cell.panel != SEARCH)
        assert ("--split validation" in " ".join(words)) == (cell.panel == SEARCH)


@pytest.mark.parametrize("scale", SCALES.values(), ids=SCALES)
def test_arms_of_a_setting_differ_only_in_what_an_arm_is(scale):
    settings = defaultdict(list)
    for cell in cells(scale, choices(scale)):
        if not cell.variant:
            settings[cell.model, cell.data, cell.depth, cell.gamma, cell.seed].append(cell)
    searched = {name for model in scale.models.values() for trials in model.trials.values() for name in trials[0]}
    named = (*ARMS.values(), *FORMS.values(), *(model.paper for model in scale.models.values()), searched)
    of_arms = {name for names in named for name in names} | {"layer_weights"}
    for alike in settings.values():
        first = alike[0]
        for cell in alike:
            assert cell.evaluate == first.evaluate and cell.settings["seed"] == cell.seed  # the same draws of noise
            names = {
                name
                for name in {*cell.settings, *first.settings}
                if cell.settings.get(name) != first.settings.get(name)
            }
            assert names <= of_arms
            # A search may give ERM fewer steps, and nobody more.
            budget = scale.models[cell.model].settings.get("max_steps", -1)
            assert cell.settings.get("max_steps", -1) <= budget
            if "max_steps" not in searched or cell.arm not in ("erm", "erm-noisier"):
                assert cell.settings.get("max_steps", -1) == budget


def test_erm_has_as_many_trials_as_each_of_the_papers_arms():
    for model in SMALL.models.values():
        counts = {len(model.trials[arm]) for arm in ("erm", *PAPER_ARMS) if model.trials}
        assert len(counts) <= 1


def test_searches_come_before_what_waits_for_them_and_see_no_test_data():
    seen = set()
    for cell in cells(SMALL, {}):
        assert not cell.waits or cell.waits in seen
        if cell.panel == SEARCH:
            seen.add(search_key(SMALL, cell, cell.arm))
        assert (cell.evaluate.get("split") == "validation") == (cell.panel == SEARCH)
        assert cell.panel != SEARCH or cell.seed not in (0, 1, 2, 3, 4)


def test_alpha_and_cap_are_fixed_in_advance_but_where_they_are_searched():
    chosen = choices(SMALL)
    for cell in cells(SMALL, chosen):
        fixed = SMALL.models[cell.model].paper
        if cell.arm in PAPER_ARMS and "alpha" in fixed and not cell.variant:
            assert all(cell.settings[name] == fixed[name] for name in FIXED)
    searched = [cell for cell in cells(SMALL, chosen) if cell.variant == SEARCHED]
    assert searched and all(cell.settings["alpha"] != SMALL.models[cell.model].paper["alpha"] for cell in searched)
    same = {key: {"fixed": choice["fixed"], "searched": choice["fixed"]} for key, choice in chosen.items()}
    assert not any(cell.variant == SEARCHED for cell in cells(SMALL, same))


def test_the_six_primaries_are_run_with_five_seeds_or_three():
    planned = cells(SMALL, choices(SMALL))
    assert len(SMALL.primaries) == 6
    for model, depth, data, gamma, form, arm, other in SMALL.primaries:
        for each, of in ((arm, other), *((paper, form) for paper in PAPER_ARMS)):
            place = (model, depth, data, gamma, each, of, "")
            runs = [c for c in planned if (c.model, c.depth, c.data, c.gamma, c.arm, c.form, c.variant) == place]
            assert len({cell.seed for cell in runs}) == len(runs) >= 3


@pytest.mark.parametrize("scale", ["smoke", "methods"])
def test_every_command_is_one_that_descend_accepts(scale, tmp_path):
    """The settings of every arm of every model are read as the command line reads them, without its data."""
    done, shared = set(), defaultdict(set)
    for cell in cells(SCALES[scale], choices(SCALES[scale])):
        if (cell.model, cell.arm, cell.variant) not in done:
            done.add((cell.model, cell.arm, cell.variant))
            configured = configure(cell.recipe, **cell.settings, output_dir=str(tmp_path / cell.name), use_cpu=True)
            assert configured.arguments.method == cell.settings["method"]
            if not cell.variant:
                shared[cell.model].add(tuple(getattr(configured.arguments, name) for name in SHARED))
    # What an arm does not name itself may come from a preset or a recipe.
    assert scale == "smoke" or {len(each) for each in shared.values()} == {1}
    assert options({"layer_weights": "-0.1,1", "noise": -1.0}) == ["--layer-weights=-0.1,1", "--noise", "-1"]


def test_one_learning_rate_is_every_arms_and_the_deep_encoder_takes_the_small_ones_choice():
    chosen = choices(METHODS)
    fastest = {"learning_rate": 2e-4, "max_steps": 7}
    chosen["MiniLM 6 imdb 1 erm"] = {key: {"settings": fastest} for key in ("fixed", "searched")}
    square = METHODS.models["MiniLM"].trials["algorithm-1"]
    for cell in cells(METHODS, chosen):
        if cell.model == "MiniLM" and (cell.arm, cell.panel) != ("erm", SEARCH):
            assert cell.settings["learning_rate"] == 2e-4
            assert cell.settings["max_steps"] == (7 if cell.arm == "erm" else 250)  # its rate alone, not its steps
        if cell.model == "MPNet" and cell.arm == "algorithm-1":
            assert cell.settings | square[-1] == cell.settings and cell.settings["learning_rate"] == 3e-5
    # α of the mechanism replaces the searched one, at its dual rate.
    (other,) = {cell.settings["dual_lr"] for cell in cells(METHODS, chosen) if cell.variant == "alpha=0.4"}
    assert other == square[-1]["dual_lr"]


def test_replays_have_other_seeds_than_their_source_and_five_pairs():
    planned = cells(METHODS, choices(METHODS))
    (source,) = [cell for cell in planned if cell.panel == "source"]
    assert source.settings["logging_steps"] == 1 and source.seed == 0
    place = (source.model, source.data, source.depth, source.gamma, "")
    for arm in (*REPLAYS, "erm", "algorithm-1"):
        runs = [c for c in planned if c.arm == arm and (c.model, c.data, c.depth, c.gamma, c.variant) == place]
        assert {cell.seed for cell in runs} >= {1, 2, 3, 4, 5} and (arm not in REPLAYS or len(runs) == 5)
