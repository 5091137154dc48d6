"""Kill a training run at random moments, go on with the same command and --resume, and compare with an undisturbed run.

    python benchmarks/kill_test.py --tries 50
    python benchmarks/kill_test.py --tries 50 --recipe llm-sft
    python benchmarks/kill_test.py --tries 50 --slow 0.05      # on a slow disk: more of a life is spent in checkpoints

Each try is a process that is killed by SIGKILL at a moment drawn uniformly over the life of an undisturbed run: before
anything is written, while videos are decoded, between steps, in evaluation, in a checkpoint. Processes are forked from
one that has imported the libraries, which would be most of a life; nothing is written while they are imported.
"""

import argparse
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

from descend import cli, recipes, run  # noqa: F401  (in every process that is forked, before it is)
from descend.training.checkpoints import load_state

OVER = "over already"
COMMON = """--use-cpu --dual-warmup-steps 0.1 --logging-steps 2 --save-total-limit 2 --disable-tqdm true"""
VIDEO = """--depth 2 --window 2 --stride 3 --validation-share 0.3 --per-device-train-batch-size 4 --alpha 0.05
    --eval-steps 3 --save-steps 3 --slack explicit --attention-size 8"""
LANGUAGE = """--depth 2 --hidden-size 16 --per-device-train-batch-size 4 --alpha 0.05 --exit-share 0.3
    --eval-strategy steps --save-strategy steps --eval-steps 3 --save-steps 3"""


def clips(folder: Path) -> Path:
    """Folders of frames, to be decoded."""
    generator = np.random.default_rng(0)
    for clip in range(4):
        (folder / f"clip{clip}").mkdir(parents=True)
        for frame in range(20):
            pixels = generator.integers(0, 255, (160, 160), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f"clip{clip}" / f"{frame:03}.png")
    return folder


def slow_disk(seconds: float) -> None:
    """Let every flush of a file or folder to the disk take so much longer."""
    flush = os.fsync

    def slowly(descriptor: int) -> None:
        time.sleep(seconds)
        flush(descriptor)

    os.fsync = slowly


def start(work: Callable[[], int], log: Path) -> int:
    """Do some work in a process of its own; gives its number."""
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
    """Where a kill met a run, told by what it left."""
    if list((out / ".part").glob("*")):
        return f"writing {next((out / '.part').glob('*')).name.split('-')[0]}"
    if not (out / "config.json").exists():
        return "decoding" if any(cache.glob("*.part")) else "before anything was written"
    if (out / "model").exists():
        return "at the end"
    return "training or evaluating" if list(out.glob("checkpoint-*")) else "before the first checkpoint"


def differences(whole: Path, other: Path) -> list[str]:
    """What two finished runs do not have in common to the last bit; seconds of the clock apart."""
    found = []
    names = sorted({str(path.relative_to(each)) for each in (whole, other) for path in each.rglob("*")})
    for name in names:
        one, two = whole / name, other / name
        if one.is_dir() and two.is_dir():
            continue
        if not (one.is_file() and two.is_file()):
            found.append(f"{name} in only one")
        elif name == "config.json":
            pair = [json.loads(path.read_text()) | {"seconds": 0} for path in (one, two)]
            for each in pair:
                each["settings"].pop("cache_dir", None)
            if pair[0] != pair[1]:
                found.append(name)
        elif one.name == "manifest.json":
            continue  # of files that are compared themselves
        elif one.name == "trainer_state.json":
            if untimed(one) != untimed(two):
                found.append(name)
        elif one.name.startswith("descent_"):
            pair = [load_state(path) | {"seconds": 0} for path in (one, two)]
            if plain(pair[0]) != plain(pair[1]):
                found.append(name)
        elif one.suffix in (".pt", ".pth"):
            pair = [torch.load(path, weights_only=False) for path in (one, two)]  # of this script's own making
            if plain(pair[0]) != plain(pair[1]):
                found.append(name)
        elif one.read_bytes() != two.read_bytes():
            found.append(name)
    return found


def untimed(path: Path) -> dict:
    """The library's own state of a run without what tells of the clock, of its folder, or of how often it began.

    Its mean ``loss`` is that since a process began; the losses of every layer, beside it, are those since the last log.
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
    """Tensors as bytes, to be compared."""
    if isinstance(state, torch.Tensor | np.ndarray):
        return str(state.dtype), tuple(state.shape), np.asarray(state).tobytes()
    if isinstance(state, dict):
        return {key: plain(value) for key, value in state.items()}
    return [plain(value) for value in state] if isinstance(state, list | tuple) else state


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tries", type=int, default=50)
    parser.add_argument("--steps", type=int, default=24, help="of a run")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--recipe", choices=("video-ut", "llm-sft"), default="video-ut")
    parser.add_argument("--slow", type=float, default=0.002, help="seconds that a flush to the disk takes longer")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    torch.set_num_threads(1)
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
                raise SystemExit(f"a run that was not killed ended with {code}:\n{log.read_text()}")
            return time.monotonic() - began

        life = wait(start(command("whole"), folder / "whole.log"), folder / "whole.log")
        whole = folder / "whole" / "run"
        number = 0
        while number < options.tries:
            arm = folder / f"try{number}"
            log = folder / f"try{number}.log"
            kills: list[tuple[float, str]] = []
            for resume in ([], ["--resume"])[: generator.choice((1, 1, 2))]:  # every third is killed again
                after = generator.uniform(0, life)
                began = time.monotonic()
                child = start(command(arm.name, *resume), log)
                ended = (0, 0)
                while not ended[0] and time.monotonic() < began + after:
                    time.sleep(0.005)
                    ended = os.waitpid(child, os.WNOHANG)
                if ended[0]:  # on a machine with less to do than before a life is shorter
                    life = life if resume else time.monotonic() - began
                    kills.append((round(time.monotonic() - began, 3), OVER))
                    continue
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                kills.append((round(after, 3), moment(arm / "run", arm / "cache")))
            wait(start(command(arm.name, "--resume"), log), log)
            if all(met == OVER for _, met in kills):  # nothing was killed: no try
                shutil.rmtree(arm)
                continue
            number += 1
            found = differences(whole, arm / "run")
            tries.append({"kills": kills, "differs": found})
            if not options.json:
                told = " and again ".join(f"after {after:.2f} s, {met}" for after, met in kills)
                print(f"{number:3} killed {told}: {found or 'bit-equal'}", flush=True)
            shutil.rmtree(arm, ignore_errors=True)
    survived = sum(not one["differs"] for one in tries)
    where = Counter(met for one in tries for _, met in one["kills"])
    if options.json:
        print(json.dumps({"recipe": options.recipe, "life": life, "survived": survived, "tries": tries}))
    else:
        print(f"\na life: {life:.2f} s\n{'killed':32} kills")
        for met, count in where.most_common():
            print(f"{met:32} {count:5}")
        print(f"\n{survived} of {len(tries)} tries ended bit-equal to the run that was not killed")
    return 0 if survived == len(tries) else 1


if __name__ == "__main__":
    sys.exit(main())
