"""IMDb, MNLI and folders of one's own classes as they lie on disk, real files where they are, and bad ones."""

import csv
import json
import os
import re
import time
from functools import partial
from pathlib import Path

import pytest

from descend.errors import InputError
from descend.recipes.corpora import kind_of, read_parts
from descend.tasks.images.sources import read_images
from descend.tasks.text import read_imdb, read_instructions, read_labelled, read_mnli
from tests.support.cases import slow
from tests.support.sources import grow, imdb, mnli


@pytest.mark.parametrize("inside", ["", "aclImdb"])
def test_imdb_is_read_with_its_labels_and_without_its_breaks(tmp_path, inside):
    folder = imdb(tmp_path / inside) / "train"
    sides = read_imdb(tmp_path)
    assert sides["train"].to_list() == [
        {"text": "bad   film", "label": 0, "source": str(folder / "neg" / "0_1.txt")},
        {"text": "good film", "label": 1, "source": str(folder / "pos" / "0_1.txt")},
    ]
    assert sides["test"].num_rows == 2


@pytest.mark.parametrize("form", ["glue", "four", "jsonl", "list"])
def test_mnli_is_read_in_every_form_less_what_no_one_agreed_on(tmp_path, form):
    """With what editors leave in a file, and beside an archive's original."""
    for file in mnli(tmp_path, form).iterdir():
        file.write_text("\ufeff" + file.read_text() + "\n\n", encoding="utf-8")
    (tmp_path / "original").mkdir()
    (tmp_path / "original" / "multinli_1.0_train.jsonl").write_text("{}")
    sides = read_mnli(tmp_path)
    expected = [
        {"text": "it is a dog .", "pair": 'an animal, "so', "label": 0},
        {"text": "it runs", "pair": "it's red", "label": 1},
    ]
    for rows in (sides["train"], sides["test"]):
        assert rows.remove_columns("source").to_list() == expected
        lines = [int(row.rsplit(" ", 1)[1]) for row in rows["source"]]
        assert lines == sorted(lines) and len(set(lines)) == 2


@pytest.mark.parametrize(
    ("read", "places", "sizes"),
    [
        (read_imdb, ["imdb"], {"train": 4000, "test": 2000}),
        slow((read_mnli, ["mnli/glue_format", "mnli/jsonl", "mnli/nyu_tsv"], {"train": 8000, "test": 2000})),
        (
            lambda file: {"train": read_instructions(file).rows},
            ["alpaca/alpaca_data.json", "alpaca/alpaca.jsonl"],
            {"train": 5997},  # three have an empty output
        ),
    ],
)
def test_real_texts_are_the_same_in_all_their_forms(real_data, read, places, sizes):
    forms = [read(real_data / place) for place in places]
    assert [{side: rows.num_rows for side, rows in form.items()} for form in forms] == [sizes] * len(forms)
    for side in sizes:
        first, *others = ([row | {"source": None} for row in form[side]] for form in forms)
        assert all(other == first for other in others)
        assert not any("<br />" in row.get("text", "") for row in first)


def test_line_breaks_of_html_are_read_alike_in_every_form(tmp_path):
    broken = "bad <br /><br />film"
    table = put(tmp_path, "t.csv", f"text,label\n{broken},a\nfine,b\ngood,a\nwell,b\n")
    for keep, text in ((False, "bad   film"), (True, broken)):
        forms = read_imdb(imdb(tmp_path / f"imdb {keep}"), keep), read_labelled(table, keep)
        forms += (read_mnli(mnli(tmp_path / f"mnli {keep}", rows=[(broken, broken, "neutral")]), keep),)
        texts = [
            {row[name] for side in form.values() for row in side for name in row.keys() & {"text", "pair"}}
            for form in forms
        ]
        assert [text in each for each in texts] == [True] * 3 and texts[2] == {text}


LITTER = b"\x00\x05\x16\x07\x00\x02\x00\x00Mac OS X        \x00\x02\xb0\xff"  # what macOS leaves beside a file


OWN = " ".join(f"train/{name}/{{0,1,2}}.txt" for name in ("neg", "neutral", "pos"))
"""Texts of the user's classes, and without the neutral ones those of IMDb's names."""

FOLDERS = {"imdb": (read_imdb, imdb), "mnli": (read_mnli, mnli), "labelled": (read_labelled, partial(grow, tree=OWN))}


@pytest.mark.parametrize("kind", FOLDERS)
def test_a_folder_is_told_its_kind_and_hidden_files_of_archives_are_no_data(tmp_path, kind):
    read, make = FOLDERS[kind]
    folder = make(tmp_path / "data")
    before = read(folder)
    for file in [file for file in folder.rglob("*") if file.is_file()]:
        file.with_name(f"._{file.name}").write_bytes(LITTER)
        inside = folder / "__MACOSX" / file.relative_to(folder)
        inside.parent.mkdir(parents=True, exist_ok=True)
        inside.write_bytes(LITTER)
    (folder / "Thumbs.db").write_bytes(LITTER)
    (folder / "desktop.ini").write_bytes(LITTER)
    for side, rows in read(folder).items():
        assert rows.to_list() == before[side].to_list()
    assert kind_of(folder) == kind


TABLES = {
    "texts.csv": 'text,label,more\n"one, ""two""\nthree",joy,1\nfour,calm,2\nfive,joy,3\n',
    "texts.tsv": 'text\tlabel\n"one\tjoy\nfour\tcalm\nfive\tjoy\n',
    "texts.jsonl": '{"text": "one", "label": 10}\n{"text": "four", "label": 2}\n{"text": "five", "label": 10}\n',
}


@pytest.mark.parametrize("name", TABLES)
def test_texts_of_ones_own_classes_are_read_from_a_table(name, tmp_path):
    (tmp_path / name).write_text(TABLES[name])
    assert kind_of(tmp_path / name) == "labelled"
    sides = read_labelled(tmp_path / name)
    names = sides["train"].features["label"].names
    assert names == (["2", "10"] if name == "texts.jsonl" else ["calm", "joy"])
    rows = sorted(row["text"] for side in sides.values() for row in side)
    assert rows == sorted(["four", "five", {"texts.csv": 'one, "two"\nthree', "texts.tsv": '"one'}.get(name, "one")])
    by_text = {row["text"]: names[row["label"]] for side in sides.values() for row in side}
    assert by_text["four"] != by_text["five"] and len(sides["test"]) == 1
    assert read_labelled(tmp_path / name)["test"].to_list() == sides["test"].to_list()


SAID = ['he said "one"\tand\nmore', '"all of it"', "plain", '"open']


@pytest.mark.parametrize("quoting", [csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
def test_a_tsv_is_read_as_it_was_written(tmp_path, quoting):
    """By Python's csv, as pandas writes, and by hand, as GLUE is."""
    with (tmp_path / "csv.tsv").open("w", newline="") as file:
        rows = csv.writer(file, delimiter="\t", quoting=quoting)
        rows.writerows(
            [("text", "label"), *((f"{text} {number}", "ab"[number % 2]) for text in SAID for number in (0, 1))]
        )
    by_hand = ['"open', '"all of it"', 'he said "one"', '"x" or "y"', '"a ""b"""', "it's 3\""]
    lines = ["text\tlabel", *(f"{text}\t{label}" for text in by_hand for label in "ab")]
    (tmp_path / "hand.tsv").write_text("\n".join(lines) + "\n")
    for name, texts in (("csv", [f"{text} {number}" for text in SAID for number in (0, 1)]), ("hand", by_hand)):
        found = {row["text"] for side in read_labelled(tmp_path / f"{name}.tsv").values() for row in side}
        assert found == set(texts)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "text,label,text\na,b,c\n", "two columns named 'text'"),
        ("a.tsv", "text\tlabel\tlabel\na\tb\tc\n", "two columns named 'label'"),
        ("a.jsonl", '{"text": "a", "label": "b", "text": "c"}\n', "line 1: two entries are named 'text'"),
        ("a.json", '[{"text": "a", "label": "b", "label": "c"}]', "two entries are named 'label'"),
        ("a.csv", 'text,label\n"open,a\nb,c\n', "line 3, can't be read: unexpected end of data"),
        ("a.csv", 'text,label\n"with \\" in it",a\n', "line 2, can't be read: ',' expected after"),
        ("a.parquet", "PAR1", "can't be read as Parquet: "),
        ("a.jsonl.gz", "", "Unpack or convert other files"),
    ],
)
def test_a_table_that_could_be_read_in_two_ways_is_refused(tmp_path, name, text, message):
    with pytest.raises(InputError, match=re.escape(message)) as caught:
        read_labelled(put(tmp_path, name, text))
    assert "\n" not in str(caught.value)


FORMS = ("café", "cafe\u0301")


def test_labels_in_two_unicode_forms_are_one_class(tmp_path):
    rows = [f"text {number},{'bar' if number % 3 else FORMS[number % 2]}\n" for number in range(30)]
    sides = read_labelled(put(tmp_path, "t.csv", "text,label\n" + "".join(rows)))
    assert sides["train"].features["label"].names == ["bar", "café"]


@pytest.mark.parametrize("rare", [1, 2, 3, 4])
def test_a_rare_class_is_always_learned(rare, tmp_path):
    rows = [f"common {number},a\n" for number in range(200)] + [f"rare {number % 3},b\n" for number in range(rare)]
    parts = read_parts("labelled", str(put(tmp_path, "t.csv", "text,label\n" + "".join(rows))), 0.2)
    assert all(1 in parts[side]["label"] for side in ("train", "test", "validation")[:rare])
    texts = [set(side["text"]) for side in parts.values()]
    assert sum(map(len, texts)) == len(set.union(*texts)) and abs(len(parts["test"]) - 40) < 3


TABLE = "Text,LABEL,lang\n" + "".join(f"text {row},{'ab'[row % 2]},en\n" for row in range(20))


def test_texts_to_test_on_alone_are_all_read(tmp_path, caplog):
    """A file alone is split to train on, and not to test on; columns that are not read are named."""
    table = put(tmp_path, "held.csv", TABLE)
    sides = read_labelled(table)
    assert (len(sides["train"]), len(sides["test"])) == (16, 4)
    whole = read_labelled(table, to_test=True)
    assert [*whole] == ["test"] and whole["test"]["text"][:] == [f"text {row}" for row in range(20)]
    assert whole["test"].features["label"].names == ["a", "b"]
    assert {record.getMessage() for record in caplog.records} == {"held.csv: A column that is not read: lang."}
    one = put(tmp_path, "one.csv", "text,label\nc,b\n")
    assert read_labelled(one, to_test=True)["test"].to_list() == [{"text": "c", "label": 0, "source": f"{one}, line 2"}]
    (tmp_path / "folder").mkdir()
    put(tmp_path / "folder", "test.csv", TABLE)
    assert (
        kind_of(tmp_path / "folder") == "labelled"
        and len(read_labelled(tmp_path / "folder", to_test=True)["test"]) == 20
    )
    with pytest.raises(InputError, match="has a test file and no training file"):
        read_labelled(tmp_path / "folder")
    both = put(tmp_path, "both.csv", "Text,text,Label,label\nraw,one,4,a\nraw,two,5,b\n")
    assert read_labelled(both, to_test=True)["test"]["text"][:] == ["one", "two"]
    (tmp_path / "train").mkdir()
    put(tmp_path / "train", "train.csv", TABLE)
    assert len(read_labelled(tmp_path / "train", to_test=True)["test"]) == 4, "texts to train on are split"
    texts = grow(tmp_path / "texts", "a/1.txt a/2.txt b/1.txt b/2.txt b/3.txt b/4.txt b/5.txt")
    assert len(read_labelled(texts, to_test=True)["test"]) == 7 > len(read_labelled(texts)["test"])


def put(root, name, text):
    """Write a file, here or in place of another one; returns it."""
    (root / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return root / name


def broken(root, name, text):
    """MNLI's jsonl or IMDb with another content of one file; returns the folder."""
    return put(imdb(root) if name.endswith("txt") else mnli(root, "jsonl"), name, text).parents[name.count("/")]


TRAIN = "multinli_1.0_train.jsonl"


@pytest.mark.parametrize(
    ("read", "make", "message"),
    [
        (read_imdb, lambda root: "no/where", "as a name on the Hub it can't be loaded"),
        (read_imdb, lambda root: root, "there is no train/neg"),
        (
            read_imdb,
            lambda root: grow(root, OWN.replace("neutral", "neg")),
            "there is no test/neg. Texts of one's own classes are read by --dataset labelled.",
        ),
        (read_imdb, lambda root: imdb(root, (" \n", "good")), "neg/0_1.txt is empty"),
        (read_imdb, lambda root: broken(root, "train/neg/0_1.txt", b"\xff\xfe\xff"), "neg/0_1.txt is not UTF-8"),
        (read_mnli, lambda root: root, "one train file, .tsv or .jsonl"),
        (read_mnli, lambda root: mnli(mnli(root), "jsonl"), f"got {TRAIN}, train.tsv"),
        (read_mnli, lambda root: mnli(root) / "train.tsv", "must be a folder"),
        (
            read_mnli,
            lambda root: mnli(root, rows=[("a", "b", "maybe")]),
            "train.tsv, line 2: the label must be one of entailment, neutral, contradiction; got 'maybe'",
        ),
        (read_mnli, lambda root: mnli(root, rows=[("", "b", "neutral")]), "train.tsv, line 2: sentence1 is empty"),
        (
            read_mnli,
            lambda root: mnli(root, rows=[("a", "b\tc", "neutral")]),
            "train.tsv, line 2, must have the 4 columns of the header; got 5",
        ),
        (read_mnli, lambda root: mnli(root, rows=[("a", "b", "-")]), "train.tsv holds no labelled rows"),
        (
            read_mnli,
            lambda root: mnli(root, rows=[("a", "b" * 200_000, "neutral")]),
            "train.tsv, line 2, can't be read: field larger",
        ),
        (
            read_mnli,
            lambda root: broken(root, TRAIN, '{"sentence1": "a", "gold_label": "neutral"}\n'),
            "line 1 has no column sentence2 or hypothesis; it has sentence1, gold_label",
        ),
        (read_mnli, lambda root: broken(root, TRAIN, "{oops\n"), "line 1, must be one JSON object; got '{oops'"),
        (read_mnli, lambda root: broken(root, TRAIN, b"\xff\xfe"), f"{TRAIN} is not UTF-8 text. Convert it."),
        (
            read_labelled,
            lambda root: put(root, "t.csv", "text,class\na,b\n"),
            "line 2 has no column label; it has text, class. Rename the column.",
        ),
        (
            read_labelled,
            lambda root: put(root, "t.csv", "body,label\na,b\n"),
            "line 2 has no column text; it has body, label",
        ),
        (read_labelled, lambda root: put(root, "t.csv", "text,label\na,b\nc,\n"), "line 3: label is empty"),
        (
            read_labelled,
            lambda root: put(root, "t.tsv", "text\tlabel\na\tb\nc\tb\n"),
            "at least 2 classes; got b.",
        ),
        (read_labelled, lambda root: put(root, "t.csv", ""), "at least 2 classes; got none."),
        (
            read_labelled,
            lambda root: put(root, "t.jsonl", '{"text": 3, "label": "b"}\n'),
            "text must be text; got 3",
        ),
        (
            read_labelled,
            lambda root: put(root, "t.txt", "a"),
            "or a file .csv, .tsv, .jsonl, .json, .parquet with the columns text and label",
        ),
    ],
)
def test_data_that_cant_be_read_are_one_line(tmp_path, read, make, message):
    with pytest.raises(InputError, match=re.escape(message)) as caught:
        read(make(tmp_path))
    assert "\n" not in str(caught.value)


# --- a folder for each class, of images and of texts

BOTH = "train/cats/{0,1,2,3}. train/dogs/{0,1,2,3}. test/cats/{0,1}. test/dogs/0."
"""A tree of files; each . stands for the suffix of the kind of data."""

SUFFIX = {"image": ".png", "text": ".txt"}


def files(kind: str, root: Path) -> dict[str, list[str]]:
    """Side → its files, each with its class before it."""
    if kind == "image":
        found = read_images(str(root))
        rows = {
            side: [(str(file), found.classes[n]) for file, n in zip(*each[:2], strict=True)]
            for side, each in found.sides.items()
        }
    else:
        sides = read_labelled(root)
        names = sides["train"].features["label"].names
        rows = {side: [(row["source"], names[row["label"]]) for row in each] for side, each in sides.items()}
    return {
        side: [f"{name}:{os.path.relpath(file, root).split('.')[0]}" for file, name in each]
        for side, each in rows.items()
    }


@pytest.mark.parametrize("kind", ["image", "text"])
@pytest.mark.parametrize(
    ("tree", "found"),
    [
        (BOTH, "train 8 test 3"),
        (BOTH + " val/dogs/0.", "train 8 test 3 validation 1"),
        ("train/cats/{0,1}. train/dogs/0. validation/dogs/0.", "train 3 test 1"),
        (BOTH + " train/.hidden/0. train/@eaDir/cats/0. train/cats/._0. train/cats/__MACOSX/0.", "train 8 test 3"),
        (BOTH + " train/cats/more/0.", "train 9 test 3"),
    ],
)
def test_the_files_of_each_class_and_side_are_found(tmp_path, kind, tree, found):
    sides = files(kind, grow(tmp_path, tree, SUFFIX[kind]))
    assert " ".join(f"{side} {len(each)}" for side, each in sides.items()) == found
    assert all(each.startswith(each.split("/")[1] + ":") for side in sides.values() for each in side)


@pytest.mark.parametrize("kind", ["image", "text"])
def test_classes_that_are_numbers_keep_their_order(tmp_path, kind):
    found = files(kind, grow(tmp_path, " ".join(f"{number}/{{0,1,2,3,4,5}}." for number in range(12)), SUFFIX[kind]))
    assert list(dict.fromkeys(each.split(":")[0] for each in found["train"])) == [str(number) for number in range(12)]


@pytest.mark.parametrize("kind", ["image", "text"])
@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ("other.", r"at least 2 classes; it has no folder"),
        ("train/cats/0.", r"train must hold a folder of .* files for each of at least 2 classes; it has only cats"),
        ("test/cats/0. test/dogs/0.", r"has test and no train\. Put the files to train on in"),
        ("train/cats/0. val/cats/0. validation/cats/0.", r"both val and validation, .*remove or rename"),
        (BOTH + " test/cows/0.", r"test/cows is a class that .*train lacks; it has cats, dogs\. Rename or remove"),
        (BOTH + " val/cows/0.", r"val/cows is a class that .*train lacks"),
        ("train/cats/0. train/dogs/0. train/cows/.hidden.", r"train/cows holds no .*files\. Add some, or remove"),
        ("train/cats/0. train/dogs/0. test/cats/.hidden.", r"test/cats holds no .*files"),
    ],
)
def test_what_is_wrong_is_one_line(tmp_path, kind, tree, message):
    with pytest.raises(InputError, match=message) as refused:
        files(kind, grow(tmp_path, tree, SUFFIX[kind]))
    assert "\n" not in str(refused.value)


@pytest.mark.slow
def test_a_class_for_each_text_takes_no_quadratic_time_and_too_many_classes_are_refused(tmp_path):
    rows = [json.dumps({"text": f"text {number}", "label": f"class {number // 2}"}) for number in range(20_000)]
    (tmp_path / "many.jsonl").write_text("\n".join(rows))
    began = time.process_time()
    assert len(read_labelled(tmp_path / "many.jsonl")["train"].features["label"].names) == 10_000
    assert time.process_time() - began < 4  # looking each up in a list takes 9
    rows = [json.dumps({"text": f"text {number}", "label": str(number)}) for number in range(70_000)]
    (tmp_path / "more.jsonl").write_text("\n".join(rows))
    with pytest.raises(InputError, match="at most 65,536 classes; got 70,000"):
        read_labelled(tmp_path / "more.jsonl")
    (tmp_path / "more.jsonl").write_text("\n".join(rows[:20_000]))
    with pytest.raises(InputError, match="has one text for each class, so none to test on"):
        read_labelled(tmp_path / "more.jsonl")
