"""Instructions and their answers: Alpaca's files, generated ones, and the tokens that a model is trained on."""

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from transformers import PreTrainedTokenizerBase

from descend.errors import InputError
from descend.reading import json_lines, plain_text, read_json
from descend.tasks.text.language import IGNORED

if TYPE_CHECKING:
    from datasets import Dataset

WORDS = ["red", "blue", "green", "one", "two", "three", "sun", "moon", "star", "cat", "dog", "fox", "old", "new", "big"]
COUNT = 2500


class Instructions(NamedTuple):
    """Rows of ``instruction``, ``input`` and ``output``, and how many were left out for which reason."""

    rows: "Dataset"
    skipped: dict[str, int]


def read_instructions(path: str | Path) -> Instructions:
    """Instructions in Alpaca's form.

    Args:
        path: A JSON file with a list of objects, or a ``.jsonl`` file with one on each line: ``instruction``,
            ``output`` and perhaps ``input``.

    Returns:
        The rows, but for those whose output is empty, as three of Alpaca's own are: they are counted.

    Raises:
        InputError: If it is not there, ends early, or a row has no instruction or no output, naming the row.
    """
    file = Path(path).expanduser()
    if not file.is_file():
        raise InputError(f"{file} must be a file of instructions, such as alpaca_data.json; there is none.")
    rows, skipped = [], Counter[str]()
    for place, row in _objects(file):
        values = {name: row.get(name) for name in ("instruction", "input", "output")}
        values["input"] = values["input"] or ""  # as some have written it where there is none
        for name, value in values.items():
            if not plain_text(value):
                got = "none" if value is None else repr(value)[:60]
                raise InputError(f"{place} must have the text {name!r}; got {got}. Correct or remove the row.")
        if not values["instruction"].strip():
            raise InputError(f"{place} has an empty instruction. Correct or remove the row.")
        if not values["output"].strip():
            skipped["empty output"] += 1
            continue
        rows.append(values)
    if not rows:
        raise InputError(f"{file} holds no instruction with an output.")
    from datasets import Dataset

    return Instructions(Dataset.from_list(rows), dict(skipped))


def generate_instructions(count: int = COUNT, seed: int = 0) -> Instructions:
    """Small instructions about words, so that every recipe runs with no file."""
    from datasets import Dataset

    return Instructions(
        Dataset.from_list([_instruction(np.random.default_rng([seed, number])) for number in range(count)]), {}
    )


def prompt(tokenizer: PreTrainedTokenizerBase, instruction: str, input: str = "") -> str:
    """What a model is given: by the tokenizer's chat template, or in sections where it has none."""
    if tokenizer.chat_template is not None:
        content = f"{instruction}\n\n{input}" if input else instruction
        messages = [{"role": "user", "content": content}]
        return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
    sections = [("Instruction", instruction), *([("Input", input)] if input else []), ("Response", "")]
    return "\n\n".join(f"### {name}:\n{text}" for name, text in sections)


def encode_prompt(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """The tokens of a prompt; a chat template has put its special tokens already, others have theirs at the start."""
    ids = tokenizer(text, add_special_tokens=tokenizer.chat_template is None, verbose=False)["input_ids"]
    while ids and ids[-1] in (tokenizer.eos_token_id, tokenizer.sep_token_id):  # the answer follows
        ids = ids[:-1]
    return list(ids)


def tokenize_instructions(
    given: Instructions, tokenizer: PreTrainedTokenizerBase, max_length: int
) -> "tuple[Dataset, dict[str, int]]":
    """Tokens of prompts and answers; only those of the answer, and its end, are to be told.

    Args:
        given: The rows.
        tokenizer: Of the model, with a token for the end of a text.
        max_length: In tokens; a longer answer is cut, and loses its end.

    Returns:
        ``input_ids`` and ``labels``; and how many rows were left out for which reason: an empty output, or a prompt
        that leaves no room for an answer.
    """
    if tokenizer.eos_token_id is None:
        raise InputError("the tokenizer has no token for the end of a text; set its eos_token and save it again.")

    def encode(row: dict[str, str]) -> dict[str, list[int]]:
        asked = encode_prompt(tokenizer, prompt(tokenizer, row["instruction"], row["input"]))
        answer = tokenizer(row["output"], add_special_tokens=False, verbose=False)["input_ids"]
        told = [*answer, tokenizer.eos_token_id]
        return {
            "input_ids": [*asked, *told][:max_length],
            "labels": [*[IGNORED] * len(asked), *told][:max_length],
        }

    encoded = given.rows.map(encode, remove_columns=given.rows.column_names)
    kept = encoded.filter(lambda row: row["labels"][-1] != IGNORED)
    skipped = dict(given.skipped)
    if len(kept) < len(encoded):
        skipped[f"prompt of {max_length} tokens or more"] = len(encoded) - len(kept)
    return kept, skipped


def _objects(file: Path) -> Any:
    if file.suffix == ".jsonl":
        for number, row in json_lines(file):
            yield f"{file}, line {number},", row
        return
    rows = read_json(file)
    if not isinstance(rows, list):
        raise InputError(f"{file} must hold a list of objects; got {type(rows).__name__}.")
    for number, row in enumerate(rows):
        if not isinstance(row, dict):
            raise InputError(f"{file}, row {number}, must be an object; got {repr(row)[:60]}.")
        yield f"{file}, row {number},", row


def _instruction(rng: np.random.Generator) -> dict[str, str]:
    words = [str(word) for word in rng.choice(WORDS, int(rng.integers(2, 6)), replace=False)]
    instruction, answer = [
        ("say these words again", words),
        ("say these words backwards", words[::-1]),
        ("say the first of these words", words[:1]),
        ("say the last of these words", words[-1:]),
    ][int(rng.integers(4))]
    return {"instruction": instruction, "input": " ".join(words), "output": " ".join(answer)}
