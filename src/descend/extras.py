"""What is imported late: optional packages, a package's names, and the classes in its files."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from descend.errors import MissingPackageError

_PAGES = {"matplotlib": "matplotlib", "jinja2": "jinja2", "PIL": "pillow"}

EXTRAS: dict[str, dict[str, str]] = {
    "video": {"av": "av", "PIL": "pillow"},
    "image": {"PIL": "pillow", "sklearn": "scikit-learn"},
    "text": {"datasets": "datasets", "pyarrow": "datasets"},
    "llm": {"trl": "trl", "peft": "peft", "datasets": "datasets"},
    "report": _PAGES,
    "sweep": {"optuna": "optuna", "sqlalchemy": "sqlalchemy"} | _PAGES,
    "onnx": {"onnx": "onnx", "onnxscript": "onnxscript", "onnxruntime": "onnxruntime"},
    "embed": {"sentence_transformers": "sentence-transformers"},
    "tasks": {"lm_eval": "lm-eval"},
    "privacy": {"dp_accounting": "dp-accounting"},
    "postgres": {"psycopg": "psycopg[binary]"},
}
"""Extra → the modules that it installs → the name of each module's package."""


@contextmanager
def required(purpose: str) -> Iterator[None]:
    """Turn the import error of a missing optional package into one line that says what to install.

    Args:
        purpose: What needs the package, as the subject of a sentence.

    Raises:
        MissingPackageError: If the import of a package in `EXTRAS` fails inside the block.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        extra = next((name for name, modules in EXTRAS.items() if module in modules), None)
        if extra is None:
            raise
        packages = " ".join(dict.fromkeys(repr(each) if "[" in each else each for each in EXTRAS[extra].values()))
        raise MissingPackageError(
            f"{purpose} needs the package {EXTRAS[extra][module]}, which is not installed. Run: pip install {packages}"
        ) from None


def named_classes(package: str, places: Iterable[str], base: type, but: Sequence[str] = ()) -> dict[str, Any]:
    """Name → class of all classes with a ``name`` in the files of a package, sorted by their ``order``.

    Args:
        package: The package's name.
        places: Its folders.
        base: The class that they derive from.
        but: Files that are not looked at.
    """
    found: list[Any] = []
    for file in iter_modules(places):
        if file.name not in but:
            kinds = [kind for kind in vars(import_module(f"{package}.{file.name}")).values() if isinstance(kind, type)]
            found += [kind for kind in kinds if issubclass(kind, base) and "name" in vars(kind)]
    return {kind.name: kind for kind in sorted(found, key=lambda kind: (kind.order, kind.name))}


def lazy_names(package: str, modules: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """A ``__getattr__`` for a package that imports each public name on first use.

    Args:
        package: The package's name.
        modules: Module of the package → the names that it defines.

    Returns:
        The function: it raises `MissingPackageError` if a name needs an optional package that is not installed.
    """

    def load(name: str) -> Any:
        for module, names in modules.items():
            if name in names:
                with required(f"{package}.{name}"):
                    return getattr(import_module(f"{package}.{module}"), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return load
