"""Check that memory and open files stay flat over many small training steps with evaluations and checkpoints.

    python benchmarks/soak.py --steps 20000 --json

Resident memory and open files are read at every checkpoint. After the first tenth of the steps, memory must not grow by
more than 2 % and the number of open files must not grow. Exits with status 1 otherwise.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path

from transformers import TrainerCallback
from transformers.trainer_callback import PrinterCallback
from transformers.utils import logging

from descend import UT, DescentConfig, DescentTrainer, GaussianNoise, UTConfig
from descend.tasks.video import VideoDenoising, load_video

WARM_UP = 0.1
PAGE = os.sysconf("SC_PAGE_SIZE")


def memory() -> float:
    """Resident memory of this process, in MB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE / 1e6


class Watch(TrainerCallback):
    """Record memory and open files at every checkpoint."""

    def __init__(self, quiet: bool):
        self.quiet = quiet
        self.seen: list[tuple[int, float, int]] = []

    def on_save(self, args, state, control, **kwargs):
        self.seen.append((state.global_step, memory(), len(os.listdir("/proc/self/fd"))))
        if not self.quiet and len(self.seen) % 10 == 0:
            print("step {:6}  {:8.1f} MB  {:3} files".format(*self.seen[-1]), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--every", type=int, default=100, help="steps from one evaluation and checkpoint to the next")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    data = load_video(None, 1, stride=10)
    watch = Watch(options.json)
    with tempfile.TemporaryDirectory() as folder:
        args = DescentConfig(
            output_dir=folder,
            max_steps=options.steps,
            per_device_train_batch_size=1,
            per_device_eval_batch_size=16,
            learning_rate=1e-4,
            logging_steps=10,
            eval_strategy="steps",
            eval_steps=options.every,
            save_steps=options.every,
            save_total_limit=2,
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
        )
        trainer = DescentTrainer(
            UT(UTConfig(depth=2, attention_size=8)),
            args,
            task=VideoDenoising(),
            noise=GaussianNoise(0.8, data.sigma),
            train_dataset=data.train,
            eval_dataset=data.validation,
            callbacks=[watch],
        )
        trainer.remove_callback(PrinterCallback)
        logging.disable_progress_bar()
        began = time.monotonic()
        trainer.train()
        seconds = time.monotonic() - began
        rows = sum(1 for _ in (Path(folder) / "records.jsonl").open())
    warm = [each for each in watch.seen if each[0] >= WARM_UP * options.steps]
    memories, files = [each[1] for each in warm], [each[2] for each in warm]
    result = {
        "steps": options.steps,
        "checkpoints": len(watch.seen),
        "rows": rows,
        "seconds": round(seconds),
        "memory_mb": {"warm": round(memories[0], 1), "most": round(max(memories), 1), "last": round(memories[-1], 1)},
        "growth": round(max(memories) / memories[0] - 1, 4),
        "files": {"warm": files[0], "most": max(files), "last": files[-1]},
    }
    flat = result["growth"] <= 0.02 and max(files) <= files[0]
    print(json.dumps(result | {"flat": flat}) if options.json else f"{result}\n{'flat' if flat else 'NOT FLAT'}")
    return 0 if flat else 1


if __name__ == "__main__":
    sys.exit(main())
