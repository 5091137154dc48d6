"""The order of samples: each once in an epoch, shared between ranks, the same for a resumed run and another method."""

from collections.abc import Iterator

from accelerate.data_loader import BatchSamplerShard
from torch.utils.data import BatchSampler, Sampler
from transformers.trainer_pt_utils import LengthGroupedSampler

from descend.seeds import Stream, generator_of


class Share(BatchSampler):
    """One rank's micro-batches: of every R·B samples, B on each of R ranks; the last ones may be fewer.

    Args:
        shard: What the library would deal out an epoch by.
    """

    sampler: Sampler  # accelerate's and torch's loaders look for it here

    def __init__(self, shard: BatchSamplerShard):
        ranks, whole = shard.num_processes, shard.batch_sampler
        size = whole.batch_size // ranks if shard.split_batches else whole.batch_size
        super().__init__(whole.sampler, size * ranks, whole.drop_last)
        self._own = slice(size * shard.process_index, size * (shard.process_index + 1))

    @property
    def idles(self) -> bool:
        """Whether none of an epoch's last samples are this rank's."""
        last = len(self.sampler) % self.batch_size  # type: ignore[arg-type]
        return not self.drop_last and 0 < last <= self._own.start

    def __iter__(self) -> Iterator[list[int]]:
        # A loader must have something to load: a rank that idles gets a sample that another one counts.
        return (samples[self._own] or samples[:1] for samples in super().__iter__())


class LengthGrouped(LengthGroupedSampler):
    """Samples of like length together, in an order that a resumed run, or another method, meets again.

    The library's draws from the global generator, where dropout does too.
    """

    def __init__(self, batch_size: int, lengths: list[int], seed: int):
        super().__init__(batch_size, lengths=lengths)
        self.seed = seed
        self.set_epoch(0)

    def set_epoch(self, epoch: int) -> None:
        """Draw the order of this epoch."""
        self.generator = generator_of(Stream.ORDER, self.seed, epoch)
