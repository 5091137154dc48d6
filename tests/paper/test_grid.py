"""Which runs a study is made of: the paper's grid at each scale, by rules that are stated beforehand."""

import json
from collections import defaultdict

import pytest

from descend import InputError
from descend.cli.parsing import levels
from descend.cli.settings import read_recipe
from descend.paper.costs import Costs
from descend.paper.grid import ANYTIME, ANYTIME_RECIPES, BASELINES, RECIPES, WANTED, cells, named, names, settings
from descend.paper.published import table_3, table_4
from descend.paper.scales import SCALES
from descend.recipes.options import options as flags
from descend.run import stored

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
    assert len({(cell.recipe, json.dumps(cell.settings)) for cell in ALL[scale]}) == len(ALL[scale])
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

    first = [cell for cell in ALL[scale] if not cell.seed and cell.arm == "constrained"]
    table = {cell.recipe: [] for cell in first}
    for cell in first:
        if not cell.variant and any(other.variant and other.recipe == cell.recipe for other in first):
            table[cell.recipe].append(given(cell))
    variants = [cell for cell in first if cell.variant]
    assert variants
    for cell in variants:
        assert given(cell) not in table[cell.recipe], cell.name


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
def test_every_figure_has_cells_of_both_methods(scale):
    for name in WANTED:
        arms = {cell.arm for cell in cells([name], scale)}
        assert {"constrained"} < arms and arms & {"erm", "erm-clean"}, name


def test_small_holds_every_data_set_model_and_depth_of_the_papers_tables_with_three_seeds():
    seeds = settings_of(ALL["small"])
    assert all(found == {0, 1, 2} for found in seeds.values())
    kept = {(model, data) for _, model, data, *_ in seeds}
    for row in (*table_3(), *table_4()):
        assert (row.model, row.data) in kept
        if row.model in ("UT", "DUST"):  # the pretrained ones are smaller here
            for arm in ("erm", "constrained"):
                assert any(
                    (cell.model, cell.data, cell.depth, cell.arm, cell.variant)
                    == (row.model, row.data, row.depth, arm, "")
                    for cell in ALL["small"]
                ), row


def test_small_has_the_papers_noise_and_baselines_at_a_middle_depth():
    seeds = settings_of(ALL["small"])
    paper = {place for place in seeds if place[0] == "video" and place[5] == "paper"}
    assert {(model, data, depth) for _, model, data, depth, *_ in paper} == {
        ("UT", "ucsd", 5),
        ("DUST", "ucsd", 5),
        ("ViT", "ucsd", 4),
    }
    for task, arms in BASELINES.items():
        for data in SCALES["small"].baselines[task]:
            assert set(arms) <= {place[6] for place in seeds if place[:4] == (task, "UT", data, 5)}


@pytest.mark.parametrize("scale", SCALES)
def test_the_anytime_figure_has_every_method_at_the_tables_own_setting(scale):
    found = cells(["anytime"], scale)
    assert found == cells(["table-anytime"], scale)
    methods = {recipe: {cell.arm for cell in found if cell.recipe == recipe} for recipe in ANYTIME_RECIPES}
    everything = {"erm", "constrained", "uniform", "linear", "layerskip"}
    assert methods.pop("video-vit") == everything
    assert all(arms == everything | {"neftune"} for arms in methods.values())
    table = {cell.name for cell in cells(["table-3", "table-4", "table-5"], scale)}
    assert {cell.name for cell in found if cell.arm in ("erm", "constrained")} <= table
    for recipe in ANYTIME_RECIPES:  # what differs is the method, its seed and the settings of its own
        places = {(cell.data, cell.depth, cell.gamma, cell.regime) for cell in found if cell.recipe == recipe}
        assert len(places) == 1
        seeds = {arm: {cell.seed for cell in found if (cell.recipe, cell.arm) == (recipe, arm)} for arm in everything}
        assert set(map(frozenset, seeds.values())) == {frozenset(SCALES[scale].seeds)}


def test_the_papers_scale_holds_every_cell_of_its_tables():
    seeds = settings_of(ALL["paper"])
    printed = {"ViT": 12, "DistilBERT": 6, "RoBERTa": 24}  # DistilBERT has 6 blocks; the paper prints 12
    for task, rows in (("video", table_3()), ("text", table_4())):
        for row in rows:
            depth = printed.get(row.model, row.depth)
            for arm in ("constrained", "erm" if row.gamma else "erm-clean"):
                assert seeds[task, row.model, row.data, depth, row.gamma, "paper", arm, ""] == {0, 1, 2}, row


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
        assert (recipe.depth, recipe.noise, args.seed) == (cell.depth, cell.gamma, cell.seed)
        assert args.method == ("erm" if cell.arm == "erm-clean" else cell.arm)
        args.problem(recipe.depth)
    for cell in ALL[scale]:
        assert len(cell.judge["noise"]) >= 3 and levels(flags(cell.judge)[1]) == cell.judge["noise"]


def test_a_variant_changes_one_thing():
    for cell in cells(["figure-5"], "small"):
        if cell.variant:
            assert cell.arm == "constrained" and cell.settings["alpha"] == float(cell.variant.removeprefix("alpha="))


def test_names_are_told_and_nearly_named_ones_offered():
    assert names(["table-3", "figure-2", "figure-2"]) == ["figure-2", "table-3"]
    assert len(names(["all"])) == 26 == len(WANTED)
    with pytest.raises(InputError, match=r"did you mean figure-2\?"):
        names(["figure_2"])


def test_every_recipe_has_its_settings():
    for scale, grid in SCALES.items():
        for task, recipes in RECIPES.items():
            for recipe in recipes:
                rows = settings()[scale]["recipes"][recipe]
                regimes = {regime for data in grid.gammas[task].values() for regime in data}
                assert rows.keys() - {"every", "data"} == regimes
                assert rows.get("data", {}).keys() <= grid.gammas[task].keys()
                arms = {"both", "erm", "constrained", *BASELINES.get(task, ()), *ANYTIME[task]}
                depths = {str(depth) for depth in grid.depths[recipe]}
                for regime in regimes:
                    row = rows[regime]
                    sets = row.keys() & {data for data, of in grid.gammas[task].items() if regime in of}
                    assert row.keys() <= arms | depths | sets
                    assert all(row[data].keys() <= arms | depths for data in sets)
                    for each in (row, *(row[data] for data in sets)):
                        own = each.keys() & depths
                        assert own in (set(), depths)  # what has some depths by themselves has all
                        assert all(each[depth].keys() <= arms for depth in own)


def test_a_data_set_and_a_depth_have_their_own_settings(monkeypatch):
    rows = {
        "every": {"a": 1},
        "strong": {
            "both": {"b": 2},
            "3": {"erm": {"c": 3}},
            "avenue": {"both": {"d": 4}, "5": {"both": {"e": 5}, "constrained": {"f": 6}}},
        },
        "paper": {},
        "data": {"shanghaitech": {"g": 7}},
    }
    monkeypatch.setitem(settings()["small"]["recipes"], "video-ut", rows)
    found = [cell for cell in cells(["table-3"], "small") if (cell.recipe, cell.regime) == ("video-ut", "strong")]
    assert {(cell.data, cell.depth) for cell in found} == {
        (data, depth) for data in ("ucsd", "avenue", "shanghaitech") for depth in (3, 5, 7)
    }
    for cell in found:
        if cell.data == "avenue":
            expected = {"e": 5} if cell.depth == 5 else {"d": 4}
            expected |= {"f": 6} if (cell.depth, cell.arm) == (5, "constrained") else {}
        else:
            expected = {"c": 3} if cell.depth == 3 else {"b": 2}  # ERM's if an arm has none
        expected |= {"g": 7} if cell.data == "shanghaitech" else {}
        assert {name: value for name, value in cell.settings.items() if len(name) == 1} == {"a": 1, **expected}


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
