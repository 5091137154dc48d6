"""One run of a study: ``descend train`` and ``descend evaluate``, unless it is done."""

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path


def carry_out(train: list[str], judge: list[str], out: Path) -> dict:
    """The summary of a run in ``out``, trained and judged with these flags; taken up again where it was cut off."""
    if not (out / "summary.json").is_file():
        descend = [sys.executable, "-m", "descend"]
        resume = ["--resume"] if (out / "config.json").is_file() else []
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        out.parent.mkdir(parents=True, exist_ok=True)
        for command in (
            [*descend, "train", *train, "--out", str(out), *resume],
            [*descend, "evaluate", str(out), *judge],
        ):
            done = subprocess.run(command, env=environment, capture_output=True, text=True)
            if done.returncode:
                raise SystemExit(f"{' '.join(command)}\n{done.stderr}")
        for checkpoint in out.glob("checkpoint-*"):
            subprocess.run(["rm", "-r", checkpoint], check=True)
    return json.loads((out / "summary.json").read_text())


def spread(values: list[float], digits: int) -> str:
    """Mean ± standard deviation over seeds; of one seed its value."""
    if len(values) == 1:
        return f"{values[0]:.{digits}f}"
    return f"{statistics.mean(values):.{digits}f} ± {statistics.stdev(values):.{digits}f}"


def accuracy_columns(found: list[dict]) -> list[str]:
    """Of several seeds: the area, and the metric in % on clean inputs, at the training noise and at the most noise."""
    measured = (
        [each["values"][0] for each in found],
        [each["train_value"] for each in found],
        [each["values"][-1] for each in found],
    )
    return [
        spread([each["auc"] for each in found], 3),
        *(spread([100 * value for value in values], 1) for values in measured),
    ]
