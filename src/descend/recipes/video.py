"""Video denoising with the unrolled transformers and ViT."""

from dataclasses import dataclass, replace
from typing import ClassVar, Self, cast

from torch.utils.data import Dataset
from transformers import PreTrainedModel

from descend.errors import InputError
from descend.models import DUST, UT, DUSTConfig, UTConfig, ViTDenoiser, ViTDenoiserConfig
from descend.models.layered import LayeredModel
from descend.models.loading import refuse_unsafe
from descend.recipes.base import NO_BLOCKS, Data, Recipe, Restored, TrainingDefaults, absolute, setting
from descend.tasks.video import VideoDenoising, load_test, load_video


@dataclass(frozen=True)
class VideoRecipe(Recipe):
    """The base recipe of video denoising: settings and data that are the same for all models."""

    data: str | None = setting(None, "Folder or file of videos; the embedded generated scenes unless given.")
    cache_dir: str | None = setting(None, "Where decoded frames are kept; ~/.cache/descend unless given.")
    window: int = setting(5, "T, frames in a window.")
    stride: int = setting(1, "Frames from one training window's start to the next one's.")

    usual_noise = 0.8
    architecture: ClassVar[type[PreTrainedModel]]
    # Settings of UT and DUST were chosen on validation clips of UCSD Ped2 at γ = 0.8: docs/results/video.md.
    training = TrainingDefaults(
        max_steps=400,
        per_device_train_batch_size=4,
        per_device_eval_batch_size=16,
        learning_rate=3e-3,
        lr_scheduler_type="linear",
        eval_strategy="steps",
        eval_steps=100,
        save_steps=100,
        strength=0.7,
    )

    def completed(self) -> Self:
        """The recipe with absolute paths."""
        return replace(self, data=absolute(self.data), cache_dir=absolute(self.cache_dir))

    def load(self, restored: Restored | None = None) -> Data:
        """Load windows of frames, which are the same for every model."""
        video = load_video(
            self.data,
            self.window,
            stride=self.stride,
            cache_dir=self.cache_dir,
            validation_share=self.validation_share,
        )
        if len(video.validation) < 2:
            raise InputError(
                f"{video.name} leaves {len(video.validation)} window of {self.window} frames to validate on; expected "
                "at least 2. Choose a shorter --window, a larger --validation-share, or give more clips."
            )
        return Data(video.train, video.validation, video.test, video.name, measure_sigma=lambda: video.sigma)

    def load_test(self, data: str, restored: Restored) -> tuple[Dataset, str]:
        """Load the test windows of another data set, and its name."""
        return load_test(data, self.window, cache_dir=self.cache_dir)

    def refusal(self, method: str) -> str:
        """NEFTune is for word embeddings."""
        return "adds noise to word embeddings, and videos have none." if method == "neftune" else ""

    def task(self) -> VideoDenoising:
        """Mean L2 loss of a window, and RMSE."""
        return VideoDenoising()

    def restore(self, folder: str) -> Restored:
        """Load a model that `save_pretrained` wrote."""
        refuse_unsafe(folder)
        model = self.architecture.from_pretrained(folder, use_safetensors=True)
        return Restored(cast(LayeredModel, model))  # the architectures are layered models


@dataclass(frozen=True)
class UTRecipe(VideoRecipe):
    """Video denoising with the unrolled transformer."""

    tied: bool = setting(True, "One set of weights for all layers, or one for each.")
    heads: int = setting(1, "Attention heads.")
    attention_size: int = setting(32, "Dimension of the attention's projection, over all heads.")
    kernel: str = setting("softmax", "Attention kernel: softmax, eq. (47), or gaussian, eq. (49).")

    family = "UT"
    architecture = UT

    def refusal(self, method: str) -> str:
        """LayerSkip drops whole blocks."""
        return NO_BLOCKS if method == "layerskip" else super().refusal(method)

    def network(self, data: Data | None) -> UT:
        """A new UT."""
        return UT(
            UTConfig(
                depth=self.depth,
                tied=self.tied,
                heads=self.heads,
                attention_size=self.attention_size,
                kernel=self.kernel,
            )
        )


@dataclass(frozen=True)
class DUSTRecipe(VideoRecipe):
    """Video denoising with the deep unfolded sequential transformer."""

    tied: bool = setting(True, "One dictionary for all layers, or one for each.")
    atoms: int = setting(1024, "Size of the sparse code, a square number.")
    layer: str = setting(
        "alternating", "A layer: alternating, eq. (75)-(76), or proximal, one descent step of eq. (74)."
    )
    l1: float = setting(0.02, "λ₁, the weight of sparsity.")
    l2: float = setting(1.0, "λ₂, the weight of the attention energy.")
    margin: float = setting(1.01, "c / ‖D‖², the inverse step of a layer.")
    c: float | None = setting(None, "The inverse step of a layer, a constant; by --margin unless given.")

    family = "DUST"
    architecture = DUST
    training = replace(VideoRecipe.training, learning_rate=2e-3, max_steps=150, per_device_train_batch_size=2)

    def refusal(self, method: str) -> str:
        """LayerSkip drops whole blocks."""
        return NO_BLOCKS if method == "layerskip" else super().refusal(method)

    def network(self, data: Data | None) -> DUST:
        """A new DUST."""
        return DUST(
            DUSTConfig(
                depth=self.depth,
                tied=self.tied,
                atoms=self.atoms,
                layer=self.layer,
                l1=self.l1,
                l2=self.l2,
                margin=self.margin,
                c=self.c,
            )
        )


@dataclass(frozen=True)
class ViTRecipe(VideoRecipe):
    """Video denoising with a vision transformer, frame by frame."""

    depth: int = setting(12, "L, the number of blocks; of a pretrained ViT with more, the first L.")
    pretrained: str | None = setting(
        None, "Hub name or folder of a ViT with its processor; a small new one unless given."
    )
    hidden_size: int | None = setting(
        None, "Width of the small ViT; 128 unless given, or a patch's 768 numbers where --readout is pixels."
    )
    readout: str = setting(
        "decoder", "How a layer is read: decoder, a norm and a linear layer, or pixels, its tokens as they are."
    )

    family = "ViT"
    architecture = ViTDenoiser
    # Not tuned. The larger strength is for its early layers, which ERM leaves far behind.
    training = replace(VideoRecipe.training, learning_rate=1e-3, warmup_steps=20, max_steps=200, strength=0.75)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pretrained is None:
            self._small()  # raises for a width or readout that is not allowed

    def network(self, data: Data | None) -> ViTDenoiser:
        """A ViT with its pretrained blocks, or a small new one."""
        if self.pretrained is not None:
            return ViTDenoiser.from_vit(self.pretrained, self.depth, self.readout)
        return ViTDenoiser(self._small())

    def _small(self) -> ViTDenoiserConfig:
        width = self.hidden_size
        if width is None:
            width = 3 * 16**2 if self.readout == "pixels" else 128
        return ViTDenoiserConfig(
            num_hidden_layers=self.depth, hidden_size=width, intermediate_size=4 * width, readout=self.readout
        )
