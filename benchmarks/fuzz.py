"""Feed malformed inputs to every reader. Each must be read or refused with an `InputError`.

    python benchmarks/fuzz.py [--tries 2000] [--readers mnli-tsv summary …] [--json FILE] [--seed 0]

Every reader runs in a child process, so a crash in a decoder is recorded and the rest goes on. An input that takes
longer than the limit is recorded as a hang. ``--readers NAME --only NUMBER`` repeats one input with its traceback. The
undamaged inputs are made by the package's own commands on generated data; nothing is downloaded.
"""

import argparse
import contextlib
import faulthandler
import io
import json
import logging
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the examples lie beside this folder

LIMIT = 20
"""Seconds that one input may take. Generous, since the machine may be shared."""

ADDRESS_SPACE = 4 * 2**30
"""Bytes of address space that a child may map beyond what it needs for an undamaged input."""

MOST_GROWTH = 512
"""MB by which a child's resident memory may grow over all inputs."""

ODD = [
    *(None, True, False, 0, -1, 1, 2**31, 2**63, 10**9, 10**400, -0.5, 1e308, 5e-324, float("nan"), float("inf")),
    *("", "x", "NaN", "-", "\ud800", "<script>alert(1)</script>", "\0", "\u2028", "../../etc/passwd", "9" * 5000),
    *([], {}, [[]], [None], [1] * 2000, {"": None}, "long" * 50_000),
]


# --- damage


def of_bytes(content: bytes, rng: random.Random) -> bytes:
    """Damage to bytes, whatever the format."""
    if not content:
        return rng.randbytes(rng.randrange(200))
    place, size = rng.randrange(len(content)), rng.randrange(1, 64)
    part = content[place : place + size]
    extremes = [b"\xff" * 4, b"\x7f\xff\xff\xff", b"\xff\xff\xff\x7f", b"\0" * 4, b"\0\0\0\x80", b"\x10\0\0\0"]
    done: list[Callable[[], bytes]] = [
        lambda: content[:place],
        lambda: content[place:],
        lambda: content[:place] + bytes([content[place] ^ (1 << rng.randrange(8))]) + content[place + 1 :],
        lambda: content[:place] + rng.randbytes(size) + content[place + size :],
        lambda: content[:place] + rng.choice(extremes) + content[place + 4 :],
        lambda: content[:place] + content[place + size :],
        lambda: content[:place] + part * rng.randrange(2, 200) + content[place:],
        lambda: content[:place] + b"\0" * size + content[place:],
        lambda: content[:place] + rng.choice([b"\xff\xfe", b"\xed\xa0\x80", b"\xc3", b"\xf8\x88"]) + content[place:],
        lambda: content[:place] + content[-place - 1 :] + content[:size],
        lambda: rng.choice([b"", b"\0", b"\n", b"null", b"[]", b"{}", b"\xef\xbb\xbf", rng.randbytes(size)]),
    ]
    damaged = rng.choice(done)()
    return of_bytes(damaged, rng) if rng.random() < 0.3 else damaged  # sometimes several kinds of damage


def of_text(content: bytes, rng: random.Random) -> bytes:
    """Damage to lines, fields and numbers."""
    lines = content.split(b"\n")
    place = rng.randrange(len(lines))
    line = lines[place]
    fields = line.split(b"\t")
    field = rng.randrange(len(fields))
    odd = str(rng.choice(ODD)).encode("utf-8", "surrogatepass")
    match rng.randrange(8):
        case 0:
            lines[place] = b""
        case 1:
            lines.insert(place, line)
        case 2:
            lines[place] = b"\t".join([*fields[:field], odd, *fields[field + 1 :]])
        case 3:
            lines[place] = b"\t".join([*fields[:field], *fields[field + 1 :]])
        case 4:
            lines[place] = line + b"x" * 200_000
        case 5:
            lines[place] = b"[" * 100_000
        case 6:
            lines[place] = line.replace(b'"', b'"a":1,"a":2,"', 1)
        case _:
            return of_bytes(content, rng)
    return b"\n".join(lines)


def of_json(content: bytes, rng: random.Random) -> bytes:
    """Damage to JSON: a value of another type or size, a missing key, or deep nesting."""
    if rng.random() < 0.3:
        return of_text(content, rng)
    tree = json.loads(content)
    holders: list[Any] = []
    level = [tree]
    while level:
        inner = [each for each in level if isinstance(each, dict | list) and each]
        holders += inner
        level = [value for each in inner for value in (each.values() if isinstance(each, dict) else each)]
    if not holders:
        return of_bytes(content, rng)
    for _ in range(rng.choice([1, 1, 1, 2, 5])):
        # Half of the time at the top level, whose keys matter most.
        holder = tree if rng.random() < 0.5 else rng.choice(holders)
        key = rng.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
        match rng.randrange(6):
            case 0 if len(holder) > 1:
                del holder[key]
            case 1:
                deep: Any = 1
                for _ in range(rng.choice([10, 60, 200, 800])):
                    deep = {"a": deep} if rng.random() < 0.5 else [deep]
                holder[key] = deep
            case 2:
                holder[key] = [holder[key]]
            case _:
                holder[key] = rng.choice(ODD)
        if not len(holder):
            break
    text = json.dumps(tree, ensure_ascii=rng.random() < 0.7)
    if rng.random() < 0.05:
        text = text.replace("1", "1" * rng.choice([30, 5000]), 1)
    return text.encode("utf-8", "surrogatepass")


def of_json_lines(content: bytes, rng: random.Random) -> bytes:
    if rng.random() < 0.4:
        return of_text(content, rng)
    lines = content.rstrip(b"\n").split(b"\n")
    place = rng.randrange(len(lines))
    lines[place] = of_json(lines[place], rng)
    return b"\n".join(lines)


# --- readers


@dataclass(frozen=True)
class Reader:
    """A reader under test.

    Attributes:
        seeds: Folder with an undamaged input.
        targets: Files that are damaged, one at a time, each with the function that damages it.
        read: Reads a folder.
        refusal: The exception that counts as a refusal.
    """

    seeds: Path
    targets: dict[str, Callable[[bytes, random.Random], bytes]]
    read: Callable[[Path], Any]
    refusal: type[BaseException]


def readers(home: Path) -> dict[str, Reader]:
    """All readers, with the undamaged inputs of `make_seeds`."""
    from descend import reading
    from descend.errors import InputError
    from descend.inference import DescentClassifier
    from descend.report import write_completions, write_page, write_sweep
    from descend.results import Frames, Results
    from descend.run.completing import _prompts
    from descend.run.loading import of_run
    from descend.tasks.text import load_tokenizer, read_imdb, read_instructions, read_mnli
    from descend.tasks.video import find_clips
    from descend.tasks.video.datasets import cached
    from descend.training.checkpoints import Checkpoints, damage
    from descend.training.config import DescentConfig
    from descend.training.ranks import Ranks
    from examples import convert_llama2c

    def frames(folder: Path) -> int:
        clips = find_clips(folder, None)
        return sum(len(list(clip.frames())) + clip.announced() for clip in clips)

    def cache(folder: Path) -> None:
        clips = find_clips(folder / "clips", None)
        for clip in clips:  # the modification time that the cache was made with
            for file in clip.files:
                os.utime(file, (0, 0))
        assert [len(view) for view in cached(clips, folder / "cache")] == [3, 3]

    def page(folder: Path) -> None:
        write_page([folder, home / "other" / "run"], folder / "page.html", "fuzz")

    def history(folder: Path) -> None:
        assert Results.read(folder).history is not None  # which a page reads of the records

    def checkpoint(folder: Path) -> None:
        """Read a checkpoint as --resume does, and its files even if the manifest does not match."""
        (newest,) = folder.glob("checkpoint-*")
        fault = damage(newest)
        (newest / "written.json").unlink(missing_ok=True)
        args = DescentConfig(str(folder), use_cpu=True, report_to="none")
        Checkpoints(args, Ranks(args), []).read(str(newest))
        reading.read_json(newest / "trainer_state.json")
        if fault is not None:
            raise InputError(fault)

    def convert(folder: Path) -> None:
        convert_llama2c.convert(folder, folder / "out")

    table: dict[str, tuple[str, dict[str, Any], Callable[[Path], Any], type[BaseException]]] = {
        "video": ("video", {"a.avi": of_bytes, "b.mp4": of_bytes}, frames, InputError),
        "images": ("images", {f"c/1{suffix}": of_bytes for suffix in (".jpg", ".png", ".tif")}, frames, InputError),
        "frame-cache": ("cached", {"cache/*.frames": of_bytes}, cache, InputError),
        "frames.npz": ("run", {"frames.npz": of_bytes}, lambda folder: Frames.load(folder / "frames.npz"), InputError),
        "imdb": ("imdb", {"train/pos/1.txt": of_text}, read_imdb, InputError),
        "mnli-tsv": ("tsv", {"train.tsv": of_text, "dev_matched.tsv": of_text}, read_mnli, InputError),
        "mnli-jsonl": ("jsonl", {"a_train.jsonl": of_json_lines}, read_mnli, InputError),
        "alpaca-json": ("alpaca", {"a.json": of_json}, lambda folder: read_instructions(folder / "a.json"), InputError),
        "alpaca-jsonl": (
            "alpaca",
            {"a.jsonl": of_json_lines},
            lambda folder: read_instructions(folder / "a.jsonl"),
            InputError,
        ),
        "prompts": ("alpaca", {"eval.json": of_json}, lambda folder: list(_prompts(folder / "eval.json")), InputError),
        "answers": (
            "alpaca",
            {"answers.json": of_json},
            lambda folder: write_completions([folder / "answers.json"], folder / "out"),
            InputError,
        ),
        "run config.json": ("run", {"config.json": of_json}, lambda folder: of_run(folder, "model"), InputError),
        "dual.safetensors": ("run", {"dual.safetensors": of_bytes}, lambda folder: of_run(folder, "model"), InputError),
        "checkpoint": (
            "checkpoint",
            {
                "checkpoint-*/written.json": of_json,
                "checkpoint-*/trainer_state.json": of_json,
                "checkpoint-*/descent_0.json": of_json,
            },
            checkpoint,
            InputError,
        ),
        "summary.json": ("run", {"summary.json": of_json}, page, InputError),
        "summary.json (text)": ("text", {"summary.json": of_json}, page, InputError),
        "sweep.json": ("sweep", {"sweep.json": of_json}, write_sweep, InputError),
        "records.jsonl": ("run", {"records.jsonl": of_json_lines}, history, InputError),
        "UT config.json": ("run", {"model/config.json": of_json}, lambda folder: of_run(folder, "model"), InputError),
        "model config.json": ("text", {"model/config.json": of_json}, DescentClassifier.from_pretrained, InputError),
        "model.safetensors": (
            "text",
            {"model/model.safetensors": of_bytes},
            DescentClassifier.from_pretrained,
            InputError,
        ),
        "tokenizer": (
            "text",
            {"model/tokenizer.json": of_json, "model/tokenizer_config.json": of_json},
            lambda folder: load_tokenizer(folder / "model"),
            InputError,
        ),
        "vocab.txt": ("vocab", {"vocab.txt": of_text}, load_tokenizer, InputError),
        "llama2c": ("llama2c", {"model.bin": of_bytes, "tok.bin": of_bytes}, convert, InputError),
    }
    return {
        name: Reader(home / seeds, targets, read, refusal) for name, (seeds, targets, read, refusal) in table.items()
    }


# --- undamaged inputs


def make_seeds(home: Path) -> None:
    """Make one undamaged input for every reader."""
    import struct

    import av
    import numpy as np
    from PIL import Image

    from descend.cli import main
    from descend.tasks.text import generate_instructions, generate_pairs, generate_reviews
    from descend.tasks.video import find_clips
    from descend.tasks.video.datasets import cached

    rng = np.random.default_rng(0)

    def put(name: str, content: str) -> None:
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(content)

    (home / "video").mkdir(parents=True)
    for name, codec in (("a.avi", "mpeg4"), ("b.mp4", "mpeg4")):
        with av.open(str(home / "video" / name), "w") as container:
            stream = container.add_stream(codec, rate=25)
            stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
            for _ in range(5):
                picture = av.VideoFrame.from_ndarray(rng.integers(0, 256, (48, 64, 3), np.uint8), format="rgb24")
                container.mux(stream.encode(picture))
            container.mux(stream.encode(None))
    for folder, suffixes in (
        ("images/c", (".jpg", ".png", ".tif")),
        ("cached/clips/a", ".jpg"),
        ("cached/clips/b", ".jpg"),
    ):
        (home / folder).mkdir(parents=True)
        for number in range(3):
            for suffix in suffixes if isinstance(suffixes, tuple) else (suffixes,):
                picture = Image.fromarray(rng.integers(0, 256, (32, 48), np.uint8))
                picture.save(home / folder / f"{number}{suffix}")
    # The cache depends on paths and modification times, so it is written where it will be read.
    work = home / "work"
    shutil.copytree(home / "cached", work)
    clips = find_clips(work / "clips", None)
    for clip in clips:
        for file in clip.files:
            os.utime(file, (0, 0))
    cached(clips, work / "cache")
    shutil.copytree(work / "cache", home / "cached" / "cache")
    shutil.rmtree(work)

    for number, row in enumerate(generate_reviews(8, 0)):
        for side in ("train", "test"):
            put(f"imdb/{side}/{('neg', 'pos')[row['label']]}/{number}.txt", row["text"])
            put(f"imdb/{side}/{('pos', 'neg')[row['label']]}/{number}.txt", row["text"])
    labels = ("entailment", "neutral", "contradiction")
    pairs = [(row["text"], row["pair"], labels[row["label"]]) for row in generate_pairs(6, 0)]
    lines = ["sentence1\tsentence2\tgold_label", *("\t".join(row) for row in pairs)]
    objects = [json.dumps(dict(zip(("sentence1", "sentence2", "gold_label"), row, strict=True))) for row in pairs]
    for name in ("train", "dev_matched"):
        put(f"tsv/{name}.tsv", "\n".join(lines) + "\n")
        put(f"jsonl/a_{name}.jsonl", "\n".join(objects) + "\n")
    rows = generate_instructions(6).rows.to_list()
    answers = [{**row, "generator": "g", "dataset": "d"} for row in rows]
    put("alpaca/a.json", json.dumps(rows))
    put("alpaca/a.jsonl", "\n".join(map(json.dumps, rows)) + "\n")
    put("alpaca/eval.json", json.dumps(answers))
    put("alpaca/answers.json", json.dumps(answers))
    put("vocab/vocab.txt", "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh"]) + "\n")

    dim, hidden, layers, heads, words, context = 8, 16, 2, 2, 40, 16
    count = words * dim + layers * (2 * dim + 4 * dim * dim + 3 * dim * hidden) + dim + context * dim // heads
    put("llama2c/tok.bin", "")
    header = struct.pack("<7i", dim, hidden, layers, heads, heads, words, context)
    (home / "llama2c" / "model.bin").write_bytes(header + rng.normal(size=count).astype("<f4").tobytes())
    pieces = [
        *("<unk>", "\n<s>\n", "\n</s>\n"),
        *(f"<0x{byte:02X}>" for byte in range(10)),
        *"abcdefghijklmnopqrstuvwxyz ",
    ]
    scored = [
        struct.pack("<fi", -float(place), len(piece.encode())) + piece.encode() for place, piece in enumerate(pieces)
    ]
    (home / "llama2c" / "tok.bin").write_bytes(struct.pack("<i", 8) + b"".join(scored))

    brief = ["--use-cpu", "--max-steps", "3", "--logging-steps", "1", "--depth", "2"]
    video = [
        "train",
        "video-ut",
        "--data",
        "generated",
        *brief,
        "--window",
        "2",
        "--stride",
        "40",
        "--first-layer",
        "0",
        "--dual-warmup-steps",
        "0",
    ]
    text = ["train", "text-distilbert", *brief, "--hidden-size", "8", "--heads", "2", "--data", str(home / "imdb")]
    text += [
        "--eval-strategy",
        "no",
        "--save-strategy",
        "no",
        "--no-load-best-model-at-end",
        "--dual-warmup-steps",
        "0",
    ]
    for command in (
        [*video, "--out", str(home / "run")],
        ["evaluate", str(home / "run"), "--noise", "0,0.8", "--frames", "1"],
        [*text, "--out", str(home / "text"), "--validation-share", "0.3"],
        ["evaluate", str(home / "text"), "--noise", "0,1", "--exit", "--probe"],
        ["sweep", *video[1:], "--trials", "2", "--out", str(home / "sweep")],
    ):
        if main(command):
            raise SystemExit(f"could not make an undamaged input: descend {' '.join(command)}")
    (home / "checkpoint").mkdir()
    shutil.copytree(home / "run" / "checkpoint-3", home / "checkpoint" / "checkpoint-3")
    for folder in ("run", "text"):
        for extra in (*(home / folder).glob("checkpoint-*"), home / folder / "best_feasible"):
            shutil.rmtree(extra, ignore_errors=True)
        (home / folder / "report.html").unlink()
    shutil.rmtree(home / "sweep" / "trials")
    (home / "other").mkdir()
    shutil.copytree(home / "run", home / "other" / "run")


# --- the child


def most_memory() -> int:
    """Peak resident memory of this process, in kB. That of getrusage includes the parent's."""
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])


def child(home: Path, name: str, first: int, last: int, seed: int, show: bool) -> None:
    """Read damaged inputs ``first`` to ``last`` and print each outcome on stdout."""
    # Keep stdout for the outcomes: libraries print there too.
    report = os.fdopen(os.dup(1), "w", buffering=1)
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    if not show:
        os.dup2(quiet, 2)
    warnings.simplefilter("ignore")
    reader = readers(home)[name]
    logging.disable(logging.CRITICAL)
    work = home / "work"

    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(reader.seeds, work)
    reader.read(work)  # an undamaged input must be readable
    before = most_memory()
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + ADDRESS_SPACE, resource.RLIM_INFINITY))
    for number in range(first, last):
        rng = random.Random(f"{seed} {name} {number}")
        pattern, damage = rng.choice(list(reader.targets.items()))
        (original,) = reader.seeds.glob(pattern)
        target = work / original.relative_to(reader.seeds)
        target.write_bytes(damage(original.read_bytes(), rng))
        print("begin", number, file=report)
        faulthandler.dump_traceback_later(LIMIT, exit=True)
        began = time.monotonic()
        outcome, why = "read", ""
        try:
            with (
                contextlib.redirect_stdout(io.StringIO()),
                contextlib.redirect_stderr(sys.stderr if show else io.StringIO()),
            ):
                reader.read(work)
        except reader.refusal as error:
            outcome = "refused"
            if show:
                why = str(error)
        except BaseException as error:
            outcome, why = "other", f"{type(error).__name__}: {str(error)[:200]}"
            if show:
                traceback.print_exc()
        faulthandler.cancel_dump_traceback_later()
        shutil.copyfile(original, target)
        grown = (most_memory() - before) // 1024
        row = {"number": number, "outcome": outcome, "why": why, "seconds": time.monotonic() - began, "grown": grown}
        print("end", json.dumps(row), file=report)


def fuzz(home: Path, name: str, tries: int, seed: int, show: bool = False, first: int = 0) -> dict[str, Any]:
    """Run all inputs of one reader, in a new process after each crash or hang."""
    counts: Counter[str] = Counter()
    findings, slowest, grown = [], 0.0, 0
    number, last = first, first + tries
    while number < last:
        command = [sys.executable, __file__, "--child", name, "--home", str(home), "--seed", str(seed)]
        command += ["--first", str(number), "--tries", str(last - number), *(["--show"] if show else [])]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        begun = None
        for line in process.stdout:
            kind, content = line.split(" ", 1)
            if kind == "begin":
                begun = int(content)
                continue
            row = json.loads(content)
            begun, number = None, row["number"] + 1
            counts[row["outcome"]] += 1
            slowest, grown = max(slowest, row["seconds"]), max(grown, row["grown"])
            if row["outcome"] == "other":
                findings.append(row)
            if show:
                print(row)
        code = process.wait()
        if begun is not None:  # the child died on this input
            what = "hang" if code == 1 else f"crash ({code})"
            counts["hang" if code == 1 else "crash"] += 1
            findings.append({"number": begun, "outcome": what, "why": ""})
            number = begun + 1
        elif code:
            raise SystemExit(f"{name}: the undamaged input can't be read; run with --readers '{name}' --only 0.")
    return {"reader": name, "counts": dict(counts), "slowest": slowest, "grown": grown, "findings": findings}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tries", type=int, default=2000, help="inputs for each reader")
    parser.add_argument("--readers", nargs="+", help="only these")
    parser.add_argument("--json", type=Path, help="file for the results")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="one input by its number, with its traceback")
    parser.add_argument("--home", type=Path, help="keep the undamaged inputs in this folder")
    for hidden in ("--child", "--first", "--show"):
        parser.add_argument(
            hidden,
            help=argparse.SUPPRESS,
            **({"action": "store_true"} if hidden == "--show" else {"type": int} if hidden == "--first" else {}),
        )
    options = parser.parse_args()
    os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "HF_DATASETS_DISABLE_PROGRESS_BARS": "1"}
    if options.child:
        first = options.first or 0
        child(options.home, options.child, first, first + options.tries, options.seed, options.show)
        return 0
    with tempfile.TemporaryDirectory() as temporary:
        home = options.home or Path(temporary) / "home"
        if not (home / "other").is_dir():
            with contextlib.redirect_stdout(io.StringIO()):
                make_seeds(home)
        names = options.readers or list(readers(home))
        if options.only is not None:
            fuzz(home, names[0], 1, options.seed, show=True, first=options.only)
            return 0
        results = []
        print("| reader | inputs | read | refused | other errors | hangs | crashes | slowest | memory grown |")
        print("|---|---|---|---|---|---|---|---|---|")
        for name in names:
            result = fuzz(home, name, options.tries, options.seed)
            results.append(result)
            counts = Counter(result["counts"])
            columns = [sum(counts.values()), *(counts[each] for each in ("read", "refused", "other", "hang", "crash"))]
            print(
                f"| {name} | {' | '.join(map(str, columns))} | {result['slowest']:.1f} s | {result['grown']} MB |",
                flush=True,
            )
            for each, _ in zip(result["findings"], range(5), strict=False):
                print(f"    {each['number']}: {each['outcome']} {each['why']}", file=sys.stderr, flush=True)
        if options.json:
            options.json.write_text(json.dumps(results, indent=2) + "\n")
        return int(any(result["findings"] or result["grown"] > MOST_GROWTH for result in results))


if __name__ == "__main__":
    raise SystemExit(main())
