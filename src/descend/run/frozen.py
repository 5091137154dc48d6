"""``descend layers``: a pretrained model as it is, with a readout fitted to each layer."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm
from transformers import PreTrainedConfig

from descend.declared import flag_of
from descend.errors import InputError, refuse
from descend.evaluation.layers import Batches, few
from descend.evaluation.probes import fit_exits
from descend.models import EmbedderConfig, causal, encoders, images
from descend.models.library import unknown
from descend.progress import is_quiet
from descend.recipes import RECIPES
from descend.recipes.base import config_of, has_classifier
from descend.results import CONFIG_FILE, MODELS, RESULTS, Provenance, holds_adapters, holds_model, refuse_foreign
from descend.run.run import earlier
from descend.settings import settings_of

FITTED = {"text": 2000, "image": 2000, "lm": 256}
"""Training samples that exits are fitted to, by recipe: as many as a CPU reads in a few minutes."""

MEASURED = {"text": 1000, "image": 1000, "lm": 64, "embed": 1000}
"""Test samples, and at most as many validation samples: what a CPU reads at every layer in a few minutes."""


def frozen_folder(model: str) -> Path:
    """Where the results are written by default: in the working directory, by the name of the model or of its run."""
    path = Path(os.path.abspath(model))
    if path.name in MODELS and (path.parent / CONFIG_FILE).is_file():
        path = path.parent if path.name == MODELS[0] else path.parent.with_name(f"{path.parent.name}-{path.name}")
    return Path(f"{path.name}-layers")


def frozen(
    model: str, data: str, out: Path | None, settings: Mapping[str, Any], most: int | None, task_name: str | None = None
) -> dict[str, Any]:
    """What a `Run` has of a pretrained model, see `Run.frozen`. Its readouts are fitted when the model is asked for."""
    if out is not None:
        refuse_foreign([out / name for name in RESULTS], "another folder by --out")
    run = Path(model) / MODELS[0]
    refuse(
        (
            holds_adapters(Path(model)) or holds_adapters(run),
            f"expected a model; {model} holds adapters of one. Write the whole by descend export RUN --layers L.",
        ),
        (holds_model(run), f"expected a model, and {model} is the folder of a run; give {run}."),
        (
            out is not None and ((out / CONFIG_FILE).exists() or (out / MODELS[0]).exists()),
            f"{out} holds a run or a model, whose evaluation would be lost. Choose another folder by --out.",
        ),
    )
    refuse((task_name not in (None, "embed"), f"task must be embed, or left out; got {task_name!r}."))
    name = task_name or _recipe_of(config_of(model), model)
    refuse(
        (most is not None and most < 2, f"--limit (most) must be at least 2 samples; got {most}."),
        *(
            (
                each not in settings_of(RECIPES[name].settings),
                f"{flag_of(each)} is none of descend train {name}, by which {model} is read. Leave it out.",
            )
            for each in settings
        ),
    )
    kind: Any = RECIPES[name].kind
    if name == "text":
        from descend.recipes.text import LinearlyReadRecipe  # needs the extra `text`

        kind = LinearlyReadRecipe
    recipe: Any = kind(model=model, data=data, **settings).completed()
    known: dict[str, Any] = {"settings": {"model": recipe.model, **settings}, "source": recipe.data}
    before = (earlier(out) if out else {}) or known
    if any(before.get(each) != value for each, value in known.items()):
        raise InputError(
            f"{out} holds results that are not those of {model} on these data in this form, and would be lost. Choose "
            "another folder by --out."
        )
    if name == "text" and (Path(model) / "modules.json").is_file() and not is_quiet():
        told = f"{model} is a SentenceTransformer: --task embed measures its layers on pairs of texts instead."
        tqdm.write(told, file=sys.stderr)
    parts, task = recipe.load(), recipe.task()
    lines, _ = recipe.about(parts)
    own_head = name in ("text", "image") and has_classifier(config_of(model))
    if own_head:
        lines.append("The model's own head is not used: each layer, the last one too, gets a new readout.")
    for line in [] if is_quiet() else lines:
        tqdm.write(line, file=sys.stderr)
    for passed_over in parts.notes:
        tqdm.write(f"{parts.name}: {passed_over}", file=sys.stderr)
    network: Any = recipe.network(parts)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    network.to(device).eval()
    batches = Batches(16, device, recipe.collate(parts.tokenizer))
    for part in (parts.train, parts.validation, parts.test):
        task.check(part, network.limits)
    validation = few(parts.validation, min(most or MEASURED[name], MEASURED[name]))
    how = "by least squares to the last layer's states" if name == "lm" else "by logistic regression"
    note = f"The model was not trained. Each layer's readout was fitted {how}."
    note += " Its own head was not used." * own_head
    if name == "embed":
        note = "The model was not trained. Every layer is read by what is behind the encoder."

    def fitted() -> dict[str, Any]:
        fits = name in FITTED
        read = fit_exits(network, task, few(parts.train, FITTED[name]), validation, batches) if fits else None
        return {"model": network, "validated": read}

    return {
        "folder": out,
        "load": fitted,
        "recipe": recipe,
        "tokenizer": parts.tokenizer,
        "task": task,
        "problem": None,
        "noise": recipe.corruption(None, 0).at(0.0),
        "batches": batches,
        "provenance": Provenance(
            recipe=name,
            method="plain",
            seed=0,
            model=recipe.label,
            note=note,
            **known,
        ),
        "data": parts,
        "samples": few(parts.test, most or MEASURED[name]),
        "name": parts.name,
        "validation": validation,
        "full_depth": "best",
        "shown": 0,
    }


def _recipe_of(config: PreTrainedConfig, model: str) -> str:
    """The recipe that reads a model's layers."""
    refuse(
        (
            config.model_type == EmbedderConfig.model_type,
            f"{model} is an embedding model: add --task embed, and give pairs or triplets of texts.",
        )
    )
    if config.model_type in images.FAMILIES:
        return "image"
    generates = any("CausalLM" in each or "LMHead" in each for each in config.architectures or ())
    if config.model_type in causal.FAMILIES and (generates or config.model_type not in encoders.FAMILIES):
        return "lm"
    if config.model_type in encoders.FAMILIES:
        return "text"
    known = dict.fromkeys([*encoders.FAMILIES, *causal.FAMILIES, *images.FAMILIES])
    raise InputError(f"{model}: {unknown(config.model_type, known)}")
