"""Tables from the code: ``schema`` for the keys of a file, ``methods`` for the methods of training."""

import inspect
import json
import re
from importlib import import_module
from types import NoneType
from typing import Any, ClassVar, Literal, Union, get_args, get_origin

from docutils import nodes
from pydantic import BaseModel
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.util.typing import ExtensionMetadata

from descend.declared import flag_of
from descend.methods import CLASSES

PLAIN: dict[Any, str] = {str: "text", int: "integer", float: "number", bool: "true or false", Any: "any JSON"}


class Schema(SphinxDirective):
    """``schema:: MODULE:CLASS``: a table of the class's fields, and one of each class that they hold.

    Names after the class are those of held classes that the page shows elsewhere.
    """

    required_arguments = 1
    optional_arguments = 99
    option_spec: ClassVar = {}

    def run(self) -> list[nodes.Node]:
        """Write the tables as Markdown and let the page's parser read them."""
        module, _, name = self.arguments[0].partition(":")
        shown: list[type[BaseModel]] = []
        waiting = [getattr(import_module(module), name)]
        parts = []
        while waiting:
            model = waiting.pop(0)
            if model in shown or model.__name__ in self.arguments[1:]:
                continue
            shown.append(model)
            held: list[type[BaseModel]] = []
            parts.append(table(model, held, titled=len(shown) > 1))
            waiting.extend(held)
        return self.parse_text_to_nodes("\n\n".join(parts))


class Methods(SphinxDirective):
    """``methods``: a table of the methods of training, and one of their settings."""

    def run(self) -> list[nodes.Node]:
        """Write the tables as Markdown and let the page's parser read them."""
        rows = ["| method | problem |", "|---|---|"]
        settings = ["", "| method | setting | meaning |", "|---|---|---|"]
        for name, kind in CLASSES.items():
            rows.append(f"| `{name}` | {kind.about} |")
            settings += [f"| `{name}` | `{flag_of(key)}` | {text} |" for key, text in attributes(kind.Settings).items()]
        return self.parse_text_to_nodes("\n".join(rows + settings))


def table(model: type[BaseModel], held: list[type[BaseModel]], *, titled: bool) -> str:
    """The fields of a model, as a table in Markdown.

    Args:
        model: The model.
        held: The models that its fields hold are added here.
        titled: Whether to say the model's name above the table.
    """
    meanings = described(model)
    rows = ["| key | type | default | meaning |", "|---|---|---|---|"]
    for name, field in model.model_fields.items():
        default = "required" if field.is_required() else shown_default(field.get_default())
        kind = type_name(field.annotation, held)
        rows.append(f"| `{field.alias or name}` | {kind} | {default} | {meanings.get(name, '')} |")
    about = f"**{model.__name__}**: {inspect.getdoc(model).splitlines()[0]}\n\n" if titled else ""
    return about.replace("``", "`") + "\n".join(rows)


def described(model: type[BaseModel]) -> dict[str, str]:
    """What the docstrings of a model and its bases say of each field."""
    meanings = {"schema_version": "The version of this schema."}
    for base in reversed(model.__mro__):
        if isinstance(base, type(BaseModel)):
            meanings |= attributes(base)
    return meanings


def attributes(kind: type) -> dict[str, str]:
    """What a class's docstring says of each attribute."""
    entries = inspect.cleandoc(kind.__doc__ or "").partition("Attributes:\n")[2]
    found = re.findall(r"^    (\w+): ((?:.*\n?)(?:        .*\n?)*)", entries, re.MULTILINE)
    return {name: " ".join(meaning.split()).replace("``", "`").replace("|", "\\|") for name, meaning in found}


def shown_default(value: Any) -> str:
    """A default as it stands in JSON; empty where it is long, or follows from other keys."""
    if isinstance(value, float) and value != value:
        return "null"
    return f"`{json.dumps(value)}`" if value is None or isinstance(value, bool | int | float | str) else ""


def type_name(kind: Any, held: list[type[BaseModel]]) -> str:
    """A type in words; models that occur in it are added to ``held``."""
    origin, arguments = get_origin(kind), get_args(kind)
    if hasattr(kind, "__metadata__"):
        return type_name(arguments[0], held)
    if kind in PLAIN:
        return PLAIN[kind]
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        held.append(kind)
        return kind.__name__
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in arguments)
    if origin in (list, tuple):
        inner = [type_name(each, held) for each in arguments if each is not Ellipsis]
        return "list of " + ", ".join(inner) if origin is list else f"({', '.join(inner)})"
    if origin is dict:
        return f"{type_name(arguments[0], held)} → {type_name(arguments[1], held)}"
    if origin is Union or type(kind).__name__ == "UnionType":
        return " or ".join(type_name(each, held) for each in arguments if each is not NoneType)
    return "any JSON" if "Json" in str(kind) else getattr(kind, "__name__", str(kind))


def setup(app: Sphinx) -> ExtensionMetadata:
    """Register the directives."""
    app.add_directive("schema", Schema)
    app.add_directive("methods", Methods)
    return {"parallel_read_safe": True}
