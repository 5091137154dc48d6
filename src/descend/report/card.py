"""Model cards: the README.md beside saved weights, with the verdict and the metric of every layer."""

import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from descend.declared import HEALED, SMALL
from descend.errors import InputError
from descend.report.answer import Answer
from descend.report.terminal import answer_lines
from descend.results import Summary, Trained, hub_name, read_config, read_summary, read_trained, without_adapters

TASKS = {
    "ForSequenceClassification": "text-classification",
    "ForTokenClassification": "token-classification",
    "ForQuestionAnswering": "question-answering",
    "ForCausalLM": "text-generation",
    "ForImageClassification": "image-classification",
}
"""The end of an architecture's name → the Hub's name of its task."""


def card_of_run(
    folder: Path,
    network: Any,
    command: str,
    *,
    checkpoint: str = "model",
    verdict: str = "",
    layers: int | None = None,
    own: bool = False,
    note: str = "",
    metadata: dict[str, Any] | None = None,
    holds: str = "",
) -> str:
    """The card of a run's model, with its summary if it has been evaluated.

    Args:
        folder: The run.
        network: The model of Transformers that is saved, with or without adapters.
        command: The command that trained it.
        checkpoint: Which of the run's models: ``model`` or ``best_feasible``.
        verdict: The verdict in words, for a run without a summary.
        layers: K, for an export of the first K layers; None for the whole model.
        own: Whether layers have exits of their own.
        note: A paragraph on how to load the model.
        metadata: Further metadata of the card.
        holds: What an export has of the first K layers; by default the head, and the output of exit K.
    """
    config, summary = read_config(folder), None
    with suppress(InputError):  # not evaluated yet, or damaged
        evaluated = read_summary(folder)
        summary = evaluated if evaluated.checkpoint == checkpoint else None
    settings: dict[str, Any] = config.settings
    trained = read_trained(folder / checkpoint) or Trained(method=config.method, seed=config.seed)
    start = str(settings.get("pretrained") or settings.get("model") or SMALL)
    begin = "" if start == SMALL else f", starting from {hub_name(start) or Path(start).name}"
    noise_on, read = "the input embedding", "The same head reads a prediction after every layer."
    if own:
        read = "Every layer has its own exit, which reads a prediction; `from_pretrained` loads the last one."
    if config.recipe == "embed":
        read = "The modules after the encoder read every layer's tokens."
    if config.recipe.startswith("video-"):
        noise_on = "the pixels"
        read = "It takes grey frames of 160×160 pixels, and each layer's output is read as such a frame."
    if config.recipe.startswith("video-") or config.recipe == "image":
        read += " Transparent images were laid on white."
    about = [
        f"{config.model}, trained on {config.dataset}{begin}, {_how(trained, noise_on)}. {read}{_notes(trained)}",
        _healed(settings),
        _texts(settings),
        note,
    ]
    if layers is not None:
        usual = (
            f"with the embedding and the {'exit of the last of them' if own else 'head'} of the whole model. Its "
            f"output is that of exit {layers} of the whole model."
        )
        about.append(f"This checkpoint holds the first {layers} of {config.depth} layers, {holds or usual}")
    elif summary is None:
        about.append("`descend evaluate` on the run's folder adds the metric of every layer and noise level.")
    return card(
        network,
        config.model if layers is None else f"{config.model}-first-{layers}",
        about,
        verdict=verdict,
        summary=summary,
        layer=layers,
        command=command,
        base_model=None if start == SMALL else hub_name(start),
        metadata=metadata,
        noise_on=noise_on,
    )


def card_of_model(
    network: Any,
    name: str,
    what: str,
    trained: Trained | None,
    *,
    settings: Mapping[str, Any] | None = None,
    note: str = "",
    **more: Any,
) -> str:
    """The card of a model without a run.

    Args:
        network: The model, with or without adapters.
        name: Its name.
        what: What it is, in sentences.
        trained: What it was trained with; None if not by Descend.
        settings: Of the recipe that read its data.
        note: A paragraph on how to load the model.
        **more: Further arguments of `card`.
    """
    if trained is not None:
        what += f" It was trained {_how(trained, 'the input embedding')}.{_notes(trained)}"
    return card(network, name, [what, _texts(settings or {}), note], **more)


def _healed(settings: Mapping[str, Any]) -> str:
    """A sentence on what of a cut model was trained; empty for a model whose whole was."""
    layers = settings.get("keep_layers")
    if not settings.get("heal") or not isinstance(layers, int):
        return ""
    return (
        f"The model was cut to its first {layers} layers and healed: the readout and the last {min(HEALED, layers)} "
        "blocks were trained, and all below them is as it was."
    )


def _texts(settings: Mapping[str, Any]) -> str:
    """Sentences on what a recipe of texts does to them before the tokenizer reads them; empty for other recipes."""
    if "truncate" not in settings or "max_length" not in settings:
        return ""
    longest = f"{settings['max_length']} tokens"
    cut = f"Texts were cut after {longest}." if settings["truncate"] else f"No text of its training had over {longest}."
    if settings.get("keep_markup", True):
        return f"{cut} Markup such as `<br />` was left in them."
    return f"{cut} A blank takes the place of `<br />` in them: do the same with yours, as `DescentClassifier` does."


def _how(trained: Trained, noise_on: str) -> str:
    """How a model was trained: its method, noise γ, of which γσ_x may be the variance, and seed."""
    variance = ", where γσ_x is the variance," if trained.noise_is == "variance" else ""
    noise = f", noise γ = {trained.noise:g}{variance} on {noise_on}" if trained.noise else ""
    return f"with the method `{trained.method}`{noise} and seed {trained.seed}"


def _notes(trained: Trained) -> str:
    """Sentences on the constraints of a model's training, Descend's version and a classifier's temperature."""
    asked = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in trained.problem.items())
    bounds = f" Its constraints: {asked}." if trained.method == "constrained" and asked else ""
    version = f" Trained with Descend {trained.version}." if trained.version else ""
    if trained.temperature == 1:
        return bounds + version
    divided = f"The head's last weights are divided by the temperature {trained.temperature:.4g}"
    return f"{bounds}{version} {divided}, fitted to the validation data."


def card(
    network: Any,
    name: str,
    about: Sequence[str],
    *,
    verdict: str = "",
    summary: Summary | None = None,
    layer: int | None = None,
    command: str = "",
    base_model: str | None = None,
    metadata: dict[str, Any] | None = None,
    noise_on: str = "the input embedding",
) -> str:
    """A card in Markdown, with its metadata in YAML before it.

    Args:
        network: The model that is saved, with or without adapters.
        name: Its name, the title.
        about: Paragraphs about the model and its training.
        verdict: The verdict in words, for a model without a summary.
        summary: The model's evaluation; None before it.
        layer: The layer that the model ends with, of those in the summary; None for the last one.
        command: The command that trained the model.
        base_model: The name on the Hub of the model that training started from; None for a new or a local one.
        metadata: Further metadata of the card, such as ``license``.
        noise_on: What the noise is added to.
    """
    from huggingface_hub import EvalResult, ModelCard, ModelCardData  # here, because it takes long

    given = metadata or {}
    architecture = type(without_adapters(network)).__name__
    task = next((task for end, task in TASKS.items() if architecture.endswith(end)), None)
    library = (
        "peft" if hasattr(network, "peft_config") else "transformers" if hasattr(network, "config_class") else "pytorch"
    )
    known: dict[str, Any] = {"model_name": name, "base_model": base_model, "pipeline_tag": task}
    alone = getattr(network, "_auto_class", None)  # its file lies beside the weights
    known["library_name"] = "descend" if type(network).__module__.startswith("descend.") and not alone else library
    parts = ["## Verdict", verdict] if verdict else []
    if summary is not None:
        parts = _measured(summary, layer, noise_on)
        last = -1 if layer is None else layer
        known["metrics"] = [summary.metric]
        known["eval_results"] = [
            EvalResult(
                task_type=task or "other",
                dataset_type=re.sub(r"[^\w-]+", "-", summary.dataset.lower()).strip("-") or "data",
                dataset_name=summary.dataset,
                dataset_split=summary.split,
                metric_type=summary.metric,
                metric_name=f"{summary.metric} at noise {level:g}",
                metric_value=float(f"{row[last]:.6g}"),
                metric_args={"noise": level, "shift": summary.shift, "samples": summary.samples},
            )
            for level, row in summary.layer_metrics.items()
            if math.isfinite(row[last])
        ]
    tags = given.get("tags") or []
    known |= given | {"tags": list(dict.fromkeys(["descend", *([tags] if isinstance(tags, str) else tags)]))}
    data = ModelCardData(**{key: value for key, value in known.items() if value})
    if command:
        parts += ["## How it was trained", f"```\n{command}\n```", "Local paths are shortened to their names."]
    text = "\n\n".join([f"# {name}", *filter(None, about), *parts])
    return str(ModelCard(f"---\n{data.to_yaml()}\n---\n\n{text}\n"))


def _measured(summary: Summary, layer: int | None, noise_on: str) -> list[str]:
    """The sections on an evaluation: the layers needed, the verdict, the quality of each layer, and noise."""
    answer = Answer.of(summary)
    parts = ["## How many layers suffice", f"```\n{answer_lines(answer)}\n```"]
    if summary.asked:
        parts += ["## Verdict", " ".join(filter(None, (answer.verdict, answer.certificate)))]
        parts += filter(None, [answer.dual])
    rows = [each for each in answer.constraints if each.violation is not None]
    if rows:
        columns: dict[str, list[object]] = {
            "layer": [each.layer for each in rows],
            "loss": [_short(each.loss) for each in rows],
            "violation": [_short(each.violation) for each in rows],
            "95 % interval": [" … ".join(map(_short, each.interval or ())) for each in rows],
            "λ": [_short(each.multiplier) for each in rows],
            "λ · violation, of the objective": [
                "" if each.slackness is None else f"{each.slackness:.1%}" for each in rows
            ],
        }
        columns = {head: cells for head, cells in columns.items() if any(map(str, cells))}
        parts += [
            _table(list(columns), list(zip(*columns.values(), strict=True))),
            f"At the training noise γ = {summary.train_noise:g}. A constraint holds where its violation is at most "
            f"0{'' if summary.few_groups else '; the intervals hold for all layers together'}.",
        ]
    if not summary.layer_metrics:
        return parts
    levels, last = summary.layer_metrics, -1 if layer is None else layer
    numbers = {summary.metric: levels, "loss": summary.layer_losses}  # one column where the metric is the loss
    count = "" if summary.samples is None else f", {summary.samples:,} samples"
    dataset = re.sub(r"[\s|]+", " ", summary.dataset)  # on one line
    place = f"{dataset}, {summary.split} split{count}"
    better = "larger" if summary.higher_is_better else "smaller"
    whole = "" if layer is None else f" This model ends with layer {layer} of {summary.depth}."
    end = "full depth" if layer is None else f"layer {layer}"
    clock, timed = summary.latency, []
    if clock is not None and len(clock.milliseconds) == summary.depth + 1:
        until = "" if layer is None else f"{clock.milliseconds[layer]:.3g} ms a sample until layer {layer}, and "
        timed.append(
            f"On {clock.device}, in batches of {clock.batch_size}, PyTorch takes {until}"
            f"{clock.milliseconds[-1]:.3g} ms{' a sample' * (layer is None)} for all {summary.depth} layers."
        )
    inputs = [_short(summary.input_metrics.get(level, math.nan)) for level in levels]
    return [
        *parts,
        "## Quality of each layer",
        f"{summary.metric} ({better} is better) on {place}, read after each layer.{whole}",
        _table(
            ["layer", *(f"γ = {level:g}" for level in levels)],
            [
                *([["the input itself", *inputs]] if summary.input_metrics else []),
                *([k, *(_short(row[k]) for row in levels.values())] for k in range(summary.depth + 1)),
            ],
        ),
        *timed,
        "## Noise",
        f"{' and '.join(numbers)} at {end} under {summary.shift} noise of level γ on {noise_on}, on {place}.",
        _table(
            ["γ", *numbers],
            [
                [f"{level:g}", *(_short(rows[level][last]) for rows in numbers.values())]
                for level in levels
                if level in summary.layer_losses
            ],
        ),
    ]


def _table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(str, row))} |" for row in lines)


def _short(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"
