"""The paper's own numbers, as they are carried in the package."""

from reproduction.published import table_3, table_4, wins


def test_the_papers_win_counts_are_those_it_states():
    assert (wins(table_3()), len(table_3())) == (74, 105)
    assert (wins(table_4()), len(table_4())) == (57, 72)
    assert sum(row.constrained == row.unconstrained for row in table_4()) == 3, "a tie is no win"


def test_tables_hold_the_whole_grid():
    video = {(row.model, row.depth, row.data, row.gamma) for row in table_3()}
    assert len(video) == 105
    assert {depth for model, depth, _, _ in video if model in ("UT", "DUST")} == {3, 5, 7}
    assert {gamma for *_, gamma in video} == {0, 0.09, 0.11, 0.13, 0.15}
    text = {(row.model, row.depth, row.data, row.gamma) for row in table_4()}
    assert len(text) == 72
    assert {depth for model, depth, _, _ in text if model == "UT"} == {3, 5, 7, 9}
    assert {data for _, _, data, _ in text} == {"imdb", "mnli"}


def test_the_paper_diverged_in_four_constrained_and_two_plain_cells():
    assert sum(row.constrained > 60 for row in table_3()) == 4
    assert sum(row.unconstrained > 60 for row in table_3()) == 2
