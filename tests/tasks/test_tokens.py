"""Texts → tokens: cutting, padding, vocabularies, the σ_x of an embedding; and the targets inside a text."""

import pickle

import numpy as np
import pyarrow as pa
import pytest
import torch
from datasets import Dataset
from torch import nn

from descend.errors import InputError
from descend.tasks.text import (
    Classification,
    NextToken,
    QuestionAnswering,
    TokenClassification,
    generate_reviews,
    learn_tokenizer,
    load_tokenizer,
    token_counts,
    tokenize,
)
from descend.tasks.text.tokens import count_cut


@pytest.fixture(scope="module")
def tokenizer():
    return learn_tokenizer(row["text"] for row in generate_reviews(300, 0))


def test_a_learned_tokenizer_frames_texts_and_pairs(tokenizer):
    assert tokenizer.convert_ids_to_tokens(tokenizer("The film")["input_ids"]) == ["[CLS]", "the", "film", "[SEP]"]
    pair = tokenizer("the film", "good plot", return_token_type_ids=True)
    assert " ".join(tokenizer.convert_ids_to_tokens(pair["input_ids"])) == "[CLS] the film [SEP] good plot [SEP]"
    assert pair["token_type_ids"] == [0, 0, 0, 0, 1, 1, 1]
    assert tokenizer.pad_token_id == 0 and tokenizer("☃")["input_ids"][1] == tokenizer.unk_token_id


def test_a_learned_vocabulary_is_the_most_frequent_words_the_same_every_time():
    texts = ["b b a c", "c a!", "Zebra B"]
    made = learn_tokenizer(texts)
    assert made.convert_ids_to_tokens(range(4)) == ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    assert made.convert_ids_to_tokens(range(4, len(made))) == ["b", "a", "c", "!", "zebra"]
    assert learn_tokenizer(reversed(texts)).get_vocab() == made.get_vocab()


def test_long_texts_are_cut_or_refused_by_their_source(tokenizer):
    rows = [{"text": "good " * length, "label": 1, "source": f"file {length}"} for length in (3, 9, 5)]
    texts = Dataset.from_list(rows)
    tokenized = tokenize(texts, tokenizer, 8, numbers=[4, 5])
    assert [len(ids) for ids in tokenized["input_ids"]] == [5, 8, 7]
    assert tokenized["labels"] == [5, 5, 5]
    assert set(tokenized.column_names) == {"input_ids", "attention_mask", "labels", "group"}
    again = tokenize(Dataset.from_list([*rows, rows[1]]), tokenizer, 8)
    assert again["group"] == [0, 1, 2, 1], "equal texts are not independent"
    assert tokenized["input_ids"][1][-1] == tokenizer.sep_token_id
    with pytest.raises(InputError, match=r"^file 9.*11 tokens.*8"):
        tokenize(texts, tokenizer, 8, truncate=False)
    assert len(tokenize(texts, tokenizer, 11, truncate=False)) == 3
    counts = {
        longest: count_cut(texts, tokenize(texts, tokenizer, longest), tokenizer, longest) for longest in (4, 5, 7, 11)
    }
    assert counts == {4: 3, 5: 2, 7: 1, 11: 0}
    pairs = Dataset.from_list([{"text": "good " * 3, "pair": "bad " * length, "label": 1} for length in (1, 2, 3)])
    assert count_cut(pairs, tokenize(pairs, tokenizer, 8), tokenizer, 8) == 1
    assert tokenizer.backend_tokenizer.truncation["max_length"] == 8  # which is saved with it


def test_of_a_pair_both_sentences_are_kept(tokenizer):
    texts = Dataset.from_list([{"text": "good " * 20, "pair": "bad film", "label": 2}])
    (ids,) = tokenize(texts, tokenizer, 12)["input_ids"]
    words = tokenizer.convert_ids_to_tokens(ids)
    assert len(words) == 12 and words.count("[SEP]") == 2 and words[-3:-1] == ["bad", "film"]


def test_tokenizers_are_read_from_the_folders_people_have(tmp_path, tokenizer):
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\ngood\nfilm\n##s")
    assert load_tokenizer(tmp_path)("good films")["input_ids"] == [2, 5, 6, 7, 3]
    tokenizer.save_pretrained(tmp_path / "saved")
    assert load_tokenizer(tmp_path / "saved")("the film")["input_ids"] == tokenizer("the film")["input_ids"]
    (tmp_path / "none").mkdir()
    unpadded = learn_tokenizer(["a b"])
    unpadded.pad_token = None
    unpadded.save_pretrained(tmp_path / "unpadded")
    (tmp_path / "saved" / "tokenizer.json").write_text('{"version": "1.0", "model": {"type": "BPE", "vocab": 3}}')
    for name, message in (
        ("none", r"tokenizer\.json, vocab\.txt"),
        ("unpadded", "padding"),
        ("saved", "load a tokenizer"),
    ):
        with pytest.raises(InputError, match=message):
            load_tokenizer(tmp_path / name)


def test_real_vocabularies(real_data):
    bert = load_tokenizer(real_data / "tokenizers" / "bert-base-uncased")
    assert len(bert) == 30522 and bert("unbelievable")["input_ids"][0] == 101
    roberta = load_tokenizer(real_data / "tokenizers" / "gpt2")
    assert len(roberta) == 50262 and roberta.decode(roberta(" Hello")["input_ids"]) == "<s> Hello</s>"


@pytest.mark.parametrize("kind", [Dataset.from_list, list])
def test_sigma_is_the_std_of_all_embedded_tokens_but_padding(kind, tokenizer):
    rows = [
        {**tokenizer(row["text"], padding="max_length", max_length=90), "label": 0} for row in generate_reviews(9, 3)
    ]
    embedding = nn.Embedding(len(tokenizer), 6)
    ids = np.concatenate([np.array(row["input_ids"])[np.array(row["attention_mask"]) == 1] for row in rows])
    expected = embedding.weight.detach()[ids].double().std(correction=0).item()
    assert Classification().sigma(embedding, kind(rows)) == pytest.approx(expected, rel=1e-9)
    assert token_counts(kind(rows)).tolist() == np.bincount(ids).tolist()


IDS = pa.array([[4, 5, 6], [7, 8, 9]])


@pytest.mark.parametrize("kind", [pa.list_(pa.int64()), pa.large_list(pa.int32()), pa.list_(pa.int64(), 3)])
def test_a_list_is_a_list_however_arrow_stores_it(kind):
    data = Dataset(pa.table({"input_ids": IDS.cast(kind), "labels": pa.array([0, 1])}))
    rows = [{"input_ids": [4, 5, 6], "labels": 0}, {"input_ids": [7, 8, 9], "labels": 1}]
    embedding = nn.Embedding(10, 4)
    limits = {"labels": 2, "vocabulary": 10, "length": 3}
    Classification().check(data, limits)
    assert Classification().sigma(embedding, data) == Classification().sigma(embedding, rows)
    with pytest.raises(InputError, match="sample 0 has no token"):
        Classification().check(
            Dataset(pa.table({"input_ids": pa.array([None, [7, 8, 9]], kind), "labels": [0] * 2})), limits
        )


# --- targets inside a text: next tokens, classes of tokens, and answers to questions

LIMITS = {"labels": 3, "vocabulary": 40, "length": 6}
CLASSED = {"input_ids": [[4, 5, 6], [7, 8]], "labels": [0, 1]}
TAGGED = {"input_ids": [[4, 5, 6], [7, 8]], "labels": [[0, -100, 2], [-100, 1]]}
ASKED = {"input_ids": [[4, 5, 6], [7, 8]], "start_positions": [1, 0], "end_positions": [2, 0]}


def collated(samples):
    return {name: torch.tensor([sample[name] for sample in samples]) for name in samples[0]}


SAMPLES = [
    {"input_ids": [5, 6, 7, 8], "labels": [-100, 6, -100, 8]},
    {"input_ids": [9, 8, 7, 0], "labels": [9, 8, -100, -100]},  # its first label follows no token
]


@pytest.mark.parametrize(
    ("samples", "targets", "places"),
    [(SAMPLES, [6, 8, 8], [0, 2, 4]), ([{"input_ids": [5, 6], "labels": [5, -100]}], [], [])],
)
def test_located_targets_are_those_of_a_search(samples, targets, places):
    task = NextToken()
    plain, located = collated(samples), task.located(collated, samples)
    assert located.keys() > plain.keys()
    located = pickle.loads(pickle.dumps(located))  # as from a worker of a data loader
    for batch in (plain, located):
        assert task.target(batch).tolist() == targets
        assert task.inputs(batch)["places"].tolist() == places
        assert task.inputs(batch).keys() == {"input_ids", "places"}


def test_a_batch_without_labels_stays_as_it_is():
    samples = [{"input_ids": [5, 6]}]
    assert NextToken().located(collated, samples).keys() == {"input_ids"}
    assert NextToken().located(lambda given: given, samples) == samples


def rows(columns):
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def test_a_target_is_a_token_with_a_label():
    task, labels = TokenClassification(), torch.tensor([[0, -100, 2], [-100, 1, -100], [-100, -100, -100]])
    batch = {"input_ids": torch.zeros(3, 3, dtype=torch.long), "labels": labels}
    assert task.target(batch).tolist() == [0, 2, 1] and task.owners(batch).tolist() == [0, 0, 1]
    inputs = task.inputs(batch)
    assert inputs.keys() == {"input_ids", "places"} and inputs["places"].tolist() == [0, 2, 4]
    assert task.inputs({"input_ids": 0}) == {"input_ids": 0}


def test_an_answer_is_right_if_both_places_are():
    task = QuestionAnswering()
    batch = {"input_ids": 0, "start_positions": torch.tensor([1, 0]), "end_positions": torch.tensor([2, 0])}
    assert task.inputs(batch) == {"input_ids": 0}
    target = task.target(batch)
    right = nn.functional.one_hot(target, 3).transpose(1, 2).float()
    assert task.score(right, target).tolist() == [1, 1]
    right[1, 2, 1] = 9
    assert task.score(right, target).tolist() == [1, 0]


@pytest.mark.parametrize("form", [rows, Dataset.from_dict])
@pytest.mark.parametrize(
    ("task", "columns", "message"),
    [
        (Classification, CLASSED | {"input_ids": [[4, 5, 6], [7, 40]]}, "sample 1 has token 40"),
        (Classification, CLASSED | {"input_ids": [[4] * 7, [4]]}, "sample 0 has 7 tokens"),
        (Classification, CLASSED | {"input_ids": [[1.0, 2.0], [3.0]]}, "whole numbers.*float"),
        (Classification, CLASSED | {"input_ids": [[], [1]]}, "sample 0 has no token"),
        (TokenClassification, {"labels": [[0], [1]]}, r"input_ids.*got labels"),
        (TokenClassification, {"input_ids": [[4]]}, r"labels.*got input_ids"),
        (TokenClassification, TAGGED | {"labels": [[0, 1, 2], [1]]}, r"sample 1 has 1 labels.*2 tokens"),
        (TokenClassification, TAGGED | {"labels": [[0, 1, 2], [1, 3]]}, r"sample 1 has label 3.*-100.*0 … 2"),
        (TokenClassification, TAGGED | {"labels": [[0, -1, 2], [1, 1]]}, r"sample 0 has label -1"),
        (TokenClassification, TAGGED | {"labels": [[-100] * 3, [-100] * 2]}, r"no target.*-100"),
        (TokenClassification, TAGGED | {"input_ids": [[4, 5, 6], [7, 40]]}, r"sample 1 has token 40.*40 rows"),
        (TokenClassification, {"input_ids": [[4] * 7], "labels": [[0] * 7]}, r"sample 0 has 7 tokens.*6"),
        (
            NextToken,
            {"input_ids": [[1] * 8] * 2, "labels": [[1] * 8] * 2, "seq_lengths": [[3, 2, 3], [1, 7]]},
            r"sample 1 has 7 tokens.*at most 6",
        ),
        (QuestionAnswering, TAGGED, r"start_positions.*got input_ids, labels"),
        (QuestionAnswering, ASKED | {"end_positions": [2, 2]}, r"sample 1.*0 … 2.*0 … 1.*first token"),
        (QuestionAnswering, ASKED | {"start_positions": [1, -1]}, r"sample 1.*-1 … 0"),
        (QuestionAnswering, ASKED | {"end_positions": [0, 0]}, r"sample 0.*1 … 0.*in order"),
    ],
)
def test_what_does_not_fit_is_named(form, task, columns, message):
    fitting = {Classification: CLASSED, QuestionAnswering: ASKED}.get(task, TAGGED)
    for fits in (form(fitting), []):
        task().check(fits, LIMITS)
    with pytest.raises(InputError, match=message):
        task().check(form(columns), LIMITS)
