"""Instructions: Alpaca's files as they are, what is refused by name, and the tokens they become."""

import json

import pytest
from datasets import Dataset

from descend.errors import InputError
from descend.tasks.text import (
    Instructions,
    by_prompt,
    encode_prompt,
    learn_tokenizer,
    prompt,
    read_instructions,
    tokenize_instructions,
)
from descend.tasks.text.language import IGNORED

ROWS = [
    {"instruction": "say red", "input": "", "output": "red"},
    {"instruction": "say it again", "input": "blue", "output": "blue blue"},
    {"instruction": "say blue", "output": "blue"},
    {"instruction": "say it", "input": None, "output": "it"},
    {"instruction": "say nothing", "input": "", "output": " "},
]
READ = [row | {"input": row.get("input") or ""} for row in ROWS[:4]]
"""What is read of these rows: an input may be missing, and an empty output is left out."""


@pytest.fixture(scope="module")
def tokenizer():
    made = learn_tokenizer(["say red blue it again nothing ### Instruction Input Response :"])
    made.eos_token = made.sep_token
    return made


LINES, LIST = "\r\n".join(map(json.dumps, ROWS)), json.dumps(ROWS, indent=2)


@pytest.mark.parametrize("name", ["data.json", "data.jsonl", "DATA.JSONL", "data.txt"])
@pytest.mark.parametrize("content", [LINES, LIST, f"\ufeff{LINES}\r\n", f"\ufeff\n{LIST}"])
def test_lists_and_lines_are_read_by_any_name_and_an_empty_output_is_left_out(tmp_path, name, content):
    (tmp_path / name).write_text(content, "utf-8", newline="")
    found = read_instructions(tmp_path / name)
    assert found.rows.to_list() == READ and found.skipped == {"empty output": 1}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('[{"instruction": "a", "output": "b"}, {"out', r"data\.json.*JSON"),
        ('{"instruction": "a", "output": "b"}\n{"instruction": "a"}', r"line 2.*'output'.*none"),
        ('{"instruction": "a", "output": "b"}\n{"instruc', r"line 2.*one JSON object.*'\{\"instruc'"),
        ("a, b", r"line 1.*one JSON object.*'a, b'"),
        ('[{"output": "b"}]', r"row 0.*'instruction'.*none"),
        ('[{"instruction": "a", "output": "b"}, {"instruction": "a"}]', r"row 1.*'output'.*none"),
        ('[{"instruction": 3, "output": "b"}]', r"row 0.*'instruction'.*got 3"),
        ('[{"instruction": "a", "input": 4, "output": "b"}]', r"row 0.*'input'.*got 4"),
        ('[{"instruction": " ", "output": "b"}]', r"row 0.*instruction"),
        ('["a"]', r"row 0.*object.*'a'"),
        ('[{"instruction": "a", "output": ""}]', "no instruction"),
        ("[]", "no instruction"),
        ("\xff\xfe\0", "is not UTF-8"),
        (None, "there is none"),
    ],
)
def test_wrong_files_are_refused_by_row(tmp_path, content, words):
    if content is not None:
        (tmp_path / "data.json").write_text(content, "latin-1")
    with pytest.raises(InputError, match=words):
        read_instructions(tmp_path / "data.json")


def test_only_the_answer_and_its_end_are_to_be_told(tokenizer):
    rows, *_ = tokenize_instructions(Instructions(Dataset.from_list(READ[:2]), {}), tokenizer, 64)
    for row, (asked, answer) in zip(rows, [("say red", "red"), ("say it again", "blue blue")], strict=True):
        told = [label for label in row["labels"] if label != IGNORED]
        assert tokenizer.decode(told[:-1]) == answer and told[-1] == tokenizer.eos_token_id
        assert row["input_ids"][-len(told) :] == told and len(row["labels"]) == len(row["input_ids"])
        assert asked in tokenizer.decode(row["input_ids"][: -len(told)])
        assert row["input_ids"][0] == tokenizer.cls_token_id and row["input_ids"].count(tokenizer.eos_token_id) == 1


def test_answers_to_one_prompt_are_one_group(tokenizer):
    given = Dataset.from_list([*READ, READ[1] | {"output": "red"}, READ[1] | {"input": "red"}])
    rows = tokenize_instructions(by_prompt(Instructions(given, {})), tokenizer, 64).rows
    assert rows["group"][:] == [0, 1, 2, 3, 1, 4]


def test_a_long_answer_is_cut_and_a_long_prompt_left_out(tokenizer):
    asked = len(encode_prompt(tokenizer, prompt(tokenizer, "say red")))
    long = [ROWS[0] | {"output": "red " * 50}, ROWS[0] | {"instruction": "say " * 50}]
    given = Instructions(Dataset.from_list(long), {"empty output": 2})
    rows, skipped, cut = tokenize_instructions(given, tokenizer, asked + 3)
    assert len(rows) == 1 and len(rows[0]["input_ids"]) == asked + 3
    assert tokenizer.eos_token_id not in rows[0]["input_ids"]
    assert cut == 1 and skipped == {"empty output": 2, f"prompt of {asked + 3} tokens or more": 1}


def test_a_chat_template_is_used_where_there_is_one(tokenizer):
    chat = learn_tokenizer(["say red blue user :"])
    chat.eos_token = chat.sep_token
    chat.chat_template = (
        "[CLS]{% for m in messages %}{{ m.role }} : {{ m.content }}{% endfor %}"
        "{% if add_generation_prompt %} red :{% endif %}"
    )
    text = prompt(chat, "say", "blue")
    assert text == "[CLS]user : say\n\nblue red :"
    # Its special tokens are the template's own: none is put twice.
    assert encode_prompt(chat, text).count(chat.cls_token_id) == 1
    assert encode_prompt(tokenizer, prompt(tokenizer, "say")).count(tokenizer.cls_token_id) == 1


def test_a_tokenizer_without_an_end_is_refused(tokenizer):
    endless = learn_tokenizer(["say red"])
    with pytest.raises(InputError, match=r"token.*end"):
        tokenize_instructions(Instructions(Dataset.from_list(READ[:1]), {}), endless, 30)
