"""Instructions and their answers: read Alpaca's files or generate rows, and tokenize them."""

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from transformers import PreTrainedTokenizerBase

from descend.errors import InputError
from descend.reading import json_objects, plain_text
from descend.tasks.base import GROUP
from descend.tasks.splits import numbered
from descend.tasks.text.language import IGNORED
from descend.tasks.text.tokens import encoded_rows

if TYPE_CHECKING:
    from datasets import Dataset

WORDS = ["red", "blue", "green", "one", "two", "three", "sun", "moon", "star", "cat", "dog", "fox", "old", "new", "big"]
COUNT = 2500
COLUMNS = ("instruction", "input", "output")


class Instructions(NamedTuple):
    """Rows with ``instruction``, ``input`` and ``output``, and the number of rows left out by reason."""

    rows: "Dataset"
    skipped: dict[str, int]


class Tokenized(NamedTuple):
    """Rows as `tokenize_instructions` makes them, the number left out by reason, and of answers that are cut."""

    rows: "Dataset"
    skipped: dict[str, int]
    cut: int


def read_instructions(path: str | Path) -> Instructions:
    """Read instructions in Alpaca's format.

    Args:
        path: A file with a JSON list of objects, or with one object per line: ``instruction``, ``output`` and
            optionally ``input``.

    Returns:
        The rows. Those with an empty output, such as three rows of Alpaca, are left out and counted.

    Raises:
        InputError: If the file is missing or truncated, or a row has no instruction or output; the message names it.
    """
    file = Path(path).expanduser()
    if not file.is_file():
        got = "it is a folder. Give a file in it" if file.is_dir() else "there is none"
        raise InputError(f"{file} must be a file of instructions, such as alpaca_data.json; {got}.")
    rows, skipped = [], Counter[str]()
    for place, row in json_objects(file):
        values: dict[str, Any] = {name: row.get(name) for name in COLUMNS}
        values["input"] = values["input"] or ""  # some files have null for an empty input
        for name, value in values.items():
            if not plain_text(value) or (name == "instruction" and not value.strip()):
                got = "none" if value is None else repr(value)[:60]
                raise InputError(f"{place}, must have the text {name!r}; got {got}. Correct or remove the row.")
        if not values["output"].strip():
            skipped["empty output"] += 1
            continue
        rows.append(values)
    if not rows:
        raise InputError(f"{file} holds no instruction with an output.")
    from datasets import Dataset

    return Instructions(Dataset.from_list(rows), dict(skipped))


def by_prompt(given: Instructions) -> Instructions:
    """The same with a ``group``: answers to one prompt are not independent samples."""
    groups = numbered(zip(given.rows["instruction"], given.rows["input"], strict=True))
    return given._replace(rows=given.rows.add_column(GROUP, groups))


def generate_instructions(count: int = COUNT, seed: int = 0) -> Instructions:
    """Generate short instructions about words, so that the recipe runs without downloaded data."""
    from datasets import Dataset

    return Instructions(
        Dataset.from_list([_instruction(np.random.default_rng([seed, number])) for number in range(count)]), {}
    )


def prompt(tokenizer: PreTrainedTokenizerBase, instruction: str, input: str = "") -> str:
    """The text of a prompt: by the tokenizer's chat template, or in Alpaca's sections if it has none."""
    if tokenizer.chat_template is not None:
        content = f"{instruction}\n\n{input}" if input else instruction
        messages = [{"role": "user", "content": content}]
        return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
    sections = [("Instruction", instruction), *([("Input", input)] if input else []), ("Response", "")]
    return "\n\n".join(f"### {name}:\n{text}" for name, text in sections)


def encode_prompt(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """The tokens of a prompt. A chat template brings its special tokens; otherwise those of the start are added."""
    ids = tokenizer(text, add_special_tokens=tokenizer.chat_template is None, verbose=False)["input_ids"]
    while ids and ids[-1] in (tokenizer.eos_token_id, tokenizer.sep_token_id):  # no end token here: the answer follows
        ids = ids[:-1]
    return list(ids)


def tokenize_instructions(given: Instructions, tokenizer: PreTrainedTokenizerBase, max_length: int) -> Tokenized:
    """Tokenize prompts and answers; the answer's tokens and its end-of-text token are the targets.

    Args:
        given: The rows.
        tokenizer: The model's tokenizer, with an end-of-text token.
        max_length: Longest text in tokens; a longer answer is cut and has no end-of-text token.

    Returns:
        Rows with ``input_ids``, ``labels`` and, where it is given, their ``group``. Those with an empty output, or a
        prompt that leaves no room for an answer, are left out and counted.
    """
    if tokenizer.eos_token_id is None:
        raise InputError("the tokenizer has no token for the end of a text; set its eos_token and save it again.")

    def encode(columns: dict[str, list[Any]]) -> dict[str, list[Any]]:
        found: dict[str, list[Any]] = {"input_ids": [], "labels": [], "cut": []}
        for instruction, given_input, output in zip(*(columns[name] for name in COLUMNS), strict=True):
            question = encode_prompt(tokenizer, prompt(tokenizer, instruction, given_input))
            answer = tokenizer(output, add_special_tokens=False, verbose=False)["input_ids"]
            targets = [*answer, tokenizer.eos_token_id]
            found["input_ids"].append([*question, *targets][:max_length])
            found["labels"].append([*[IGNORED] * len(question), *targets][:max_length])
            found["cut"].append(len(question) + len(targets) > max_length)
        return found | {GROUP: columns[GROUP]} if GROUP in columns else found

    encoded = encoded_rows(given.rows, encode)
    answered = encoded.filter(lambda labels: labels[-1] != IGNORED, input_columns="labels")
    skipped = dict(given.skipped)
    if len(answered) < len(encoded):
        skipped[f"prompt of {max_length} tokens or more"] = len(encoded) - len(answered)
    return Tokenized(answered.remove_columns("cut"), skipped, sum(answered["cut"]))


def _instruction(rng: np.random.Generator) -> dict[str, str]:
    words = [str(word) for word in rng.choice(WORDS, int(rng.integers(2, 6)), replace=False)]
    instruction, answer = [
        ("say these words again", words),
        ("say these words backwards", words[::-1]),
        ("say the first of these words", words[:1]),
        ("say the last of these words", words[-1:]),
    ][int(rng.integers(4))]
    return {"instruction": instruction, "input": " ".join(words), "output": " ".join(answer)}
