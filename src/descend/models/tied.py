"""Models whose layers may share one set of weights, and can then run more of them."""

from contextlib import AbstractContextManager
from typing import Any

from descend.models.layered import LayeredModel
from descend.models.modules import changed


class TiedLayers(LayeredModel):
    """A model whose L layers may share one set of weights: ``config.depth`` is L, and ``config.tied`` says it."""

    config: Any

    @property
    def depth(self) -> int:
        """L, the number of layers."""
        depth: int = self.config.depth
        return depth

    @property
    def iterative(self) -> bool:
        """Whether weights are tied."""
        tied: bool = self.config.tied
        return tied

    def running(self, iterations: int) -> AbstractContextManager[None]:
        """Run another number of layers inside the ``with`` block; untied ones can't."""
        return changed(self.config, depth=iterations) if self.iterative else super().running(iterations)
