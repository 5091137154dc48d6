"""Sparse coding with learned ISTA."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from descend.declared import GENERATED, Count, InnerShare, setting
from descend.recipes.base import Data
from descend.recipes.inverse import SEEDS, SIZES, InverseRecipe

if TYPE_CHECKING:
    from descend.models import LISTA
    from descend.tasks.inverse import Measured, Reconstruction

OTHER_MATRIX = 0.1
"""The relative size of the change of A in ``other-operator``."""

DENSER = 2.0
"""Times the share of numbers that are not zero in ``denser``."""


@dataclass(frozen=True)
class LISTARecipe(InverseRecipe):
    """Sparse coding with learned ISTA, on generated codes.

    Attributes:
        rows: m, the numbers of a measurement.
        columns: n, the numbers of a code.
        sparsity: The share of a code's numbers that are not zero.
        loss: Whether the loss of an estimate is its squared error, or its root, the distance.
    """

    name = "lista"
    help = "sparse coding with learned ISTA (Gregor and LeCun, 2010)"
    order = 90
    family = architecture = "LISTA"
    signals = "sparse codes"
    names_of_data = ("other-operator", "denser")

    rows: Count = setting(50, "m, numbers of a measurement")
    columns: Count = setting(100, "n, numbers of a code")
    sparsity: InnerShare = setting(0.1, "share of a code's numbers that are not zero")
    loss: str = setting("squared", "of an estimate: squared error, or distance", ("squared", "distance"))

    def measured(self, part: str, shift: str = GENERATED) -> Measured:
        """Codes x and A x."""
        from torch.nn import functional as F

        from descend.tasks.inverse import Measured, dictionary, sparse_codes

        matrix = dictionary(self.rows, self.columns)
        if shift == "other-operator":
            matrix = F.normalize(matrix + OTHER_MATRIX * dictionary(self.rows, self.columns, seed=9), dim=0)
        share = min(1.0, self.sparsity * (DENSER if shift == "denser" else 1.0))
        codes = sparse_codes(SIZES[part], self.columns, share, SEEDS[part])
        return Measured(codes, lambda x: x @ matrix.T)

    def task(self) -> Reconstruction:
        """The squared error, in units of the codes' mean squared norm."""
        from descend.tasks.inverse import Reconstruction

        return Reconstruction(self.columns * self.sparsity, "nmse", squared=self.loss == "squared")

    def network(self, data: Data | None) -> LISTA:
        """A new network, whose layers are iterations of ISTA."""
        from descend.models import LISTA, LISTAConfig
        from descend.tasks.inverse import dictionary

        network = LISTA(LISTAConfig(self.depth, self.tied, self.rows, self.columns))
        network.start_from(dictionary(self.rows, self.columns))
        return network
