"""Tokenize texts for classifiers, and load or train tokenizers."""

import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from torch import Tensor, nn
from transformers import (
    AutoTokenizer,
    BertTokenizer,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    RobertaTokenizer,
)

from descend.errors import InputError, SampleError, reason

if TYPE_CHECKING:
    from datasets import Dataset

VOCABULARY = 8000
"""Vocabulary size of a tokenizer trained here; a few thousand reviews have that many words."""

_SPECIAL = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}


def tokenize(
    texts: "Dataset", tokenizer: PreTrainedTokenizerBase, max_length: int, *, truncate: bool = True
) -> "tuple[Dataset, int]":
    """Tokenize the ``text``, or the ``text`` and ``pair``, of every row.

    Args:
        texts: Rows with ``text`` and ``label``, and optionally ``pair`` and ``source`` (the file of the row).
        tokenizer: The model's tokenizer.
        max_length: Longest text in tokens, with special tokens.
        truncate: Whether to cut longer texts; otherwise they raise an error.

    Returns:
        The data set, with the tokenizer's fields and ``labels``, and the number of texts that were cut. Pairs also have
        a ``group``, the same for all pairs with the same first text.

    Raises:
        InputError: If a text is longer and ``truncate`` is off; the message names its source.
    """
    pairs = "pair" in texts.column_names
    long = 0

    def encode(rows: dict[str, list[Any]]) -> dict[str, list[Any]]:
        nonlocal long
        given = (rows["text"], rows["pair"]) if pairs else (rows["text"],)
        if truncate and tokenizer.is_fast:  # a fast tokenizer also returns what it cuts off: one pass is enough
            encoded = tokenizer(*given, truncation=True, max_length=max_length)
            long += sum(bool(each.overflowing) for each in encoded.encodings)
            return fields(encoded, rows)
        encoded = tokenizer(*given, verbose=False)
        longer = [place for place, ids in enumerate(encoded["input_ids"]) if len(ids) > max_length]
        if longer and not truncate:
            place = longer[0]
            source = rows["source"][place] if "source" in rows else f"text {rows['text'][place][:40]!r}"
            raise InputError(
                f"{source} has {len(encoded['input_ids'][place])} tokens; expected at most {max_length}. Let it be cut "
                "by --truncate true, or raise --max-length."
            )
        long += len(longer)
        if longer:
            encoded = tokenizer(*given, truncation=True, max_length=max_length)
        return fields(encoded, rows)

    def fields(encoded: Mapping[str, Any], rows: dict[str, list[Any]]) -> dict[str, list[Any]]:
        # Pairs with the same premise are not independent samples.
        group = {"group": [groups.setdefault(text, len(groups)) for text in rows["text"]]} if pairs else {}
        return {**encoded, "labels": rows["label"], **group}

    groups: dict[str, int] = {}
    return texts.map(encode, batched=True, remove_columns=texts.column_names), long


def load_tokenizer(source: str | Path, *, padding: bool = True) -> PreTrainedTokenizerBase:
    """A tokenizer from a folder, or by its name on the Hub.

    Args:
        source: A folder that `save_pretrained` wrote, a folder with BERT's ``vocab.txt``, or one with ``vocab.json``
            and ``merges.txt`` (RoBERTa, GPT-2), to which RoBERTa's special tokens are added. Or a name on the Hub.
        padding: Whether the tokenizer must have a padding token.

    Raises:
        InputError: If no tokenizer can be loaded, or a padding token is required and missing.
    """
    folder = Path(source).expanduser()
    try:
        if (folder / "tokenizer.json").is_file() or (folder / "tokenizer_config.json").is_file() or not folder.is_dir():
            tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
        elif (folder / "vocab.txt").is_file():
            tokenizer = BertTokenizer.from_pretrained(folder)
        elif (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file():
            tokenizer = RobertaTokenizer.from_pretrained(folder)
        else:
            raise InputError(
                f"{folder} holds no tokenizer; expected tokenizer.json, vocab.txt, or vocab.json and merges.txt."
            )
    except InputError:
        raise
    except Exception as error:  # tokenizers raises plain exceptions
        raise InputError(
            f"can't load a tokenizer from {str(source)!r}: expected a folder with tokenizer.json or vocab.txt, or a "
            f"name on the Hub, which needs a network at first. {reason(error)}"
        ) from None
    # Transformers builds such a tokenizer from a folder without a vocabulary.
    if len(tokenizer) <= len(tokenizer.all_special_tokens):
        raise InputError(f"the tokenizer of {source} has no words, only special tokens.")
    if padding and tokenizer.pad_token_id is None:
        raise InputError(f"the tokenizer of {source} has no token for padding; set its pad_token and save it again.")
    return tokenizer


def learn_tokenizer(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """Train a tokenizer of lower-case words: the most frequent ones of the texts; all others are unknown.

    It uses words instead of word pieces because the tokenizers package breaks ties between word pieces by the order of
    its hash tables, so the vocabulary would differ between runs.
    """
    normalizer, splitter = normalizers.BertNormalizer(lowercase=True), pre_tokenizers.BertPreTokenizer()
    counts = Counter(word for text in texts for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(text)))
    special = list(_SPECIAL.values())
    frequent = sorted(counts, key=lambda word: (-counts[word], word))[: VOCABULARY - len(special)]
    vocabulary = {word: place for place, word in enumerate([*special, *frequent])}
    learned = Tokenizer(models.WordLevel(vocabulary, unk_token=_SPECIAL["unk_token"]))
    learned.normalizer, learned.pre_tokenizer = normalizer, splitter
    learned.add_special_tokens(special)
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
    if stored(dataset):
        ids = column(dataset, "input_ids")
        if "attention_mask" in fields(dataset):
            ids = ids[column(dataset, "attention_mask").astype(bool)]
        return torch.from_numpy(np.bincount(ids))
    parts = []
    for place in range(len(dataset)):  # fetch each sample once: it may be computed on access
        sample = dataset[place]
        ids = np.asarray(sample["input_ids"])
        parts.append(ids[np.asarray(sample.get("attention_mask", np.ones_like(ids)), dtype=bool)])
    return torch.from_numpy(np.bincount(np.concatenate(parts)))


@torch.no_grad()
def embedding_sigma(embedding: nn.Module, dataset: Any) -> float | None:
    """σ_x: the standard deviation over the embeddings of all tokens of a data set, without padding.

    It is exact: each token of the vocabulary is weighted by its count. None for samples without tokens, such as texts
    that the collator tokenizes.
    """
    if len(dataset) and "input_ids" not in fields(dataset):
        return None
    counts = token_counts(dataset)
    used = counts.nonzero().flatten()
    device = next(embedding.parameters()).device
    # On the CPU, because not every device has double precision.
    vectors = embedding(used.to(device)).cpu().double()
    share = counts[used].double() / counts.sum()
    mean = (share @ vectors).mean()
    return (share @ (vectors - mean).square()).mean().sqrt().item()


def refuse_rows(dataset: Any, limits: dict[str, int]) -> None:
    """Raise an error if a model can't take a sample of a tokenized data set.

    Args:
        dataset: Samples with ``input_ids``: a `datasets.Dataset` or a list.
        limits: The model's ``vocabulary`` size and its longest ``length`` in tokens, as far as they are known.

    Raises:
        InputError: If samples have no ``input_ids``, or one has no token, a token out of range, or too many tokens.
    """
    refuse_missing(dataset, "input_ids")
    lengths = row_lengths(dataset, "input_ids")
    if (lengths == 0).any():
        sample = int((lengths == 0).argmax())
        raise SampleError(f"sample {sample} has no token. Remove it.", sample)
    ids = column(dataset, "input_ids")
    if ids.dtype.kind not in "iu":
        raise InputError(f"input_ids must be whole numbers, the tokens of a text; got {ids.dtype}. Tokenize the texts.")
    vocabulary = limits.get("vocabulary")
    wrong = (ids < 0) | (ids >= vocabulary) if vocabulary is not None else ids < 0
    if wrong.any():
        place = int(wrong.argmax())
        sample = sample_of(place, lengths)
        raise SampleError(
            f"sample {sample} has token {ids[place]}; the model's word embedding has {vocabulary} rows. Use the "
            "model's own tokenizer.",
            sample,
        )
    longest = limits.get("length")
    if "seq_lengths" in fields(dataset):  # packed: a row holds several texts
        lengths = column(dataset, "seq_lengths")
    if longest is not None and (lengths > longest).any():
        sample = int((lengths > longest).argmax())
        raise SampleError(
            f"sample {sample} has {lengths[sample]} tokens; the model takes at most {longest}. Tokenize with "
            f"truncation=True, max_length={longest}.",
            sample,
        )


def refuse_missing(dataset: Any, *names: str) -> None:
    """Raise an error if samples have none of these fields."""
    if not set(names) & set(fields(dataset)):
        raise InputError(
            f"samples must have {' or '.join(names)}; got {', '.join(fields(dataset))}. Tokenize the texts and give "
            "each sample this field, or give a data_collator that makes it."
        )


def sample_of(place: int, lengths: np.ndarray) -> int:
    """The sample that a place belongs to among the values of all samples, one sample after the other."""
    return int(np.searchsorted(np.cumsum(lengths), place, side="right"))


def column(dataset: Any, name: str) -> np.ndarray:
    """The values of a field of all samples, concatenated."""
    if stored(dataset):  # without a copy, in Arrow's memory
        import pyarrow as pa
        import pyarrow.compute as pc

        values, types = _arrow(dataset, name), pa.types
        lists = types.is_list, types.is_large_list, types.is_fixed_size_list  # all that datasets stores
        nested = any(is_one(values.type) for is_one in lists)
        return (pc.list_flatten(values) if nested else values).to_numpy(zero_copy_only=False)
    return np.concatenate([np.atleast_1d(dataset[place][name]) for place in range(len(dataset))])


def row_lengths(dataset: Any, name: str) -> np.ndarray:
    """The number of values of each sample in a field, (samples,)."""
    if stored(dataset):
        import pyarrow.compute as pc

        return pc.list_value_length(_arrow(dataset, name)).fill_null(0).to_numpy()
    return np.array([len(dataset[place][name]) for place in range(len(dataset))])


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


def _arrow(dataset: "Dataset", name: str) -> Any:
    column = dataset.select_columns(name).with_format("arrow")[:][name]
    return column.combine_chunks() if hasattr(column, "combine_chunks") else column
