"""An export as ``model.onnx``, which onnxruntime serves without PyTorch, Transformers or Descend."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from descend.declared import ONNX
from descend.errors import InputError, reason, refuse
from descend.models import (
    MOST_TOKENS,
    LayeredClassifier,
    LayeredQuestionAnswerer,
    LayeredTokenClassifier,
    LibraryModel,
    changed,
    plain_output,
)
from descend.progress import silent, waiting
from descend.run.formats import LEAVE_OUT, Format, check_able, refusal, shape_of

FILE = "model.onnx"
TOLERANCE = 1e-4
"""Largest difference of a logit from that of exit K, absolute and relative."""

SIZES = ((1, 512), (3, 17), (7, 9))
"""Texts and tokens of the batches that are compared; a text has at most the tokens that the model or tokenizer takes.

A long one shows whether attention to near tokens alone, as ModernBERT's, is exact."""

_TAKES = "classifiers of texts and images"

_IMPORTS = """import json

import numpy as np
import onnxruntime
"""

_SESSION = """
session = onnxruntime.InferenceSession("model.onnx")
with open("config.json") as file:
    names = json.load(file)["id2label"]
"""

_FAST = """from tokenizers import Tokenizer
{session}
tokenizer = Tokenizer.from_file("tokenizer.json")
texts = tokenizer.encode_batch(["A film to remember.", "Two hours that I want back."])
inputs = {{
{inputs}
}}
"""

_SLOW = """from transformers import AutoTokenizer
{session}
tokenizer = AutoTokenizer.from_pretrained(".")
texts = tokenizer(["A film to remember.", "Two hours that I want back."], padding=True, truncation=True)
inputs = {{name: np.array(values) for name, values in texts.items()}}
"""

_PIXELS = """from PIL import Image
{session}

def pixels(path):
    image = Image.open(path).convert("RGB").resize({size}, Image.Resampling.{resample})
    scaled = np.asarray(image, np.float32) * {scale}
    return ((scaled - np.float32({mean})) / np.float32({std})).transpose(2, 0, 1)


inputs = {{"pixel_values": np.stack([pixels("image.png")])}}
"""

_ENCODED = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
"""A model's input → the name of it that `tokenizers` has."""


class Onnx(Format):
    """A ``model.onnx`` in float32, with the classes in ``config.json`` and the tokenizer beside it.

    Its batch and length are free. The output ``logits`` are compared with those of exit K, see `TOLERANCE`.
    """

    name = ONNX
    dtype = compared_in = torch.float32
    metadata = {"library_name": "onnx"}  # noqa: RUF012
    timed = " in PyTorch"
    instead = f" {LEAVE_OUT}"

    def __init__(self, network: Any, tokenizer: Any, layers: int, start: str | None):
        able = LayeredClassifier | LayeredTokenClassifier | LayeredQuestionAnswerer  # of texts or images
        refuse((not isinstance(network, able), refusal(ONNX, _TAKES, type(network.saved).__name__)))
        super().__init__(network, tokenizer, layers, start)
        self.kind = type(network)
        self.is_text = network.main_input_name == "input_ids"
        self.positions = network.limits.get("length")
        self.longest = min(self.positions or MOST_TOKENS, getattr(tokenizer, "model_max_length", MOST_TOKENS))
        self.batches = list(self._texts(network) if self.is_text else self._images(network))

    @classmethod
    def check(cls, recipe: str = "", start: str | None = None) -> None:
        """Refuse a recipe without classes, and missing packages."""
        from descend.recipes.classification import TextRecipe
        from descend.recipes.image import ImageRecipe

        check_able(ONNX, _TAKES, TextRecipe | ImageRecipe, "onnx", recipe)

    def _texts(self, network: LibraryModel) -> Iterator[dict[str, Tensor]]:
        """Made-up texts of three shapes with padding, in the fields that the tokenizer gives."""
        config: Any = network.config
        known = getattr(self.tokenizer, "model_input_names", ())
        padding = getattr(config, "pad_token_id", None)
        words = torch.arange(network.limits["vocabulary"])
        words = words[words != (-1 if padding is None else padding)]
        generator = torch.Generator().manual_seed(0)
        for texts, tokens in SIZES:
            length = min(tokens, self.longest)
            ids = words[torch.randint(len(words), (texts, length), generator=generator)]
            mask = torch.ones_like(ids)
            if padding is not None:
                for row in range(1, texts):
                    place = slice(0, row % length) if self._pads_left else slice(length - row % length, length)
                    ids[row, place], mask[row, place] = padding, 0
            batch = {"input_ids": ids, "attention_mask": mask}
            if "token_type_ids" in known:
                batch["token_type_ids"] = mask * (torch.arange(length) >= length // 2)
            yield batch

    @staticmethod
    def _images(network: LibraryModel) -> Iterator[dict[str, Tensor]]:
        """Made-up images of the model's size, in batches of three sizes."""
        shape = network.probe_inputs()["pixel_values"].shape[1:]
        generator = torch.Generator().manual_seed(0)
        for images, _ in SIZES:
            yield {"pixel_values": torch.randn(images, *shape, generator=generator)}

    @property
    def _pads_left(self) -> bool:
        return getattr(self.tokenizer, "padding_side", "right") == "left"

    def write(self, plain: PreTrainedModel, folder: Path) -> Callable[[Any], Tensor]:
        """Write the model, its classes and its tokenizer; and open the model by onnxruntime."""
        import onnxruntime

        module = _Logits(plain, list(self.batches[0]), self.positions)
        axes = {0: "batch"} | ({1: "length"} if self.is_text else {})
        _export(module, self.batches[1], folder / FILE, axes)
        plain.config.architectures = [type(plain).__name__]
        plain.config.to_json_file(folder / "config.json")
        if self.tokenizer is not None:
            self.tokenizer.save_pretrained(folder)
        self._cut_and_pad(folder / "tokenizer.json")
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4  # errors are raised, too
        session = onnxruntime.InferenceSession(folder / FILE, options, providers=["CPUExecutionProvider"])

        def output(inputs: dict[str, Tensor]) -> Tensor:
            try:
                (logits,) = session.run(None, {name: value.numpy() for name, value in inputs.items()})
            except Exception as error:  # onnxruntime's own
                raise InputError(
                    f"{type(plain).__name__} can't be exported: onnxruntime fails on inputs of {shape_of(inputs)}: "
                    f"{reason(error)}. Nothing was written. {LEAVE_OUT}"
                ) from error
            return torch.from_numpy(logits)

        return output

    def _cut_and_pad(self, file: Path) -> None:
        """Let a ``tokenizer.json`` pad a batch of texts, and cut those that are too long, without being told to."""
        if not file.is_file():
            return
        from tokenizers import Tokenizer

        tokenizer, ours = Tokenizer.from_file(str(file)), self.tokenizer
        if self.longest < MOST_TOKENS:
            tokenizer.enable_truncation(self.longest)
        if ours.pad_token_id is not None:
            tokenizer.enable_padding(
                direction=ours.padding_side,
                pad_id=ours.pad_token_id,
                pad_type_id=ours.pad_token_type_id,
                pad_token=ours.pad_token,
            )
        tokenizer.save(str(file))

    def agrees(self, output: Tensor, expected: Tensor) -> bool:
        """Whether each logit is within `TOLERANCE` of that of exit K."""
        return output.shape == expected.shape and torch.allclose(output, expected, rtol=TOLERANCE, atol=TOLERANCE)

    def note(self, plain: PreTrainedModel) -> str:
        """What the file takes and gives, the longest text, and code that serves it."""
        names = ", ".join(f"`{name}`" for name in self.batches[0])
        free = ["length"] if self.is_text else self.batches[0]["pixel_values"].shape[1:]
        shape = f"({', '.join(map(str, ['batch', *free]))})"
        answers = issubclass(self.kind, LayeredQuestionAnswerer)
        last = "their last axis is start and end" if answers else "`id2label` of `config.json` names the classes"
        sentences = [
            f"`{FILE}` needs onnxruntime alone. It takes {names} {shape} and gives `logits` in float32; {last}."
        ]
        if self.is_text and self.longest < MOST_TOKENS:
            cuts = "" if self.tokenizer is None else f"The tokenizer beside it cuts texts at {self.longest} tokens. "
            most = "" if self.positions is None else f"`{FILE}` refuses inputs of over {self.positions} tokens."
            sentences.append(f"{cuts}{most}".strip())
        code = self._code()
        packages = ["onnxruntime", *re.findall(r"^from (\w+) import", code, re.MULTILINE)]
        needed = " ".join("pillow" if each == "PIL" else each for each in packages)
        run = f"\n\n`pip install {needed}`, then run this in the folder:\n\n```python\n{code}\n```" if code else ""
        return " ".join(sentences) + run

    def _code(self) -> str:
        """Python that serves the folder; empty where no file beside the model makes its inputs."""
        beside: Any = self.tokenizer
        if isinstance(beside, PreTrainedTokenizerFast):
            rows = [f'    "{name}": np.array([text.{_ENCODED[name]} for text in texts]),' for name in self.batches[0]]
            code = _FAST.format(session=_SESSION, inputs="\n".join(rows))
        elif isinstance(beside, PreTrainedTokenizerBase):
            code = _SLOW.format(session=_SESSION)
        elif beside is not None:
            code = _code_of_images(beside)
        else:
            return ""
        classes = issubclass(self.kind, LayeredClassifier)
        answer = "[names[str(number)] for number in logits.argmax(-1)]" if classes else "logits.shape"
        return f"{_IMPORTS}{code}(logits,) = session.run(None, inputs)\nprint({answer})"

    def serving_line(self, plain: PreTrainedModel, folder: Path) -> str:
        """The line that opens the file; the card has the rest."""
        return f"onnxruntime.InferenceSession({str(folder / FILE)!r}), see {folder / 'README.md'}"

    def card_note(self, plain: PreTrainedModel) -> str:
        """The note alone, which has the whole code."""
        return self.note(plain)


def _code_of_images(processor: Any) -> str:
    """Code that makes the inputs of images, as Descend's image processor does; it needs Pillow, as images do."""
    from transformers.image_utils import PILImageResampling

    return _PIXELS.format(
        session=_SESSION,
        size=(processor.size["width"], processor.size["height"]),
        resample=PILImageResampling(processor.resample).name,
        scale=processor.rescale_factor,
        mean=list(processor.image_mean),
        std=list(processor.image_std),
    )


class _Logits(nn.Module):
    """A model whose inputs are given in order, and whose output are its logits.

    Args:
        model: The model.
        names: The names of its inputs.
        positions: The longest text in tokens; None if there is none.
    """

    def __init__(self, model: PreTrainedModel, names: list[str], positions: int | None):
        super().__init__()
        self.model, self.names = model, names
        self.up_to_longest = None if positions is None else nn.Buffer(torch.zeros(positions, dtype=torch.int64))

    def forward(self, *values: Tensor) -> Tensor:
        inputs = dict(zip(self.names, values, strict=True))
        if self.up_to_longest is not None:
            # ONNX cuts a slice where the tensor ends: a longer text can't be added to it. Models without a table of
            # positions would take it.
            inputs["input_ids"] = inputs["input_ids"] + self.up_to_longest[: inputs["input_ids"].shape[1]]
        return plain_output(self.model, inputs)


def _export(module: _Logits, inputs: dict[str, Tensor], file: Path, axes: dict[int, str]) -> None:
    """Write a model as ONNX; each input has the same free ``axes``, by their number and name."""
    names, name = list(inputs), type(module.model).__name__
    try:
        with waiting(f"writing {FILE}"), silent(), changed(module.model.config, use_cache=False):
            program = torch.onnx.export(
                module.eval(),
                tuple(inputs.values()),
                input_names=names,
                output_names=["logits"],
                dynamic_shapes=((axes,) * len(names),),
                dynamo=True,
                verbose=False,
            )
            assert program is not None
            program.save(file)
    except OSError:
        raise
    except Exception as error:  # of the exporter, whatever it does not know
        first: BaseException = error
        while first.__cause__ is not None:
            first = first.__cause__
        raise InputError(
            f"{name} can't be written as ONNX: {reason(first):.200}. Nothing was written. {LEAVE_OUT}"
        ) from error
