"""Hugging Face classifiers of images whose every layer is read by the classifier's head."""

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from descend.models.classifiers import LayeredClassifier
from descend.models.encoders import Family, Norm, first

MOST_IMAGES = 16
"""Most images of `LayeredImageClassifier.probe_inputs`, which are as large as the model's own."""


def _first_and_mean(config: Any, norm: Norm, hidden: Tensor, looks: Tensor | None) -> Tensor:
    hidden = norm(hidden)
    patches = hidden[:, 1 + getattr(config, "num_register_tokens", 0) :]
    return torch.cat([hidden[:, 0], patches.mean(1)], 1)


def _mean(config: Any, norm: Norm, hidden: Tensor, looks: Tensor | None) -> Tensor:
    return norm(hidden).mean(1)


def _mean_patch(config: Any, norm: Norm, hidden: Tensor, looks: Tensor | None) -> Tensor:
    return norm(hidden[:, 1:].mean(1))


_VIT = Family(first, ("classifier",), "layers", None, norm="layernorm")
_DINO = Family(_first_and_mean, ("classifier",), "encoder.layer", None, norm="layernorm")

FAMILIES: dict[str, Family] = {
    **dict.fromkeys(("vit", "deit", "vit_msn"), _VIT),
    **dict.fromkeys(("dinov2", "dinov2_with_registers"), _DINO),
    "beit": _VIT._replace(pool=_mean_patch, norm="pooler.layernorm"),
    "ijepa": _VIT._replace(pool=_mean),
}
"""``config.model_type`` → the model family, as `descend.models.encoders.FAMILIES` for texts."""


class LayeredImageClassifier(LayeredClassifier):
    """A Hugging Face image classifier whose every layer's output is read by the classifier's final norm and head.

    h_0 is the embedding output and h_l the output of block l before the final norm. Noise goes on the embedded patches,
    before [CLS] and positions.

    Args:
        network: A classifier of one of `FAMILIES`, as `AutoModelForImageClassification` loads it, with or without PEFT
            adapters.

    Raises:
        InputError: If the classifier's family is not in the table, it is not a classifier, or it has one class only.
    """

    families = FAMILIES
    task_class = "ForImageClassification"
    main_input_name = "pixel_values"

    @property
    def limits(self) -> dict[str, int]:
        """The number of labels and of an image's channels."""
        return {"labels": self.config.num_labels, "channels": self.config.num_channels}

    def probe_inputs(self) -> dict[str, Tensor]:
        """A small batch of made-up images of the model's own size: one for each class, up to `MOST_IMAGES`."""
        size = self.config.image_size
        height, width = (size, size) if isinstance(size, int) else size
        shape = min(self.config.num_labels, MOST_IMAGES), self.config.num_channels, height, width
        generator = torch.Generator().manual_seed(0)
        pixels = torch.randn(shape, generator=generator, dtype=torch.float32, device="cpu")
        weight = next(self.parameters())
        return {"pixel_values": pixels.to(weight.device, weight.dtype)}


def resized(network: PreTrainedModel, size: int) -> PreTrainedModel:
    """The same model for images of another size: its positions are interpolated once, as the model itself does it.

    Args:
        network: A classifier of one of `FAMILIES`.
        size: Height and width in pixels, a multiple of the patch size.
    """
    old: Any = network.base_model.embeddings
    config = deepcopy(network.config)
    config.image_size = size
    other: Any = type(network)(config)
    with torch.no_grad():
        positions = old.interpolate_pos_encoding(other.base_model.embeddings.position_embeddings, size, size)
        old.position_embeddings = nn.Parameter(positions)
    other.load_state_dict(network.state_dict())
    return other.train(network.training)
