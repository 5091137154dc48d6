"""Image classification with pretrained vision transformers."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from descend.declared import DIGITS, GENERATED, Count, NoiseLevel, setting
from descend.errors import InputError
from descend.recipes.base import (
    USEFUL_LAYERS,
    Data,
    PretrainedSettings,
    Recipe,
    absolute,
    absolute_or_name,
    class_numbers,
    config_of,
    has_classifier,
    head_numbers,
    is_unnamed,
    load_pretrained,
    tell,
)

if TYPE_CHECKING:
    from torch.utils.data import Dataset
    from transformers import ViTImageProcessorPil

    from descend.models import LayeredImageClassifier, LayeredModel
    from descend.tasks.images import ImageClassification

MANY = 256
"""Patches of an image beyond which a line says that smaller images are faster."""


@dataclass(frozen=True)
class ImageRecipe(PretrainedSettings, Recipe):
    """Image classification with a pretrained ViT, DeiT or DINOv2, with its own head or a new one.

    ``data`` are a folder with a folder of images for each class, or with such ``train`` and ``test`` folders; MNIST's
    IDX files; or scikit-learn's digits.
    """

    name = "image"
    help = "image classification with a pretrained ViT, DeiT or DINOv2"
    order = 60
    in_paper = True
    data_help = "PATH, a folder of images by class or of MNIST's IDX files, or --data digits"
    names_of_data = (DIGITS,)
    packages = ("PIL",)

    data: str = field(
        kw_only=True, metadata={"help": "folder of images by class, or of IDX files; or: digits, generated"}
    )
    image_size: Count | None = setting(None, "their height and width in pixels [the model's]")
    noise: NoiseLevel = setting(0.0, "training noise γ, in std of the patches")

    training = (
        Recipe.training
        | {
            "num_train_epochs": 3,
            "per_device_train_batch_size": 32,
            "per_device_eval_batch_size": 64,
            "learning_rate": 5e-5,
            "lr_scheduler_type": "linear",
            "warmup_steps": 0.1,
            "eval_strategy": "epoch",
            "save_strategy": "epoch",
        }
        | USEFUL_LAYERS
    )

    @property
    def label(self) -> str:
        """The model's name in tables, such as Dinov2-12."""
        return f"{type(config_of(self.model)).__name__.removesuffix('Config')}-{self.depth}"

    def completed(self) -> Self:
        """The recipe with absolute paths, the number of blocks that are trained, and the size of the images.

        Raises:
            InputError: If the model is of another kind, or can't take images of this size.
        """
        from descend.models import check_family, images

        config = config_of(self.model)
        check_family(config, images.FAMILIES)
        patch, own = config.patch_size, config.image_size
        if config.num_channels != 3 or not isinstance(patch, int) or not isinstance(own, int):
            raise InputError(
                f"expected a model of square colour images; {self.model} takes {config.num_channels} channels of "
                f"{own} pixels in patches of {patch}."
            )
        size = self.image_size or _size(_processing(self.model), own)
        if size != own and config.model_type == "beit":
            raise InputError(
                f"{self.model} takes images of {own} pixels alone: the positions of a BEiT can't be interpolated. Got "
                f"--image-size {size}; leave it out, or choose another model."
            )
        if size % patch:
            raise InputError(
                f"image_size must be a multiple of {patch}, the side of a patch of {self.model}; got {size}. Choose "
                f"{max(size // patch, 1) * patch} or {(size // patch + 1) * patch}."
            )
        return replace(
            self,
            data=self.data if self.data == DIGITS else absolute(self.data),
            model=absolute_or_name(self.model),
            keep_layers=self.layers_of(config),
            image_size=size,
        )

    def load(self, model: LayeredModel | None = None, tokenizer: Any = None) -> Data:
        """Read the images; each is decoded when it is fetched."""
        import numpy as np

        from descend.tasks.images.sources import Images, read_images

        config: Any = model.saved.config if model is not None else config_of(self.model)
        found = read_images(self.source)
        numbers = np.array(head_numbers(config, found.classes, config.name_or_path, _named(self.data)))
        processor = tokenizer if model is not None else self._processor()
        parts = found.parts(self.validation_share).items()
        sides = {name: Images(side._replace(labels=numbers[side.labels]), processor) for name, side in parts}
        return Data(
            sides["train"],
            sides["validation"],
            sides["test"],
            name=_named(self.data),
            tokenizer=processor,
            labels=found.classes,
            read=found.read,
        )

    def load_test(self, data: str, model: LayeredModel, tokenizer: Any) -> tuple[Dataset, str]:
        """Load the test images of another data set, or all where it has no sides, and its name."""
        import numpy as np

        from descend.tasks.images.sources import Images, read_images

        found = read_images(data)
        tell(_named(data), found.read)
        config = model.saved.config
        side = found.sides.get("test", found.sides["train"])
        numbers = np.array(class_numbers(config, found.classes, config.name_or_path, _named(data)))
        return Images(side._replace(labels=numbers[side.labels]), tokenizer), _named(data)

    def about(self, data: Data) -> tuple[list[str], list[str]]:
        """The samples of each part, their classes, and the size that images get."""
        lines, warnings = super().about(data)
        config, size = config_of(self.model), self.image_size or 0
        patches = (size // config.patch_size) ** 2
        side = f"{size}x{size} pixels, {patches:,} patches"
        faster = ". Smaller ones, by --image-size, are faster" if patches > MANY else ""
        return [*lines, f"{len(data.labels)} classes; images become {side}{faster}."], warnings

    def task(self) -> ImageClassification:
        """Cross-entropy and accuracy."""
        from descend.tasks.images import ImageClassification

        return ImageClassification()

    def network(self, data: Data) -> LayeredImageClassifier:
        """The pretrained model cut to its first blocks, for images of this size; with a new head if it has none."""
        from transformers import AutoModelForImageClassification

        from descend.models import LayeredImageClassifier, resized

        config = config_of(self.model)
        if not has_classifier(config) or is_unnamed(config):
            config.id2label = dict(enumerate(data.labels))
            config.label2id = {name: number for number, name in config.id2label.items()}
        network = load_pretrained(AutoModelForImageClassification, self.model, config=config, dtype="float32")
        assert self.image_size is not None
        if self.image_size != config.image_size:
            network = resized(network, self.image_size)
        layered = LayeredImageClassifier(network)
        self.cut(layered)
        return layered

    def restore(self, folder: str) -> tuple[LayeredModel, Any]:
        """Load a classifier that `save_pretrained` wrote, and its image processor."""
        from transformers import AutoModelForImageClassification, ViTImageProcessorPil

        from descend.models import LayeredImageClassifier

        network = load_pretrained(AutoModelForImageClassification, folder, dtype="float32")
        return LayeredImageClassifier(network), ViTImageProcessorPil.from_pretrained(folder)

    def _processor(self) -> ViTImageProcessorPil:
        """Resizes images to this size, whatever their shape, and normalizes them as the model's own processor does."""
        from transformers import ViTImageProcessorPil
        from transformers.image_utils import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD

        names = ("do_rescale", "rescale_factor", "do_normalize", "image_mean", "image_std", "resample")
        usual = {"image_mean": IMAGENET_DEFAULT_MEAN, "image_std": IMAGENET_DEFAULT_STD}
        given = usual | {name: value for name, value in _processing(self.model).items() if name in names}
        assert self.image_size is not None
        return ViTImageProcessorPil(size={"height": self.image_size, "width": self.image_size}, **given)


def _named(data: str) -> str:
    return "generated images" if data == GENERATED else Path(data).name


def _processing(source: str) -> dict[str, Any]:
    """The settings of a model's image processor; empty if it has none."""
    from transformers import ViTImageProcessorPil

    try:
        return ViTImageProcessorPil.get_image_processor_dict(source)[0]
    except OSError:
        return {}


def _size(processing: dict[str, Any], own: int) -> int:
    """Height and width of the images that an image processor makes; the model's own if it does not say it."""
    for size in (processing.get("crop_size"), processing.get("size")):
        found = size.get("height", size.get("shortest_edge")) if isinstance(size, dict) else size
        if found:
            return int(found)
    return own
