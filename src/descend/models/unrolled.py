"""UT and DUST: transformers whose layer is a descent step of an energy (App. C).

Both work on sequences: one patch position over T frames is a sequence of T tokens, and the tokens of different
positions never meet. Inputs are noisy patches (B, T, N, P); hidden states are (B, N, T, …).
"""

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedConfig, PreTrainedModel

from descend.errors import InputError
from descend.models.layered import LayeredModel, Reconstruction


def dct_dictionary(side: int, atoms: int) -> Tensor:
    """An (overcomplete) two-dimensional DCT dictionary of patches.

    Args:
        side: Height and width of a patch in pixels.
        atoms: A, a square number; side² gives the orthonormal DCT, more an overcomplete one.

    Returns:
        (side², A): unit-norm atoms as columns, lowest frequencies first.

    Raises:
        InputError: If ``atoms`` is not a square number.
    """
    count = round(atoms**0.5)
    if count**2 != atoms:
        raise InputError(f"atoms must be a square number, the DCT being separable; got {atoms}. Try {count**2}.")
    frequencies, pixels = torch.arange(count, dtype=torch.float64), torch.arange(side, dtype=torch.float64)
    waves = torch.cos(torch.pi * (pixels[:, None] + 0.5) * frequencies / count)
    waves /= waves.norm(dim=0)
    low_first = (frequencies[:, None] + frequencies).flatten().argsort(stable=True)
    return torch.kron(waves, waves)[:, low_first].float()


class UnrolledConfig(PreTrainedConfig):
    """The settings that UT and DUST share.

    Args:
        depth: L, the number of layers.
        patch_size: Height and width of a patch in pixels; P = patch_size².
        tied: One set of weights for all layers (the main text), or one for each (App. C.4).
    """

    def __init__(self, depth: int = 7, patch_size: int = 16, tied: bool = True, **kwargs: Any):
        if depth < 1:
            raise InputError(f"depth must be at least 1, the number of layers; got {depth}.")
        self.depth = depth
        self.patch_size = patch_size
        self.tied = tied
        super().__init__(**kwargs)


class UTConfig(UnrolledConfig):
    """Configuration of `UT`.

    Args:
        depth: L, the number of layers.
        patch_size: Height and width of a patch in pixels; P = patch_size².
        tied: One set of weights for all layers, or one for each.
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
        if kernel not in ("softmax", "gaussian"):
            raise InputError(f"kernel must be 'softmax' or 'gaussian'; got {kernel!r}.")
        if heads < 1 or attention_size % heads or not 0 < attention_size <= patch_size**2:
            raise InputError(
                f"attention_size must be a multiple of heads, at most {patch_size**2} pixels of a patch; got "
                f"{attention_size} and {heads} heads."
            )
        self.heads = heads
        self.attention_size = attention_size
        self.kernel = kernel
        super().__init__(depth=depth, patch_size=patch_size, tied=tied, **kwargs)


class DUSTConfig(UnrolledConfig):
    """Configuration of `DUST`.

    Args:
        depth: L, the number of layers.
        patch_size: Height and width of a patch in pixels; P = patch_size².
        tied: One dictionary for all layers, or one for each (App. C.4) and one more to read out with.
        atoms: A, the size of the sparse code; a square number.
        layer: ``"alternating"``, the paper's eq. (75)-(76), or ``"proximal"``, one descent step of eq. (74). The
            first is the default: see `DUST`. A configuration file without this setting is that of a proximal model.
        l1: λ₁, the weight of sparsity.
        l2: λ₂, the weight of the attention energy. At 0 a layer has no attention; otherwise it cancels in the
            alternating layer's attention step.
        margin: c / ‖D‖² > ½, the inverse step of the gradient in units of the largest curvature.
        c: The inverse step itself, a constant, in place of ``margin``.

    Raises:
        InputError: If ``layer`` is neither of the two, a weight is negative, or a step is not positive or too long.
    """

    model_type = "descend-dust"

    def __init__(
        self,
        depth: int = 7,
        patch_size: int = 16,
        tied: bool = True,
        atoms: int = 1024,
        layer: str = "alternating",
        l1: float = 0.02,
        l2: float = 1.0,
        margin: float = 1.01,
        c: float | None = None,
        **kwargs: Any,
    ):
        if layer not in ("alternating", "proximal"):
            raise InputError(f"layer must be 'alternating' or 'proximal'; got {layer!r}.")
        if l1 < 0 or l2 < 0:
            raise InputError(f"l1 and l2 are weights of an energy and can't be negative; got {l1} and {l2}.")
        if not margin > 0.5:
            raise InputError(f"margin must be above ½: a longer step makes the layer expansive; got {margin}.")
        if c is not None and not 0 < c < float("inf"):
            raise InputError(f"c must be a positive number, the inverse step of a layer; got {c}. Try margin instead.")
        self.atoms = atoms
        self.layer = layer
        self.l1 = l1
        self.l2 = l2
        self.margin = margin
        self.c = c
        super().__init__(depth=depth, patch_size=patch_size, tied=tied, **kwargs)

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """A configuration from its saved form; models saved before there was a choice of layer are proximal."""
        return super().from_dict({"layer": "proximal"} | config_dict, **kwargs)


class UnrolledModel(LayeredModel, PreTrainedModel):
    """The base class of UT and DUST: sequences in, patches out."""

    main_input_name = "patches"
    supports_gradient_checkpointing = True
    config: UnrolledConfig

    def __init__(self, config: UnrolledConfig):
        super().__init__(config)
        self.gradient_checkpointing = False
        self.input = nn.Identity()

    @property
    def depth(self) -> int:
        """L, the number of layers."""
        return self.config.depth

    def get_input_embeddings(self) -> nn.Module:
        """An identity on the input patches."""
        return self.input

    def forward(self, patches: Tensor, output_hidden_states: bool = False) -> Reconstruction:
        """Denoise.

        Args:
            patches: Noisy patches (B, T, N, P) in [0, 1] units.
            output_hidden_states: Return h_0 … h_L too.
        """
        hidden, reconstruction = [], patches
        for state, read in self._layers(self._sequences(patches)):
            if output_hidden_states:
                hidden.append(state)
            reconstruction = read
        return Reconstruction(
            reconstruction=reconstruction.transpose(1, 2),
            hidden_states=tuple(hidden) if output_hidden_states else None,
        )

    def layer_outputs(self, inputs: Tensor) -> tuple[Tensor, ...]:
        """h_0 … h_L, each (B, N, T, …), of noisy patches (B, T, N, P)."""
        return tuple(hidden for hidden, _ in self._layers(self._sequences(inputs)))

    def predictions(self, inputs: Tensor) -> Iterator[Tensor]:
        """The reconstruction (B, T, N, P) of every layer."""
        return (reconstruction.transpose(1, 2) for _, reconstruction in self._layers(self._sequences(inputs)))

    @abstractmethod
    def energies(self, inputs: Tensor) -> Tensor:
        """The energy that a layer descends, at h_0 … h_L: see `energy` of UT and of DUST.

        Every h_l is seen under the weights of layer l, h_0 under those of the first: with weights tied it is one
        energy along the layers, otherwise each layer has its own.

        Args:
            inputs: Noisy patches (B, T, N, P).

        Returns:
            (L+1, B): of a sequence, on average over the N patch positions.
        """

    @abstractmethod
    def _layers(self, noisy: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Every layer's output for noisy sequences and its reading, one layer after the other."""

    def _init_weights(self, module: nn.Module) -> None:
        """Do nothing: constructors set the DCT. Transformers calls this only for weights that a checkpoint lacks."""

    def _sequences(self, patches: Tensor) -> Tensor:
        if patches.dim() != 4 or patches.shape[-1] != self.config.patch_size**2:
            raise InputError(
                f"patches must have shape (B, T, N, P) with P = {self.config.patch_size**2}; got "
                f"{tuple(patches.shape)}."
            )
        return self.input(patches).transpose(1, 2).contiguous()

    def _run(self, step: Any, *args: Any) -> Any:
        if self.gradient_checkpointing and self.training:
            return self._gradient_checkpointing_func(step, *args)
        return step(*args)


class UT(UnrolledModel):
    r"""The unrolled transformer: alternating descent of an attention and a feed-forward energy, eq. (47)-(48).

    .. math::
        Z = X_{l-1}\,\mathrm{softmax}[(W X_{l-1})^\top (W X_{l-1})], \qquad X_l = \mathrm{ReLU}(Z + S Z)

    with one projection W for queries, keys and values, and a symmetric S. The hidden state is the estimate of the
    patches itself, X_0 the noisy patches and the readout the identity: every layer is an image one can look at.

    W and S are held in the basis of the DCT C, W = Ŵ C and S = Cᵀ Ŝ C, where a denoiser of images is nearly diagonal:
    the gradient of a pixel basis is dominated by the mean grey level, and training was far slower in it.
    At the start S = 0 and W sees the lowest frequencies: a layer averages alike frames.

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

    def _layers(self, noisy: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        hidden = noisy
        yield hidden, hidden
        for projection, mixer in self.weights():
            hidden = self._run(self.layer, hidden, projection, mixer)
            yield hidden, hidden

    def layer(self, hidden: Tensor, projection: Tensor, mixer: Tensor) -> Tensor:
        """One layer, eq. (47) then (48), of ``hidden`` (…, T, P)."""
        return self.feed(self.attend(hidden, projection), mixer)

    def attend(self, hidden: Tensor, projection: Tensor) -> Tensor:
        """Symmetric attention, eq. (47): a step down `attention_energy` in the Gaussian kernel (Theorem 3.1)."""
        return symmetric_attention(hidden, projection, self.config.heads, self.config.kernel)

    def feed(self, hidden: Tensor, mixer: Tensor) -> Tensor:
        """Symmetric feed-forward with residual, eq. (48): a projected step down `feedforward_energy`."""
        return symmetric_feedforward(hidden, mixer)

    def energies(self, inputs: Tensor) -> Tensor:
        """E(h_0) … E(h_L), (L+1, B), of noisy patches (B, T, N, P): `energy` on average over patch positions."""
        weights = self.weights()
        states = self.layer_outputs(inputs)
        return torch.stack(
            [self.energy(hidden, *own).mean(1) for hidden, own in zip(states, [weights[0], *weights], strict=True)]
        )

    def energy(self, hidden: Tensor, projection: Tensor, mixer: Tensor) -> Tensor:
        """E(Y), eq. (45) less its norm term and eq. (46), of sequences (…, T, P), shape (…).

        A layer descends it in turns. `attend` moves W y_i by −∇/Σ_j γ_ij of `attention_energy`, γ_ij =
        exp(−½‖W y_i − W y_j‖²), in the Gaussian kernel; softmax weighs keys by exp(½‖W y_j‖²) besides, which is the
        same where norms are equal and no gradient's direction where they differ. `feed` is a gradient step of length 1
        on `feedforward_energy`, projected on Y ≥ 0. Several heads are seen as one projection, of all their rows: of the
        average of their attention we know no energy.
        """
        return self.attention_energy(hidden, projection) + self.feedforward_energy(hidden, mixer)

    def attention_energy(self, hidden: Tensor, projection: Tensor) -> Tensor:
        """Σ_{i<j} ρ(½‖W y_i − W y_j‖²) with ρ(z) = −exp(−z), eq. (45) less its norm term, shape (…).

        Softmax attention with its self-term lowers this sum, not the sum with ½‖W Y‖² added: see docs/method.md.
        """
        tokens = hidden @ projection.mT
        kernel = torch.exp(-(tokens[..., :, None, :] - tokens[..., None, :, :]).square().sum(-1) / 2)
        return -kernel.triu(1).sum((-2, -1))

    def feedforward_energy(self, hidden: Tensor, mixer: Tensor) -> Tensor:
        """−½ tr(Yᵀ S Y) over Y ≥ 0, eq. (46) up to the choice of S, shape (…)."""
        return -(hidden * (hidden @ mixer)).sum((-2, -1)) / 2

    def readout(self, hidden: Tensor) -> Tensor:
        """The patches (B, T, N, P) that a hidden state (B, N, T, P) is."""
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


class DUST(UnrolledModel):
    r"""The deep unfolded sequential transformer: sparse codes of patches, and attention between frames (App. C.3).

    Its layers minimise

    .. math::
        F(H) = \sum_t \tfrac12 \|x_t - D h_t\|^2 + \lambda_1 \|h_t\|_1
        - \lambda_2 \sum_{s<t} \exp(-\tfrac12\|h_s - h_t\|^2)

    eq. (74) less the norm term of its attention energy, with x the noisy patches. The codes start at h_0 = 0 and the
    readout is D h. There are two kinds of layer, ``config.layer``.

    **Alternating**, the paper's, eq. (75) then (76): symmetric attention, then an ISTA step with a fixed c,

    .. math::
        H_{l-1/2} = H_{l-1}\,\mathrm{softmax}(H_{l-1}^\top H_{l-1}), \qquad
        H_l = \mathrm{soft}_{\lambda_1/c}\big( H_{l-1/2} + D^\top (X - D H_{l-1/2}) / c \big)

    The paper prints the order ("a symmetric softmax attention layer followed by a LISTA layer"), the intermediate step,
    the soft threshold, that D and its transpose are coupled (App. C.4) and that c is "related to the Lipschitz
    constant" of the gradient. The formulas themselves, λ₁ and c are lost in the text. Inferred: the attention is eq.
    (73), in which λ₂ cancels, and it acts on the codes without a projection; c is ``margin``·‖D_0‖² of the dictionary
    at the start, or what ``config.c`` says, and stays as it is while D trains. Each half lowers a part of F (softmax
    attention only where norms are equal, as in UT); a layer need not lower F.

    **Proximal**: one proximal gradient step on all of F, preconditioned by m_t = c + λ₂ Σ_s γ_st with
    γ_st = exp(−½‖h_s − h_t‖²),

    .. math::
        h_t \leftarrow \mathrm{soft}_{\lambda_1/m_t}\Big( \frac{c\,[h_t + D^\top(x_t - D h_t)/c]
        + \lambda_2 \big(\sum_s \gamma_{st}\big)\, \mathrm{attention}(H)_t}{m_t} \Big)

    It averages an ISTA step and symmetric attention, and lowers F wherever c ≥ ‖D‖². So c = ``margin``·‖D‖² follows D
    while it trains, by power iteration, unless ``config.c`` fixes it.

    The alternating layer is the default for new models, because it denoises better at the same cost. On UCSD Ped2 at
    γ = 0.8 (ERM, 150 steps, one seed) its validation RMSE was lower by 1.0 to 2.1 at L = 3 and 5, tied and untied, at
    each of three learning rates. Most of that is the fixed c: a tied proximal layer with c = 4.04 came within 0.2. A c
    that follows ‖D‖² lets the dictionary grow (‖D‖² from 4 to as much as 200 where tied), and steps and thresholds
    shrink as it does. A fixed c does not bound ‖D‖² either: with weights of their own some layers reached 3c, and an
    ISTA step is expansive above 2c. None of these runs diverged.

    With 1024 DCT atoms ‖D_0‖² = 4 (14.97 in the K-SVD variant), where the customary c = 1 makes a layer expansive. In
    both layers the residual that layer l needs comes from the reconstruction of layer l−1 where weights are tied, so
    that reading out every layer costs nothing.
    """

    config_class = DUSTConfig
    config: DUSTConfig
    leading: Tensor
    c: Tensor

    def __init__(self, config: DUSTConfig):
        super().__init__(config)
        # Per-layer dictionaries leave none for the readout: it gets its own.
        copies = 1 if config.tied else config.depth + 1
        dictionary = dct_dictionary(config.patch_size, config.atoms)
        self.dictionary = nn.Parameter(dictionary.repeat(copies, 1, 1))
        self.tracked = config.layer == "proximal" and config.c is None
        if self.tracked:
            # The leading right singular vector of each dictionary: a start for the next power iteration.
            leading = torch.randn(config.atoms, generator=torch.Generator().manual_seed(0))
            self.register_buffer("leading", leading.repeat(copies, 1))
            self.curvature(iterations=300)
        else:
            norm = torch.linalg.matrix_norm(dictionary, 2)
            self.register_buffer("c", config.margin * norm**2 if config.c is None else torch.tensor(config.c))
        self.post_init()

    @torch.no_grad()
    def curvature(self, iterations: int = 3) -> Tensor:
        """The inverse step c of each dictionary, (1,) or (L+1,).

        A constant, or margin·‖D‖² by power iteration from the last one's vector.

        Args:
            iterations: Of the power iteration.
        """
        if not self.tracked:
            return self.c.expand(len(self.dictionary))
        precise = torch.promote_types(self.dictionary.dtype, torch.float32)
        dictionary, leading = self.dictionary.to(precise), self.leading[..., None].to(precise)
        for _ in range(iterations):
            leading = F.normalize(dictionary.mT @ (dictionary @ leading), dim=-2)
        norm = (dictionary @ leading).square().sum((-2, -1))
        if self.training:
            self.leading.copy_(leading[..., 0])
        return self.config.margin * norm

    def readout(self, hidden: Tensor) -> Tensor:
        """D h: the patches (B, T, N, P) of a code (B, N, T, A)."""
        return (hidden @ self.dictionary[-1].T).transpose(1, 2)

    def _layers(self, noisy: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        hidden = noisy.new_zeros((*noisy.shape[:-1], self.config.atoms))
        curvature, reconstruction = self.curvature(), torch.zeros_like(noisy)
        yield hidden, reconstruction
        for index in range(self.depth):
            own = 0 if self.config.tied else index
            dictionary = self.dictionary[own]
            if not self.config.tied:
                reconstruction = hidden @ dictionary.T
            hidden = self._run(self.layer, hidden, noisy, reconstruction, dictionary, curvature[own])
            reconstruction = hidden @ self.dictionary[-1].T
            yield hidden, reconstruction

    def layer(
        self, hidden: Tensor, noisy: Tensor, reconstruction: Tensor, dictionary: Tensor, curvature: Tensor
    ) -> Tensor:
        """One layer of the kind that the configuration names.

        Args:
            hidden: Codes H_{l−1}, (…, T, A).
            noisy: Noisy patches x, (…, T, P).
            reconstruction: D h of these codes, (…, T, P).
            dictionary: D, (P, A).
            curvature: c.

        Returns:
            Codes H_l, (…, T, A).
        """
        step = self._alternate if self.config.layer == "alternating" else self._descend
        return step(hidden, noisy, reconstruction, dictionary, curvature)

    def _alternate(
        self, hidden: Tensor, noisy: Tensor, reconstruction: Tensor, dictionary: Tensor, curvature: Tensor
    ) -> Tensor:
        """Eq. (75) then (76)."""
        if self.config.l2 > 0:
            weights = (hidden @ hidden.mT).softmax(-1)
            # Attention is linear in what it averages: the intermediate code's reconstruction is the average of these.
            hidden, reconstruction = weights @ hidden, weights @ reconstruction
        moved = hidden + ((noisy - reconstruction) / curvature) @ dictionary
        return soft_threshold(moved, self.config.l1 / curvature)

    def _descend(
        self, hidden: Tensor, noisy: Tensor, reconstruction: Tensor, dictionary: Tensor, curvature: Tensor
    ) -> Tensor:
        """One proximal gradient step on F."""
        residual = noisy - reconstruction
        if self.config.l2 > 0:
            kernel = code_kernel(hidden)
            metric = curvature + self.config.l2 * kernel.sum(-1, keepdim=True)
            # (c H + λ₂ Γ H + Dᵀ residual) / m, with the small factors gathered before they meet the codes.
            mix = (
                curvature * torch.eye(kernel.shape[-1], dtype=kernel.dtype, device=kernel.device)
                + self.config.l2 * kernel
            ) / metric
            moved = mix @ hidden + (residual / metric) @ dictionary
        else:
            metric = curvature
            moved = hidden + (residual / metric) @ dictionary
        return soft_threshold(moved, self.config.l1 / metric)

    def energies(self, inputs: Tensor) -> Tensor:
        """F(h_0) … F(h_L), (L+1, B), of noisy patches (B, T, N, P): `energy` on average over patch positions."""
        noisy = self._sequences(inputs)
        found = []
        for layer, (hidden, _) in enumerate(self._layers(noisy)):
            own = self.dictionary[0 if self.config.tied else max(0, layer - 1)]
            found.append(self.energy(hidden, noisy, own).mean(1))
        return torch.stack(found)

    def energy(self, hidden: Tensor, noisy: Tensor, dictionary: Tensor) -> Tensor:
        """F(H), eq. (74) less the norm term of its attention energy, shape (…).

        A proximal layer is h − ∇/m of all but λ₁‖h‖₁, m_t = c + λ₂ Σ_s γ_st, and then the soft threshold at λ₁/m: F
        falls. An alternating layer descends parts of F in turn and may raise F.

        Args:
            hidden: Codes H, (…, T, A).
            noisy: Noisy patches x, (…, T, P).
            dictionary: D, (P, A).
        """
        data = (noisy - hidden @ dictionary.T).square().sum((-2, -1)) / 2
        sparsity = hidden.abs().sum((-2, -1))
        attention = -code_kernel(hidden).triu(1).sum((-2, -1))
        return data + self.config.l1 * sparsity + self.config.l2 * attention


def soft_threshold(values: Tensor, threshold: Tensor) -> Tensor:
    """sign(v)·max(|v| − θ, 0): the proximal operator of θ‖·‖₁, for values of any shape and a θ that broadcasts."""
    return F.relu(values - threshold) - F.relu(-values - threshold)


def code_kernel(hidden: Tensor) -> Tensor:
    """γ_st = exp(−½‖h_s − h_t‖²) between the tokens (…, T, A), shape (…, T, T)."""
    gram = hidden @ hidden.mT
    norms = gram.diagonal(dim1=-2, dim2=-1)
    # In half precision the rounding errors of near codes' large norms would make γ anything.
    return torch.exp((gram - (norms[..., :, None] + norms[..., None, :]) / 2).clamp(max=0))
