"""UT, the unrolled transformer: alternating descent of an attention and a feed-forward energy."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoConfig, AutoModel

from descend.errors import refuse
from descend.models.denoiser import UnrolledConfig, UnrolledModel, dct_dictionary


class UTConfig(UnrolledConfig):
    """Configuration of `UT`.

    Args:
        depth: L, the number of layers.
        patch_size: Height and width of a patch in pixels; P = patch_size².
        tied: Whether all layers share one set of weights.
        heads: Attention heads: the weights of several projections are averaged. Eq. (47) has one.
        attention_size: Dimension r of the attention's projection W, over all heads.
        kernel: ``"softmax"``, eq. (47), or ``"gaussian"``, eq. (49): keys weighed by β_j = exp(−½‖W y_j‖²).
    """

    model_type = "descend-ut"

    def __init__(
        self,
        depth: int = 7,
        patch_size: int = 16,
        tied: bool = True,
        heads: int = 1,
        attention_size: int = 32,
        kernel: str = "softmax",
        **kwargs: Any,
    ):
        refuse(
            (kernel not in ("softmax", "gaussian"), f"kernel must be 'softmax' or 'gaussian'; got {kernel!r}."),
            (
                heads < 1 or attention_size % heads != 0 or not 0 < attention_size <= patch_size**2,
                f"attention_size must be a multiple of heads, at most {patch_size**2} pixels of a patch; got "
                f"{attention_size} and {heads} heads.",
            ),
        )
        self.heads = heads
        self.attention_size = attention_size
        self.kernel = kernel
        super().__init__(depth=depth, patch_size=patch_size, tied=tied, **kwargs)


class UT(UnrolledModel):
    r"""The unrolled transformer: alternating descent of an attention and a feed-forward energy, eq. (47)-(48).

    .. math::
        Z = X_{l-1}\,\mathrm{softmax}[(W X_{l-1})^\top (W X_{l-1})], \qquad X_l = \mathrm{ReLU}(Z + S Z)

    with one projection W for queries, keys and values, and a symmetric S. The hidden state is an estimate of the
    patches, X_0 the noisy patches and the readout the identity: every layer's output is an image.

    W and S are stored in the basis of the DCT C, W = Ŵ C and S = Cᵀ Ŝ C, in which an image denoiser is nearly diagonal.
    In the pixel basis the gradient is dominated by the mean grey level, and training was far slower.
    Initially S = 0 and W projects on the lowest frequencies: a layer averages similar frames.

    Raises:
        InputError: If patches of another size are given.
    """

    config_class = UTConfig
    config: UTConfig
    basis: Tensor
    first_layer = 1  # exit 0 is the noisy input itself, which no parameter changes

    def __init__(self, config: UTConfig):
        super().__init__(config)
        pixels, copies = config.patch_size**2, 1 if config.tied else config.depth
        self.register_buffer("basis", dct_dictionary(config.patch_size, pixels).T.contiguous())
        # ‖W y‖² / √P in the exponent, as in scaled dot-product attention.
        projection = torch.eye(config.attention_size, pixels) / pixels**0.25
        self.projection = nn.Parameter(projection.repeat(copies, 1, 1))
        self.feedforward = nn.Parameter(torch.zeros(copies, pixels, pixels))
        self.post_init()

    def weights(self) -> list[tuple[Tensor, Tensor]]:
        """(W, S) of each layer, (r, P) and symmetric (P, P), in the pixel basis."""
        projections = self.projection @ self.basis
        symmetric = (self.feedforward + self.feedforward.mT) / 2
        mixers = self.basis.T @ symmetric @ self.basis
        layers = list(zip(projections, mixers, strict=True))
        return layers * self.depth if self.config.tied else layers

    def layer_states(self, inputs: Tensor) -> Iterator[Tensor]:
        """Yield h_0 … h_L, each (B, N, T, P), of noisy patches (B, T, N, P)."""
        hidden = self._sequences(inputs)
        yield hidden
        for projection, mixer in self.weights():
            hidden = self._run(self.layer, hidden, projection, mixer)
            yield hidden

    def layer(self, hidden: Tensor, projection: Tensor, mixer: Tensor) -> Tensor:
        """One layer, eq. (47) then (48), of ``hidden`` (…, T, P)."""
        attended = symmetric_attention(hidden, projection, self.config.heads, self.config.kernel)
        return symmetric_feedforward(attended, mixer)

    def energies(self, inputs: Tensor) -> Tensor:
        """E(h_0) … E(h_L), (L+1, B), of noisy patches (B, T, N, P): `energy` on average over patch positions."""
        weights = self.weights()
        pairs = zip(self.layer_states(inputs), [weights[0], *weights], strict=True)
        return torch.stack([self.energy(hidden, *layer).mean(1) for hidden, layer in pairs])

    def energy(self, hidden: Tensor, projection: Tensor, mixer: Tensor) -> Tensor:
        """E(Y), eq. (45) less its norm term and eq. (46), of sequences (…, T, P), shape (…).

        A layer descends its two parts in turn. With the Gaussian kernel attention moves W y_i by −∇/Σ_j γ_ij of
        `attention_energy`, γ_ij = exp(−½‖W y_i − W y_j‖²) (Theorem 3.1). Softmax does so if all norms ‖W y_j‖ are
        equal; else see there. The feed-forward is a gradient step of length 1 on `feedforward_energy`, projected on
        Y ≥ 0. Several heads are treated as one projection with all their rows, because no energy is known for the
        average of their attention.
        """
        return self.attention_energy(hidden, projection) + self.feedforward_energy(hidden, mixer)

    def attention_energy(self, hidden: Tensor, projection: Tensor) -> Tensor:
        r"""Σ_{i<j} ρ(½‖W y_i − W y_j‖²) with ρ(z) = −exp(−z), eq. (45) less its norm term, shape (…).

        Gaussian attention never raises this sum. Softmax attention weighs keys by β_j = exp(½‖W y_j‖²) too. It never
        raises :math:`\sum_{i<j} \beta_i \beta_j\, \rho`, with the β of the layer's input; so it never raises this
        sum where all norms ‖W y_j‖ are equal, or of two tokens. Elsewhere it may raise it. The sum with ½‖W Y‖² added
        is lowered by neither (reproduction/departures.md).
        """
        tokens = hidden @ projection.mT
        kernel = torch.exp(-(tokens[..., :, None, :] - tokens[..., None, :, :]).square().sum(-1) / 2)
        return -kernel.triu(1).sum((-2, -1))

    def feedforward_energy(self, hidden: Tensor, mixer: Tensor) -> Tensor:
        """−½ tr(Yᵀ S Y) over Y ≥ 0, eq. (46) up to the choice of S, shape (…)."""
        return -(hidden * (hidden @ mixer)).sum((-2, -1)) / 2

    def readout(self, hidden: Tensor) -> Tensor:
        """The patches (B, T, N, P) of a hidden state (B, N, T, P): a transposition."""
        return hidden.transpose(1, 2)


def symmetric_attention(
    hidden: Tensor, projection: Tensor, heads: int = 1, kernel: str = "softmax", mask: Tensor | None = None
) -> Tensor:
    r"""Eq. (47), :math:`X\,\mathrm{softmax}[(W X)^\top (W X)]`: one projection for queries, keys and values.

    Args:
        hidden: X, (…, T, P).
        projection: W, (r, P).
        heads: The weights of several projections are averaged.
        kernel: ``"softmax"``, or ``"gaussian"``, eq. (49).
        mask: Which tokens may be attended to, (…, T); None for all.
    """
    tokens = (hidden @ projection.mT).unflatten(-1, (heads, -1)).movedim(-2, -3)
    scores = tokens @ tokens.mT
    if kernel == "gaussian":
        scores = scores - tokens.square().sum(-1)[..., None, :] / 2
    if mask is not None:
        scores = scores.masked_fill(mask[..., None, None, :] == 0, torch.finfo(scores.dtype).min)
    return scores.softmax(-1).mean(-3) @ hidden


def symmetric_feedforward(hidden: Tensor, mixer: Tensor) -> Tensor:
    """Eq. (48), ReLU(X + S X) of X (…, T, P) with a symmetric S (P, P)."""
    return F.relu(hidden + hidden @ mixer)


# Let Transformers' Auto classes load a saved folder.
AutoConfig.register(UTConfig.model_type, UTConfig)
AutoModel.register(UTConfig, UT)
