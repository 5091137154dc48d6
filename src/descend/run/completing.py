"""Complete prompts with a run's language model, in AlpacaEval's format."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from descend.errors import InputError, refuse, refusing
from descend.progress import progress
from descend.reading import json_objects, parse_json, plain_text, read_text
from descend.results import CONFIG_FILE, check_language_run, put, write_json
from descend.run.run import Run
from descend.seeds import Stream, derived
from descend.tasks.text import encode_prompt, prompt
from descend.writing import appending, new_file, refuse_link

PARTIAL = ".partial"
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
    refuse(
        (
            max_new_tokens < 1 or batch_size < 1 or (limit is not None and limit < 1),
            "max_new_tokens, batch_size and limit must be at least 1.",
        ),
        (not 0 <= seed < 2**32, f"seed must be from 0 to 2^32 - 1; got {seed}."),
        (
            noise is not None and not 0 <= noise < float("inf"),
            f"noise must be a level γ of at least 0, in std of the clean embedding; got {noise}.",
        ),
    )
    rows = list(_prompts(prompts))[:limit]
    check_language_run(folder, model)
    with new_file(out):
        run = Run.read(folder, model=model)
        level = run.noise.level if noise is None else noise
        digests = [hashlib.sha256(path.read_bytes()).hexdigest() for path in (folder / CONFIG_FILE, prompts)]
        settings = {
            "run": str(folder.absolute()),
            "model": model,
            "trained": digests[0],
            "prompts": len(rows),
            "prompts_file": digests[1],
            "noise": level,
            "max_new_tokens": max_new_tokens,
            "batch_size": batch_size,
            "seed": seed,
        }
        generator = f"{run.provenance.model} {run.provenance.method}, γ = {level:g}"
        network = run.model.saved.to(run.batches.device).eval()
        partial = out.with_name(out.name + PARTIAL)
        done = _resumed(partial, json.dumps(settings), batch_size)
        with appending(partial) as file, progress(len(rows), "answering", "prompt") as bar:
            bar.update(len(done))
            for start in range(len(done), len(rows), batch_size):
                batch = rows[start : start + batch_size]
                # Seeded by the batch, so that a resumed run draws the same noise.
                batch_seed = derived(Stream.COMPLETIONS, seed, start)
                with run.noise.at(level, seed=batch_seed).on(network):
                    answers = _answers(network, run.tokenizer, batch, max_new_tokens, run.model.limits["length"])
                for row, answer in zip(batch, answers, strict=True):
                    entry = {"instruction": row["instruction"], "output": answer, "generator": generator}
                    done.append(None if answer is None else {**entry, "dataset": row.get("dataset", "")})
                    file.write(json.dumps(done[-1], ensure_ascii=False) + "\n")
                file.flush()
                bar.update(len(batch))
        written = [entry for entry in done if entry is not None]
        write_json(out, written, listed=False)
        partial.unlink()
    return {"written": len(written), "skipped": len(done) - len(written)}


@torch.no_grad()
def _answers(
    network: Any,
    tokenizer: PreTrainedTokenizerBase,
    rows: Sequence[dict[str, Any]],
    max_new_tokens: int,
    longest: int,
) -> list[str | None]:
    """The answers to a batch of prompts; None where a prompt leaves no room for one."""
    asked = [encode_prompt(tokenizer, prompt(tokenizer, row["instruction"], row.get("input") or "")) for row in rows]
    answers: list[str | None] = [None] * len(rows)
    # Padding takes no positions, so each answer has the room that its own prompt leaves.
    rooms = {place: min(max_new_tokens, longest - len(ids)) for place, ids in enumerate(asked) if len(ids) < longest}
    if not rooms:
        return answers
    batch = {"input_ids": [asked[place] for place in rooms]}  # an answer begins where the longest prompt ends
    padded = tokenizer.pad(batch, padding_side="left", return_attention_mask=True, return_tensors="pt")
    padded = padded.to(network.device)
    generated = network.generate(
        **padded,
        max_new_tokens=max(rooms.values()),
        do_sample=False,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    width = padded["input_ids"].shape[1]
    for (place, room), ids in zip(rooms.items(), generated, strict=True):
        answers[place] = str(tokenizer.decode(ids[width : width + room], skip_special_tokens=True)).strip()
    return answers


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


def _resumed(partial: Path, head: str, batch_size: int) -> list[dict[str, str] | None]:
    """The answers that an interrupted call with the same settings, ``head``, has written in whole batches."""
    refuse_link(partial)
    content = read_text(partial) if partial.exists() else ""
    if not content.startswith(f"{head}\n"[: len(content)]):
        raise InputError(
            f"{partial} is of other settings, or no file of descend complete. Give the command that began it, move it, "
            "or choose another file by --out."
        )
    lines = content.split("\n")[1:-1]  # the last one is half-written or empty
    del lines[len(lines) // batch_size * batch_size :]  # noise is drawn by batch
    with refusing(f"{partial} is damaged", "Remove it to start again."):
        entries = [parse_json(line) for line in lines]
    text = "".join(f"{line}\n" for line in [head, *lines])
    put(partial, lambda part: part.write_text(text, "utf-8"), listed=False)
    return entries
