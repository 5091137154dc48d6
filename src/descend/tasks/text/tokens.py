"""Tokenize texts for classifiers, and load or train tokenizers."""

import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import numpy as np
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from torch import Tensor
from transformers import (
    AutoTokenizer,
    BertTokenizer,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    RobertaTokenizer,
)

from descend.errors import InputError, SampleError, reason
from descend.progress import progress
from descend.reading import is_path, suggestion
from descend.tasks.base import GROUP
from descend.tasks.splits import numbered

if TYPE_CHECKING:
    from datasets import Dataset

VOCABULARY = 8000
"""Vocabulary size of a tokenizer trained here; a few thousand reviews have that many words."""

MARKUP = "<br />"
"""The line break of HTML that IMDb's reviews hold."""

KEEP_MARKUP = "keep_markup"
"""The entry of a saved tokenizer's configuration: whether ``<br />`` was left in the texts of its training."""

_READERS: dict[str, Any] = {
    "tokenizer.json": AutoTokenizer,
    "tokenizer_config.json": AutoTokenizer,
    "vocab.txt": BertTokenizer,
    "merges.txt": RobertaTokenizer,
}
"""A file of a tokenizer → the class that reads its folder; the first file that is there counts."""

_SPECIAL = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}


def cleaned(text: str, keep_markup: bool) -> str:
    """A text without white space at its ends, with a blank for each `MARKUP` unless it is to be kept."""
    return (text if keep_markup else text.replace(MARKUP, " ")).strip()


def tokenize(
    texts: "Dataset",
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    *,
    truncate: bool = True,
    numbers: Sequence[int] | None = None,
) -> "Dataset":
    """Tokenize the ``text``, or the ``text`` and ``pair``, of every row.

    Args:
        texts: Rows with ``text`` and ``label``, and optionally ``pair`` and ``source`` (the file of the row).
        tokenizer: The model's tokenizer.
        max_length: Longest text in tokens, with special tokens.
        truncate: Whether to cut longer texts; otherwise they raise an error.
        numbers: The model's number of each class; by default that of the data.

    Returns:
        The data set, with the tokenizer's fields, ``labels`` and a ``group``, the same for all rows with the same
        (first) text.

    Raises:
        InputError: If a text is longer and ``truncate`` is off; the message names its source.
    """
    pairs = "pair" in texts.column_names

    def encode(rows: dict[str, list[Any]]) -> dict[str, list[Any]]:
        given = (rows["text"], rows["pair"]) if pairs else (rows["text"],)
        encoded = tokenizer(*given, truncation=truncate, max_length=max_length, verbose=False)
        for place, ids in enumerate(encoded["input_ids"]):
            if len(ids) > max_length:
                source = rows["source"][place] if "source" in rows else f"text {rows['text'][place][:40]!r}"
                raise InputError(
                    f"{source} has {len(ids)} tokens; expected at most {max_length}. Let it be cut: leave out "
                    "--no-truncate; or raise --max-length."
                )
        labels = rows["label"] if numbers is None else [numbers[label] for label in rows["label"]]
        return {**encoded, "labels": labels}

    # Equal texts, and pairs with the same premise, are not independent samples.
    return encoded_rows(texts, encode).add_column(GROUP, numbered(texts["text"]))


def encoded_rows(rows: "Dataset", encode: Callable[[dict[str, list[Any]]], dict[str, list[Any]]]) -> "Dataset":
    """Rows with other columns, in memory, and how many are done.

    Args:
        rows: The rows.
        encode: Columns of some rows → their new columns.
    """
    with progress(len(rows), "tokenizing", "text", leave=False) as bar:

        def counting(columns: dict[str, list[Any]]) -> dict[str, list[Any]]:
            found = encode(columns)
            bar.update(len(next(iter(columns.values()))))
            return found

        # `datasets` would hash the function for its cache, which holds a bar.
        settings: dict[str, Any] = {"keep_in_memory": True, "new_fingerprint": uuid4().hex}
        return rows.map(counting, batched=True, batch_size=200, remove_columns=rows.column_names, **settings)


def count_cut(texts: "Dataset", encoded: "Dataset", tokenizer: PreTrainedTokenizerBase, max_length: int) -> int:
    """The number of texts of which `tokenize` cut off the end.

    Args:
        texts: The rows before.
        encoded: The rows after.
        tokenizer: The model's tokenizer.
        max_length: Longest text in tokens.
    """
    _, lengths = values(encoded, "input_ids")
    full = texts.select(np.flatnonzero(lengths == max_length))  # no other one can have been cut
    columns = [name for name in ("text", "pair") if name in texts.column_names]
    count = 0
    for rows in full.iter(1000):
        given = (rows[name] for name in columns)  # type: ignore[index]
        ids = tokenizer(*given, truncation=True, max_length=max_length + 1, verbose=False)["input_ids"]
        count += sum(len(each) > max_length for each in ids)
    # A fast tokenizer remembers the last length, and saves it in tokenizer.json.
    tokenizer(*[""] * len(columns), truncation=True, max_length=max_length)
    return count


def load_tokenizer(source: str | Path) -> PreTrainedTokenizerBase:
    """A tokenizer from a folder, or by its name on the Hub; without a padding token it pads with the end of a text.

    Args:
        source: A folder that `save_pretrained` wrote, a folder with BERT's ``vocab.txt``, one with ``vocab.json`` and
            ``merges.txt`` (RoBERTa, GPT-2), to which RoBERTa's special tokens are added, or any other that
            `AutoTokenizer` reads. Or a name on the Hub.

    Raises:
        InputError: If no tokenizer can be loaded, or it has no token to pad with.
    """
    folder = Path(source).expanduser()
    if not folder.exists() and is_path(source):
        words = f"can't load a tokenizer from {str(source)!r}: there is no such folder."
        raise InputError(words + suggestion(source))
    reader = next((kind for name, kind in _READERS.items() if (folder / name).is_file()), AutoTokenizer)
    try:
        tokenizer = reader.from_pretrained(folder if folder.is_dir() else source, trust_remote_code=False)
    except Exception as error:  # tokenizers raises plain exceptions
        raise InputError(
            f"can't load a tokenizer from {str(source)!r}: expected a folder with tokenizer.json, vocab.txt, or "
            f"vocab.json and merges.txt, or a name on the Hub, which needs a network at first. {reason(error)}"
        ) from None
    tokenizer.init_kwargs.pop("auto_map", None)  # code of somebody else, which is not passed on
    # Transformers builds such a tokenizer from a folder without a vocabulary.
    if len(tokenizer) <= len(tokenizer.all_special_tokens):
        raise InputError(f"the tokenizer of {source} has no words, only special tokens.")
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    if tokenizer.pad_token_id is None:
        raise InputError(f"the tokenizer of {source} has no token for padding; set its pad_token and save it again.")
    return tokenizer


def learn_tokenizer(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """Train a tokenizer of lower-case words: the most frequent ones of the texts; all others are unknown.

    It uses words instead of word pieces because the tokenizers package breaks ties between word pieces by the order of
    its hash tables, so the vocabulary would differ between runs; ties between words it breaks by the alphabet.
    """
    learned = Tokenizer(models.WordLevel(unk_token=_SPECIAL["unk_token"]))
    learned.normalizer, learned.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordLevelTrainer(vocab_size=VOCABULARY, special_tokens=[*_SPECIAL.values()], show_progress=False)
    learned.train_from_iterator(texts, trainer)
    learned.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(name, learned.token_to_id(name)) for name in ("[CLS]", "[SEP]")],
    )
    return PreTrainedTokenizerFast(tokenizer_object=learned, **_SPECIAL)


def token_counts(dataset: Any) -> Tensor:
    """Count each token in a tokenized data set, without padding: integers, shape (largest token + 1,).

    Args:
        dataset: A `datasets.Dataset` or a sequence of samples with ``input_ids`` and perhaps ``attention_mask``.
    """
    ids, _ = values(dataset, "input_ids")
    if "attention_mask" in fields(dataset):
        ids = ids[values(dataset, "attention_mask")[0].astype(bool)]
    return torch.from_numpy(np.bincount(ids))


def check_tokens(dataset: Any, limits: dict[str, int]) -> np.ndarray:
    """Raise an error if a model can't take the tokens of a sample.

    Args:
        dataset: Samples with ``input_ids``: a `datasets.Dataset` or a list.
        limits: The model's ``vocabulary`` size and its longest ``length`` in tokens, as far as they are known.

    Returns:
        The number of tokens of each sample.

    Raises:
        InputError: If samples have no ``input_ids``, or one has no token, a token out of range, or too many tokens.
    """
    require(dataset, "input_ids")
    ids, lengths = values(dataset, "input_ids")
    refuse(lengths == 0, lambda sample: "has no token. Remove it.")
    if ids.dtype.kind not in "iu":
        raise InputError(f"input_ids must be whole numbers, the tokens of a text; got {ids.dtype}. Tokenize the texts.")
    vocabulary, longest = limits.get("vocabulary", np.inf), limits.get("length", np.inf)
    refuse(
        (ids < 0) | (ids >= vocabulary),
        lambda place: (
            f"has token {ids[place]}; the model's word embedding has {vocabulary} rows. Use the model's own tokenizer."
        ),
        lengths,
    )
    texts, counts = lengths, None
    if "seq_lengths" in fields(dataset):  # packed: a row holds several texts
        texts, counts = values(dataset, "seq_lengths")
    refuse(
        texts > longest,
        lambda place: (
            f"has {texts[place]} tokens; the model takes at most {longest}. Tokenize with truncation=True, "
            f"max_length={longest}."
        ),
        counts,
    )
    return lengths


def refuse(wrong: np.ndarray, fault: Callable[[int], str], counts: np.ndarray | None = None) -> None:
    """Raise an error that names the sample of the first wrong value, if there is one.

    Args:
        wrong: Which values of all samples are wrong, one sample after the other.
        fault: From the place of the wrong value to the rest of a sentence that begins with "sample N".
        counts: The number of values of each sample; None for one each.

    Raises:
        SampleError: If a value is wrong.
    """
    if wrong.any():
        place = int(wrong.argmax())
        sample = place if counts is None else int(np.searchsorted(np.cumsum(counts), place, side="right"))
        raise SampleError(f"sample {sample} {fault(place)}", sample)


def require(dataset: Any, *names: str) -> str:
    """The first of some names that samples have a field of.

    Raises:
        InputError: If they have none of them.
    """
    given = [name for name in names if name in fields(dataset)]
    if not given:
        raise InputError(
            f"samples must have {' or '.join(names)}; got {', '.join(fields(dataset))}. Tokenize the texts and give "
            "each sample this field, or give a data_collator that makes it."
        )
    return given[0]


def values(dataset: Any, name: str) -> tuple[np.ndarray, np.ndarray]:
    """The values of a field of all samples, one sample after the other, and the number of values of each sample."""
    if not stored(dataset):
        rows = [np.atleast_1d(dataset[place][name]) for place in range(len(dataset))]
        return np.concatenate(rows), np.array([len(row) for row in rows])
    # Without a copy, in Arrow's memory.
    column: Any = dataset.select_columns(name).with_format("arrow")[:][name]
    column = column.combine_chunks() if hasattr(column, "combine_chunks") else column
    if not hasattr(column, "value_lengths"):  # no lists
        return column.to_numpy(zero_copy_only=False), np.ones(len(column), np.int64)
    counts = column.value_lengths().fill_null(0).to_numpy()
    return column.flatten().to_numpy(zero_copy_only=False), counts


def fields(dataset: Any) -> list[str]:
    """The names of a sample's fields."""
    return dataset.column_names if stored(dataset) else list(dataset[0])


def readable(dataset: Any) -> bool:
    """Whether samples can be looked at before training: those of a table or a list, if there are any."""
    return (stored(dataset) or isinstance(dataset, list)) and len(dataset) > 0


def stored(dataset: Any) -> bool:
    """Whether a data set is a `datasets.Dataset` whose samples are rows of its table, not computed on access."""
    module = sys.modules.get("datasets")  # an optional package: unless it is imported, no data set is of its type
    return module is not None and isinstance(dataset, module.Dataset) and dataset.format["type"] != "custom"
