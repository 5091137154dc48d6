"""Recipes: a name for data, task, model and the settings they were tuned with."""

from abc import abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from transformers import PreTrainedModel

from descend.errors import InputError
from descend.models import DUST, UT, DUSTConfig, LayeredModel, UTConfig, ViTDenoiser, ViTDenoiserConfig
from descend.tasks.video import VideoData, VideoDenoising, VideoWindows, load_test, load_video


def setting(default: Any, help: str) -> Any:
    """A field of a recipe, with the help text that its flag shows."""
    return field(default=default, metadata={"help": help})


@dataclass
class VideoRecipe:
    """Video denoising: what all three models share."""

    data: str | None = setting(None, "Folder or file of videos; the embedded generated scenes unless given.")
    cache_dir: str | None = setting(None, "Where decoded frames are kept; ~/.cache/descend unless given.")
    depth: int = setting(7, "L, the number of layers.")
    noise: float = setting(0.8, "Training noise γ, in std of the clean data.")
    window: int = setting(5, "T, frames in a window.")
    stride: int = setting(1, "Frames from one training window's start to the next one's.")
    validation_share: float = setting(0.2, "Share of the training clips kept for validation.")

    family: ClassVar[str]
    architecture: ClassVar[type[PreTrainedModel]]
    about: ClassVar[str]
    # UT's and DUST's were chosen on a validation split of UCSD Ped2's training clips at γ = 0.8: docs/results.md.
    training: ClassVar[dict[str, Any]] = {
        "max_steps": 400,
        "per_device_train_batch_size": 4,
        "per_device_eval_batch_size": 16,
        "learning_rate": 3e-3,
        "lr_scheduler_type": "linear",
        "logging_steps": 10,
        "eval_strategy": "steps",
        "eval_steps": 100,
        "save_steps": 100,
        "save_total_limit": 2,
        "report_to": "none",
        "stop_gradient": True,
        "dual_lr": 0.03,
        "resilience": 0.05,
        "dual_warmup_steps": 0.115,
    }

    def check(self) -> None:
        """Refuse what can't be, before any work is done."""
        for name in ("data", "cache_dir"):
            if (given := getattr(self, name)) is not None:  # a run may be judged from another directory
                setattr(self, name, str(Path(given).expanduser().absolute()))
        if not 0 <= self.noise < float("inf"):
            raise InputError(f"noise must be a level γ of at least 0, in std of the clean data; got {self.noise}.")

    def load(self) -> VideoData:
        """The data set; it does not depend on the run's seed, so that seeds are compared on the same data."""
        return load_video(
            self.data,
            self.window,
            stride=self.stride,
            cache_dir=self.cache_dir,
            validation_share=self.validation_share,
        )

    def load_test(self) -> tuple[VideoWindows, str]:
        """The test windows of data that the model was not trained on, all of them, and the data set's name."""
        if self.data is None:
            raise InputError("data must name a folder or file of videos; got none.")
        return load_test(self.data, self.window, cache_dir=self.cache_dir)

    def task(self) -> VideoDenoising:
        """The loss and the metric."""
        return VideoDenoising()

    @abstractmethod
    def model(self) -> PreTrainedModel:
        """A new model."""

    @property
    def label(self) -> str:
        """The model's name in tables, such as UT-7."""
        return f"{self.family}-{self.depth}"

    def restore(self, folder: str) -> LayeredModel:
        """The model that `save_pretrained` put into a folder."""
        return self.architecture.from_pretrained(folder)  # type: ignore[return-value]


@dataclass
class UTRecipe(VideoRecipe):
    """Video denoising with the unrolled transformer."""

    tied: bool = setting(True, "One set of weights for all layers, or one for each.")
    heads: int = setting(1, "Attention heads.")
    attention_size: int = setting(32, "Dimension of the attention's projection, over all heads.")
    kernel: str = setting("softmax", "Attention kernel: softmax, eq. (47), or gaussian, eq. (49).")

    family = "UT"
    architecture = UT
    about = "video denoising with the unrolled transformer UT (Yang et al., 2022)"
    training = VideoRecipe.training | {"alpha": "0.21", "alpha_decay": 0.4, "first_layer": 1}

    def model(self) -> UT:
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


@dataclass
class DUSTRecipe(VideoRecipe):
    """Video denoising with the deep unfolded sequential transformer."""

    tied: bool = setting(True, "One dictionary for all layers, or one for each.")
    atoms: int = setting(1024, "Size of the sparse code, a square number.")
    l1: float = setting(0.02, "λ₁, the weight of sparsity.")
    l2: float = setting(1.0, "λ₂, the weight of the attention energy.")
    margin: float = setting(1.01, "c / ‖D‖², the inverse step of a layer.")

    family = "DUST"
    architecture = DUST
    about = "video denoising with the deep unfolded sequential transformer DUST (De Weerdt et al., 2023)"
    training = VideoRecipe.training | {
        "learning_rate": 2e-3,
        "max_steps": 150,
        "per_device_train_batch_size": 2,
        "dual_warmup_steps": 0.6,
        "alpha": "0.5",
    }

    def model(self) -> DUST:
        """A new DUST."""
        return DUST(
            DUSTConfig(depth=self.depth, tied=self.tied, atoms=self.atoms, l1=self.l1, l2=self.l2, margin=self.margin)
        )


@dataclass
class ViTRecipe(VideoRecipe):
    """Video denoising with a vision transformer, frame by frame."""

    depth: int = setting(12, "L, the number of blocks; of a pretrained ViT with more, the first L.")
    pretrained: str | None = setting(
        None, "Hub name or folder of a ViT with its processor; a small new one unless given."
    )
    hidden_size: int = setting(128, "Width of the small ViT.")

    family = "ViT"
    architecture = ViTDenoiser
    about = "video denoising with a vision transformer ViT, frame by frame (Dosovitskiy et al., 2021)"
    # Not tuned: it trains stably.
    training = VideoRecipe.training | {
        "learning_rate": 1e-3,
        "warmup_steps": 20,
        "max_steps": 200,
        "alpha": "0.1",
    }

    def model(self) -> ViTDenoiser:
        """A ViT with its pretrained blocks, or a small new one, and a new decoder."""
        if self.pretrained is not None:
            return ViTDenoiser.from_vit(self.pretrained, self.depth)
        width = self.hidden_size
        return ViTDenoiser(
            ViTDenoiserConfig(num_hidden_layers=self.depth, hidden_size=width, intermediate_size=4 * width)
        )


RECIPES: dict[str, type[VideoRecipe]] = {
    "video-ut": UTRecipe,
    "video-dust": DUSTRecipe,
    "video-vit": ViTRecipe,
}
