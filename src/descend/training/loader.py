"""The order of the samples: each comes once per epoch over all ranks, the same for resumed runs and for all methods."""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.data_loader import BatchSamplerShard
from accelerate.utils import reduce
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, Sampler
from transformers import TrainerState, TrainingArguments
from transformers.trainer_utils import has_length

from descend.tasks import Task
from descend.tasks.text import NextToken
from descend.training.ranks import Ranks

IDLE = "idle"
"""Marks a micro-batch that counts nothing, because another rank counts its samples."""


def steps_of_epoch(args: TrainingArguments, state: TrainerState, loader: Any) -> int:
    """The number of optimizer steps in an epoch; for a stream, which has no epochs, in the run."""
    batches = len(loader) if has_length(loader) else state.max_steps * args.gradient_accumulation_steps
    return math.ceil(batches / args.gradient_accumulation_steps)


class Share(BatchSampler):
    """One rank's micro-batches of an epoch: B of every R·B samples on each of R ranks; the last batch may be shorter.

    Args:
        shard: Accelerate's sampler for this rank.
    """

    sampler: Sampler  # the loaders of Accelerate and torch read this attribute

    def __init__(self, shard: BatchSamplerShard):
        ranks, whole = shard.num_processes, shard.batch_sampler
        size = whole.batch_size // ranks if shard.split_batches else whole.batch_size
        super().__init__(whole.sampler, size * ranks, whole.drop_last)
        self._own = slice(size * shard.process_index, size * (shard.process_index + 1))
        last = len(whole.sampler) % self.batch_size  # type: ignore[arg-type]
        self.idles = not self.drop_last and 0 < last <= self._own.start  # whether this rank's last batch is empty

    def __iter__(self) -> Iterator[list[int]]:
        # A loader can't yield an empty batch: an idle rank loads a sample, which only another rank counts.
        return (samples[self._own] or samples[:1] for samples in super().__iter__())


@dataclass
class Loader:
    """Which samples the micro-batches of this rank hold: each sample of an epoch is counted once."""

    task: Task
    """Finds the targets of a batch."""
    args: TrainingArguments
    accelerator: Accelerator
    """Knows the last batch of an epoch."""
    ranks: Ranks
    idles: bool = False
    """Whether this rank's last batch of an epoch is empty."""

    def collator(self, collate: Callable[[list[Any]], Any], dataset: Any) -> Callable[[list[Any]], Any]:
        """A collator of training batches, which finds the targets of a language model already in the loader."""
        # Accelerate cuts up some batches after they are collated, such as those of a stream.
        cuts = self.accelerator.dataloader_config.dispatch_batches or not has_length(dataset)
        return partial(self.task.located, collate) if isinstance(self.task, NextToken) and not cuts else collate

    def share(self, loader: DataLoader) -> None:
        """Change Transformers' loader so that each sample comes once per epoch.

        If the last samples of an epoch can't be divided evenly between ranks, Transformers repeats the first samples.
        Here the last micro-batches are shorter, and a rank without samples runs a micro-batch that is not counted.
        Streams, whose length is unknown, and ``batch_rebalance`` work as in Transformers.
        """
        shard = getattr(loader, "batch_sampler", None)
        if isinstance(shard, BatchSamplerShard) and type(shard.batch_sampler) is BatchSampler and shard.even_batches:
            share = Share(shard)
            self.idles = share.idles
            # Make Accelerate treat the batch sampler as one that shards itself.
            shard.batch_sampler, shard.batch_size, shard.split_batches = share, None, False
            shard.num_processes, shard.process_index = 1, 0
            shard.sampler = share.sampler  # resuming calls set_epoch on this attribute

    def count(self, batches: list[dict[str, Any]]) -> Tensor | int:
        """The number of targets in a step's micro-batches over all ranks; marks a micro-batch that counts nothing."""
        if self.idles and batches and self.accelerator.gradient_state.end_of_dataloader:
            batches[-1][IDLE] = True
        targets = sum(len(self.task.target(batch)) for batch in batches if IDLE not in batch)
        if self.ranks.number == 1:
            return targets
        return reduce(torch.tensor(targets, device=self.ranks.device), "sum")

    def samples(self, loader: Any, dataset: Any, state: TrainerState) -> str:
        """Name this rank's samples of the coming step by their numbers, and those that are not finite.

        Args:
            loader: The loader of training batches.
            dataset: Its data set.
            state: The trainer's, which counts the steps.
        """
        numbers = self._numbers(loader, state)
        broken = ", ".join(str(number) for number in numbers if not _finite(dataset, number))
        samples = ", ".join(map(str, numbers)) or "unknown"
        return f"{samples} (NaN or infinity in the data of {broken})" if broken else samples

    def _numbers(self, loader: Any, state: TrainerState) -> list[int]:
        """The numbers of the coming step's samples on this rank; none for a stream."""
        batches = getattr(loader, "batch_sampler", None)
        if batches is None or not has_length(loader):
            return []
        size = self.args.gradient_accumulation_steps
        epoch, step = divmod(state.global_step, steps_of_epoch(self.args, state, loader))
        sampler: Any = getattr(batches, "sampler", None)
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)
        return [number for batch in islice(batches, step * size, (step + 1) * size) for number in batch]


def _finite(data: Any, number: int) -> bool:
    """Whether the numbers of a sample's fields are finite; other fields, and a sample that fails, are not looked at."""
    try:
        sample = data[number]
    except Exception:  # the user's own code, which must not hide why training stopped
        return True
    for value in sample.values() if isinstance(sample, Mapping) else ():
        with suppress(TypeError, ValueError, RuntimeError):  # no array of numbers
            if not torch.as_tensor(value).isfinite().all():
                return False
    return True
