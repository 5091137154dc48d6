"""`LayersLoss`: constraints and deep supervision as a loss of SentenceTransformers' trainer."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from descend.core import DescentProblem, PrimalDual
from descend.errors import InputError, refuse
from descend.extras import required
from descend.models import before_norm, changed, encoders, family_of
from descend.training.loss_dual import LossDual

STATES = "all_layer_embeddings"
"""The feature in which a SentenceTransformer's encoder gives its hidden states."""

PATCHING = ("AdaptiveLayerLoss", "LayersLoss")
"""Losses that put another function in the place of the encoder's ``forward``."""


class LayersLoss(nn.Module):
    r"""Train the inner layers of a SentenceTransformer in its own trainer, by any of its losses.

    The encoder runs once for each column of texts. Each layer's states pass through the modules behind the encoder
    (pooling, dense layers, normalization) and give that layer's loss. The value is

    .. math:: \sum_l w_l f_l, \qquad f_l = \text{loss}(\text{modules}(h_l), \text{labels}),

    with the method's weights: constants of deep supervision, or `PrimalDual.weights` at the multipliers before the
    forward pass. A final norm of the encoder reads every layer. The model stays as it is: its modules, its
    configuration and the names of its weights. Losses count for the multipliers once ``backward`` has passed through
    them, so evaluations do not, and all that count until the optimizer's step are averaged. The dual step follows each
    step of a torch optimizer that holds parameters of the model::

        loss = descend.LayersLoss(model, losses.MultipleNegativesRankingLoss(model))
        SentenceTransformerTrainer(model=model, train_dataset=pairs, loss=loss).train()

    The trainer saves no losses. To resume a run with constraints, save ``loss.dual.state_dict()`` with the model, and
    restore it with ``loss.dual.load_state_dict``. A compiled model runs its encoder uncompiled where layers are read.

    Args:
        model: The SentenceTransformer that the trainer is given. Its first module is a Transformer of a family that
            Descend knows.
        loss: A loss of SentenceTransformers around the same model. It may return a dictionary, whose values are summed.
            It is called once for each layer. Losses with a gradient cache embed texts again in ``backward``, so they
            are refused.
        method: Deep supervision such as ``"linear"``, ``"constrained"``, or ``"erm"``, which is ``loss`` alone.
        steps: The number of optimizer steps in the run. Only methods with constraints need it.
        **settings: Further settings, as in `UnrolledLoss`.

    Attributes:
        losses: f_0 … f_L of the last call, (L+1,), on the CPU; None before the first. NaN for the inner layers with
            ``method="erm"``, which are not read.

    Raises:
        InputError: If the model or the loss can't be read at every layer, or a setting is unknown, is not one of the
            method, or is outside its range.
        MissingPackageError: If sentence-transformers is not installed.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: nn.Module,
        *,
        method: str = "linear",
        steps: int | None = None,
        **settings: Any,
    ):
        super().__init__()
        self._weights = LossDual(method, steps, settings)
        network = unwrapped(model)
        base, _ = _encoder(network)
        _check_loss(loss, network)
        self.model = model
        self.loss = loss
        self.losses: Tensor | None = None
        self._given = {"method": method, "steps": steps} | settings
        self._alone = method == "erm"
        self._depth = base.config.num_hidden_layers
        self._weights.start(network, self._depth)

    @property
    def dual(self) -> PrimalDual[DescentProblem]:
        """The multipliers, the problem and the weights."""
        return self._weights.dual

    def forward(self, sentence_features: Iterable[dict[str, Tensor]], labels: Tensor | None = None) -> Tensor:
        """The weighted sum of the layers' losses on a batch.

        Args:
            sentence_features: The features of each column of texts, as the trainer gives them.
            labels: The labels of the batch, which the loss is given; None if it needs none.

        Returns:
            Σ_l w_l f_l, a scalar.

        Raises:
            InputError: If the loss does not call the model alike for every layer, returns no number, or is negative
                under constraints.
            NonFiniteLossError: If a layer's loss is NaN or infinite in training.
        """
        features = [*sentence_features]
        self._weights.network = unwrapped(self.model)
        read = {self._depth: self._loss(features, labels)} if self._alone else self._of_layers(features, labels)
        nothing = torch.zeros_like(read[self._depth].detach())
        values = torch.stack([read.get(layer, nothing) for layer in range(self._depth + 1)])
        values = values.to(torch.promote_types(values.dtype, torch.float32))
        means = values.detach().cpu().double()
        self.losses = torch.tensor([means[layer] if layer in read else torch.nan for layer in range(len(means))])
        samples = _rows(features[0])
        return self._weights.weighted(values, means * samples, samples)

    def get_config_dict(self) -> dict[str, Any]:
        """The settings, for the model card that SentenceTransformers writes."""
        return {"loss": type(self.loss).__name__} | {
            name: value for name, value in self._given.items() if value is not None
        }

    def _loss(self, features: list[dict[str, Tensor]], labels: Tensor | None) -> Tensor:
        """The user's loss, a scalar."""
        value = self.loss(features, labels)
        if isinstance(value, dict):
            value = torch.stack([*value.values()]).sum()
        if not isinstance(value, Tensor) or value.dim():
            got = tuple(value.shape) if isinstance(value, Tensor) else f"a {type(value).__name__}"
            raise InputError(f"loss must return the mean loss of the batch, a scalar tensor; got {got}.")
        return value

    def _of_layers(self, features: list[dict[str, Tensor]], labels: Tensor | None) -> dict[int, Tensor]:
        """Layer → its loss.

        The last layer comes after all other layers with gradients: a distributed model expects gradients of the
        parameters that its last forward pass used.
        """
        from sentence_transformers.base.losses.merged_forward import column_merging_disabled

        transformer = unwrapped(self.model)[0]
        reader = _Reader(transformer)
        weighted = {*self.dual.weights.nonzero().flatten().tolist()} - {self._depth}
        others = {*range(self._depth)} - weighted
        losses = {}
        with column_merging_disabled(), changed(transformer, forward=reader):
            for layer in [*sorted(weighted), self._depth, *sorted(others)]:
                reader.begin(layer)
                with torch.set_grad_enabled(torch.is_grad_enabled() and layer not in others):
                    losses[layer] = self._loss(features, labels)
        return losses


class _Reader:
    """A Transformer's ``forward`` while layers are read: it runs in the first pass, and gives its states in others.

    Args:
        transformer: The Transformer.
    """

    def __init__(self, transformer: Any):
        self._run = transformer.forward
        base, family = _encoder_of(transformer)
        self._base, self._norm_name = base, family.norm
        self._norm = nn.Identity() if family.norm is None else base.get_submodule(family.norm)
        self._calls: list[tuple[dict[str, Any], tuple[Tensor, ...]]] = []  # features after the encoder, and h_0 … h_L
        self._passes = 0

    def begin(self, layer: int) -> None:
        """Begin a pass of the loss, which reads one layer."""
        if self._passes and not self._calls:
            raise InputError("loss must call the model on the features that it is given; it did not.")
        self._layer, self._next = layer, 0
        self._passes += 1

    @torch.compiler.disable
    def __call__(self, features: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Give the features of a column of texts with the states of the layer, normed, as ``token_embeddings``."""
        if self._passes == 1:
            self._calls.append(self._recorded(features, kwargs))
        number, self._next = self._next, self._next + 1
        output, states = self._calls[number] if number < len(self._calls) else ({}, ())
        if not _same_texts(features, output):
            raise InputError(
                "loss must call the model on the same texts in the same order for every layer; it did not. Choose a "
                "loss that draws nothing at random before it embeds."
            )
        features.update(output)
        if self._layer < len(states) - 1:
            features["token_embeddings"] = self._norm(states[self._layer])
        return features

    def _recorded(self, features: dict[str, Any], kwargs: dict[str, Any]) -> tuple[dict[str, Any], tuple[Tensor, ...]]:
        """Run the encoder: the features after it, and h_0 … h_L."""
        depth = self._base.config.num_hidden_layers
        with before_norm(self._base, self._norm_name) as states, changed(self._base.config, output_hidden_states=True):
            output = {**self._run(features, **kwargs)}
            features.pop(STATES, None)
            listed = states(output.pop(STATES, ()))
        if len(listed) != depth + 1:
            raise InputError(
                f"expected the hidden states of {depth + 1} layers of {type(self._base).__name__}; got {len(listed)}. "
                "Set num_hidden_layers of its configuration to the number of its blocks."
            )
        return output, listed


def unwrapped(model: Any) -> Any:
    """The SentenceTransformer inside what a trainer makes of it.

    Args:
        model: A SentenceTransformer, distributed or compiled or not.

    Raises:
        InputError: If it is none.
        MissingPackageError: If sentence-transformers is not installed.
    """
    with required("descend.LayersLoss"):
        from sentence_transformers import SentenceTransformer

    inside = model
    while not isinstance(inside, SentenceTransformer):
        parts = [getattr(inside, name) for name in ("_orig_mod", "module") if hasattr(inside, name)]
        if not parts:
            raise InputError(
                f"model must be a SentenceTransformer; got {type(model).__name__}. Load it with "
                "SentenceTransformer(NAME)."
            )
        inside = parts[0]
    return inside


def _encoder(network: Any) -> tuple[Any, Any]:
    """The encoder of a SentenceTransformer, without adapters' wrapper, and its row of the table of families.

    Raises:
        InputError: If its layers can't be read.
    """
    from sentence_transformers.sentence_transformer.modules import Transformer, WeightedLayerPooling

    kinds = [type(module).__name__ for module in network]
    refuse(
        (
            not kinds or not isinstance(network[0], Transformer),
            f"the first module must be a Transformer; the modules are {', '.join(kinds) or 'none'}. A router and bags "
            "of words have no one chain of layers.",
        ),
        (
            any(isinstance(module, WeightedLayerPooling) for module in network),
            "expected modules that read one layer; got WeightedLayerPooling, which mixes all of them. Use Pooling.",
        ),
    )
    return _encoder_of(network[0])


def _encoder_of(transformer: Any) -> tuple[Any, Any]:
    """The same of a Transformer."""
    network = transformer.model
    inside = getattr(network, "get_base_model", None)
    library = inside() if inside else network
    kind = getattr(getattr(library, "config", None), "model_type", "")
    output = transformer.modality_config.get("text", {}).get("method_output_name")
    refuse(
        (
            not isinstance(library, PreTrainedModel),
            f"the Transformer must hold a PyTorch model; got {type(library).__name__}. Load it with backend='torch'.",
        ),
        (
            (transformer.module_output_name, output) != ("token_embeddings", "last_hidden_state"),
            f"the Transformer must give the last hidden states of texts as token embeddings; got {output} as "
            f"{transformer.module_output_name}. Load it with transformer_task='feature-extraction'.",
        ),
        (
            getattr(getattr(network, "active_peft_config", None), "is_prompt_learning", False),
            "expected adapters in the layers, such as LoRA's; got virtual tokens before the text. Train without them.",
        ),
        (
            kind not in encoders.FAMILIES and not getattr(library.config, "is_encoder_decoder", False),
            f"the encoder's model_type must be one of {', '.join(encoders.FAMILIES)}; got {kind!r}, whose final norm "
            "is not known. Choose a model of one of these families.",
        ),
    )
    return library.base_model, family_of(library.config, encoders.FAMILIES)


def _check_loss(loss: Any, network: nn.Module) -> None:
    """Raise an error for a loss that can't be called once a layer."""
    from sentence_transformers.base.losses.gradcache import uses_gradient_cache

    name = type(loss).__name__
    parts = [*loss.modules()] if isinstance(loss, nn.Module) else []
    patching = [type(part).__name__ for part in parts if type(part).__name__ in PATCHING]
    refuse(
        (
            not parts,
            f"loss must be a loss of SentenceTransformers; got {name}. Give one such as "
            "MultipleNegativesRankingLoss(model).",
        ),
        (
            any(uses_gradient_cache(part) for part in parts),
            f"loss must have no gradient cache, which embeds the texts again in backward; got {name}. Use the loss of "
            "the same name without Cached, or use_mini_batched_version=False.",
        ),
        (bool(patching), f"loss must read one layer; got {', '.join(patching)}. Give the loss inside it."),
        (
            all(part is not network for part in parts),
            f"loss must be made with the same model; got {name} with another one. Give both the same object.",
        ),
    )


def _rows(features: dict[str, Any]) -> int:
    """The number of texts, of which a batch without padding has the ends in one sequence."""
    ends = features.get("cu_seq_lens_q")
    return len(features["input_ids"]) if ends is None else len(ends) - 1


def _same_texts(features: dict[str, Any], recorded: dict[str, Any]) -> bool:
    """Whether features are of the recorded texts."""
    tokens, expected = features["input_ids"], recorded.get("input_ids")
    return tokens is expected or (expected is not None and torch.equal(tokens, expected))
