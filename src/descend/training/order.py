"""The order of samples: each once per epoch over all ranks, the same for resumed runs and for all methods."""

from collections.abc import Iterator

from accelerate.data_loader import BatchSamplerShard
from torch.utils.data import BatchSampler, Sampler
from transformers.trainer_pt_utils import LengthGroupedSampler

from descend.seeds import Stream, generator_of


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

    @property
    def idles(self) -> bool:
        """Whether this rank's last batch is empty."""
        last = len(self.sampler) % self.batch_size  # type: ignore[arg-type]
        return not self.drop_last and 0 < last <= self._own.start

    def __iter__(self) -> Iterator[list[int]]:
        # A loader can't yield an empty batch: an idle rank loads a sample, which only another rank counts.
        return (samples[self._own] or samples[:1] for samples in super().__iter__())


class LengthGrouped(LengthGroupedSampler):
    """Groups samples of similar length, with an order from its own generator.

    Transformers draws the order from the global generator, which dropout uses too: a resumed run would have another
    order.
    """

    def __init__(self, batch_size: int, lengths: list[int], seed: int):
        super().__init__(batch_size, lengths=lengths)
        self.seed = seed
        self.set_epoch(0)

    def set_epoch(self, epoch: int) -> None:
        """Draw the order of this epoch."""
        self.generator = generator_of(Stream.ORDER, self.seed, epoch)
