"""The order of the samples: each comes once per epoch over all ranks, the same for resumed runs and for all methods."""

import math
from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import Any

import torch
from accelerate.data_loader import BatchSamplerShard
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, Sampler
from transformers import TrainerState, TrainingArguments
from transformers.trainer_utils import has_length

from descend.errors import InputError
from descend.models import changed
from descend.tasks.text import NextToken
from descend.training.exits import OwnExits

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


class Ordered(OwnExits):
    """A trainer whose micro-batches hold each sample of an epoch once."""

    computed = 0
    """The number of this step's micro-batches that went through the model."""
    _idles = False
    """Whether this rank's last batch of an epoch is empty."""

    def set_initial_training_values(self, args: TrainingArguments, dataloader: DataLoader) -> Any:
        """As in Transformers, but a loader without a batch is refused."""
        if has_length(dataloader) and not len(dataloader):
            raise InputError(
                "expected at least one batch to train on; the data loader has none. Give more samples, lower "
                "per_device_train_batch_size, or switch off dataloader_drop_last, which drops a batch that is not full."
            )
        return super().set_initial_training_values(args, dataloader)

    def get_train_dataloader(self) -> DataLoader:
        """Transformers' loader, changed so that each sample comes once per epoch.

        If the last samples of an epoch can't be divided evenly between ranks, Transformers repeats the first samples.
        Here the last micro-batches are shorter, and a rank without samples runs a micro-batch that is not counted.
        Streams, whose length is unknown, and ``batch_rebalance`` work as in Transformers.
        """
        collate, task = self.data_collator, self.objective.task
        # Accelerate cuts up some batches after they are collated, such as those of a stream.
        cuts = self.accelerator.dataloader_config.dispatch_batches or not has_length(self.train_dataset)
        if isinstance(task, NextToken) and not cuts:
            collate = partial(task.located, collate)
        with changed(self, data_collator=collate):
            loader = super().get_train_dataloader()
        shard = getattr(loader, "batch_sampler", None)
        if isinstance(shard, BatchSamplerShard) and type(shard.batch_sampler) is BatchSampler and shard.even_batches:
            share = Share(shard)
            self._idles = share.idles
            # Make Accelerate treat the batch sampler as one that shards itself.
            shard.batch_sampler, shard.batch_size, shard.split_batches = share, None, False
            shard.num_processes, shard.process_index = 1, 0
            shard.sampler = share.sampler  # resuming calls set_epoch on this attribute
        return loader

    def get_batch_samples(
        self, epoch_iterator: Iterator, num_batches: int, device: torch.device
    ) -> tuple[list, Tensor | int | None]:
        """The micro-batches of a step, and the number of targets in them over all ranks."""
        self.computed = 0
        batches, _ = super().get_batch_samples(epoch_iterator, num_batches, device)
        if self._idles and batches and self.accelerator.gradient_state.end_of_dataloader:
            batches[-1][IDLE] = True
        targets = sum(len(self.objective.task.target(batch)) for batch in batches if IDLE not in batch)
        if self.accelerator.num_processes == 1:
            return batches, targets
        return batches, self.accelerator.reduce(torch.tensor(targets, device=device))

    def step_samples(self) -> list[int]:
        """The indices of this step's samples on this rank; none for a stream."""
        loader: Any = self.callback_handler.train_dataloader
        batches = getattr(loader, "batch_sampler", None)
        if batches is None or not has_length(loader):
            return []
        size = self.args.gradient_accumulation_steps
        epoch, step = divmod(self.state.global_step, steps_of_epoch(self.args, self.state, loader))
        sampler: Any = getattr(batches, "sampler", None)
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)
        return [number for batch in islice(batches, step * size, (step + 1) * size) for number in batch]
