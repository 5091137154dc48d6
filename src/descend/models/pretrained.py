"""Adapters of the library's own models: ViT as a denoiser of frames."""

from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedConfig, ViTConfig, ViTImageProcessorPil, ViTModel, ViTPreTrainedModel
from transformers import initialization as init

from descend.errors import InputError
from descend.models.layered import LayeredModel, Reconstruction

# Pillow's numbers for the filters that torch has too.
FILTERS = {2: "bilinear", 3: "bicubic"}


class ViTDenoiserConfig(ViTConfig):
    """Configuration of `ViTDenoiser`: a ViT's own, its processor's, and the frames it denoises.

    The defaults are a small ViT that takes frames as they are and is trained from scratch.

    Attributes:
        depth: L, the number of blocks; ViT's ``num_hidden_layers``.
        image_size: Height and width that frames are resized to.
        image_mean: The processor's mean of each channel, on frames in [0, 1].
        image_std: The processor's standard deviation of each channel.
        resample: The processor's filter, ``"bilinear"`` or ``"bicubic"``.
        frame_size: Height and width of a frame in pixels.
        frame_patch: Height and width of the patches frames are given in; P = frame_patch².
    """

    model_type = "descend-vit"
    attribute_map = {"depth": "num_hidden_layers"}  # noqa: RUF012 - the library's own way

    hidden_size: int = 128
    num_hidden_layers: int = 7
    num_attention_heads: int = 4
    intermediate_size: int = 512
    image_size: int | list[int] | tuple[int, int] = 160
    image_mean: list[float] | tuple[float, ...] = (0.5, 0.5, 0.5)
    image_std: list[float] | tuple[float, ...] = (0.5, 0.5, 0.5)
    resample: str = "bilinear"
    frame_size: int = 160
    frame_patch: int = 16

    def __post_init__(self, **kwargs: Any):
        super().__post_init__(**kwargs)
        if self.num_hidden_layers < 1:
            raise InputError(f"depth must be at least 1, the number of blocks; got {self.num_hidden_layers}.")
        if self.resample not in FILTERS.values():
            raise InputError(f"resample must be one of {', '.join(FILTERS.values())}; got {self.resample!r}.")
        if not len(self.image_mean) == len(self.image_std) == self.num_channels:
            raise InputError(
                f"image_mean and image_std must have num_channels = {self.num_channels} numbers each; got "
                f"{len(self.image_mean)} and {len(self.image_std)}."
            )


class ViTDenoiser(LayeredModel, ViTPreTrainedModel):
    """A Vision Transformer that denoises videos frame by frame, every block's output read as a picture.

    Frames are resized and normalised as ViT's own image processor does it, but in differentiable operations that neither
    clip nor round: noise leaves [0, 1], and clipping it would give the model another noise than its rivals'.

    h_0 is the embedding output and h_l the output of block l before the final norm, tokens and [CLS] alike. The readout
    is the final norm, one linear decoder of a token to the grey pixels of its patch, and the resizing undone. No skip leads
    from the noisy pixels to the output: a layer's prediction is made of its hidden state alone.

    Raises:
        InputError: If patches or frames don't fit the configuration.
    """

    config_class = ViTDenoiserConfig
    config: ViTDenoiserConfig
    main_input_name = "patches"

    def __init__(self, config: ViTDenoiserConfig):
        super().__init__(config)
        self.vit = ViTModel(config, add_pooling_layer=False)
        embeddings = self.vit.embeddings.patch_embeddings
        self.image, self.image_patch = tuple(embeddings.image_size), tuple(embeddings.patch_size)
        self.frame, self.frame_patch = (config.frame_size,) * 2, (config.frame_patch,) * 2
        for size, patch in ((self.image, self.image_patch), (self.frame, self.frame_patch)):
            if size[0] % patch[0] or size[1] % patch[1]:
                raise InputError(f"patches must fill the frame; got patches of {patch} for a frame of {size}.")
        self.decoder = nn.Linear(config.hidden_size, self.image_patch[0] * self.image_patch[1])
        self.post_init()

    @classmethod
    def from_vit(cls, source: str | Path, depth: int | None = None) -> Self:
        """A denoiser with the weights and the image processor of a pretrained ViT, and a new decoder.

        Args:
            source: A model's name on the Hub, such as ``google/vit-base-patch16-224-in21k``, or a folder.
            depth: L, to keep the first L blocks only; all of them unless given.

        Raises:
            InputError: If there is no such ViT, or it has fewer than ``depth`` blocks.
        """
        try:
            kind = PreTrainedConfig.get_config_dict(source)[0].get("model_type")
            if kind != "vit":
                raise InputError(f"expected a ViT (model_type 'vit'); {source} is a {kind!r}.")
            config = ViTConfig.from_pretrained(source)
            blocks = config.num_hidden_layers
            if depth is not None and not 1 <= depth <= blocks:
                raise InputError(f"depth must be from 1 to {blocks}, the blocks that {source} has; got {depth}.")
            config.num_hidden_layers = depth or blocks
            processor = ViTImageProcessorPil.from_pretrained(source)
            vit, loading = ViTModel.from_pretrained(
                source, config=config, add_pooling_layer=False, dtype=torch.float32, output_loading_info=True
            )
        except OSError as error:
            raise InputError(
                f"can't load a ViT from {str(source)!r}: expected a model's name on the Hub (which needs a network "
                "the first time) or a folder with its config.json, model.safetensors and preprocessor_config.json, "
                f"as save_pretrained writes them. The library says: {str(error).splitlines()[0]}"
            ) from error
        if loading["missing_keys"]:
            raise InputError(f"{source} lacks weights of its ViT: {', '.join(sorted(loading['missing_keys']))}.")
        settings = vit.config.to_dict() | processing(processor, tuple(vit.embeddings.image_size))
        del settings["model_type"]
        model = cls(ViTDenoiserConfig(**settings))
        model.vit.load_state_dict(vit.state_dict())
        return model

    @property
    def depth(self) -> int:
        """L, the number of blocks."""
        return self.config.num_hidden_layers

    def forward(self, patches: Tensor, output_hidden_states: bool = False) -> Reconstruction:
        """Denoise.

        Args:
            patches: Noisy patches (B, T, N, P) in [0, 1] units.
            output_hidden_states: Return h_0 … h_L too.
        """
        hidden = self.layer_outputs(patches)
        return Reconstruction(
            reconstruction=self.readout(hidden[-1]), hidden_states=hidden if output_hidden_states else None
        )

    def layer_outputs(self, inputs: Tensor) -> tuple[Tensor, ...]:
        """h_0 … h_L, each (B, T, tokens, hidden_size), the first token [CLS]."""
        pixels = self.pixels(inputs)
        outputs = self.vit(pixels.flatten(0, 1), output_hidden_states=True)
        return tuple(hidden.unflatten(0, pixels.shape[:2]) for hidden in outputs.hidden_states)

    def pixels(self, patches: Tensor) -> Tensor:
        """What ViT's image processor makes of the frames, (B, T, C, height, width)."""
        expected = ((self.frame[0] // self.frame_patch[0]) ** 2, self.frame_patch[0] ** 2)
        if patches.dim() != 4 or patches.shape[-2:] != expected:
            raise InputError(f"patches must have shape (B, T, N, P) with (N, P) = {expected}; got {tuple(patches.shape)}.")
        frames = self._resize(unpatchify(patches, self.frame, self.frame_patch), self.image)
        mean, std = (frames.new_tensor(value)[:, None, None] for value in (self.config.image_mean, self.config.image_std))
        return (frames[:, :, None] - mean) / std

    def readout(self, hidden: Tensor) -> Tensor:
        """The patches (B, T, N, P) read from one layer's hidden state (B, T, tokens, hidden_size)."""
        patches = self.decoder(self.vit.layernorm(hidden[:, :, 1:]))
        frames = self._resize(unpatchify(patches, self.image, self.image_patch), self.frame)
        return patchify(frames, self.frame_patch)

    def _resize(self, frames: Tensor, size: tuple[int, int]) -> Tensor:
        """Frames (B, T, …) at another size, filtered as Pillow does: antialiased where they shrink."""
        if frames.shape[-2:] == size:
            return frames
        # torch has no antialiased filter in half precision.
        resized = F.interpolate(frames.float(), size=size, mode=self.config.resample, antialias=True)
        return resized.to(frames.dtype)

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if module is self.decoder:
            init.constant_(module.bias, 0.5)  # mid grey


def processing(processor: ViTImageProcessorPil, image: tuple[int, int]) -> dict[str, Any]:
    """An image processor's transformation, as `ViTDenoiserConfig` holds it: of grey frames in [0, 1].

    Args:
        processor: ViT's image processor.
        image: Height and width that its model takes.

    Raises:
        InputError: If it makes another size, crops, or has a filter that torch lacks.
    """
    size = (processor.size["height"], processor.size["width"])
    if processor.do_center_crop or (processor.do_resize and size != image):
        raise InputError(f"the image processor must resize to its model's {image}, without a crop; it makes {size}.")
    if processor.resample not in FILTERS:
        raise InputError(f"the image processor's resample must be one of {FILTERS}; got {processor.resample}.")
    white = 255 * processor.rescale_factor if processor.do_rescale else 255.0
    mean, std = processor.image_mean, processor.image_std
    if not processor.do_normalize:
        mean, std = [0.0] * len(mean), [1.0] * len(std)
    return {
        "image_mean": [value / white for value in mean],
        "image_std": [value / white for value in std],
        "resample": FILTERS[processor.resample],
    }


def patchify(frames: Tensor, patch: tuple[int, int]) -> Tensor:
    """Cut frames (…, height, width) into patches (…, N, P), row by row, each row by row."""
    rows, columns = frames.shape[-2] // patch[0], frames.shape[-1] // patch[1]
    tiles = frames.unflatten(-1, (columns, patch[1])).unflatten(-3, (rows, patch[0]))  # row, y, column, x
    return tiles.transpose(-3, -2).flatten(-2).flatten(-3, -2)


def unpatchify(patches: Tensor, frame: tuple[int, int], patch: tuple[int, int]) -> Tensor:
    """Put patches (…, N, P) together to frames (…, height, width): the inverse of `patchify`."""
    grid = (frame[0] // patch[0], frame[1] // patch[1])
    tiles = patches.unflatten(-1, patch).unflatten(-3, grid)  # row, column, y, x
    return tiles.transpose(-3, -2).flatten(-2).flatten(-3, -2)
