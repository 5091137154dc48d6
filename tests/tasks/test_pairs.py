"""Triplets and scored pairs as they lie on disk, what is made of them, and bad ones."""

import csv
import json

import pytest
from datasets import ClassLabel, Dataset, Features, Value

from descend.errors import InputError
from descend.tasks.text.pairs import (
    FIRST,
    LABEL,
    MNLI_LABELS,
    NEGATIVE,
    SCORE,
    SECOND,
    generated_pairs,
    hard_negatives,
    kind_of_pairs,
    read_pairs,
    split_validation,
)
from tests.support.cases import slow_but


def write(file, rows):
    """Rows as a file of one of the kinds, with the columns of the first one."""
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.suffix == ".parquet":
        Dataset.from_list(rows).to_parquet(file)
        return file
    with file.open("w", newline="") as opened:
        if file.suffix == ".jsonl":
            opened.writelines(json.dumps(row) + "\n" for row in rows)
        else:
            table = csv.DictWriter(opened, [*rows[0]], delimiter="\t" if file.suffix == ".tsv" else ",")
            table.writeheader()
            table.writerows(rows)
    return file


def pairs(count, **more):
    """Pairs without a common text."""
    return [{"anchor": f"one {row}", "positive": f"other {row}"} | more for row in range(count)]


def scored(count, most=5):
    return [row | {"score": place % (most + 1)} for place, row in enumerate(pairs(count))]


def mnli(count):
    """Of each premise a pair with each label."""
    return [
        {"premise": f"premise {row}", "hypothesis": f"{label} of {row}", "gold_label": label}
        for row in range(count)
        for label in ("entailment", "neutral", "contradiction")
    ]


def test_whether_questions_are_duplicates_may_be_a_truth(tmp_path):
    for name, yes, no in (("numbers", 1, 0), ("words", "True", "False"), ("truths", True, False)):
        rows = [row | {"is_duplicate": no if place % 3 else yes} for place, row in enumerate(pairs(20))]
        found = read_pairs(write(tmp_path / f"{name}.jsonl", rows))
        assert (found.kind, found.notes) == ("scored", ())
        assert {row["label"] for side in found.sides.values() for row in side} == {0.0, 1.0}


def texts_of(found):
    return {tuple(row["texts"]) for side in found.sides.values() for row in side}


@pytest.mark.parametrize("suffix", slow_but([".csv", ".parquet"], [".tsv", ".csv", ".jsonl", ".parquet"]))
@pytest.mark.parametrize(("kind", "last"), [("triplets", NEGATIVE), ("scored", SCORE), ("scored", LABEL)])
def test_every_name_of_a_column_is_read(tmp_path, suffix, kind, last):
    longest = max(map(len, (FIRST, SECOND, last)))
    for number in range(longest):
        names = [known[number % len(known)] for known in (FIRST, SECOND, last)]
        values = [f"far {row}" if kind == "triplets" else row / 20 for row in range(20)]
        rows = [
            dict(zip([names[0], names[1].upper(), names[2]], (f"one {row}", f"other {row}", value), strict=True))
            for row, value in enumerate(values)
        ]
        file = write(tmp_path / f"{number}{suffix}", rows)
        found = read_pairs(file)
        assert (kind_of_pairs(file), found.kind, found.notes) == (kind, kind, ())
        assert texts_of(found) == {tuple(map(str, row.values()))[: 3 if kind == "triplets" else 2] for row in rows}
        labels = {row["texts"][0]: row["label"] for side in found.sides.values() for row in side}
        assert labels == {f"one {row}": 1.0 if kind == "triplets" else value for row, value in enumerate(values)}


def test_columns_that_are_not_read_are_named(tmp_path):
    rows = [{"anchor": f"one {row}", "positive": f"two {row}", "negative_1": f"far {row}"} for row in range(20)]
    more = {"id": 3, "negative_2": "further", "label": 1, "a": "", "b": "", "c": "", "d": ""}
    assert read_pairs(write(tmp_path / "a.csv", [row | more for row in rows])).notes == (
        "Columns that are not read: negative_2, label, a, b, c and 1 more; rows: 20.",
    )
    rows = [
        {"sentence1": row["anchor"], "sentence2": row["positive"], "score": place} for place, row in enumerate(rows)
    ]
    found = read_pairs(write(tmp_path / "b.csv", [row | {"split": "x"} for row in rows]))
    assert found.notes[0] == "A column that is not read: split; rows: 20."


def test_scores_are_scaled_by_those_of_the_training_side_and_told(tmp_path):
    write(tmp_path / "train.tsv", scored(12))
    write(tmp_path / "test.tsv", scored(4))
    found = read_pairs(tmp_path)
    assert found.sides["train"]["label"][:6] == [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    assert found.sides["test"]["label"][:] == [0.0, 0.2, 0.4, 0.6]
    assert found.notes == ("Scores from 0 to 5 are scaled to 0 … 1 for the loss. Spearman's ρ does not change.",)


def test_labels_of_mnli_become_triplets_or_scores(tmp_path):
    rows = [*mnli(12), mnli(1)[0] | {"gold_label": "-"}]
    file = write(tmp_path / "mnli.tsv", rows)
    found = read_pairs(file)
    expected = {(f"premise {row}", f"entailment of {row}", f"contradiction of {row}") for row in range(12)}
    assert (found.kind, texts_of(found)) == ("triplets", expected)
    assert found.notes == (
        "Rows that have a label on which the annotators did not agree are left out: 1.",
        "12 triplets are made of the pairs labelled entailment; the other 24 pairs give texts for negatives alone.",
        "12 negatives contradict the same first text.",
    )
    found = read_pairs(file, "scored")
    labels = {row["texts"][1].split()[0]: row["label"] for row in found.sides["train"]}
    assert labels == {"entailment": 1.0, "neutral": 0.5, "contradiction": 0.0}


def test_a_file_alone_is_split_with_linked_texts_on_one_side(tmp_path):
    chains = [{"anchor": f"{row} a", "positive": f"{row} b"} for row in range(30)]
    chains += [{"anchor": f"{row} b", "positive": f"{row} c"} for row in range(30)]
    file = write(tmp_path / "pairs.csv", [row | {"score": place} for place, row in enumerate(chains)])
    found = read_pairs(file)
    sides = split_validation(found, 0.25)
    seen = {side: {text for row in rows for text in row["texts"]} for side, rows in sides.items()}
    assert set(sides) == {"train", "validation", "test"} and sum(map(len, seen.values())) == 90
    assert [len(sides[side]) for side in ("train", "validation", "test")] == [36, 12, 12]
    for rows in sides.values():
        assert len(set(rows["group"])) == len(rows) / 2
    assert texts_of(read_pairs(file)) == texts_of(found) and read_pairs(file).sides["test"][:] == found.sides["test"][:]


def test_given_sides_stay_and_what_they_share_is_told(tmp_path, caplog):
    write(tmp_path / "train.tsv", pairs(9))
    write(tmp_path / "dev.tsv", pairs(3))
    write(tmp_path / "test.tsv", [{"anchor": f"new {row}", "positive": f"text {row}"} for row in range(4)])
    found = read_pairs(tmp_path)
    assert {side: len(rows) for side, rows in found.sides.items()} == {"train": 9, "validation": 3, "test": 4}
    assert split_validation(found, 0.5) == found.sides
    (record,) = caplog.records
    assert "6 texts to train on are also among those to test or validate on." in record.getMessage()


def test_a_side_without_negatives_takes_them_from_training_rows_that_have_some(tmp_path):
    write(tmp_path / "train.tsv", [{**row, "negative": f"far {place}"} for place, row in enumerate(pairs(4))])
    write(tmp_path / "test.tsv", [{"anchor": f"new {row}", "positive": f"text {row}"} for row in range(3)])
    found = read_pairs(tmp_path)
    seconds = {texts[1] for texts in found.sides["train"]["texts"]}
    assert {texts[2] for texts in found.sides["test"]["texts"]} <= seconds


def test_a_negative_shares_most_words_and_is_no_text_that_is_refused():
    candidates = ["a red dog runs", "the dog", "a cat sleeps", "red dog"]
    anchors = ["A red dog", "the cat sleeps", "?!"]
    assert hard_negatives(anchors, {}, candidates) == ["a red dog runs", "a cat sleeps", candidates[0]]
    refused = {"A red dog": {"a red dog runs"}, "the cat sleeps": {"a cat sleeps"}, "?!": {candidates[0], "elsewhere"}}
    assert hard_negatives(anchors, refused, candidates) == ["red dog", "the dog", "the dog"]
    assert hard_negatives(["the dog", "the dog"], {}, candidates) == ["red dog"] * 2, "nor the anchor itself"
    with pytest.raises(InputError, match="a pair has no negative"):
        hard_negatives(["x"], {"x": {*candidates}}, candidates)


def test_made_negatives_are_never_partners_of_their_anchor_on_any_side(tmp_path):
    """Neither in the other order, nor on the other side, though they share all words with it."""
    train = [
        {"anchor": "red dog", "positive": "a red dog"},
        {"anchor": "the red dog", "positive": "red dog"},
        {"anchor": "blue", "positive": "a blue dog"},
        {"anchor": "green", "positive": "red dog eats"},
    ]
    write(tmp_path / "train.jsonl", train)
    write(tmp_path / "test.jsonl", [{"anchor": "red dog", "positive": "red dog eats"}, train[2]])
    found = read_pairs(tmp_path)
    negatives = {side: [row["texts"][2] for row in rows] for side, rows in found.sides.items()}
    assert negatives["train"][0] == negatives["test"][0] == "a blue dog"
    partners = {frozenset((row["texts"][0], row["texts"][1])) for rows in found.sides.values() for row in rows}
    for row in (row for rows in found.sides.values() for row in rows):
        assert len({*row["texts"]}) == 3 and frozenset((row["texts"][0], row["texts"][2])) not in partners
    assert found.notes[0].startswith("6 pairs have no negative in the data: theirs is the second text of another")


def test_rows_with_twice_the_same_text_are_left_out_and_counted_once(tmp_path):
    same = [{"anchor": "same", "positive": " same "}, {"anchor": "same <br />", "positive": "same"}]
    found = read_pairs(write(tmp_path / "pairs.csv", [*same, *pairs(20)]))
    assert found.notes[0] == "Rows that have twice the same text are left out: 2." and len(found.notes) == 2
    assert sum(map(len, found.sides.values())) == 20
    kept = read_pairs(tmp_path / "pairs.csv", keep_markup=True)
    assert kept.notes[0] == "Rows that have twice the same text are left out: 1."


def test_two_or_three_columns_of_other_names_are_taken_in_their_order(tmp_path):
    rows = [{"id": row, "left": f"one {row}", "right": f"other {row}", "far": f"far {row}"} for row in range(20)]
    found = read_pairs(write(tmp_path / "three.parquet", rows))
    told = "No column has a known name: left is the first text, right is the second, far is the negative; rows: 20."
    assert found.notes == (told,)
    assert texts_of(found) == {(row["left"], row["right"], row["far"]) for row in rows}
    rows = [{"q": f"one {row}", "labels": row % 3 / 2, "doc": f"other {row}"} for row in range(20)]
    turned = [dict(reversed(row.items())) for row in rows[1:]]  # the first row says the order
    found = read_pairs(write(tmp_path / "two.jsonl", [rows[0], *turned]))
    assert found.kind == "scored" and texts_of(found) == {(row["q"], row["doc"]) for row in rows}


def test_classes_in_parquet_have_their_names(tmp_path):
    features = Features(premise=Value("string"), hypothesis=Value("string"), label=ClassLabel(names=MNLI_LABELS))
    numbers = [row | {"label": MNLI_LABELS.index(row.pop("gold_label"))} for row in mnli(20)]
    data = Dataset.from_list([*numbers, numbers[0] | {"label": -1}], features)
    data.to_parquet(tmp_path / "pairs.parquet")
    found = read_pairs(tmp_path / "pairs.parquet")
    assert found.notes[0] == "Rows that have a label on which the annotators did not agree are left out: 1."
    assert texts_of(found) == {
        (f"premise {row}", f"entailment of {row}", f"contradiction of {row}") for row in range(20)
    }


def test_generated_rows_are_read_as_those_of_files():
    rows = [row | {"negative": f"far {place}"} for place, row in enumerate(pairs(4))]
    found = generated_pairs({"train": rows, "test": rows[:2]})
    assert found.kind == "triplets" and found.sides["train"]["texts"][0] == ["one 0", "other 0", "far 0"]


PAIR = {"anchor": "one", "positive": "other"}
BAD = {
    "empty partner": ([PAIR, PAIR | {"positive": " "}], "line 3: positive is empty. Expected a text in each row"),
    "no number": ([PAIR | {"score": "many"}], "line 2: a score must be a finite number, or a label .* got 'many'"),
    "not finite": ([PAIR | {"score": "nan"}], "line 2: a score must be a finite number"),
    "unknown label": ([PAIR | {"label": "yes"}], "one of entailment, neutral, contradiction; got 'yes'"),
    "equal scores": ([row | {"score": 3} for row in pairs(20)], "all scores of the train side .* are equal"),
    "linked": (
        [{"anchor": f"text {row}", "positive": f"text {row + 1}"} for row in range(30)],
        "30 pairs with 1 different groups of texts are too few to split a test side off",
    ),
    "few": (pairs(4), "4 pairs with 4 different groups of texts are too few"),
    "foreign": (
        [{"left": "a", "score": 1}],
        "must have a column named one of anchor, .*; it has left, score. Rename",
    ),
    "half foreign": ([{"anchor": "a", "right": "b"}], "must have a column named one of positive, answer"),
    "more than a pair beside a score": (
        [{"left": "a", "right": "b", "genre": "c", "score": 1}],
        "must have a column named one of anchor",
    ),
    "numbers of rows": ([{"a": "a", "b": "b", "row": 3}], "must have a column named one of anchor"),
    "same": ([{"anchor": "a", "positive": "a"}], "holds no pairs of different texts"),
    "no entailment": (
        [row | {"label": "neutral"} for row in pairs(20)],
        "has no pair labelled entailment, so no triplet",
    ),
    "numbers of classes": (
        [row | {"label": place % 3} for place, row in enumerate(pairs(20))],
        "has labels up to 2, which may be MNLI's classes, where 0 is the nearest. Write them as entailment",
    ),
    "mixed": (
        [PAIR | {"label": "neutral"}, PAIR | {"label": "3"}],
        "line 3 has another kind of label .*: 3.0. Give all",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_pairs_are_refused_with_what_to_do(tmp_path, case):
    rows, message = BAD[case]
    with pytest.raises(InputError, match=message):
        read_pairs(write(tmp_path / "data.csv", rows))


def test_files_that_do_not_fit_together_or_the_kind_are_refused(tmp_path):
    write(tmp_path / "test.tsv", scored(4))
    with pytest.raises(InputError, match="must hold one train file"):
        read_pairs(tmp_path)
    file = write(tmp_path / "train.tsv", pairs(9))
    with pytest.raises(InputError, match="have different columns: one has scores, another has none"):
        read_pairs(tmp_path)
    with pytest.raises(InputError, match=r"must have a column named one of score, .*or leave --dataset out"):
        read_pairs(file, "scored")
    with pytest.raises(InputError, match="line 2 has a score, 0; expected triplets, as --dataset or the first"):
        read_pairs(tmp_path / "test.tsv", "triplets")
    with pytest.raises(
        InputError, match=r"must be a file .csv, .tsv, .jsonl, .json, .parquet with two texts in a row, or a fold"
    ):
        read_pairs(tmp_path / "train.txt")
    (tmp_path / "cut.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(InputError, match=r"cut.parquet can't be read as Parquet: .* Was its download cut off\?"):
        read_pairs(tmp_path / "cut.parquet")
    lists = write(tmp_path / "lists.jsonl", [{"anchor": ["a"], "positive": "b"}])
    with pytest.raises(InputError, match=r"line 1: anchor must be text; got \['a'\]"):
        read_pairs(lists)


def test_a_validation_side_of_equal_scores_is_refused(tmp_path):
    write(tmp_path / "train.tsv", [row | {"score": int(place == 0)} for place, row in enumerate(pairs(20))])
    write(tmp_path / "test.tsv", scored(4, 1))
    with pytest.raises(InputError, match=r"all scores of the (validation|train) side are equal, so they rank no pairs"):
        split_validation(read_pairs(tmp_path), 0.2)
