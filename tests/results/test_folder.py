"""Locks: one process at a time, and a lock that ends with its process."""

import errno
import fcntl
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from safetensors.torch import save_file

from descend.errors import InputError, SaveError
from descend.results import atomic_folder, is_ours, put
from descend.writing import LOCK_FILE, locked, new_file, refuse_full

fork = multiprocessing.get_context("fork")


def outlive(children) -> None:
    children.put(os.getpid())  # said by the child, so that the fork is complete by then
    time.sleep(600)


def hold(place: Path, children) -> None:
    with locked(place):
        fork.Process(target=outlive, args=(children,)).start()
        time.sleep(600)


@contextmanager
def holder(place: Path):
    """Another process that holds a lock until it is killed, at the latest where the block ends; its child lives on."""
    children = fork.Queue()
    process = fork.Process(target=hold, args=(place, children))
    process.start()
    child = children.get(timeout=60)  # which is there only while the lock is held
    try:
        yield process
    finally:
        process.kill()
        process.join()
        os.kill(child, 9)


def at_once(tasks: list[Callable[[], None]]) -> None:
    """Each in a separate process; none fails."""
    processes = [fork.Process(target=task) for task in tasks]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert {process.exitcode for process in processes} == {0}


def test_another_process_is_refused_until_it_is_killed_though_a_process_forked_from_it_lives(tmp_path: Path) -> None:
    with holder(tmp_path) as other:
        with pytest.raises(InputError, match=r"in use by another process; wait for its end"), locked(tmp_path):
            pass
        other.kill()
        other.join()
        with locked(tmp_path):
            assert (tmp_path / LOCK_FILE).exists()
    assert not (tmp_path / LOCK_FILE).exists()


def test_a_new_file_is_written_by_one_process_and_over_none(tmp_path: Path) -> None:
    path = tmp_path / "new" / "answers.json"
    with new_file(path):
        path.touch()
    with pytest.raises(InputError, match=r"answers\.json exists; choose another"), new_file(path):
        pass
    path.unlink()
    with holder(path), pytest.raises(InputError, match="in use by another process"), new_file(path):
        pass
    assert not path.exists()


def test_many_processes_take_turns_and_lose_nothing(tmp_path: Path) -> None:
    """Each reads a number and writes the next one; the lock's file is removed and made again all the time."""
    number = tmp_path / "number"
    number.write_text("0")

    def count() -> None:
        for _ in range(20):
            with locked(number, wait=True):
                number.write_text(str(int(number.read_text()) + 1))

    at_once([count] * 4)
    assert number.read_text() == "80" and [file.name for file in tmp_path.iterdir()] == ["number"]


def test_a_place_that_can_not_be_written_is_an_error_and_not_a_disk_without_locks(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=str(tmp_path)), locked(tmp_path / "file" / "run"):
        pass


@pytest.mark.filterwarnings("ignore:.*SoftFileLock")
@pytest.mark.parametrize("fault", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_disk_without_locks_has_them_by_a_file(tmp_path: Path, monkeypatch, fault: int) -> None:
    monkeypatch.setattr(fcntl, "flock", Mock(side_effect=OSError(fault, "no locks")))
    refused = pytest.raises(InputError, match="in use by another process")
    with locked(tmp_path), refused, locked(tmp_path):
        pass
    assert not list(tmp_path.iterdir())


def test_locks_need_nothing_that_windows_lacks() -> None:
    """The room imports where there is no fcntl."""
    code = "import sys; sys.modules['fcntl'] = None; import descend.results"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_two_folders_in_one_parent_and_one_file_are_written_at_once(tmp_path):
    (precious := tmp_path / ".part" / "precious").mkdir(parents=True)
    with atomic_folder(tmp_path / "one", alone=False) as one, atomic_folder(tmp_path / "two", alone=False) as two:
        for folder in (one, two):
            (folder / "file").write_text(folder.name)
    assert all((tmp_path / name / "file").read_text() == name for name in ("one", "two")) and precious.is_dir()
    file = tmp_path / "file"
    at_once([partial(put, file, partial(written, text=text)) for text in "ab"])
    assert file.read_text() in ("a" * 1000, "b" * 1000)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".part", "file", "one", "two", "written.json"]
    assert is_ours(file)


def test_an_empty_folder_that_a_person_made_is_filled_where_it_is(tmp_path, monkeypatch):
    (place := tmp_path / "place").mkdir()
    (link := tmp_path / "link").symlink_to(place)
    (place / ".descend-part-left").mkdir()  # of a process that was killed
    before = place.stat().st_ino
    monkeypatch.chdir(place)
    refuse_full(Path("."))
    with atomic_folder(link, alone=False) as part:
        assert part.is_relative_to(place)  # a mount point has its own disk
        (part / "deep").mkdir()
        (part / "deep" / "file").write_text("all")
    assert Path("deep/file").read_text() == "all" and place.stat().st_ino == before and link.is_symlink()
    assert is_ours(place)
    with pytest.raises(InputError, match="must be a new or an empty folder"):
        refuse_full(place)
    assert not (place / ".descend-part-left").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "place"]


@pytest.mark.parametrize("fault", ["long", "full", "other"])
def test_an_empty_folder_gets_all_files_or_none(tmp_path, monkeypatch, fault):
    (out := tmp_path / "out").mkdir()
    replace = os.replace

    def failing(path, place):
        if Path(place).name == "b":
            raise OSError(errno.ENOSPC, "no space")
        replace(path, place)

    errors = {"long": nullcontext(), "full": pytest.raises(SaveError)}
    filled = errors.get(fault, pytest.raises(InputError, match="filled"))
    with filled, atomic_folder(out, alone=False) as part:
        for name in "ab":
            (part / name).write_text(name)
        if fault == "long":
            os.utime(part.parent, (time.time() - 7200,) * 2)
        elif fault == "other":
            (out / "theirs").write_text("theirs")
        else:
            monkeypatch.setattr("descend.results.folder.os.replace", failing)
    monkeypatch.undo()
    left = {"long": ["a", "b", "written.json"], "full": [], "other": ["theirs"]}
    assert sorted(path.name for path in out.iterdir()) == left[fault]


def written(part: Path, text: str) -> None:
    for _ in range(1000):
        with part.open("a") as file:
            file.write(text)
        time.sleep(1e-4)


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o027, 0o640), (0o077, 0o600)])
def test_weights_are_read_by_those_whom_the_umask_allows(tmp_path, umask, mode):
    write, before = partial(save_file, {"weight": torch.zeros(1)}), os.umask(umask)
    try:
        put(tmp_path / "dual.safetensors", write)
        with atomic_folder(tmp_path / "model") as part:
            write(part / "model.safetensors")
    finally:
        os.umask(before)
    assert [file.stat().st_mode & 0o777 for file in tmp_path.rglob("*.safetensors")] == [mode] * 2
