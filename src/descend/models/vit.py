"""ViT and DINOv2 of Transformers as denoisers of video frames."""

from collections.abc import Iterable, Iterator
from math import isqrt
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import (
    AutoConfig,
    AutoModel,
    Dinov2Model,
    PreTrainedModel,
    ViTConfig,
    ViTImageProcessorPil,
    ViTModel,
    ViTPreTrainedModel,
)
from transformers import initialization as init

from descend.errors import InputError, refuse
from descend.models.denoiser import Denoiser
from descend.models.loading import load_model

FILTERS = {2: "bilinear", 3: "bicubic"}
"""Pillow's number of a resampling filter → its name in torch."""

BACKBONES: dict[str, type[PreTrainedModel]] = {"vit": ViTModel, "dinov2": Dinov2Model}
"""The model_type of a pretrained ViT → its class."""

NO_POOLER: dict[str, dict[str, bool]] = {"vit": {"add_pooling_layer": False}, "dinov2": {}}
"""The arguments that make it without a pooler."""

_NOT_OURS = ("model_type", "out_features", "out_indices", "stage_names", "reshape_hidden_states", "apply_layernorm")
"""Settings of a ViT's configuration that mean nothing to a denoiser."""

_EXPECTED = (
    "a name on the Hub, which needs a network at first, or a folder with config.json, model.safetensors and, but for "
    "DINOv2, preprocessor_config.json, as the model's and the processor's save_pretrained write them"
)


class ViTDenoiserConfig(ViTConfig):
    """Configuration of `ViTDenoiser`: that of a ViT or DINOv2 and its image processor, and the size of the frames.

    The defaults are a small ViT that does not resize frames and is trained from scratch.

    Attributes:
        depth: L, the number of blocks: ViT's ``num_hidden_layers`` by another name.
        image_size: Height and width that frames are resized to.
        patch_size: Height and width of ViT's patches, in pixels of the resized frame.
        image_mean: The processor's mean of each channel, of frames in [0, 1].
        image_std: The processor's standard deviation of each channel.
        resample: The processor's filter, ``"bilinear"`` or ``"bicubic"``.
        frame_size: Height and width of a frame in pixels.
        frame_patch: Height and width of the patches that frames come in; P = frame_patch².
        readout: How a layer's tokens become a frame: ``"decoder"``, the final norm and one linear layer, or
            ``"pixels"``, each token is the pixels of its patch. The latter needs a hidden_size of
            num_channels·patch_size² (768 for ViT-Base, App. B.2).
        backbone: ``"vit"`` or ``"dinov2"``, whose own settings the configuration then has too.

    Raises:
        InputError: If sizes don't fit each other, or a choice is unknown.
    """

    model_type = "descend-vit"
    attribute_map = {"depth": "num_hidden_layers"}  # noqa: RUF012 - as in Transformers

    hidden_size: int = 128
    num_hidden_layers: int = 7
    num_attention_heads: int = 4
    intermediate_size: int = 512
    image_size: int = 160
    patch_size: int = 16
    image_mean: list[float] | tuple[float, ...] = (0.5, 0.5, 0.5)
    image_std: list[float] | tuple[float, ...] = (0.5, 0.5, 0.5)
    resample: str = "bilinear"
    frame_size: int = 160
    frame_patch: int = 16
    readout: str = "decoder"
    backbone: str = "vit"

    def __post_init__(self, **kwargs: Any):
        super().__post_init__(**kwargs)
        pixels = self.num_channels * self.patch_size**2
        refuse(
            (
                self.num_hidden_layers < 1,
                f"depth must be at least 1, the number of blocks; got {self.num_hidden_layers}.",
            ),
            *(
                (size % patch != 0, f"patches must tile the image; got a side of {patch} for one of {size}.")
                for size, patch in ((self.image_size, self.patch_size), (self.frame_size, self.frame_patch))
            ),
            (
                self.resample not in FILTERS.values(),
                f"resample must be one of {list(FILTERS.values())}; got {self.resample!r}.",
            ),
            (
                not len(self.image_mean) == len(self.image_std) == self.num_channels,
                f"image_mean and image_std must have num_channels = {self.num_channels} numbers each; got "
                f"{len(self.image_mean)} and {len(self.image_std)}.",
            ),
            (self.backbone not in BACKBONES, f"backbone must be one of {list(BACKBONES)}; got {self.backbone!r}."),
            (
                self.readout not in ("decoder", "pixels"),
                f"readout must be 'decoder' or 'pixels'; got {self.readout!r}.",
            ),
            (
                self.readout == "pixels" and self.hidden_size != pixels,
                f"to be read as pixels a token must have hidden_size {pixels}, {self.num_channels} channels of a patch "
                f"of {self.patch_size}×{self.patch_size}; got {self.hidden_size}. Choose a ViT of that width, or the "
                "readout 'decoder' (--readout decoder), which learns to read tokens of any width.",
            ),
        )

    @classmethod
    def of_pretrained(cls, source: str | Path, depth: int | None = None, readout: str = "decoder") -> Self:
        """The configuration of a denoiser that starts as a pretrained ViT; arguments as of `ViTDenoiser.from_vit`."""
        config = load_model(AutoConfig, source, "a ViT", _EXPECTED)
        kinds, blocks = " or ".join(map(repr, BACKBONES)), getattr(config, "num_hidden_layers", 0)
        refuse(
            (
                config.model_type not in BACKBONES,
                f"expected a ViT, model_type {kinds}; {source} is of model_type {config.model_type!r}.",
            ),
            (
                depth is not None and not 1 <= depth <= blocks,
                f"depth must be 1 to {blocks}, the blocks that {source} has; got {depth}.",
            ),
        )
        if config.model_type == "vit":
            processing = _processing(load_model(ViTImageProcessorPil, source, "a ViT", _EXPECTED), config.image_size)
        else:
            processing = {  # DINOv2's, but for the size and the crop
                "image_size": config.patch_size * -(-cls.frame_size // config.patch_size),
                "image_mean": (0.485, 0.456, 0.406),
                "image_std": (0.229, 0.224, 0.225),
                "resample": "bicubic",
                "use_mask_token": False,  # it would get no gradient
            }
        entries = {name: value for name, value in config.to_dict().items() if name not in _NOT_OURS}
        entries |= {"num_hidden_layers": depth or blocks, "backbone": config.model_type, "readout": readout}
        return cls(**entries | processing)


class ViTDenoiser(Denoiser, ViTPreTrainedModel):
    """A Vision Transformer that denoises video frame by frame; every block's output is read as an image.

    Frames are resized and normalized as by ViT's image processor, but differentiably and without its rounding and
    clipping to 0 … 255: noise leaves that range, and clipping would remove part of it.

    h_0 is the embedding output and h_l the output of block l before the final norm, each with a [CLS] token, which the
    readout ignores. There is no skip connection from the noisy pixels to the output: a prediction depends on its hidden
    state only. Both readouts, ``config.readout``, undo the resizing at the end.

    ``"decoder"``: the final norm, and one linear layer from a token to the grey pixels of its patch. It is initialized
    to output mid grey for every token: all layers start at the same loss, and no gradient of a random readout reaches
    pretrained weights. Training was faster than with a random initialization.

    ``"pixels"``: the paper's readout ("directly take each layer's output and interpret it as a reconstruction", App.
    B.2), without a norm or weights. A token holds the normalized pixels of its patch in the order (channel, y, x), as
    the weight (hidden_size, channel, y, x) of ViT's patch embedding does: with the identity as that weight, h_0 is the
    patches. The readout undoes the processor's mean and std, and averages the channels to grey. The paper does not
    print the order; another one is a permutation of hidden units.

    Raises:
        InputError: If patches of another size are given.
    """

    config_class = ViTDenoiserConfig
    config: ViTDenoiserConfig

    def __init__(self, config: ViTDenoiserConfig):
        super().__init__(config)
        kind: Any = BACKBONES[config.backbone]  # its configuration holds what either needs
        self.vit = kind(config, **NO_POOLER[config.backbone])
        pixels = config.readout == "pixels"
        self.decoder = None if pixels else nn.Linear(config.hidden_size, config.patch_size**2)
        if pixels:
            # This readout has no norm: its weights would get no gradient.
            self.vit.add_module("layernorm", nn.Identity())
        self.post_init()

    @classmethod
    def from_vit(cls, source: str | Path, depth: int | None = None, readout: str = "decoder") -> Self:
        """Build a denoiser with the weights and the image processor of a pretrained ViT, or the weights of a DINOv2.

        DINOv2 takes images of any size. Frames are resized to the next multiple of its patch, such as 168 = 12·14 for
        160 pixels, and its position embeddings are interpolated to that grid once, here, as its own model does.

        Args:
            source: A model's name on the Hub, such as ``google/vit-base-patch16-224-in21k``, or a folder.
            depth: L, to use the first L blocks only; all blocks by default.
            readout: ``"decoder"``, a new one, or ``"pixels"``.

        Raises:
            InputError: If the ViT can't be loaded, has fewer blocks, or its image processor can't be reproduced; or if
                its hidden size does not fit the readout ``"pixels"``.
        """
        config = ViTDenoiserConfig.of_pretrained(source, depth, readout)
        settings = {"num_hidden_layers": config.depth, "dtype": torch.float32, "output_loading_info": True}
        settings |= NO_POOLER[config.backbone]
        vit, loading = load_model(BACKBONES[config.backbone], source, "a ViT", _EXPECTED, **settings)
        if loading["missing_keys"]:
            raise InputError(f"{source} lacks weights of a ViT: {', '.join(sorted(loading['missing_keys']))}.")
        model, weights = cls(config), vit.state_dict()
        if config.backbone == "dinov2":
            side, positions = config.image_size, "embeddings.position_embeddings"
            weights[positions] = vit.embeddings.interpolate_pos_encoding(model.vit.state_dict()[positions], side, side)
        used = model.vit.state_dict()  # the readout "pixels" has no norm
        model.vit.load_state_dict({name: value for name, value in weights.items() if name in used})
        return model

    @property
    def layer_modules(self) -> Iterable[nn.Module]:
        """The blocks of the ViT."""
        return self.vit.layers if self.config.backbone == "vit" else self.vit.encoder.layer

    @property
    def patch_shape(self) -> tuple[int, int]:
        """The number of a frame's patches and the pixels of one."""
        return (self.config.frame_size // self.config.frame_patch) ** 2, self.config.frame_patch**2

    def layer_states(self, inputs: Tensor) -> Iterator[Tensor]:
        """Yield h_0 … h_L, each (B, T, tokens, hidden_size), of noisy patches (B, T, N, P); token 0 is [CLS]."""
        pixels = self.pixels(inputs)
        states: Iterable[Tensor] = self._states_of_images(pixels.flatten(0, 1))
        if torch.is_grad_enabled():
            # All blocks run first: the order in which gradients are summed changes a trained model's bits.
            states = tuple(states)
        return (hidden.unflatten(0, pixels.shape[:2]) for hidden in states)

    def _states_of_images(self, images: Tensor) -> Iterator[Tensor]:
        """Yield h_0 … h_L, each (B·T, tokens, hidden_size), as `ViTModel.forward` has them before its final norm."""
        hidden = self.vit.embeddings(images.to(self.vit.embeddings.patch_embeddings.projection.weight.dtype))
        yield hidden
        for block in self.layer_modules:
            hidden = block(hidden)
            yield hidden

    def pixels(self, patches: Tensor) -> Tensor:
        """Process frames as ViT's image processor does.

        Args:
            patches: Frames in patches (B, T, N, P).

        Returns:
            Normalized images (B, T, C, height, width).

        Raises:
            InputError: If the patches don't have the configuration's number and size.
        """
        frames = self._resize(unpatchify(self._noisy(patches)), self.config.image_size)[:, :, None]
        mean, std = frames.new_tensor([self.config.image_mean, self.config.image_std])[..., None, None]
        return (frames - mean) / std

    def readout(self, hidden: Tensor) -> Tensor:
        """The patches (B, T, N, P) read from one layer's tokens (B, T, tokens, hidden_size)."""
        tokens = hidden[:, :, 1:]
        patches = self._grey(tokens) if self.decoder is None else self.decoder(self.vit.layernorm(tokens))
        return patchify(self._resize(unpatchify(patches), self.config.frame_size), self.config.frame_patch)

    def _grey(self, tokens: Tensor) -> Tensor:
        """The grey pixels (…, patch_size²) of tokens (…, hidden_size) that hold normalized pixels (channel, y, x)."""
        channels = tokens.unflatten(-1, (self.config.num_channels, -1))
        mean, std = tokens.new_tensor([self.config.image_mean, self.config.image_std])[..., None]
        return (channels * std + mean).mean(-2)

    def _resize(self, frames: Tensor, size: int) -> Tensor:
        """Resize frames (B, T, …) with Pillow's filter, which is wider (antialiased) when it shrinks an image."""
        if frames.shape[-1] == size:
            return frames
        # torch does not implement this filter in half precision.
        resized = F.interpolate(frames.float(), size=(size, size), mode=self.config.resample, antialias=True)
        return resized.to(frames.dtype)

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if module is self.decoder:
            init.zeros_(module.weight)
            init.constant_(module.bias, 0.5)


def _processing(processor: ViTImageProcessorPil, image_size: int | list[int] | tuple[int, int]) -> dict[str, Any]:
    """The settings of `ViTDenoiserConfig` that reproduce an image processor on grey frames in [0, 1]."""
    size = (processor.size["height"], processor.size["width"])
    crops = getattr(processor, "do_center_crop", False)
    refuse(
        (
            size != (image_size, image_size) or not processor.do_resize or crops,
            f"the image processor must resize to its model's image_size, {image_size}, without a crop; got "
            f"size {size}, do_resize {processor.do_resize}, do_center_crop {crops}. "
            "Correct preprocessor_config.json.",
        ),
        (
            processor.resample not in FILTERS,
            f"the image processor's resample must be one of {FILTERS}; got {processor.resample}.",
        ),
    )
    mean, std = processor.image_mean, processor.image_std
    if not processor.do_normalize:
        mean, std = [0.0] * len(mean), [1.0] * len(std)
    # 1 here is 255 in an image file, before the processor rescales it.
    white = 255 * processor.rescale_factor if processor.do_rescale else 255.0
    return {
        "image_mean": [value / white for value in mean],
        "image_std": [value / white for value in std],
        "resample": FILTERS[processor.resample],
    }


def patchify(frames: Tensor, side: int) -> Tensor:
    """Cut square frames (…, height, width) into patches (…, N, side²), in row-major order."""
    return F.pixel_unshuffle(frames.unsqueeze(-3), side).flatten(-2).mT


def unpatchify(patches: Tensor) -> Tensor:
    """Put square patches (…, N, P) together to square frames: the inverse of `patchify`."""
    count, side = isqrt(patches.shape[-2]), isqrt(patches.shape[-1])
    return F.pixel_shuffle(patches.mT.unflatten(-1, (count, count)), side).squeeze(-3)


# Let Transformers' Auto classes load a saved folder.
AutoConfig.register(ViTDenoiserConfig.model_type, ViTDenoiserConfig)
AutoModel.register(ViTDenoiserConfig, ViTDenoiser)
