"""DUST, the deep unfolded sequential transformer: sparse codes of patches, and attention between frames."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoConfig, AutoModel

from descend.errors import refuse
from descend.models.denoiser import UnrolledConfig, UnrolledModel, dct_dictionary


class DUSTConfig(UnrolledConfig):
    """Configuration of `DUST`.

    Args:
        depth: L, the number of layers.
        patch_size: Height and width of a patch in pixels; P = patch_size².
        tied: One dictionary for all layers, or one for each (App. C.4), which also reads its layer.
        atoms: A, the size of the sparse code; a square number.
        layer: ``"alternating"``, the paper's eq. (75)-(76), or ``"proximal"``, one descent step of eq. (74). The
            first is the default: see `DUST`.
        l1: λ₁, the weight of sparsity.
        l2: λ₂, the weight of the attention energy. At 0 a layer has no attention. Any other value cancels in the
            attention step of an alternating layer.
        margin: c / ‖D‖² > ½, the inverse step of the gradient in units of the largest curvature.
        c: The inverse step as a constant, instead of ``margin``.

    Raises:
        InputError: If ``layer`` is unknown, a weight is negative, or a step is not positive or too long.
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
        refuse(
            (layer not in ("alternating", "proximal"), f"layer must be 'alternating' or 'proximal'; got {layer!r}."),
            (l1 < 0 or l2 < 0, f"l1 and l2 are weights of an energy and can't be negative; got {l1} and {l2}."),
            (not margin > 0.5, f"margin must be above ½: a longer step makes the layer expansive; got {margin}."),
            (
                c is not None and not 0 < c < float("inf"),
                f"c must be a positive number, the inverse step of a layer; got {c}. Try margin instead.",
            ),
        )
        self.atoms = atoms
        self.layer = layer
        self.l1 = l1
        self.l2 = l2
        self.margin = margin
        self.c = c
        super().__init__(depth=depth, patch_size=patch_size, tied=tied, **kwargs)


class DUST(UnrolledModel):
    r"""The deep unfolded sequential transformer: sparse codes of patches, and attention between frames (App. C.3).

    Its layers minimise

    .. math::
        F(H) = \sum_t \tfrac12 \|x_t - D h_t\|^2 + \lambda_1 \|h_t\|_1
        - \lambda_2 \sum_{s<t} \exp(-\tfrac12\|h_s - h_t\|^2)

    eq. (74) less the norm term of its attention energy, with x the noisy patches. The codes start at h_0 = 0 and the
    readout is D h, with the layer's own D where each has one. There are two kinds of layer, ``config.layer``.

    **Alternating**, the paper's, eq. (75) then (76): symmetric attention, then an ISTA step with a fixed c,

    .. math::
        H_{l-1/2} = H_{l-1}\,\mathrm{softmax}(H_{l-1}^\top H_{l-1}), \qquad
        H_l = \mathrm{soft}_{\lambda_1/c}\big( H_{l-1/2} + D^\top (X - D H_{l-1/2}) / c \big)

    The paper prints the order ("a symmetric softmax attention layer followed by a LISTA layer"), the intermediate step,
    the soft threshold, that D and its transpose are coupled (App. C.4) and that c is "related to the Lipschitz
    constant" of the gradient. The formulas themselves, λ₁ and c are lost in the text. Inferred: the attention is eq.
    (73), in which λ₂ cancels, and it acts on the codes without a projection; c is ``config.c``, or ``margin``·‖D_0‖² of
    the initial dictionary, and stays constant while D trains. Each half lowers a part of F (softmax attention only
    where norms are equal, as in UT); a layer as a whole may raise F.

    **Proximal**: one proximal gradient step on all of F, preconditioned by m_t = c + λ₂ Σ_s γ_st with
    γ_st = exp(−½‖h_s − h_t‖²),

    .. math::
        h_t \leftarrow \mathrm{soft}_{\lambda_1/m_t}\Big( \frac{c\,[h_t + D^\top(x_t - D h_t)/c]
        + \lambda_2 \big(\sum_s \gamma_{st}\big)\, \mathrm{attention}(H)_t}{m_t} \Big)

    It averages an ISTA step and symmetric attention, and lowers F if c ≥ ‖D‖². Unless ``config.c`` fixes it, c =
    ``margin``·‖D‖² is computed by power iteration as D trains.

    The alternating layer is the default for new models, because it denoises better at the same cost. On UCSD Ped2 at
    γ = 0.8 (ERM, 150 steps, one seed) its validation RMSE was lower by 1.0 to 2.1 at L = 3 and 5, tied and untied, at
    each of three learning rates. Most of that is the fixed c: a tied proximal layer with c = 4.04 came within 0.2. A c
    that follows ‖D‖² lets the dictionary grow (‖D‖² from 4 to as much as 200 where tied), and steps and thresholds
    shrink as it does. A fixed c does not bound ‖D‖² either: with weights of their own some layers reached 3c, and an
    ISTA step is expansive above 2c. None of these runs diverged.

    With 1024 DCT atoms ‖D_0‖² = 4 (14.97 in the K-SVD variant), where the customary c = 1 makes a layer expansive. In
    both layers, if weights are tied, layer l uses the reconstruction of layer l−1, so that reading out every layer is
    free.
    """

    config_class = DUSTConfig
    config: DUSTConfig
    leading: Tensor
    c: Tensor

    def __init__(self, config: DUSTConfig):
        super().__init__(config)
        copies = 1 if config.tied else config.depth
        dictionary = dct_dictionary(config.patch_size, config.atoms)
        self.dictionary = nn.Parameter(dictionary.repeat(copies, 1, 1))
        self.tracked = config.layer == "proximal" and config.c is None
        if self.tracked:
            # The leading right singular vector of each dictionary, from which the next power iteration starts.
            generator = torch.Generator().manual_seed(0)
            leading = torch.randn(config.atoms, generator=generator, dtype=torch.float32, device="cpu")
            self.register_buffer("leading", leading.to(dictionary).repeat(copies, 1))
            self.curvature(iterations=300)
        else:
            norm = torch.linalg.matrix_norm(dictionary, 2)
            self.register_buffer("c", config.margin * norm**2 if config.c is None else torch.tensor(config.c))
        self.post_init()

    @torch.no_grad()
    def curvature(self, iterations: int = 3) -> Tensor:
        """The inverse step c of each dictionary, (1,) or (L,).

        It is a constant, or margin·‖D‖² by power iteration that starts from the previous call's vector.

        Args:
            iterations: The number of power iterations.
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

    def readout(self, hidden: Tensor, layer: int | None = None) -> Tensor:
        """D h: the patches (B, T, N, P) of a code (B, N, T, A).

        Args:
            hidden: h_l.
            layer: l, if each layer has its own dictionary; None for the last.
        """
        return (hidden @ self._dictionary_of(layer).T).transpose(1, 2)

    def _dictionary_of(self, layer: int | None) -> Tensor:
        """The dictionary that reads h_l; for h_0, which is 0, that of layer 1."""
        if layer is None or self.config.tied:
            return self.dictionary[-1]
        return self.dictionary[max(0, layer - 1)]

    def layer_states(self, inputs: Tensor) -> Iterator[Tensor]:
        """Yield h_0 … h_L, each (B, N, T, A), of noisy patches (B, T, N, P)."""
        return (hidden for hidden, _ in self._layers(self._sequences(inputs)))

    def predictions(self, inputs: Tensor) -> Iterator[Tensor]:
        """The reconstruction (B, T, N, P) of every layer."""
        return (reconstruction.transpose(1, 2) for _, reconstruction in self._layers(self._sequences(inputs)))

    def _layers(self, noisy: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield (h_l, D h_l) for l = 0 … L, layer by layer."""
        hidden = noisy.new_zeros((*noisy.shape[:-1], self.config.atoms))
        curvature, reconstruction = self.curvature(), torch.zeros_like(noisy)
        yield hidden, reconstruction
        for index in range(self.depth):
            place = 0 if self.config.tied else index
            dictionary = self.dictionary[place]
            if not self.config.tied:
                reconstruction = hidden @ dictionary.T
            hidden = self._run(self.layer, hidden, noisy, reconstruction, dictionary, curvature[place])
            reconstruction = hidden @ self._dictionary_of(index + 1).T
            yield hidden, reconstruction

    def layer(
        self, hidden: Tensor, noisy: Tensor, reconstruction: Tensor, dictionary: Tensor, curvature: Tensor
    ) -> Tensor:
        """One layer of the kind that the configuration names: eq. (75) then (76), or a proximal gradient step on F.

        Args:
            hidden: Codes H_{l−1}, (…, T, A).
            noisy: Noisy patches x, (…, T, P).
            reconstruction: D h of these codes, (…, T, P).
            dictionary: D, (P, A).
            curvature: c.

        Returns:
            Codes H_l, (…, T, A).
        """
        residual, metric = noisy - reconstruction, curvature
        if self.config.l2 > 0 and self.config.layer == "alternating":
            weights = (hidden @ hidden.mT).softmax(-1)
            # Attention averages linearly, so the reconstruction of the intermediate codes is the average of these.
            hidden, residual = weights @ hidden, noisy - weights @ reconstruction
        elif self.config.l2 > 0:
            kernel = code_kernel(hidden)
            metric = curvature + self.config.l2 * kernel.sum(-1, keepdim=True)
            # (c H + λ₂ Γ H + Dᵀ residual) / m; the small (T, T) factors are combined first, to save memory.
            identity = torch.eye(kernel.shape[-1], dtype=kernel.dtype, device=kernel.device)
            hidden = ((curvature * identity + self.config.l2 * kernel) / metric) @ hidden
        return soft_threshold(hidden + (residual / metric) @ dictionary, self.config.l1 / metric)

    def energies(self, inputs: Tensor) -> Tensor:
        """F(h_0) … F(h_L), (L+1, B), of noisy patches (B, T, N, P): `energy` on average over patch positions."""
        noisy = self._sequences(inputs)
        states = enumerate(self._layers(noisy))
        return torch.stack([self.energy(h, noisy, self._dictionary_of(layer)).mean(1) for layer, (h, _) in states])

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
    # In half precision the rounding errors of the norms would exceed the distance of similar codes.
    return torch.exp((gram - (norms[..., :, None] + norms[..., None, :]) / 2).clamp(max=0))


# Let Transformers' Auto classes load a saved folder.
AutoConfig.register(DUSTConfig.model_type, DUSTConfig)
AutoModel.register(DUSTConfig, DUST)
