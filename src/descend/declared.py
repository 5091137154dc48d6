"""How a setting is declared: its type with a range, its default and help; and how a command line gives it."""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Annotated, Any, NamedTuple

SPLITS = ("test", "validation", "train")
"""The parts of a run's data."""

AUTO, CERTIFIED, BEST = "auto", "certified", "best"
"""The values of ``--layers`` that choose K: the smallest on validation data that is as good as full depth, the smallest
that the evaluated data certify, and the best on validation data."""

TRANSFORMERS, ONNX, SENTENCES = "transformers", "onnx", "sentence-transformers"
FORMATS = (TRANSFORMERS, ONNX, SENTENCES)
"""The values of ``--format``, what an export can be written as; the first is the default."""

GENERATED = "generated"
"""The value of ``data`` for the generated data that come with Descend."""

DIGITS = "digits"
"""The value of ``data`` for scikit-learn's images of digits."""

TEXTS = ("imdb", "mnli", "labelled")
"""The values of ``dataset``, the kinds of texts with classes."""

TRIPLETS, SCORED = PAIRS = ("triplets", "scored")
"""The values of ``dataset`` for embedding models: texts with a nearer and a farther one, and pairs with scores."""

HEALED = 3
"""The last blocks of a cut model that ``--heal`` trains, beside its readout."""

SMALL = "small"
"""The value of ``model`` for a new small model."""


class Allowed(NamedTuple):
    """The range of a setting.

    Attributes:
        words: What the value must do, such as ``lie in [0, 1]``.
        holds: Whether a value of the right type is allowed.
    """

    words: str
    holds: Callable[[Any], bool]


def _is_options(text: Any) -> bool:
    """Whether a text is a JSON object of a dual optimizer's arguments."""
    try:
        options = json.loads(text)
    except (ValueError, TypeError):
        return False
    return isinstance(options, dict) and not options.keys() & {"lr", "maximize", "name", "in_force"}


Share = Annotated[float, Allowed("lie in [0, 1]", lambda value: 0 <= value <= 1)]
InnerShare = Annotated[float, Allowed("lie between 0 and 1", lambda value: 0 < value < 1)]
Rate = Annotated[float, Allowed("be a rate in [0, 1)", lambda value: 0 <= value < 1)]
Dropout = Annotated[float, Allowed("lie in [0, 1)", lambda value: 0 <= value < 1)]
Factor = Annotated[float, Allowed("lie in (0, 1]", lambda value: 0 < value <= 1)]
NotNegative = Annotated[float, Allowed("be at least 0", lambda value: 0 <= value < math.inf)]
Positive = Annotated[float, Allowed("be a number above 0, or left out", lambda value: 0 < value < math.inf)]
Scale = Annotated[str, Allowed("be 'std' or 'variance'", lambda value: value in ("std", "variance"))]
NoiseLevel = Annotated[float, Allowed("be a level γ of at least 0, and finite", lambda value: 0 <= value < math.inf)]
TextLength = Annotated[int, Allowed("be at least 3, for a word between two marks", lambda value: value >= 3)]
PromptLength = Annotated[int, Allowed("be at least 8, a prompt and an answer", lambda value: value >= 8)]
Count = Annotated[int, Allowed("be at least 1", lambda value: 1 <= value < math.inf)]
Processes = Annotated[int, Allowed("be from 0 to 1024", lambda value: 0 <= value <= 1024)]
NoText = Annotated[object, Allowed("be an object of Accelerate, in Python", lambda value: not isinstance(value, str))]
Layers = Annotated[int, Allowed("be from 1 to 1024", lambda value: 1 <= value <= 1024)]
Seed = Annotated[int, Allowed("be from 0 to 2^32 - 1", lambda value: 0 <= value < 2**32)]
Steps = Annotated[int, Allowed("be at least 1, or -1 to train by epochs", lambda value: value == -1 or value >= 1)]
Options = Annotated[
    str,
    Allowed("be a JSON object of the dual optimizer's arguments other than lr, such as '{\"kp\": 5.0}'", _is_options),
]


def setting(default: Any, help: str, choices: tuple[str, ...] = ()) -> Any:
    """A field of a dataclass of settings.

    The metadata go to `argparse` as they are, through `HfArgumentParser`, so a range stands in the field's type.

    Args:
        default: The default.
        help: One line; if the default is None, it ends with what that means, in brackets.
        choices: All allowed values, for text that has only a few.
    """
    return field(default=default, metadata={"help": help} | ({"choices": choices} if choices else {}))


def flag_of(name: str) -> str:
    """The option of a setting, such as ``--learning-rate``."""
    return f"--{name.replace('_', '-')}"


def is_secret(name: str) -> bool:
    """Whether a setting's value is a token or a password, which stands in no file and on no screen."""
    return name.rpartition("_")[2] in ("token", "password", "secret")


def options(settings: Mapping[str, Any]) -> list[str]:
    """The words that give settings to ``descend train``, in the form of `sys.argv`.

    Args:
        settings: Name → value; none of them is None, which can't be typed. Tokens are left out.
    """
    words = []
    for name, value in settings.items():
        if is_secret(name):
            continue
        if isinstance(value, bool):
            words.append(flag_of(name if value else f"no_{name}"))
            continue
        texts = value if isinstance(value, list) else [json.dumps(value) if isinstance(value, dict) else value]
        joined = [",".join(map(str, texts))] if name == "alpha" else map(str, texts)
        words += [flag_of(name), *joined]
    return words
