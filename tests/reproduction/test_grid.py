"""Which runs a study is made of: the paper's grid at each scale, by rules that are stated beforehand."""

import json
from collections import defaultdict

import pytest

from descend import InputError
from descend.cli.parsing import levels
from descend.cli.settings import read_recipe
from descend.run import stored
from descend.settings import options as flags
from reproduction.costs import Costs
from reproduction.grid import (
    ANYTIME_RECIPES,
    ARMS,
    COMPARED,
    FORM_ARMS,
    FORMS,
    FURTHER,
    NOISE_IS,
    RECIPES,
    WANTED,
    Grid,
    cells,
    named,
    names,
    rates,
    settings,
)
from reproduction.published import table_3, table_4
from reproduction.scales import SCALES

ALL = {scale: cells(names(["all"]), scale) for scale in SCALES}


def changed(cell, **fields):
    return named(**{name: value for name, value in {**dict(cell), **fields}.items() if name != "name"})


def settings_of(found):
    """Cells without their seeds → their seeds."""
    seeds = defaultdict(set)
    for cell in found:
        seeds[cell.task, cell.model, cell.data, cell.depth, cell.gamma, cell.regime, cell.arm, cell.variant].add(
            cell.seed
        )
    return seeds


@pytest.mark.parametrize("scale", SCALES)
def test_a_name_is_that_of_one_run_and_one_run_has_one_name(scale):
    assert len({cell.name for cell in ALL[scale]}) == len(ALL[scale])
    chosen = rates().get(scale, {})
    # Until trials chose its noise, this arm is ERM again.
    known = [cell for cell in ALL[scale] if cell.arm != "erm-noisier" or "erm-noisier" in chosen.get(cell.recipe, {})]
    assert len({(cell.recipe, json.dumps(cell.settings)) for cell in known}) == len(known)
    for cell in ALL[scale]:
        assert len(cell.name.encode()) < 200 and "/" not in cell.name and str(cell.seed) in cell.name
        values = [*cell.settings.values(), *cell.answer.values()]
        assert not any(str(value).startswith("/") for value in values), "a path of one machine"


@pytest.fixture
def without_data(monkeypatch):
    """Settings are read where the data are not."""
    monkeypatch.setattr("descend.cli.settings.check_data", lambda *args, **options: None)


@pytest.mark.parametrize("scale", SCALES)
def test_a_variant_is_not_what_the_table_has_already(scale, without_data):
    """Neither by its settings nor by the recipe's defaults."""

    def given(cell):
        name, recipe, args, _ = read_recipe([cell.recipe, *flags(cell.settings), "--out", "none"])
        return name, recipe, stored(args)

    plain = next(cell for cell in ALL[scale] if cell.recipe == "text-roberta" and cell.arm == "constrained")
    usual = given(plain)[2]["learning_rate"]
    same = changed(plain, settings={**plain.settings, "learning_rate": usual})
    assert given(plain) == given(same), "an equal value is no change"

    first = [cell for cell in ALL[scale] if not cell.seed and cell.arm in FORM_ARMS]
    varied = {(cell.recipe, cell.arm) for cell in first if cell.variant}
    table = {key: [] for key in varied}
    for cell in first:
        if not cell.variant and (cell.recipe, cell.arm) in varied:
            table[cell.recipe, cell.arm].append(given(cell))
    variants = [cell for cell in first if cell.variant]
    assert variants
    for cell in variants:
        assert given(cell) not in table[cell.recipe, cell.arm], cell.name


def test_other_settings_are_another_cell_in_whatever_order_they_stand():
    cell = ALL["small"][0]
    assert changed(cell, settings={**cell.settings, "max_steps": 3}).name != cell.name
    assert changed(cell, judge={"noise": [0]}).name != cell.name
    assert changed(cell, settings=dict(reversed(cell.settings.items()))).name == cell.name


def test_figures_share_their_cells():
    together = cells(["figure-3", "figure-7", "theory-3"], "small")
    assert {cell.name for cell in cells(["figure-7"], "small")} < {cell.name for cell in together}
    assert len(together) == len(cells(["theory-3"], "small"))


@pytest.mark.parametrize("scale", SCALES)
def test_every_figure_has_cells_of_erm_and_both_forms(scale):
    for name in WANTED:
        arms = {cell.arm for cell in cells([name], scale)}
        assert {"paper", "constrained"} < arms and arms & {"erm", "erm-clean"}, name


def test_small_holds_every_data_set_model_and_depth_of_the_papers_tables_with_three_seeds():
    seeds = settings_of(ALL["small"])
    assert all(found == {0, 1, 2} for found in seeds.values())
    kept = {(model, data) for _, model, data, *_ in seeds}
    for row in (*table_3(), *table_4()):
        assert (row.model, row.data) in kept
        if row.model in ("UT", "DUST"):  # the pretrained ones are smaller here
            for arm in COMPARED:
                assert any(
                    (cell.model, cell.data, cell.depth, cell.arm, cell.variant)
                    == (row.model, row.data, row.depth, arm, "")
                    for cell in ALL["small"]
                ), row


def test_small_has_the_papers_noise_and_further_arms_at_a_middle_depth():
    seeds = settings_of(ALL["small"])
    paper = {place for place in seeds if place[0] == "video" and place[5] == "paper"}
    assert {(model, data, depth) for _, model, data, depth, *_ in paper} == {
        ("UT", "ucsd", 5),
        ("DUST", "ucsd", 5),
        ("ViT", "ucsd", 6),
    }
    middle = {(cell.recipe, cell.depth) for cell in cells(["figure-11", "figure-12", "anytime"], "small")}
    for recipe, arms in FURTHER.items():
        further = [cell for cell in ALL["small"] if cell.recipe == recipe and cell.arm in arms]
        assert {cell.arm for cell in further} == set(arms)
        assert len({(cell.data, cell.depth, cell.gamma) for cell in further}) == 1
        depths = SCALES["small"].depths[recipe]
        assert {cell.depth for cell in further} == {depths[(len(depths) - 1) // 2]}
    assert ("video-ut", 3) in middle, "the infeasible run is of the shallowest UT"


@pytest.mark.parametrize("scale", SCALES)
def test_every_cell_of_the_tables_has_the_four_compared_arms(scale):
    table = cells(["table-3", "table-4", "table-5"], scale)
    arms = defaultdict(set)
    for cell in table:
        if cell.arm not in set(sum(FURTHER.values(), ())):
            arms[cell.recipe, cell.data, cell.depth, cell.gamma, cell.regime].add(cell.arm)
    for (*_, gamma, _regime), known in arms.items():
        assert known == {"erm-clean" if arm == "erm" and not gamma else arm for arm in COMPARED}


def test_the_papers_form_has_the_preset_and_no_settings_of_ours(monkeypatch):
    rows = {"every": {"a": 1}, "ours": {"b": 2}, "preset": {"c": 3}, "paper": {"d": 4}}
    monkeypatch.setitem(settings()["small"]["recipes"], "video-ut", rows)
    grid = Grid("small")
    given = {arm: grid.cell("video-ut", "ucsd", arm, 0).settings for arm in ARMS}
    assert given["paper"]["preset"] == "paper" and given["paper"]["method"] == "constrained"
    assert {arm for arm, flags_ in given.items() if "preset" in flags_} == {"paper", "erm-paper"}
    assert given["erm-paper"]["preset"] == "paper" and given["erm-paper"]["method"] == "erm"
    assert "alpha" not in given["constrained"] and "strength" not in given["constrained"]
    for arm, flags_ in given.items():
        own = {name: value for name, value in flags_.items() if len(name) == 1}
        assert own == {"a": 1, **{"paper": {"c": 3, "d": 4}, "erm-paper": {"c": 3}}.get(arm, {"b": 2})}


def test_an_arm_without_rates_of_its_own_has_those_of_erm(monkeypatch):
    found = {"erm": {"learning_rate": 1e-3}, "paper": {"learning_rate": 2e-3}, "erm-noisier": {"noise": 1.5}}
    monkeypatch.setitem(rates(), "small", {"video-ut": found})
    grid = Grid("small")
    given = {arm: grid.cell("video-ut", "ucsd", arm, 0) for arm in ARMS}
    assert given["erm"].settings["learning_rate"] == given["linear"].settings["learning_rate"] == 1e-3
    assert given["paper"].settings["learning_rate"] == 2e-3
    assert given["erm-noisier"].settings["noise"] == 1.5 and given["erm-noisier"].gamma == 0.8
    assert "learning_rate" not in grid.cell("video-dust", "ucsd", "erm", 0).settings


def test_each_regime_of_video_says_what_its_noise_is():
    for scale in SCALES:
        for cell in ALL[scale]:
            if cell.task != "video":
                assert "noise_is" not in cell.settings
            elif not cell.variant.startswith("noise_is="):
                assert cell.settings["noise_is"] == NOISE_IS[cell.regime]
    other = [cell for cell in ALL["small"] if cell.variant == "noise_is=std"]
    assert other and {cell.regime for cell in other} == {"paper"}
    assert {cell.settings["noise_is"] for cell in other} == {"std"}


def test_forms_of_a_model_are_run_where_the_table_has_them_not():
    found = cells(["table-forms"], "small")
    for recipe, variants in FORMS.items():
        of = {(cell.variant, cell.arm) for cell in found if cell.recipe == recipe and cell.regime == "strong"}
        assert {("", arm) for arm in FORM_ARMS} <= of
        assert ("tied", "paper") in of and ("tied", "constrained") not in of and ("tied", "erm") not in of
        assert {("untied", "erm"), ("untied", "constrained")} <= of and ("untied", "paper") not in of
        assert {variant for variant, _ in of} == {"", *variants}


@pytest.mark.parametrize("scale", SCALES)
def test_the_anytime_figure_has_every_method_at_the_tables_own_setting(scale):
    found = cells(["anytime"], scale)
    assert found == cells(["table-anytime"], scale)
    methods = {recipe: {cell.arm for cell in found if cell.recipe == recipe} for recipe in ANYTIME_RECIPES}
    assert methods == {recipe: {*COMPARED, *FURTHER.get(recipe, ())} for recipe in ANYTIME_RECIPES}
    table = {cell.name for cell in cells(["table-3", "table-4", "table-5"], scale)}
    assert {cell.name for cell in found if cell.arm in COMPARED} <= table
    for recipe in ANYTIME_RECIPES:  # what differs is the method, its seed and the settings of its own
        places = {(cell.data, cell.depth, cell.gamma, cell.regime) for cell in found if cell.recipe == recipe}
        assert len(places) == 1
        of = [cell for cell in found if cell.recipe == recipe]
        seeds = {arm: {cell.seed for cell in of if cell.arm == arm} for arm in methods[recipe]}
        assert set(map(frozenset, seeds.values())) == {frozenset(SCALES[scale].seeds_of(of[0].task))}


def test_the_papers_scale_holds_every_cell_of_its_tables():
    seeds = settings_of(ALL["paper"])
    printed = {"ViT": 12, "DistilBERT": 6, "RoBERTa": 24}  # DistilBERT has 6 blocks; the paper prints 12
    for task, rows in (("video", table_3()), ("text", table_4())):
        for row in rows:
            depth = printed.get(row.model, row.depth)
            for arm in ("paper", "constrained", "linear", "erm" if row.gamma else "erm-clean"):
                known = seeds[task, row.model, row.data, depth, row.gamma, "paper", arm, ""]
                assert known == set(SCALES["paper"].seeds_of(task)), row


@pytest.mark.parametrize("scale", SCALES)
def test_settings_are_those_that_the_command_line_takes(scale, without_data):
    """Through the real parser; of cells that differ in numbers alone one each."""
    seen = set()
    for cell in ALL[scale]:
        kind = (cell.recipe, json.dumps({**cell.settings, "seed": 0, "noise": 0}))
        if kind in seen:
            continue
        seen.add(kind)
        _, recipe, args, _ = read_recipe([cell.recipe, *flags(cell.settings), "--out", "run"])
        assert (recipe.depth, recipe.noise, args.seed) == (cell.depth, cell.settings["noise"], cell.seed)
        assert args.method == ARMS[cell.arm]["method"]
        args.problem(recipe.depth)
    for cell in ALL[scale]:
        assert len(cell.judge["noise"]) >= 3 and levels(flags(cell.judge)[1]) == cell.judge["noise"]


def test_a_variant_changes_one_thing():
    for cell in cells(["figure-5"], "small"):
        if cell.variant:
            assert cell.arm == "paper" and cell.settings["alpha"] == float(cell.variant.removeprefix("alpha="))


def test_names_are_told_and_nearly_named_ones_offered():
    assert names(["table-3", "figure-2", "figure-2"]) == ["figure-2", "table-3"]
    assert names(["all"]) == list(WANTED)
    with pytest.raises(InputError, match=r"did you mean figure-2\?"):
        names(["figure_2"])


def test_every_recipe_has_its_settings():
    for scale, grid in SCALES.items():
        rows = settings()[scale]["recipes"]
        assert rows.keys() == {recipe for recipes in RECIPES.values() for recipe in recipes}
        assert all(row.keys() <= {"every", "ours", "preset", "paper"} and "every" in row for row in rows.values())
        for task, recipes in RECIPES.items():
            assert grid.depths.keys() >= set(recipes) and grid.gammas[task].keys() <= settings()[scale]["data"].keys()


def test_costs_are_told_before_anything_runs_and_learned_from_what_ran():
    costs = Costs("small")
    known = {cell.name: costs.of(cell) for cell in ALL["small"]}
    assert all(seconds and seconds > 1 for seconds in known.values())
    first = ALL["small"][0]
    others = [cell for cell in ALL["small"] if cell.recipe != first.recipe]
    costs.learn(first, 3 * known[first.name])  # a slow machine
    assert costs.of(first) == pytest.approx(3 * known[first.name])
    assert costs.of(others[0]) == pytest.approx(3 * known[others[0].name])
    assert Costs("paper").of(ALL["paper"][0]) is None
