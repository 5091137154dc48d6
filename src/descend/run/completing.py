"""Complete prompts with a run's language model, in AlpacaEval's format."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from descend.errors import InputError
from descend.noise import Noise
from descend.progress import progress
from descend.reading import json_objects, parse_json, plain_text, read_text
from descend.results import CONFIG_FILE, locked, write_json
from descend.run.loading import of_run
from descend.seeds import Stream, derived
from descend.tasks.text import encode_prompt, prompt

PARTIAL = ".partial"
_BEGIN = '{"run": '
"""How the first line of an unfinished file begins, with the settings of `complete`."""
"""Suffix of an unfinished output file: its settings, then one answer on each line."""


def complete(
    folder: Path,
    prompts: Path,
    out: Path,
    *,
    noise: float | None = None,
    model: str = "model",
    max_new_tokens: int = 256,
    limit: int | None = None,
    batch_size: int = 8,
    seed: int = 0,
) -> dict[str, int]:
    """Write a run's answers to prompts; the same call resumes an interrupted one.

    The noise is added to the embedding of every token of prompt and answer. Decoding is greedy, so only the noise
    changes the answers.

    Args:
        folder: The run, of a language model.
        prompts: A JSON list of objects with ``instruction`` and perhaps ``input`` and ``dataset``, as
            ``alpaca_eval.json``.
        out: The JSON file to write: ``instruction``, ``output``, ``generator`` and ``dataset`` of every prompt.
        noise: γ; by default the training noise.
        model: The run's model: ``model`` or ``best_feasible``.
        max_new_tokens: The longest answer.
        limit: Answer only so many prompts, from the first.
        batch_size: Prompts at a time. With noise, answers depend on it.
        seed: The seed of the noise.

    Returns:
        How many were ``written``, and how many prompts were ``skipped`` because they leave no room for an answer.

    Raises:
        InputError: If the run has no language model, a prompt can't be read, or ``out`` is that of other settings.
    """
    if max_new_tokens < 1 or batch_size < 1 or (limit is not None and limit < 1):
        raise InputError("max_new_tokens, batch_size and limit must be at least 1.")
    if not 0 <= seed < 2**32:
        raise InputError(f"seed must be from 0 to 2^32 - 1; got {seed}.")
    rows = list(_prompts(prompts))[:limit]
    partial = out.with_name(out.name + PARTIAL)
    _refuse_existing(out)
    subject = of_run(folder, model)
    if not subject.restored.model.limits.get("length") or subject.recipe.task().metric != "token_accuracy":
        raise InputError(f"expected a run of llm-sft; {folder} holds no language model.")
    level = subject.recipe.noise if noise is None else noise
    if not 0 <= level < float("inf"):
        raise InputError(f"noise must be a level γ of at least 0, in std of the clean embedding; got {level}.")
    generator = f"{subject.provenance.model} {subject.provenance.method}, γ = {level:g}"
    settings = {
        "run": str(folder.absolute()),
        "model": model,
        "trained": _digest(folder / CONFIG_FILE),
        "prompts": len(rows),
        "prompts_file": _digest(prompts),
        "noise": level,
        "max_new_tokens": max_new_tokens,
        "batch_size": batch_size,
        "seed": seed,
    }
    tokenizer, network = subject.restored.tokenizer, subject.restored.model.saved
    assert tokenizer is not None
    device = subject.args.device
    network.to(device).eval()
    longest = subject.restored.model.limits["length"]
    out.parent.mkdir(parents=True, exist_ok=True)
    with locked(out):
        _refuse_existing(out)  # again, now that no other command can write it
        done = _begun(partial, settings)
        with partial.open("a", encoding="utf-8") as file, progress(len(rows), "answering", "prompt") as bar:
            if not file.tell():
                file.write(json.dumps(settings) + "\n")
            bar.update(len(done))
            for start in range(len(done), len(rows), batch_size):
                batch = rows[start : start + batch_size]
                asked = [
                    encode_prompt(tokenizer, prompt(tokenizer, row["instruction"], row.get("input") or ""))
                    for row in batch
                ]
                room = [place for place, ids in enumerate(asked) if len(ids) < longest]
                answers: list[str | None] = [None] * len(batch)
                # Seeded by the batch, so that a resumed run draws the same noise.
                batch_seed = derived(Stream.COMPLETIONS, seed, start)
                shaken = subject.recipe.corruption(subject.sigma, batch_seed).at(level)
                for place, text in zip(
                    room,
                    _answers(
                        network, tokenizer, [asked[place] for place in room], shaken, max_new_tokens, longest, device
                    ),
                    strict=True,
                ):
                    answers[place] = text
                for row, answer in zip(batch, answers, strict=True):
                    entry = None if answer is None else _entry(row, answer, generator)
                    file.write(json.dumps(entry, ensure_ascii=False) + "\n")
                    done.append(entry)
                file.flush()
                bar.update(len(batch))
        written = [entry for entry in done if entry is not None]
        write_json(out, written)
        partial.unlink()
    return {"written": len(written), "skipped": len(done) - len(written)}


@torch.no_grad()
def _answers(
    network: Any,
    tokenizer: Any,
    asked: list[list[int]],
    noise: Noise,
    max_new_tokens: int,
    longest: int,
    device: torch.device,
) -> list[str]:
    if not asked:
        return []
    width = max(map(len, asked))
    # Padding takes no positions, so each answer has the room that its own prompt leaves.
    rooms = [min(max_new_tokens, longest - len(each)) for each in asked]
    ids = torch.full((len(asked), width), tokenizer.pad_token_id, device=device)
    mask = torch.zeros_like(ids)
    for place, each in enumerate(asked):  # the answer begins where the longest prompt ends
        ids[place, width - len(each) :] = torch.tensor(each, device=device)
        mask[place, width - len(each) :] = 1
    with noise.on(network):
        generated = network.generate(
            input_ids=ids,
            attention_mask=mask,
            max_new_tokens=max(rooms),
            do_sample=False,
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=tokenizer.eos_token_id,
        )
    answers = [each[width : width + room] for each, room in zip(generated, rooms, strict=True)]
    return [text.strip() for text in tokenizer.batch_decode(answers, skip_special_tokens=True)]


def _entry(row: dict[str, Any], answer: str, generator: str) -> dict[str, str]:
    return {
        "instruction": row["instruction"],
        "output": answer,
        "generator": generator,
        "dataset": row.get("dataset", ""),
    }


def _prompts(path: Path) -> Iterator[dict[str, Any]]:
    empty = True
    for place, row in json_objects(path):
        strings = [row.get("instruction"), row.get("input") or "", row.get("dataset") or ""]
        if not all(map(plain_text, strings)) or not row["instruction"].strip():
            raise InputError(
                f"{place}, must be an object with the text 'instruction', and 'input' and 'dataset' as texts if there "
                f"are any; got {repr(row)[:60]}."
            )
        empty = False
        yield row
    if empty:
        raise InputError(f"{path} holds no prompts; expected a JSON list or lines of them, as alpaca_eval.json.")


def _refuse_existing(out: Path) -> None:
    if out.exists():
        raise InputError(f"{out} exists; choose another with --out.")


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _begun(partial: Path, settings: dict[str, Any]) -> list[dict[str, str] | None]:
    """The answers that an interrupted run has written, without a half-written last line."""
    if not partial.exists():
        return []
    content = read_text(partial)
    if not content.startswith(_BEGIN[: len(content)]):
        raise InputError(f"{partial} was not written by descend complete. Move it, or choose another file with --out.")
    lines = content.split("\n")[:-1]
    if not lines:
        partial.unlink()
        return []
    try:
        before, *entries = map(parse_json, lines)
        whole = isinstance(before, dict) and all(entry is None or isinstance(entry, dict) for entry in entries)
    except ValueError:
        whole = False
    if not whole:
        raise InputError(f"{partial} is damaged. Remove it to start again.")
    if before != settings:
        differing = ", ".join(
            f"{name} (was {before.get(name)}, now {value})"
            for name, value in settings.items()
            if before.get(name) != value
        )
        raise InputError(
            f"{partial} was written with other settings: {differing}. Give the same command, or remove it."
        )
    # Noise is drawn by batch, so only whole batches count.
    if len(entries) < settings["prompts"]:
        entries = entries[: len(entries) // settings["batch_size"] * settings["batch_size"]]
    partial.write_text("\n".join(lines[: 1 + len(entries)]) + "\n", "utf-8")
    return entries
