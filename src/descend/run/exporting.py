"""Export the first K layers of a run's model as a smaller checkpoint."""

import json
import shlex
from collections.abc import Callable
from copy import deepcopy
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from descend.contract import resolve
from descend.declared import AUTO, BEST, CERTIFIED
from descend.errors import InputError, refuse
from descend.evaluation.needed import held
from descend.models import (
    Denoiser,
    LayeredCausalLM,
    LayeredModel,
    LibraryModel,
    keep_first,
    load_model,
    merged,
    refuse_broken,
)
from descend.report.answer import Answer, enough_sentence
from descend.report.card import card_of_model
from descend.report.terminal import answer_lines
from descend.report.words import full_depth_words, metric_name, tolerance_words
from descend.results import (
    CONFIDENCE,
    MODELS,
    SUMMARY_FILE,
    TRAINED_KEY,
    WITHIN,
    CompareWith,
    Results,
    RunConfig,
    Summary,
    Trained,
    atomic_folder,
    best_layer,
    hub_name,
    read_config,
    read_summary,
    read_trained,
    without_adapters,
    write_card,
)
from descend.run.describing import run_card
from descend.run.formats import EXPECTED, Format, shape_of, usual_format
from descend.run.loading import of_run, provenance_of
from descend.run.onnx import Onnx
from descend.run.run import Run
from descend.run.sentences import SentenceTransformers
from descend.writing import refuse_full

_FORMATS: dict[str, type[Format]] = {each.name: each for each in (Format, Onnx, SentenceTransformers)}


def choose(
    folder: Path,
    tolerance: float,
    model: str = "model",
    baseline: Path | None = None,
    *,
    how: str = AUTO,
    compare_with: CompareWith | None = None,
    answered: bool = False,
) -> tuple[int, list[str]]:
    """The smallest K such that layer K and all deeper ones, up to full depth, are within a tolerance of it.

    Or the best layer, if ``how`` is `BEST`. It is the K of ``descend evaluate``, or with a baseline that of ``descend
    compare``. Nothing is written.

    Args:
        folder: The run, evaluated on its own data.
        tolerance: One of `WITHIN`: percentage points of an accuracy, percent of an error.
        model: The run's model: ``model`` or ``best_feasible``.
        baseline: The evaluated run to whose full depth layers are held; None for that of the evaluation.
        how: `AUTO`, `CERTIFIED` or `BEST`. Of a metric without bounds nothing is certified: then `CERTIFIED` is
            refused, and the error says which layer the test data estimate.
        compare_with: Which layer counts as full depth, the ``last`` one or the ``best`` on validation data; None for
            that of the evaluation.
        answered: Whether the evaluation's answer was said before: then it is left out.

    Returns:
        K, at least 1; and in words: the metric of each layer on validation data, the evaluation's answer, and whether
        a K that was chosen on validation data is not certified.

    Raises:
        InputError: If the tolerance is another, the run or the baseline was not evaluated, or no layer is within the
            tolerance.
    """
    check_choice(tolerance)
    summary = read_summary(folder) if (folder / SUMMARY_FILE).is_file() else None
    known = ("test", "gaussian", model)
    if (
        summary is None
        or summary.validation is None
        or (summary.split, summary.shift, summary.checkpoint) != known
        or not (baseline or summary.layers_needed.chosen)
    ):
        again = f"descend evaluate {shlex.quote(str(folder))}{f' --model {model}' * (model != MODELS[0])}"
        raise InputError(f"K is chosen by an evaluation of {folder / model} on its own data. Type first: {again}")
    measured, beside = summary.validation, ""
    better = summary.higher_is_better
    within, digits = tolerance_words(tolerance, better), 4 if better else 2
    if compare_with is not None and baseline is None:
        baseline = summary.layers_needed.held_folder(folder)
    if baseline is not None:
        run, plain = Results.with_groups(folder), Results.with_groups(baseline)
        summary = held(run, plain.of(run.data), compare_with)
        theirs = plain.validated(measured.samples, measured.fingerprint, summary.train_noise)  # or no K is chosen
        full = theirs[summary.layers_needed.full_layer or 0]
        beside = f", {full:.{digits}f} in {baseline}"
    elif compare_with is not None:
        summary = held(Results.with_groups(folder), None, compare_with)
    needed, top = summary.layers_needed, summary.top
    certain, choice = needed.within.get(int(tolerance)), needed.chosen.get(int(tolerance))
    itself = certain == top and needed.baseline is None  # the layer that the others were compared with
    unbounded = needed.bounded is False
    whole = f"{within} of {full_depth_words(summary)}"
    refuse(
        (
            how == CERTIFIED and unbounded,
            f"no test certifies layers by {metric_name(summary)}, which is not known to be a share of the samples. "
            f"Test data estimate, with {CONFIDENCE:.0%} confidence, that "
            f"{'no layer' if certain is None else f'layer {certain}'} is within {whole}. Name the "
            f"layers, or take --layers {AUTO}, the choice of validation data.",
        ),
        (
            how == CERTIFIED and top == 0,
            "the embedding alone is the best layer on validation data, and no layer was compared with it: name the "
            "layers, or take --compare-with last.",
        ),
        (
            how == CERTIFIED and certain is None,
            " ".join(
                filter(
                    None,
                    (
                        f"test data certify no layer within {whole}.",
                        enough_sentence(summary),
                        f"Evaluate on more, allow more by --tolerance, or take --layers {AUTO}, the choice of "
                        "validation data.",
                    ),
                )
            ),
        ),
        (
            how == AUTO and choice is None,
            f"no layer is within {whole} on validation data: {summary.metric} {measured.metric[top]:.{digits}f} after "
            f"{'the last one' if top == summary.depth else f'layer {top}'}{beside}. Allow more by --tolerance, or name "
            "the layers.",
        ),
    )
    found = certain if how == CERTIFIED or choice is None else choice.layer
    if how == BEST:
        found = best_layer(measured.metric, higher_is_better=better)
    layer = max(found or 0, 1)
    rows = [f"layer {place}: {summary.metric} {value:.{digits}f}" for place, value in enumerate(measured.metric)]
    rows[found or 0] += {AUTO: f" <- chosen within {within}", BEST: " <- the best"}.get(how, "")
    title = f"{measured.samples} validation samples at γ = {summary.train_noise:g}{beside}:"
    lines = [title, *rows, *([] if answered else [answer_lines(Answer.of(summary))])]
    if found == 0:
        alone, first = (f"{value:.{digits}f}" for value in measured.metric[:2])
        lines.append(f"The embedding alone is no model: layer 1 is taken, with {first} in place of {alone}.")
    if how == CERTIFIED and itself:
        lines.append(f"Test data certify no smaller layer within {whole}: layer {layer} is that layer itself.")
        lines += filter(None, [enough_sentence(summary)])
    elif how == CERTIFIED:
        lines.append(f"Test data certify layer {layer} within {whole}.")
    elif (certain is None or layer < certain) and (needed.baseline or layer < top):
        verb, whose = ("estimate", certain) if unbounded else ("certify", CERTIFIED)
        smaller = "no smaller layer than the reference itself"
        surely = "no layer" if certain is None else smaller if itself else f"layer {certain}: --layers {whose}"
        lines.append(
            f"WARNING: layer {layer} was chosen on validation data, and test data do not {verb} it within {within}. "
            f"They {verb} {surely}."
        )
    return layer, lines


def export(run: Run, layers: int, out: Path, format: str | None = None) -> list[str]:
    """Write the first K layers of a run's model in a folder, with its tokenizer and a model card.

    The embedding, the final norm and the head are the whole model's, and so is the type of the weights; where layer K
    has an own exit, it becomes the norm and head. Adapters are added to the weights, in float32. Before the folder is
    put in place it is loaded again, and its output on small made-up inputs is compared with that of exit K.

    Args:
        run: A run of a folder, a pretrained model with fitted readouts, or a model in memory.
        layers: K, from 1 to the number of layers.
        out: The folder to write; it must be empty or not exist.
        format: One of `FORMATS`: ``transformers``, a checkpoint of it; ``onnx``, a ``model.onnx`` in float32;
            or ``sentence-transformers``, an embedding model. None for that of the model, see `usual_format`.

    Returns:
        What was written, in words, and for a language model what to type to draft with it. The last line compares it
        with the whole model, and says what serves it.

    Raises:
        InputError: If the folder holds no finished run, K is out of range, ``out`` is not empty, or the family can't be
            cut or written this way.
        SaveError: If the checkpoint can't be written.
    """
    if format is None:
        recipe = read_config(run.model_folder.parent).recipe if run.of_folder else run.provenance.recipe
        format = usual_format(recipe)
    check_format(format)
    whole = _whole_of_run(run, layers, out, format) if run.of_folder else _whole_in_memory(run, layers, out)
    network, depth, source = whole.network, whole.network.depth, whole.source
    adapters = hasattr(network.saved, "peft_config")
    own = isinstance(network, LibraryModel) and network.own_exits is not None
    summary, before = run.evaluated, _parameters(network.saved)
    plain, written = _write(whole, layers, out, _FORMATS[format])
    lines = [f"{out}: the first {layers} of {depth} layers of {source}."]
    if layers == depth:
        lines.append("No layer is left out.")
    if getattr(plain.config, "tied", False):
        lines.append(f"Its layers share one set of weights: the copy has all of them and runs {layers} times.")
    if isinstance(network, LayeredCausalLM) and layers < depth:
        lines += _draft_lines(out, source, layers, depth, adapters, early=network.family.drafts and not own)
    if note := written.note(plain):
        lines.append(note.partition("\n")[0])
    return [*lines, _compared(summary, layers, depth, out, plain, before, written)]


@dataclass(frozen=True)
class _Whole:
    """A model that is about to be cut.

    Attributes:
        network: The model, a `LibraryModel` or a `Denoiser`; it is cut in place.
        tokenizer: Its tokenizer, or None.
        source: What it is called.
        start: The model that the training, or the fitting of readouts, began with; None for a new one.
        origin: More about where the checkpoint comes from, for its configuration.
        dtype: The type of the weights; None for float32.
        card: Makes the card of the cut model. It takes a note on how to load it, further metadata, and what is in it.
    """

    network: Any
    tokenizer: Any
    source: str
    start: str | None
    origin: dict[str, Any]
    dtype: torch.dtype | None
    card: Callable[..., str]


def _whole_of_run(run: Run, layers: int, out: Path, format: str) -> _Whole:
    """The model of a run's folder."""
    folder, source = run.model_folder.parent, run.model_folder
    check_export(folder, layers, out, format)
    config, trained = read_config(folder), read_trained(source)
    loaded = of_run(folder, run.checkpoint)  # anew: it will be cut
    network = loaded["model"]
    own = isinstance(network, LibraryModel) and network.own_exits is not None
    adapters = hasattr(network.saved, "peft_config")
    origin: dict[str, Any] = trained.content() if trained else {}
    return _Whole(
        network,
        loaded["tokenizer"],
        str(source),
        _start(config),
        origin | {"model": config.model, "recipe": config.recipe, "method": config.method, **config.export_entries},
        None if adapters else load_model(type(network.saved.config), source, "a model", EXPECTED).dtype,
        lambda plain, **more: run_card(folder, plain, checkpoint=run.checkpoint, layers=layers, own=own, **more),
    )


def _start(config: RunConfig) -> str | None:
    """The model that a run began with."""
    start = config.settings.get("model")
    return str(start) if start else None


def _whole_in_memory(run: Run, layers: int, out: Path) -> _Whole:
    """A copy of a model without a run's folder."""
    network, depth = run.model, run.model.depth
    refuse(
        (
            not isinstance(network, LibraryModel | Denoiser),
            "expected a model of Transformers; got one of your own. Cut its list of blocks: blocks[:K].",
        ),
        (
            isinstance(layers, bool) or not isinstance(layers, int) or not 1 <= layers <= depth,
            f"layers must be 1 to {depth}, the layers of the model; got {layers!r}.",
        ),
    )
    refuse_full(out, "another folder")
    trained = Trained.of(getattr(getattr(network.saved, "config", None), TRAINED_KEY, None))
    label, summary, source = run.provenance.model, run.evaluated, getattr(run.recipe, "model", None)
    usual = (
        f"with its embedding and the readout of layer {layers}. The output is that of exit {layers} of the whole model."
    )
    return _Whole(
        deepcopy(network).cpu(),
        run.tokenizer,
        source or label,
        source,
        trained.content() if trained else {},
        None if hasattr(network.saved, "peft_config") else network.saved.dtype,
        lambda plain, holds="", **more: card_of_model(
            plain,
            f"{label}-first-{layers}",
            f"The first {layers} of {depth} layers of {label}, {holds or usual} {run.provenance.note or ''}".strip(),
            trained,
            settings=asdict(run.recipe) if run.recipe else {},
            summary=summary,
            layer=layers,
            base_model=hub_name(source) if source else None,
            **more,
        ),
    )


def _parameters(network: nn.Module) -> float:
    """A model's parameters, in millions."""
    return sum(each.numel() for each in network.parameters()) / 1e6


def _compared(
    summary: Summary | None,
    layers: int,
    depth: int,
    out: Path,
    plain: PreTrainedModel,
    before: float,
    written: Format,
) -> str:
    """What an export gives against the whole model, and the line of code that serves it."""
    parts = []
    if summary is not None and summary.depth != depth:
        summary = None  # of another model
    if summary is not None:
        metric = summary.layer_metrics[summary.train_noise]
        digits = 4 if summary.higher_is_better else 2
        parts.append(f"{summary.metric} {metric[layers]:.{digits}f} ({metric[-1]:.{digits}f})")
    parts.append(f"{_parameters(plain):.3g} million parameters ({before:.3g})")
    if summary is not None and summary.latency is not None:
        times = summary.latency.milliseconds
        parts.append(f"{times[layers]:.3g} ms a sample{written.timed} ({times[-1]:.3g})")
    served = written.serving_line(plain, out)
    return f"{out} (all {depth} layers in brackets): {', '.join(parts)}.{f' Serve it: {served}' if served else ''}"


def _draft_lines(out: Path, source: str, layers: int, depth: int, adapters: bool, *, early: bool) -> list[str]:
    """What to type to draft with an export; ``early`` says whether ``assistant_early_exit`` saves layers, too."""
    whole, lines = source, []
    if adapters:
        whole = "WHOLE"
        lines.append(
            f"{source} holds adapters. For the lines below export the whole model too, with --layers {depth} "
            "--out WHOLE."
        )
    lines += [
        "Let it draft, in Transformers:",
        f"  model = AutoModelForCausalLM.from_pretrained({whole!r})",
        f"  draft = AutoModelForCausalLM.from_pretrained({str(out)!r})",
        "  model.generate(**inputs, assistant_model=draft)",
    ]
    if early:
        lines += ["or without this checkpoint:", f"  model.generate(**inputs, assistant_early_exit={layers})"]
    draft = json.dumps({"method": "draft_model", "model": str(out), "num_speculative_tokens": 5})
    return [*lines, "in vLLM:", f"  vllm serve {shlex.quote(whole)} --speculative-config {shlex.quote(draft)}"]


def export_model(
    model: nn.Module, layers: int, out: str | Path, tokenizer: Any = None, *, format: str | None = None
) -> None:
    """Write the first K layers of a model in a folder, as `export` does for a run.

    Args:
        model: A model of Transformers whose layers can be read, such as ``trainer.model``, with adapters or without. It
            is not changed.
        layers: K, from 1 to the number of layers.
        out: The folder to write; it must be empty or not exist.
        tokenizer: The model's tokenizer, to save beside it.
        format: What to write, see `export`.

    Raises:
        InputError: If it is another kind of model, K is out of range, ``out`` is not empty, or the family can't be cut
            or written this way.
        SaveError: If the checkpoint can't be written.
    """
    network = model if isinstance(model, LayeredModel) else resolve(model, None, None)[0]
    label = type(without_adapters(network.saved)).__name__
    run = Run(model=network, tokenizer=tokenizer, provenance=provenance_of(None, recipe="", model=label), recipe=None)
    export(run, layers, Path(out), format)


def _write(whole: _Whole, layers: int, out: Path, kind: type[Format]) -> tuple[Any, Format]:
    """Cut a model, write it with its card, and read it again to compare its output with that of exit K.

    Args:
        whole: The whole model.
        layers: K.
        out: The folder.
        kind: What to write.

    Returns:
        The cut model, and the format that it was written in.
    """
    network, depth = whole.network.eval(), whole.network.depth
    refuse_broken(network, "the model to export")
    if kind.compared_in is not None:
        network.to(kind.compared_in)
    form = kind(network, whole.tokenizer, layers, whole.start)
    with torch.no_grad():
        expected = [form.expected(network, inputs) for inputs in form.batches]
    if hasattr(network.saved, "peft_config"):
        network = type(network)(merged(network.saved))
    keep_first(network, layers)
    if isinstance(network, LibraryModel):
        network.share_readout()
    plain: Any = network.saved
    # Kept by from_pretrained and save_pretrained, so that a copy still says where it comes from.
    setattr(plain.config, TRAINED_KEY, {**whole.origin, "exported_layers": layers, "of_layers": depth})
    plain.to(kind.dtype or whole.dtype or torch.float32)
    note = form.card_note(plain)
    with atomic_folder(out, alone=False) as part:
        output = form.write(plain, part)
        size = sum(file.stat().st_size for file in part.rglob("*") if file.is_file()) / 1e6
        on_disk = f"The folder takes {size:.3g} MB."
        about = f"{note}\n\n{on_disk}".strip()
        write_card(part, whole.card(plain, note=about, metadata=kind.metadata, holds=form.holds))
        for inputs, wanted in zip(form.batches, expected, strict=True):
            if not form.agrees(output(inputs), wanted):
                raise InputError(
                    f"{type(plain).__name__} can't be exported: its first {layers} layers alone do not give the output "
                    f"of exit {layers} on inputs of {shape_of(inputs)}. Nothing was written.{form.instead}"
                )
    return plain, form


def check_format(format: str | None, recipe: str = "", start: str | None = None) -> None:
    """Refuse a format that can't be written, before any work is done.

    Args:
        format: One of `FORMATS`; None for that of the model.
        recipe: The name of the recipe whose model it is; empty if it is not known yet.
        start: The model that it began with, if the recipe is known.

    Raises:
        InputError: If it is none of them, or can't hold a model of the recipe.
        MissingPackageError: If a package that it needs is not installed.
    """
    format = format or usual_format(recipe)
    refuse((format not in _FORMATS, f"format must be one of {', '.join(_FORMATS)}; got {format!r}."))
    _FORMATS[format].check(recipe, start)


def check_choice(tolerance: float, layers: int | None = None, depth: int = 0, name: str = "") -> None:
    """Refuse what no K can be chosen by.

    Args:
        tolerance: Of the choice.
        layers: K, where it is given.
        depth: L, the layers of the model.
        name: What the model is called.

    Raises:
        InputError: If the tolerance is none of `WITHIN`, or K is out of range.
    """
    refuse(
        (
            layers is not None and (isinstance(layers, bool) or not isinstance(layers, int)),
            f"layers must be a whole number; got {layers!r}.",
        ),
    )
    refuse(
        (
            tolerance not in WITHIN,
            f"tolerance must be {WITHIN[0]}, {WITHIN[1]} or {WITHIN[2]}, for which descend evaluate chooses K; got "
            f"{tolerance:g}. Give one of them, or name the layers.",
        ),
        (
            layers is not None and not 1 <= layers <= depth,
            f"layers must be 1 to {depth}, the layers of {name}, {AUTO}, {CERTIFIED} or {BEST}; got {layers}.",
        ),
    )


def check_export(folder: Path, layers: int | None, out: Path, format: str | None = None) -> None:
    """Refuse what `export` can't write, before anything is loaded.

    Args:
        folder: The run.
        layers: K; None if it is chosen later.
        out: The folder to write.
        format: One of `FORMATS`.

    Raises:
        InputError: If the folder holds no finished run, K is out of range, ``out`` is not empty, or the format can't
            hold the model.
        MissingPackageError: If a package that the format needs is not installed.
    """
    config = read_config(folder)
    check_format(format, config.recipe, _start(config))
    refuse((not config.finished, f"{folder} is not finished. Finish it first: the same descend train with --resume."))
    if config.depth is not None:
        check_choice(WITHIN[0], layers, config.depth, str(folder))
    refuse_full(out)
