"""How many faults does the suite notice? Put small faults into the code one by one, and run the tests that reach them.

    pip install coverage pytest-cov
    python benchmarks/mutants.py cover                     # once: which test runs which line (the whole suite, slowly)
    python benchmarks/mutants.py run --count 200 --seed 0  # then: the faults; goes on where it was stopped
    python benchmarks/mutants.py show

A fault (mutant) is one change of the syntax tree: a comparison, an operator, a constant, a condition, `break` for
`continue`, a statement left out. They are drawn at random, as many from a file as its share of statements. A mutant is
killed if a test that runs its line fails, or runs ten times as long as before. Those tests run in a process forked from
one that has imported PyTorch and Transformers, on a copy of the tree, so the code that is worked on is not touched.
"""

import argparse
import ast
import copy
import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("core", "training", "evaluation")
MOST_TESTS, MOST_SECONDS = 60, 240

SWAPS: dict[type, type] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Pow: ast.Mult, ast.Mod: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.MatMult: ast.Mult,
}  # fmt: skip


def changes(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Descriptions of what may go wrong at a node, and the node that stands there then."""
    new = copy.deepcopy(node)
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in SWAPS:
        new.ops = [SWAPS[type(node.ops[0])]()]
        yield "comparison", new
    elif isinstance(node, ast.BoolOp | ast.BinOp | ast.AugAssign) and type(node.op) in SWAPS:
        new.op = SWAPS[type(node.op)]()
        yield "operator", new
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        yield "sign", new.operand
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield "constant", ast.Constant(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        yield "constant", ast.Constant(node.value + 1)
    elif isinstance(node, ast.If | ast.IfExp | ast.While):
        new.test = ast.UnaryOp(ast.Not(), new.test)
        yield "condition", new
    elif isinstance(node, ast.Break | ast.Continue):
        yield "loop", ast.Continue() if isinstance(node, ast.Break) else ast.Break()
    elif isinstance(node, ast.AugAssign) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)):
        yield "left out", ast.Pass()
    elif isinstance(node, ast.Return) and node.value is not None and not isinstance(node.value, ast.Constant):
        yield "nothing returned", ast.Return(ast.Constant(None))


class Change(ast.NodeTransformer):
    """Replace the node of one place, counted depth first; annotations are passed over."""

    def __init__(self, tree: ast.AST, place: int):
        self.place, self.seen, self.line, self.kind = place, -1, 0, ""
        annotations = [getattr(node, name, None) for node in ast.walk(tree) for name in ("annotation", "returns")]
        self.skipped = {id(node) for each in annotations if each is not None for node in ast.walk(each)}
        self.tree = self.visit(tree)

    def visit(self, node: ast.AST) -> ast.AST:
        if id(node) in self.skipped:
            return node
        for kind, new in changes(node):
            self.seen += 1
            if self.seen == self.place:
                self.line, self.kind = node.lineno, kind
                return ast.copy_location(new, node)
        return self.generic_visit(node)


def mutated(text: str, place: int) -> tuple[str, int, str]:
    """The text with its fault, the fault's line and kind."""
    change = Change(ast.parse(text), place)
    return ast.unparse(ast.fix_missing_locations(change.tree)), change.line, change.kind


def places(text: str) -> int:
    """How many faults a text can have."""
    return Change(ast.parse(text), -2).seen + 1


def drawn(count: int, seed: int, rooms: tuple[str, ...]) -> list[tuple[str, int]]:
    """(file below src/descend, place) of ``count`` faults."""
    source = ROOT / "src" / "descend"
    files = sorted(path for room in rooms for path in (source / room).rglob("*.py"))
    every = [(str(path.relative_to(source)), place) for path in files for place in range(places(path.read_text()))]
    return random.Random(seed).sample(every, count)


def cover(work: Path, tests: list[str]) -> None:
    """Run the tests and keep which test ran which line, and how long it took."""
    work.mkdir(parents=True, exist_ok=True)
    (work / "coveragerc").write_text(
        "[run]\nsource = descend\ndynamic_context = none\nparallel = true\n"
        f"data_file = {work}/coverage\n[paths]\nsource =\n    src/descend\n    */src/descend\n"
    )
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--numprocesses",
        "2",
        "--dist",
        "loadfile",
    ]
    command += ["--cov=descend", f"--cov-config={work}/coveragerc", "--cov-context=test", "--cov-report="]
    command += ["--durations=0", "--durations-min=0", *tests]
    with (work / "cover.log").open("w") as log:
        subprocess.run(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)


def tests_by_line(work: Path) -> tuple[dict[str, dict[int, set[str]]], dict[str, float]]:
    """File → line → tests that run it, by coverage's database; and each test's seconds, by the log's list."""
    from coverage.numbits import numbits_to_nums

    base = sqlite3.connect(next(iter([work / "coverage", *work.glob("coverage.*")])))
    rows = base.execute(
        "select file.path, context.context, line_bits.numbits from line_bits "
        "join file on file.id = line_bits.file_id join context on context.id = line_bits.context_id"
    )
    lines: dict[str, dict[int, set[str]]] = {}
    for path, context, bits in rows:
        test, _, phase = context.partition("|")
        if phase in ("run", "setup"):
            file = lines.setdefault(path.split("src/descend/")[-1], {})
            for line in numbits_to_nums(bits):
                file.setdefault(line, set()).add(test)
    seconds: Counter = Counter()
    for line in (work / "cover.log").read_text().splitlines():
        words = line.split()
        if len(words) >= 3 and words[1] in ("call", "setup") and words[0].endswith("s"):
            seconds[" ".join(words[2:])] += float(words[0][:-1])
    return lines, seconds


def verdict(tree: Path, tests: list[str], limit: float) -> str:
    """Whether the tests notice the fault in a tree: killed, late (killed too), or survived."""
    pid = os.fork()
    if pid == 0:
        os.setsid()
        os.chdir(tree)
        sys.path.insert(0, str(tree / "src"))
        os.environ["PYTHONPATH"] = str(tree / "src")
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1), os.dup2(quiet, 2)
        import pytest

        status = pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", *tests])
        os._exit(0 if status == 0 else 1)
    ends = time.monotonic() + limit
    while time.monotonic() < ends:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return "survived" if status == 0 else "killed"
        time.sleep(0.05)
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return "late"


def run(work: Path, count: int, seed: int, rooms: tuple[str, ...], workers: int) -> None:
    """Run the tests on the faults that have no result yet, and keep each in ``results.jsonl``."""
    lines, seconds = tests_by_line(work)
    results = work / f"results-{seed}.jsonl"
    known = (
        {(row["file"], row["place"]) for row in map(json.loads, results.read_text().splitlines())}
        if results.exists()
        else set()
    )
    left = [each for each in drawn(count, seed, rooms) if each not in known]
    for name in ("torch", "transformers", "accelerate", "pytest", "scipy.stats", "hypothesis"):
        __import__(name)
    assert not any(name.split(".")[0] == "descend" for name in sys.modules), "descend must be imported after the fork"
    trees = []
    for number in range(workers):
        tree = work / f"tree-{number}"
        shutil.rmtree(tree, ignore_errors=True)
        shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(".venv", ".tools", ".git", "build", "gallery"))
        trees.append(tree)

    def test(each: tuple[str, int]) -> None:
        file, place = each
        text = (ROOT / "src" / "descend" / file).read_text()
        fault, line, kind = mutated(text, place)
        by_line = lines.get(file, {})
        # A line that is run by an import alone, such as a default, is no test's: take those that run the file.
        reached = by_line.get(line) or set().union(*by_line.values())
        tests = sorted(reached, key=lambda name: seconds.get(name, 0.0))[:MOST_TESTS]
        tree = trees.pop()
        try:
            path = tree / "src" / "descend" / file
            path.write_text(fault)
            limit = min(MOST_SECONDS, 60 + 10 * sum(seconds.get(name, 1.0) for name in tests))
            end = verdict(tree, tests, limit) if tests else "not reached"
            path.write_text(text)
        finally:
            trees.append(tree)
        row = {"file": file, "line": line, "place": place, "kind": kind, "end": end, "tests": len(tests)}
        with results.open("a") as out:
            out.write(json.dumps(row) + "\n")
        print(f"{file}:{line} {kind}: {end}", flush=True)

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(test, left))
    show(work)


def show(work: Path) -> None:
    """The count of each end, by room, and the faults that survived."""
    for results in sorted(work.glob("results-*.jsonl")):
        rows = [json.loads(line) for line in results.read_text().splitlines()]
        ends = Counter((row["file"].split("/")[0], row["end"]) for row in rows)
        for room in sorted({room for room, _ in ends}):
            print(results.name, room, {end: number for (other, end), number in sorted(ends.items()) if other == room})
        killed = sum(row["end"] in ("killed", "late") for row in rows)
        print(f"{results.name}: {killed} of {len(rows)} killed")
        for row in rows:
            if row["end"] not in ("killed", "late"):
                print(f"  {row['end']}: {row['file']}:{row['line']} {row['kind']}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("cover", "run", "show"))
    parser.add_argument("--work", type=Path, default=Path("mutants"), help="folder of the results [mutants]")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rooms", nargs="+", default=ROOMS, help="rooms that get faults [core training evaluation]")
    parser.add_argument("--tests", nargs="+", default=["tests"], help="of cover: what is run [tests]")
    options = parser.parse_args()
    work = options.work.resolve()
    if options.what == "cover":
        cover(work, options.tests)
    elif options.what == "run":
        run(work, options.count, options.seed, tuple(options.rooms), options.workers)
    else:
        show(work)


if __name__ == "__main__":
    main()
