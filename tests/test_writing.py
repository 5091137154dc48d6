"""Files are written in one way: no link is followed, no name can be guessed, and nothing else writes."""

import ast
import os
import re
from pathlib import Path

import pytest

from descend.errors import InputError
from descend.results import atomic_folder, put
from descend.results.records import Records
from descend.writing import PART, appending, locked, new_file, private_folder, remove_parts

ROOT = Path(__file__).parents[1]

WRITERS = (
    r"(write_text|write_bytes|touch|save|savez|savez_compressed|save_file|save_pretrained|savefig|to_csv|copyfile|copy2"
    r"|copytree|rename|symlink_to|hardlink_to|mkstemp|mkdtemp|NamedTemporaryFile|TemporaryDirectory|memmap|connect"
    r"|FileLock|SoftFileLock)$"
)
"""Names of functions that may write a file."""

ALLOWED = {
    "src/descend/writing.py": {"mkdtemp", "FileLock", "SoftFileLock", "open", "touch", "replace"},  # the one way
    "src/descend/results/folder.py": {"rename", "write_text", "copy2", "replace"},  # the ledger; folders into place
    "src/descend/sweep/worker.py": {"connect"},  # reads the names of tables
    "src/descend/run/denoising.py": {"save"},  # into the folder of atomic_folder, as are the next four
    "src/descend/run/formats.py": {"save_pretrained"},
    "src/descend/run/onnx.py": {"save_pretrained", "save"},
    "src/descend/run/sentences.py": {"save_pretrained", "save", "TemporaryDirectory"},  # and a folder to read again
    "src/descend/run/training.py": {"save_pretrained"},
    "src/descend/training/checkpoints.py": {"write_text", "rename"},
    "src/descend/training/hf_hooks.py": {"save_pretrained"},
    "src/descend/training/trainer.py": {"save_pretrained"},
    "src/descend/training/saving.py": {"save_pretrained"},  # into the folder that its caller made
    "src/descend/models/modules.py": {"save_pretrained", "save_file", "save", "TemporaryDirectory"},  # in memory
    "src/descend/tasks/video/datasets.py": {"open", "memmap"},  # the file that replacing gives; a cache that is read
    "reproduction/run.py": {"FileLock"},  # filelock follows no link
}
"""Who calls such a function outside `put`, and why that is safe."""


class Walk(ast.NodeVisitor):
    """Collects the functions that may write a file, apart from those in the arguments of `put`."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def visit_Call(self, node: ast.Call) -> None:
        name = ast.unparse(node.func)
        last = name.rpartition(".")[2]
        if last == "put":
            return
        words = ast.unparse(node)
        if last == "open" and name != "os.open":
            writes = re.search(r"""["'][rbt]*[wax+][bt+]*["']""", words) is not None
        elif last == "replace" and name != "os.replace":  # of a path; texts and times have one, too
            writes = len(node.args) == 1 and not node.keywords and name != "replace"
        else:
            others = ("os.open", "os.replace", "shutil.copy", "shutil.move")
            writes = re.match(WRITERS, last) is not None or name in others
        if writes and not re.search("buffer|drawing|os.devnull|O_RDONLY|NAMES", words):
            self.names.add(last)
        self.generic_visit(node)


def writers(file: Path) -> set[str]:
    """The functions that may write a file and that a source file calls outside `put`."""
    walk = Walk()
    walk.visit(ast.parse(file.read_text("utf-8")))
    return walk.names


def test_no_file_of_the_package_writes_in_another_way() -> None:
    files = [file for folder in ("src", "reproduction") for file in (ROOT / folder).rglob("*.py")]
    calling = {str(file.relative_to(ROOT)): names for file in files if (names := writers(file))}
    assert calling == ALLOWED


@pytest.mark.parametrize(
    "line",
    [
        'open(path, "w")',
        'path.open(mode="ab")',
        "path.write_text(text)",
        "path.write_bytes(data)",
        "np.save(path, array)",
        "torch.save(state, path)",
        "shutil.copy(one, two)",
        "tempfile.mkstemp()",
        "sqlite3.connect(path)",
        "part.replace(path)",
        "os.open(path, flags)",
    ],
)
def test_the_walk_sees_every_kind_of_writer(tmp_path: Path, line: str) -> None:
    (tmp_path / "a.py").write_text(line)
    assert writers(tmp_path / "a.py")


def foreign(folder: Path) -> Path:
    """A file of somebody else, to which links lead."""
    folder.mkdir()
    (folder / "thesis.tex").write_text("my thesis")
    return folder / "thesis.tex"


def test_no_link_in_the_place_of_a_temporary_file_is_followed(tmp_path: Path) -> None:
    thesis, run = foreign(tmp_path / "home"), tmp_path / "run"
    run.mkdir()
    for number in range(os.getpid() - 5, os.getpid() + 5):
        (run / f"{PART}-{number}-page").symlink_to(thesis)
    (run / PART).symlink_to(thesis.parent, target_is_directory=True)
    put(run / "page", lambda part: part.write_text("page"))
    with atomic_folder(run / "model") as part:
        (part / "weights").write_text("w")
    assert thesis.read_text() == "my thesis" and [*thesis.parent.iterdir()] == [thesis]
    assert (run / "page").read_text() == "page" and (run / "model" / "weights").read_text() == "w"


def test_a_link_in_the_place_of_the_file_itself_is_replaced_and_never_appended_to(tmp_path: Path) -> None:
    thesis = foreign(tmp_path / "home")
    for name in ("page", "records.jsonl", "log", ".descend-lock"):
        (tmp_path / name).symlink_to(thesis)
    with pytest.raises(InputError, match="holds page, which Descend may replace"):
        put(tmp_path / "page", lambda part: part.write_text("page"))
    put(tmp_path / "page", lambda part: part.write_text("page"), listed=False)
    with pytest.raises(InputError, match="is a link"):
        Records(tmp_path / "records.jsonl", "run").rows({"loss": [1.0]}, step=1, split="train", noise=None)
    with pytest.raises(InputError, match="is a link"), appending(tmp_path / "log"):
        pass
    with pytest.raises(InputError, match="is a link"), locked(tmp_path):
        pass
    (tmp_path / "new").symlink_to(tmp_path / "nowhere")
    with pytest.raises(InputError, match="exists"), new_file(tmp_path / "new"):
        pass
    assert thesis.read_text() == "my thesis" and not (tmp_path / "page").is_symlink()


def test_temporary_folders_have_names_that_differ_and_let_nobody_else_in(tmp_path: Path) -> None:
    with private_folder(tmp_path) as one, private_folder(tmp_path) as two:
        assert one != two and {each.stat().st_mode & 0o777 for each in (one, two)} == {0o700}
    assert not [*tmp_path.iterdir()]


def test_what_a_killed_process_left_is_removed_and_a_link_of_its_name_is_not_entered(tmp_path: Path) -> None:
    thesis, run = foreign(tmp_path / "home"), tmp_path / "run"
    (run / f"{PART}-folder-abc").mkdir(parents=True)
    (run / f"{PART}-xyz").mkdir()
    (run / f"{PART}-link").symlink_to(thesis.parent, target_is_directory=True)
    remove_parts(run, age=3600)
    assert len([*run.iterdir()]) == 3
    remove_parts(run, kind="folder-")
    assert sorted(each.name for each in run.iterdir()) == [f"{PART}-link", f"{PART}-xyz"]
    remove_parts(run)
    assert [each.name for each in run.iterdir()] == [f"{PART}-link"] and thesis.read_text() == "my thesis"
