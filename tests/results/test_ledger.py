"""The ledger: what Descend wrote it may replace and remove; what somebody added or edited is never lost."""

import hashlib
import json
import os
import shutil

import pytest

from descend.errors import InputError, SaveError
from descend.results import (
    LEDGER_FILE,
    Records,
    atomic_folder,
    clear,
    forget_models,
    forget_results,
    is_checkpoint,
    is_foreign,
    is_ours,
    merged_folder,
    put,
    read_ledger,
    refuse_foreign,
    remove,
    strangers,
)
from descend.results import folder as ledger


def write(path, text):
    """A file of ours."""
    path.parent.mkdir(parents=True, exist_ok=True)
    put(path, lambda part: part.write_text(text))


def fill(folder, **texts):
    """A folder of ours, with files by their stems."""
    with atomic_folder(folder) as part:
        for name, text in texts.items():
            (part / f"{name}.txt").write_text(text)


def texts(folder):
    """The texts of all files in a folder but its ledgers, by their paths."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != LEDGER_FILE)
    return {str(path.relative_to(folder)): path.read_text() for path in files}


def test_the_ledger_has_the_size_and_the_hash_of_every_file(tmp_path):
    write(tmp_path / "summary.json", "one")
    fill(tmp_path / "model", weights="w", config="c")
    for folder, names in ((tmp_path, ["summary.json"]), (tmp_path / "model", ["config.txt", "weights.txt"])):
        content = json.loads((folder / LEDGER_FILE).read_text())
        assert content["schema"] == 1 and [*content["files"]] == names
        for name, entry in content["files"].items():
            data = (folder / name).read_bytes()
            assert entry == {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def test_a_file_of_ours_is_replaced_an_edited_one_renamed_and_one_of_somebody_else_refused(tmp_path, caplog):
    page = tmp_path / "report.html"
    for text in ("first", "second"):
        write(page, text)
    assert texts(tmp_path) == {"report.html": "second"} and not caplog.text
    for number in (1, 2):
        page.write_text(f"edited {number}")
        write(page, "third")
    assert texts(tmp_path) == {
        "report.html": "third",
        "report.edited-1.html": "edited 1",
        "report.edited-2.html": "edited 2",
    }
    assert "was edited. It is now report.edited-1.html" in caplog.text
    (tmp_path / "mine.html").write_text("mine")
    with pytest.raises(InputError, match=r"holds mine\.html, which Descend may replace and did not write"):
        write(tmp_path / "mine.html", "ours")
    (tmp_path / "link.html").symlink_to(page)
    with pytest.raises(InputError, match=r"link\.html"):
        write(tmp_path / "link.html", "ours")
    assert texts(tmp_path)["mine.html"] == "mine" and page.read_text() == "third"


def test_an_edit_of_the_same_size_and_time_is_seen(tmp_path):
    write(tmp_path / "a.txt", "ours")
    before = (tmp_path / "a.txt").stat()
    (tmp_path / "a.txt").write_text("mine")
    os.utime(tmp_path / "a.txt", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert not is_ours(tmp_path / "a.txt") and not is_foreign(tmp_path / "a.txt")


def test_a_kill_between_ledger_and_file_leaves_a_file_of_ours(tmp_path, monkeypatch):
    write(tmp_path / "a.txt", "first")
    rename = os.replace
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", lambda one, two: two.name == LEDGER_FILE and rename(one, two))
        write(tmp_path / "a.txt", "second")  # the ledger is there, the file is not
        write(tmp_path / "b.txt", "second")
    assert texts(tmp_path) == {"a.txt": "first"} and is_ours(tmp_path / "a.txt") and is_ours(tmp_path / "b.txt")
    for name in "ab":
        write(tmp_path / f"{name}.txt", "third")
    assert texts(tmp_path) == {"a.txt": "third", "b.txt": "third"}


@pytest.mark.parametrize("content", ["", "{", "[]", '{"files": []}', '{"files": {"a.txt": 1}}', '{"mine": 1}'])
def test_a_ledger_that_is_none_vouches_for_nothing_and_is_not_replaced(tmp_path, content):
    (tmp_path / "a.txt").write_text("mine")
    (tmp_path / LEDGER_FILE).write_text(content)
    assert is_foreign(tmp_path / "a.txt") and is_foreign(tmp_path)
    with pytest.raises(InputError, match="is no ledger of Descend"):
        write(tmp_path / "b.txt", "ours")
    assert (tmp_path / LEDGER_FILE).read_text() == content


@pytest.mark.parametrize(
    "entry",
    [{}, {"size": 4, "sha256": "0" * 64}, {"size": "4", "sha256": None}, {"size": 4}, {"size": -1, "appended": True}],
)
def test_an_entry_that_does_not_fit_makes_no_file_ours(tmp_path, entry):
    (tmp_path / "a.txt").write_text("mine")
    (tmp_path / LEDGER_FILE).write_text(json.dumps({"schema": 1, "files": {"a.txt": entry}}))
    assert strangers(tmp_path) == [tmp_path / "a.txt"]
    write(tmp_path / "a.txt", "ours")
    assert texts(tmp_path) == {"a.txt": "ours", "a.edited-1.txt": "mine"}


def test_a_folder_that_is_written_anew_keeps_what_somebody_added_and_edited(tmp_path, caplog):
    model = tmp_path / "model"
    fill(model, weights="one", card="one", old="one")
    (model / "notes").mkdir()
    (model / "notes" / "a.md").write_text("mine")
    (model / "card.txt").write_text("edited")
    fill(model, weights="two", card="two")
    assert texts(tmp_path) == {
        "model/weights.txt": "two",
        "model/card.txt": "two",
        "model/card.edited-1.txt": "edited",
        "model/notes/a.md": "mine",
    }
    assert "card.txt was edited. It is now card.edited-1.txt" in caplog.text
    assert strangers(model) == [model / "card.edited-1.txt", model / "notes" / "a.md"]
    assert not remove(model) and len(texts(model)) == 4
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_folder_without_a_ledger_is_renamed_as_a_whole(tmp_path, caplog):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "weights.txt").write_text("mine")
    with pytest.raises(InputError, match="holds model, which Descend may replace"):
        refuse_foreign([tmp_path / "model", tmp_path / "none"], "another folder")
    fill(tmp_path / "model", weights="ours")
    assert texts(tmp_path) == {"model/weights.txt": "ours", "kept-model/weights.txt": "mine"}
    assert not remove(tmp_path / "kept-model") and "It is now kept-model" in caplog.text


def test_a_fault_leaves_the_old_folder_and_nothing_else(tmp_path):
    fill(tmp_path / "model", weights="one")
    (tmp_path / "model" / "notes.md").write_text("mine")
    with pytest.raises(SaveError), atomic_folder(tmp_path / "model") as part:
        (part / "weights.txt").write_text("two")
        raise OSError(28, "No space left on device")
    assert texts(tmp_path) == {"model/weights.txt": "one", "model/notes.md": "mine"}


def test_what_is_saved_beside_other_files_renames_those_in_its_place(tmp_path):
    (tmp_path / "model.txt").write_text("theirs")
    (tmp_path / "notes.md").write_text("mine")
    for text in ("one", "two"):
        with merged_folder(tmp_path) as part:
            (part / "model.txt").write_text(text)
    assert texts(tmp_path) == {"model.txt": "two", "model.edited-1.txt": "theirs", "notes.md": "mine"}
    assert [*read_ledger(tmp_path)] == ["model.txt"]


def test_an_evaluation_is_removed_but_for_what_was_edited_or_lies_behind_a_link(tmp_path):
    run, other = tmp_path / "run", tmp_path / "other"
    for place in (run, run / "on-clips", other):
        write(place / "summary.json", "s")
        write(place / "report.html", "p")
    (run / "on-clips" / "report.html").write_text("edited")
    (run / "on-other").symlink_to(other, target_is_directory=True)
    (run / "notes.md").write_text("mine")
    assert forget_results(run) and not forget_results(run)
    assert texts(run) == {"on-clips/report.edited-1.html": "edited", "notes.md": "mine"}
    assert texts(other) == {"summary.json": "s", "report.html": "p"}


@pytest.mark.parametrize("added", ["notes.md", "model/notes.md", "model/sub/notes.md"])
def test_a_run_is_cleared_only_if_all_of_it_is_ours(tmp_path, added):
    run = tmp_path / "run"
    write(run / "summary.json", "s")
    fill(run / "model", weights="w")
    (run / added).parent.mkdir(parents=True, exist_ok=True)
    (run / added).write_text("mine")
    with pytest.raises(InputError, match=f"holds {added}, which Descend did not write"):
        clear(run, "another folder")
    assert texts(run)["summary.json"] == "s"
    (run / added).unlink()
    clear(run, "another folder")
    assert not run.exists()


def test_rows_are_appended_and_what_is_no_row_of_ours_is_kept(tmp_path):
    path = tmp_path / "records.jsonl"
    records = Records(path, "run")
    for step in (1, 2, 3):
        records.rows({"loss": [0.5]}, step=step, split="train", noise=None)
    assert is_ours(path)
    records.truncate_after(2)
    records.rows({"loss": [0.25]}, step=3, split="train", noise=None)
    assert is_ours(path) and len(path.read_text().splitlines()) == 3
    with path.open("a") as file:
        file.write("my notes\n")
    records.truncate_after(2)
    assert len(path.read_text().splitlines()) == 2
    assert "my notes" in (tmp_path / "records.edited-1.jsonl").read_text()
    path.write_text(path.read_text().replace("0.5", "0.6"))
    assert not is_ours(path)
    records.truncate_after(2)
    assert "0.6" in (tmp_path / "records.edited-2.jsonl").read_text()


def test_rows_of_somebody_else_that_look_like_ours_are_not_touched(tmp_path):
    row = {"run": "r", "step": 9, "split": "train", "layer": 0, "noise": None, "metric": "loss", "value": 1.0}
    (path := tmp_path / "records.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises(InputError, match="did not write"):
        refuse_foreign([path], "another output_dir")
    with pytest.raises(InputError, match="did not write"):
        Records(path, "run").truncate_after(2)
    assert json.loads(path.read_text()) == row


def test_a_file_is_hashed_once_by_a_process(tmp_path, monkeypatch):
    fill(tmp_path / "checkpoint-1", descent_0="s", weights="w")
    monkeypatch.setattr(hashlib, "file_digest", None)  # a rotation reads no weights again
    assert is_checkpoint(tmp_path / "checkpoint-1") and remove(tmp_path / "checkpoint-1")
    assert ledger.read_ledger(tmp_path) is None


def test_a_folder_that_somebody_copied_into_one_of_ours_is_not_ours(tmp_path):
    fill(tmp_path / "other", weights="other")
    for name in ("model", "checkpoint-1"):
        fill(tmp_path / name, weights="one")
        shutil.copytree(tmp_path / "other", tmp_path / name / "copy")
        (tmp_path / name / "notes").mkdir()
        (tmp_path / name / "notes" / LEDGER_FILE).write_text("mine")
    fill(tmp_path / "model", weights="two")
    assert not remove(tmp_path / "checkpoint-1")
    for name in ("model", "checkpoint-1"):
        assert (tmp_path / name / "copy" / "weights.txt").read_text() == "other"
        assert (tmp_path / name / "notes" / LEDGER_FILE).read_text() == "mine"


def test_a_folder_whose_files_do_not_fit_into_the_new_one_is_renamed_as_a_whole(tmp_path):
    fill(tmp_path / "model", weights="one")
    (tmp_path / "model" / "card.txt").mkdir()
    (tmp_path / "model" / "card.txt" / "notes.md").write_text("mine")
    os.mkfifo(tmp_path / "model" / "pipe")
    fill(tmp_path / "model", weights="two", card="two")
    assert texts(tmp_path) == {
        "kept-model/card.txt/notes.md": "mine",
        "kept-model/weights.txt": "one",
        "model/card.txt": "two",
        "model/weights.txt": "two",
    }


@pytest.mark.parametrize("link", [True, False])
def test_a_link_or_a_file_in_the_place_of_a_folder_is_renamed(tmp_path, link):
    (other := tmp_path / "other").mkdir()
    (other / "weights.txt").write_text("theirs")
    (folder := tmp_path / "model").mkdir()
    if link:
        (folder / "adapter").symlink_to(other, target_is_directory=True)
    else:
        (folder / "adapter").write_text("mine")
    with merged_folder(folder) as part:
        (part / "adapter").mkdir()
        (part / "adapter" / "weights.txt").write_text("ours")
    assert texts(other) == {"weights.txt": "theirs"} and (folder / "adapter.edited-1").is_symlink() == link
    assert (folder / "adapter" / "weights.txt").read_text() == "ours"


def test_a_ledger_of_somebody_else_is_seen_before_the_work(tmp_path):
    (tmp_path / LEDGER_FILE).write_text("mine")
    with pytest.raises(InputError, match="is no ledger of Descend"):
        refuse_foreign([tmp_path / "summary.json"], "another folder")


def test_a_file_may_be_removed_by_another_process_at_the_same_time(tmp_path, monkeypatch):
    write(tmp_path / "frames.npz", "f")

    def meanwhile(path):
        monkeypatch.undo()
        return not remove(path)

    monkeypatch.setattr(ledger, "is_foreign", meanwhile)
    assert not remove(tmp_path / "frames.npz") and not texts(tmp_path)


def test_rows_that_somebody_edited_between_two_checkpoints_are_kept(tmp_path):
    records = Records(tmp_path / "records.jsonl", "run")
    for step in (1, 2, 3):
        records.rows({"loss": [0.5]}, step=step, split="train", noise=None)
        records.flush()
    records.path.write_text(records.path.read_text().replace("0.5", "0.6"))
    records.flush()
    records.truncate_after(1)
    assert (tmp_path / "records.edited-1.jsonl").read_text().count("0.6") == 3


def test_models_are_removed_by_their_names_alone_and_behind_no_link(tmp_path):
    run, other = tmp_path / "sweep" / "run", tmp_path / "other"
    for name in ("model", "checkpoint-4", "checkpoint-4-good", "my-model", "on-clips", "best_feasible"):
        fill(run / name, weights="w")
    fill(other / "model", weights="w")
    (tmp_path / "sweep" / "link").symlink_to(other, target_is_directory=True)
    for folder in (run, tmp_path / "sweep" / "link"):
        forget_models(folder, tmp_path / "sweep", keep=["best_feasible"])
    assert {path.name for path in run.iterdir()} == {"checkpoint-4-good", "my-model", "on-clips", "best_feasible"}
    assert (other / "model" / "weights.txt").is_file()
