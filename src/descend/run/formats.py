"""What an export is written as. `Format` is a checkpoint of Transformers, and the base of the other formats."""

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from descend.declared import TRANSFORMERS
from descend.errors import refuse
from descend.extras import EXTRAS, required
from descend.models import check_savable, close, load_model, plain_output
from descend.recipes import RECIPES
from descend.run.describing import loading_note, serving_line, with_code

LEAVE_OUT = "Leave --format out."
"""What to do where another format can't be written."""

EXPECTED = "config.json and model.safetensors, as export wrote them"


class Format:
    """A checkpoint of Transformers.

    Args:
        network: The whole model, a `LibraryModel` or a `Denoiser`, before it is cut.
        tokenizer: Its tokenizer or image processor, or None.
        layers: K.
        start: The model that the training, or the fitting of readouts, began with; None for a new one.

    Attributes:
        batches: Inputs on which the output of the folder is compared with that of exit K.
    """

    name: ClassVar[str] = TRANSFORMERS

    dtype: ClassVar[torch.dtype | None] = None
    """The type of the weights; None for the model's own."""

    compared_in: ClassVar[torch.dtype | None] = None
    """The type in which the output of exit K is computed; None for the model's own."""

    metadata: ClassVar[dict[str, Any]] = {}
    """Further metadata of the card."""

    holds: str = ""
    """What the card says of the first K layers in the folder; empty for the usual words."""

    timed: str = ""
    """What was timed for the last line; empty for the folder itself."""

    instead: ClassVar[str] = ""
    """What to do if the folder does not give the output of exit K."""

    batches: list[Any]

    def __init__(self, network: Any, tokenizer: Any, layers: int, start: str | None):
        self.tokenizer, self.layers, self.start = tokenizer, layers, start
        self.batches = [network.probe_inputs()]

    @classmethod
    def check(cls, recipe: str = "", start: str | None = None) -> None:
        """Refuse what can't be written, before any work is done.

        Args:
            recipe: The name of the recipe whose model it is; empty if it is not known yet.
            start: The model that it began with, if the recipe is known.

        Raises:
            InputError: If a model of the recipe can't be written in this format.
            MissingPackageError: If a package that the format needs is not installed.
        """
        usual = usual_format(recipe)
        refuse(
            (
                usual != TRANSFORMERS,
                f"a model of {recipe} is written by --format {usual}; got {TRANSFORMERS}. {LEAVE_OUT}",
            )
        )

    def expected(self, network: Any, inputs: Any) -> Tensor:
        """What the folder must give: the output of exit K of the whole model."""
        return list(network.predictions(inputs))[self.layers]

    def write(self, plain: PreTrainedModel, folder: Path) -> Callable[[Any], Tensor]:
        """Write a cut model into an empty folder, and read it again.

        Returns:
            The function that gives the folder's output on some inputs.
        """
        check_savable(plain, self.tokenizer)
        plain.save_pretrained(folder)
        if self.tokenizer is not None:
            self.tokenizer.save_pretrained(folder)
        again = load_model(type(plain), folder, "the export", EXPECTED, dtype=torch.float32).eval()
        return lambda inputs: plain_output(again, inputs)

    def agrees(self, output: Tensor, expected: Tensor) -> bool:
        """Whether the folder's output is that of exit K."""
        return close(output, expected)

    def note(self, plain: PreTrainedModel) -> str:
        """Paragraphs of the card on how to load the folder, of which the first stands on the screen too.

        Empty where Transformers loads the folder by itself.
        """
        return loading_note(plain)

    def serving_line(self, plain: PreTrainedModel, folder: Path) -> str:
        """The line of code that serves the folder; empty if there is none."""
        return serving_line(plain, folder)

    def card_note(self, plain: PreTrainedModel) -> str:
        """What the card says on loading and serving the folder."""
        return with_code(self.note(plain), self.serving_line(plain, Path(".")))


def usual_format(recipe: str) -> str:
    """The format that a model of a recipe is written in unless another is asked for."""
    return RECIPES[recipe].settings.export_format if recipe in RECIPES else TRANSFORMERS


def shape_of(inputs: Any) -> str:
    """The shape of the first of a batch's inputs."""
    first = next(iter(inputs.values())) if isinstance(inputs, Mapping) else inputs
    return "x".join(map(str, first.shape))


def check_able(format: str, takes: str, kinds: Any, extra: str, recipe: str) -> None:
    """Refuse recipes whose models a format can't hold, and missing packages.

    Args:
        format: The format.
        takes: The models that it holds, in words.
        kinds: The recipes of these models.
        extra: The extra with its packages.
        recipe: The name of the recipe; one that is not known may have such a model.
    """
    able = recipe not in RECIPES or issubclass(RECIPES[recipe].settings, kinds)
    refuse((not able, refusal(format, takes, f"a model of {recipe}")))
    with required(f"--format {format}"):
        for module in EXTRAS[extra]:
            import_module(module)


def refusal(format: str, takes: str, what: str) -> str:
    """The error of a model that a format can't hold."""
    return f"--format {format} takes {takes}; got {what}. {LEAVE_OUT}"
