"""What a study needs, in words: memory, time, models of the Hub, data, and commands for runs of several processes."""

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from descend.settings import options as flags
from reproduction.grid import ROOT

if TYPE_CHECKING:
    from reproduction.study import Study
    from reproduction.workers import Job

LAUNCH_FILE = "examples/accelerate/fsdp2.yaml"
"""Of a checkout of Descend."""

GATED = ("meta-llama/Llama-3.1-8B",)
"""Models of the Hub whose licence has to be accepted there."""


def plan_lines(study: "Study", card: float, tflops: float) -> list[str]:
    """What the missing cells need, in lines for a terminal.

    Args:
        study: The study.
        card: Memory of an accelerator in GB.
        tflops: The sustained speed of an accelerator in TFLOP/s.
    """
    from reproduction.data_check import data_lines, hub_names

    lines = _need_lines(study, card, tflops)
    if names := hub_names(study.missing):
        lines += ["", "Models and tokenizers of the Hub, downloaded when a cell starts:"]
        lines += [f"  {name} ({', '.join(sorted(recipes))}): {hub_state(name)}" for name, recipes in names.items()]
    if paths := study.needed_paths():
        lines += ["", f"Data under {study.root or 'the folder that --data-root names'}:"]
        lines += [f"  {line}" for line in data_lines(paths, study.root)]
    return [*lines, ""]


def _need_lines(study: "Study", card: float, tflops: float) -> list[str]:
    from reproduction.plan import needs

    found = needs(study.missing, study.scale, card)
    if not found:
        return []
    columns = {
        "recipe": [*(need.recipe for need in found), "all"],
        "cells": [*(str(need.cells) for need in found), str(len(study.missing))],
        "GiB": [*(f"{need.memory:,.1f}" for need in found), ""],
        "processes": [*(str(need.processes or "too large") for need in found), ""],
        "PFLOP": _with_sum([None if need.flops is None else need.flops / 1e15 for need in found]),
        "hours, one core": _with_sum([need.core_hours for need in found]),
        "hours, one GPU": _with_sum([need.hours(tflops) for need in found]),
    }
    padded = [[word.rjust(max(map(len, (head, *words)))) for word in (head, *words)] for head, words in columns.items()]
    table = ["  ".join(row) for row in zip(*padded, strict=True)]
    return [
        "",
        *table,
        "",
        "GiB: the largest cell in one process that trains in float32 with AdamW, 16 bytes a parameter and activations.",
        f"Processes: the fewest of FSDP2, one a card of {card:g} GB, that fill at most 90 % of it.",
        "FLOPs: 6 for each parameter that a trained token meets, 2 where it is judged.",
        "Hours, one core: at the FLOP/s of scale small by costs.json, whose small matrices are slow.",
        f"Hours, one GPU: at {tflops:g} sustained TFLOP/s (--tflops), which is an assumption.",
    ]


def hub_state(name: str) -> str:
    """Whether a model of the Hub can be had, in words; only asks, and downloads nothing."""
    from huggingface_hub import auth_check, try_to_load_from_cache
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    if isinstance(try_to_load_from_cache(name, "config.json"), str):
        return "in the local cache"
    try:
        auth_check(name)
    except GatedRepoError:
        return "gated: accept its licence on the Hub and log in by hf auth login"
    except RepositoryNotFoundError:
        return "not found on the Hub, or private"
    except Exception:  # no network, a proxy, a server's error
        return f"not checked, the Hub can't be reached{'; access to it is gated' if name in GATED else ''}"
    return "can be downloaded"


def by_hand_lines(jobs: Sequence["Job"], card: float) -> list[str]:
    """How to start the cells that need several processes, a command for each.

    Args:
        jobs: The cells.
        card: Memory of an accelerator in GB.
    """
    from reproduction.plan import processes

    counts = [(job, processes(job.cell, card)) for job in jobs]
    commands = [launch_command(job, count) for job, count in counts if count]
    lines = []
    if commands:
        lines += [
            f"{len(commands)} cells need several cards of {card:g} GB, and a worker of this command is one process. "
            "Train each by its command, in a checkout of Descend; this command, given again, then judges and stores "
            f"it.{'' if jobs[0].root else ' DATA is the folder that --data-root names.'}",
            *(f"  {command}" for command in commands),
        ]
    if too_large := [job.cell.name for job, count in counts if not count]:
        lines += [
            f"{len(too_large)} cells are too large for any number of cards of {card:g} GB; give larger ones by --card:",
            *(f"  {name}" for name in too_large),
        ]
    return [*lines, ""]


def launch_command(job: "Job", count: int) -> str:
    """The command that trains a cell in its run folder by several processes; a step's batch stays the same."""
    from reproduction.plan import batch

    settings = job.resolved(job.cell.settings) | {"per_device_train_batch_size": batch(job.cell) // count}
    launch = f"accelerate launch --config_file {LAUNCH_FILE} --mixed_precision no --num_processes {count}"
    begun = (job.folder / "config.json").is_file()
    words = [job.cell.recipe, *flags(settings), "--out", str(job.folder), *(["--resume"] if begun else [])]
    return f"{launch} -m descend train {shlex.join(words)}".replace(ROOT, "DATA")


def _with_sum(values: Sequence[float | None]) -> list[str]:
    """Numbers in words, and the sum of those that are known."""
    known = [value for value in values if value is not None]
    return [_number(value) for value in (*values, sum(known) if known else None)]


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:,.0f}" if value >= 10 else f"{value:.2g}"
