"""The time of a save, against that of another version of Descend: pairs by turns, in one run.

    python benchmarks/save_cost.py --against OTHER/src [--pairs 10] [--parameters 100]

Each version trains a model of so many million parameters in a process of its own, and writes a checkpoint when it is
told to: weights, Adam's two moments, the states and the hashes. The parent tells them by turns, first one and then the
other, so both meet the same load of the machine. The result is the median of the ratios within pairs.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).resolve().parents[1] / "src"


def child(folder: Path, parameters: int) -> None:
    """Save a checkpoint for each line on stdin, and print its seconds."""
    import torch
    from transformers import DistilBertConfig, DistilBertForSequenceClassification, TrainingArguments

    import descend

    torch.manual_seed(0)
    config = DistilBertConfig(vocab_size=parameters * 10**6 // 768, n_layers=2, dim=768, num_labels=2)
    model = DistilBertForSequenceClassification(config)
    tokens = torch.arange(8) + 1
    rows = [{"input_ids": tokens + place, "attention_mask": torch.ones(8, dtype=torch.long)} for place in range(8)]
    data: Any = [row | {"labels": place % 2} for place, row in enumerate(rows)]
    args = TrainingArguments(
        str(folder), max_steps=1, save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True, logging_steps=1
    )
    trainer = descend.DescentTrainer(model, args, train_dataset=data, eval_dataset=data)
    trainer.train()
    print("ready", flush=True)
    for line in sys.stdin:
        checkpoint = folder / f"checkpoint-{int(line)}"
        began = time.perf_counter()
        trainer.write_checkpoint(checkpoint, trainer.model)
        print(time.perf_counter() - began, flush=True)
        shutil.rmtree(checkpoint)
        os.sync()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, help="the folder src of the other version")
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--parameters", type=int, default=100, help="in millions")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child is not None:
        child(options.child, options.parameters)
        return 0
    with tempfile.TemporaryDirectory() as name:
        processes = []
        for number, source in enumerate((options.against, SOURCE)):
            command = [sys.executable, __file__, "--child", f"{name}/{number}", "--parameters", str(options.parameters)]
            environment = os.environ | {"PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
            pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            processes.append(subprocess.Popen(command, env=environment, **pipes))

        def answer(process: Any) -> str:
            while not (line := process.stdout.readline().strip()).replace(".", "").isdigit() and line != "ready":
                if process.poll() is not None:
                    raise SystemExit("a version can't train; see its error above.")
            return line

        for process in processes:
            answer(process)
        ratios = []
        for pair in range(options.pairs + 1):
            seconds = [0.0, 0.0]
            for number in (0, 1) if pair % 2 else (1, 0):
                print(pair + 1, file=processes[number].stdin, flush=True)
                seconds[number] = float(answer(processes[number]))
            if pair:  # the first warms up
                ratios.append(seconds[1] / seconds[0])
                print(
                    f"{pair:3}: {seconds[0]:.2f} s before, {seconds[1]:.2f} s now, ratio {ratios[-1]:.3f}", flush=True
                )
        for process in processes:
            process.stdin.close()
            process.wait()
    low, _, high = statistics.quantiles(ratios, n=4)
    print(f"median of {len(ratios)} ratios: {statistics.median(ratios):.3f} (quartiles {low:.3f} to {high:.3f})")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
