"""Kill a training run at random moments, resume it, and compare it byte for byte with an undisturbed run.

    python benchmarks/kill_test.py --tries 50
    python benchmarks/kill_test.py --tries 50 --recipe llm-sft
    python benchmarks/kill_test.py --tries 50 --slow 0.05      # a slow disk: checkpoints take longer

Each try kills a process by SIGKILL at a moment drawn uniformly over the duration of an undisturbed run: before anything
is written, while videos are decoded, between steps, in evaluation, in a checkpoint. Then the same command with --resume
must end with the same files. Processes are forked from one that has already imported everything: imports would take
most of the time, and nothing is written during them.
"""

import argparse
import gc
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from descend import cli, recipes, run  # noqa: F401  (imported before any process is forked)
from descend.writing import PART

OVER = "over already"
COMMON = """--use-cpu --dual-warmup-steps 0.1 --logging-steps 2 --save-total-limit 2 --quiet"""
VIDEO = """--depth 2 --window 2 --stride 3 --validation-share 0.3 --per-device-train-batch-size 4 --alpha 0.05
    --eval-steps 3 --save-steps 3 --slack explicit --attention-size 8"""
LANGUAGE = """--data generated --depth 2 --hidden-size 16 --per-device-train-batch-size 4 --alpha 0.05 --exit-share 0.3
    --eval-strategy steps --save-strategy steps --eval-steps 3 --save-steps 3"""


def clips(folder: Path) -> Path:
    """Write four folders of random frames."""
    generator = np.random.default_rng(0)
    for clip in range(4):
        (folder / f"clip{clip}").mkdir(parents=True)
        for frame in range(20):
            pixels = generator.integers(0, 255, (160, 160), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f"clip{clip}" / f"{frame:03}.png")
    return folder


def slow_disk(seconds: float) -> None:
    """Delay every fsync by ``seconds``."""
    flush = os.fsync

    def slowly(descriptor: int) -> None:
        time.sleep(seconds)
        flush(descriptor)

    os.fsync = slowly


def start(work: Callable[[], int], log: Path) -> int:
    """Run ``work`` in a forked process, with its output in ``log``; return the process id."""
    sys.stdout.flush()
    child = os.fork()
    if child:
        return child
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    try:
        os._exit(work())
    except BaseException:
        sys.excepthook(*sys.exc_info())
        os._exit(70)


def moment(out: Path, cache: Path) -> str:
    """What the run was doing when it was killed, read from the files it left."""
    if parts := [*out.glob(f"{PART}-*/*")]:
        return f"writing {parts[0].name.split('-')[0]}"
    if not (out / "config.json").exists():
        return "decoding" if any(cache.glob(f"{PART}-*")) else "before anything was written"
    if (out / "model").exists():
        return "at the end"
    return "training or evaluating" if list(out.glob("checkpoint-*")) else "before the first checkpoint"


def differences(whole: Path, other: Path) -> list[str]:
    """Files in which two finished runs differ, ignoring wall-clock times."""
    differing = []
    names = sorted({str(path.relative_to(each)) for each in (whole, other) for path in each.rglob("*")})
    for name in names:
        left, right = whole / name, other / name
        if left.is_dir() and right.is_dir():
            continue
        if not (left.is_file() and right.is_file()):
            differing.append(f"{name} in only one")
        elif name == "config.json":
            pair = [json.loads(path.read_text()) | {"seconds": 0} for path in (left, right)]
            for each in pair:
                each["settings"].pop("cache_dir", None)
            if pair[0] != pair[1]:
                differing.append(name)
        elif left.name == "written.json":
            continue  # its checksums are of files that are compared anyway
        elif left.name == "trainer_state.json":
            if untimed(left) != untimed(right):
                differing.append(name)
        elif left.name.startswith("descent_"):
            pair = [json.loads(path.read_text()) | {"seconds": 0} for path in (left, right)]
            if pair[0] != pair[1]:
                differing.append(name)
        elif left.suffix in (".pt", ".pth"):
            pair = [torch.load(path, weights_only=False) for path in (left, right)]  # this script wrote them
            if plain(pair[0]) != plain(pair[1]):
                differing.append(name)
        elif left.read_bytes() != right.read_bytes():
            differing.append(name)
    return differing


def untimed(path: Path) -> dict:
    """Transformers' trainer state without wall-clock times, its folder, and the mean ``loss``.

    The mean ``loss`` counts from the start of the process, so a resumed run has another one. The losses by layer count
    from the last log.
    """
    state = json.loads(path.read_text())
    state["best_model_checkpoint"] = Path(state["best_model_checkpoint"] or "").name
    clock = ("_runtime", "_per_second")
    state["log_history"] = [
        {name: value for name, value in row.items() if name != "loss" and not name.endswith(clock)}
        for row in state["log_history"]
        if "train_runtime" not in row
    ]
    return state


def plain(state: object) -> object:
    """Nested state with tensors as bytes, so that it can be compared."""
    if isinstance(state, torch.Tensor | np.ndarray):
        return str(state.dtype), tuple(state.shape), np.asarray(state).tobytes()
    if isinstance(state, dict):
        return {key: plain(value) for key, value in state.items()}
    return [plain(value) for value in state] if isinstance(state, list | tuple) else state


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tries", type=int, default=50)
    parser.add_argument("--steps", type=int, default=24, help="steps of a run")
    parser.add_argument("--seed", type=int, default=0, help="seed of the moments of the kills")
    parser.add_argument("--recipe", choices=("video-ut", "llm-sft"), default="video-ut")
    parser.add_argument("--slow", type=float, default=0.002, help="delay of every fsync, in seconds")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    torch.set_num_threads(1)
    gc.freeze()  # what is imported stays: no child's collector looks through it, which would copy it
    slow_disk(options.slow)
    generator = random.Random(options.seed)
    tries = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = clips(folder / "clips") if options.recipe == "video-ut" else None

        def command(arm: str, *flags: str) -> Callable[[], int]:
            words = ["train", options.recipe, *COMMON.split(), "--max-steps", str(options.steps), *flags]
            words += ["--out", str(folder / arm / "run")]
            if data is None:
                return lambda: cli.main([*words, *LANGUAGE.split()])
            caches = ["--data", str(data), "--cache-dir", str(folder / arm / "cache")]
            return lambda: cli.main([*words, *VIDEO.split(), *caches])

        def wait(child: int, log: Path) -> float:
            began = time.monotonic()
            _, status = os.waitpid(child, 0)
            if os.waitstatus_to_exitcode(status):
                code = os.waitstatus_to_exitcode(status)
                raise SystemExit(f"a run that was not killed exited with {code}:\n{log.read_text()}")
            return time.monotonic() - began

        life = wait(start(command("whole"), folder / "whole.log"), folder / "whole.log")
        whole = folder / "whole" / "run"
        number = 0
        while number < options.tries:
            arm = folder / f"try{number}"
            log = folder / f"try{number}.log"
            kills: list[tuple[float, str]] = []
            for resume in ([], ["--resume"])[: generator.choice((1, 1, 2))]:  # a third are killed twice
                after = generator.uniform(0, life)
                began = time.monotonic()
                child = start(command(arm.name, *resume), log)
                ended = (0, 0)
                while not ended[0] and time.monotonic() < began + after:
                    time.sleep(0.005)
                    ended = os.waitpid(child, os.WNOHANG)
                if ended[0]:  # the machine is less busy now, so the run is shorter
                    life = life if resume else time.monotonic() - began
                    kills.append((round(time.monotonic() - began, 3), OVER))
                    continue
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                kills.append((round(after, 3), moment(arm / "run", arm / "cache")))
            for left in (arm / "run").glob(f"{PART}-*"):  # an hour passes: nobody writes it any more, so it is removed
                os.utime(left, (0, 0))
            wait(start(command(arm.name, "--resume"), log), log)
            if all(met == OVER for _, met in kills):  # no kill met a running process, so this is not a try
                shutil.rmtree(arm)
                continue
            number += 1
            differing = differences(whole, arm / "run")
            tries.append({"kills": kills, "differs": differing})
            if not options.json:
                when = " and again ".join(f"after {after:.2f} s, {met}" for after, met in kills)
                print(f"{number:3} killed {when}: {differing or 'bit-identical'}", flush=True)
            shutil.rmtree(arm, ignore_errors=True)
    survived = sum(not attempt["differs"] for attempt in tries)
    where = Counter(met for attempt in tries for _, met in attempt["kills"])
    if options.json:
        print(json.dumps({"recipe": options.recipe, "life": life, "survived": survived, "tries": tries}))
    else:
        print(f"\nduration of an undisturbed run: {life:.2f} s\n{'killed':32} kills")
        for met, count in where.most_common():
            print(f"{met:32} {count:5}")
        print(f"\n{survived} of {len(tries)} tries ended bit-identical to the undisturbed run")
    return 0 if survived == len(tries) else 1


if __name__ == "__main__":
    sys.exit(main())
