"""The page's words and numbers as HTML: the verdict and the table of runs."""

from collections.abc import Mapping, Sequence
from html import escape
from math import isfinite
from statistics import fmean, stdev
from typing import Any

from descend.report.runs import Arm, Group, RunView, Style, alphas

_MARKS = {"holds": "✓", "tentative": "≈", "broken": "✕", "open": "–"}


def verdict(groups: Sequence[Group], heading: str = "h2") -> str:
    """Whether the constraints hold, in plain words: the first thing on the page.

    Args:
        groups: The groups to judge; for a single one the words go into its layers.
        heading: The HTML element of the headline.
    """
    runs = [run for group in groups for run in group.runs if run.constrained]
    state = _state(runs)
    details = _details(groups[0]) if len(groups) == 1 else _by_group(groups)
    return (
        f'<div class="verdict {state}"><{heading} class="headline">'
        f'<span class="mark" aria-hidden="true">{_MARKS[state]}</span> '
        f"{_headline(runs)}</{heading}>{''.join(details)}</div>"
    )


def runs_table(groups: Sequence[Group]) -> str:
    """One row per arm, with mean ± standard deviation over seeds, gathered by group."""
    metrics = {group.metric for group in groups}
    metric = escape(metrics.pop()) if len(metrics) == 1 else "Metric"
    heads = (
        "Method",
        f"{metric}, mean over noise",
        "At training noise",
        "Feasible",
        "Descending layers",
        "Time",
    )
    bodies = []
    for group in groups:
        name = f'<tr class="group"><th colspan="{len(heads)}" scope="rowgroup">{group_name(group)}</th></tr>'
        rows = [_row(heads, _arm_cells(arm), arm.style) for arm in group.arms]
        bodies.append(f"<tbody>{name if len(groups) > 1 else ''}{''.join(rows)}</tbody>")
    several = any(len(arm.runs) > 1 for group in groups for arm in group.arms)
    return _table(heads, "".join(bodies)) + (_every_run(groups) if several else "")


def layers_table(run: RunView, heading: str, *, opened: bool) -> str:
    """What each layer had to reach at the training noise, and what it does, one row per layer.

    Args:
        run: A run with constraints.
        heading: What folds the table away.
        opened: Whether the page shows it unfolded.
    """
    heads = ("Layer", "Loss", "Had to reach", "Violation", "Lowers the loss by at least")
    losses, to_reach = run.layer_losses[run.train_noise], run.losses_to_reach(run.train_noise)
    rows = []
    for layer in range(1, run.depth + 1):
        violation = _number(run.violations[layer - 1]) if run.asks(layer) else "–"
        cells = [
            f"Layer {layer}",
            _number(losses[layer]),
            _number(to_reach.get(layer)),
            f"<strong>{violation}</strong>" if layer in run.violated else violation,
            _at_least(run.certified[layer - 1]) if run.certified else "–",
        ]
        rows.append(_row(heads, cells))
    table = _table(heads, f"<tbody>{''.join(rows)}</tbody>")
    return f"<details{' open' * opened}><summary>{escape(heading)}</summary>{table}</details>"


def _at_least(share: float) -> str:
    return f"{share:.1%}" if share > 0 else "not certain"


def group_name(group: Group) -> str:
    """The group in words, escaped; what was judged is named where it is not the final model on test data."""
    plain = all(run.method == "plain" for run in group.runs)
    words = f"{group.model} on {group.dataset}, " + ("as given" if plain else f"trained at γ = {group.train_noise:g}")
    words += f", judged on the {group.split} split" if group.split != "test" else ""
    words += f", under {group.shift} noise" if group.shift != "gaussian" else ""
    words += f", {group.checkpoint.replace('_', ' ')} checkpoint" if group.checkpoint != "model" else ""
    return escape(words)


def _state(runs: Sequence[RunView]) -> str:
    known = [run.feasible for run in runs]
    if any(feasible is False for feasible in known):
        return "broken"
    if not runs or not all(known):
        return "open"
    return "holds" if all(run.certain for run in runs) else "tentative"


def _headline(runs: Sequence[RunView]) -> str:
    if not runs:
        return "Trained without constraints: nothing is promised about the layers"
    total, feasible = len(runs), sum(run.feasible is True for run in runs)
    certain = sum(run.certain for run in runs)
    scope = f", in all {total} runs" if total > 1 else ""
    match _state(runs):
        case "holds":
            return f"Feasible: every layer lowers the loss as asked{scope}"
        case "tentative":
            return f"Feasible as far as the data can tell{scope}" + (f"; beyond doubt in {certain}" if certain else "")
        case "broken" if total == 1:
            return "Not feasible: the constraints do not hold"
        case "broken":
            return f"Not feasible in {total - feasible} of {total} runs: there the constraints do not hold"
        case _:
            return "Not judged: whether the constraints hold was not measured"


def _details(group: Group) -> list[str]:
    arms = [arm for arm in group.arms if arm.runs[0].constrained] or group.arms
    said: dict[str, dict[str, list[int]]] = {}
    for arm in arms:
        for run in arm.runs:
            words = " ".join(filter(None, (run.verdict, run.certificate)))
            said.setdefault(words, {}).setdefault(arm.label, []).append(run.seed)
    lines = []
    for words, speakers in said.items():
        who = "; ".join(
            (f"{escape(label)}, seed" if len(arms) > 1 else "Seed") + f"{'s' * (len(seeds) > 1)} {_listed(seeds)}"
            for label, seeds in speakers.items()
        )
        lines += [f"<p>{f'<b>{who}.</b> ' * (len(said) > 1)}{escape(words)}</p>"] if words else []
    lines += [f"<p>{escape(note)}</p>" for note in dict.fromkeys(run.note for run in group.runs if run.note)]
    lines += [f"<p>{words}</p>" for arm in arms for words in _measured(arm, group)]
    asked = {words: None for arm in arms for words in [_asked(arm)] if words}
    return [*lines, *(f"<p>{words}</p>" for words in asked), *_gain(group)]


def _measured(arm: Arm, group: Group) -> list[str]:
    """What else was found of an arm's first run, in words."""
    run, who = arm.runs[0], f"{escape(arm.label)}: " if len(group.arms) > 1 else ""
    words = []
    if run.ratio_mean is not None and run.ratio_median is not None:
        words.append(
            f"{who}{'a' if who else 'A'} layer changes the loss of a single sample by a factor of "
            f"{_number(run.ratio_mean)} in the mean, {_number(run.ratio_median)} in the median."
        )
    if run.exit:
        words.append(who + escape(left_early({"exit": run.exit, "metric": run.metric})))
    if len(group.arms) == 1 and run.higher_is_better and run.auc is not None:
        words.append(f"The area under the {escape(group.metric.lower())} over γ is {_number(run.auc)}.")
    return words


def left_early(summary: Mapping[str, Any]) -> str:
    """What leaving early costs and saves, in words, of a ``summary.json`` with an ``exit``."""
    found, metric = summary["exit"], summary["metric"]
    chosen = found["chosen"]
    return (
        f"Leaving at a confidence of {chosen['threshold']:g}, chosen on validation data, uses {chosen['layers']:.2f} "
        f"of {found['depth']} layers on average and {chosen['time_ratio']:.2f} of the time: {metric} "
        f"{chosen[metric]:.3f} against {found['full']:.3f} at full depth, on clean inputs."
    )


def drafted(summary: Mapping[str, Any]) -> str:
    """What drafting by the first layers is worth, in words, of a ``summary.json`` with a ``speculation``."""
    layers = summary["speculation"]["layers"]
    if not layers:
        return "No prompt leaves room for an answer to draft."
    best = max(layers, key=lambda one: one["speed"])
    return (
        f"Drafting by the first {best['layer']} of {summary['depth']} layers writes {best['speed']:.2f} times the "
        f"tokens per second of full depth ({summary['speculation']['tokens_per_second']:.0f}), with the same answers: "
        f"{100 * best['acceptance']:.0f} % of what is drafted is kept."
    )


def _asked(arm: Arm) -> str:
    """What the constraints ask, in words; nothing where it is not known."""
    steps, strength = alphas(arm.limits), arm.runs[0].strength
    if not steps:
        words = "What each layer had to reach follows from the losses, at a strength of"
        return f"{words} {strength:g}." if arm.runs[0].constrained and strength is not None else ""
    first, last = min(steps), max(steps)
    layers = f"layers {first} to {last}" if last > first else f"layer {first}"
    sizes = [f"{100 * step:.2g}" for step in steps.values()]
    listed = sizes[0] if len(set(sizes)) == 1 else f"{', '.join(sizes[:-1])} and {sizes[-1]}"
    return f"Asked of {layers}: a loss lower than that of the layer before by {listed} %."


def _listed(numbers: Sequence[int]) -> str:
    *most, last = map(str, numbers)
    return f"{', '.join(most)} and {last}" if most else last


def _gain(group: Group) -> list[str]:
    plain = next((arm for arm in group.arms if arm.method == "erm"), None)
    if plain is None or len(group.arms) == 1:
        return []
    if any(run.noise != plain.runs[0].noise for run in group.runs):
        return ["<p>The runs were evaluated at different noise levels, so their means do not compare.</p>"]
    lines = []
    before = fmean(run.mean for run in plain.runs)
    for arm in group.arms:
        if arm is plain:
            continue
        after = fmean(run.mean for run in arm.runs)
        change = (after - before) / before if before else float("nan")
        words = f": {abs(change):.1%} {'higher' if change > 0 else 'lower'}" if isfinite(change) else ""
        lines.append(
            f"<p>Over all noise levels, {escape(arm.label)} has a mean {escape(group.metric)} of "
            f"<b>{_number(after)}</b> against ERM’s <b>{_number(before)}</b>{words}.{_areas(arm, plain)}</p>"
        )
    return lines


def _areas(arm: Arm, plain: Arm) -> str:
    """The area under the metric over γ, which papers on accuracy report; nothing for errors."""
    pairs = [[run.auc for run in each.runs if run.auc is not None] for each in (arm, plain)]
    if not arm.runs[0].higher_is_better or not all(pairs):
        return ""
    ours, theirs = map(fmean, pairs)
    return f" The area under it over γ is {_number(ours)} against {_number(theirs)}."


def _by_group(groups: Sequence[Group]) -> list[str]:
    items = []
    for index, group in enumerate(groups):
        state = _state([run for run in group.runs if run.constrained])
        items.append(
            f'<li class="{state}"><span class="mark" aria-hidden="true">{_MARKS[state]}</span> '
            f'<a href="#group-{index}">{group_name(group)}</a></li>'
        )
    return [f'<ul class="groups">{"".join(items)}</ul>']


def _every_run(groups: Sequence[Group]) -> str:
    heads = ("Run", "Seed", "Mean over noise", "At training noise", "Feasible")
    rows = [
        _row(
            heads,
            [
                f"{escape(run.name)} <small>{group_name(group)}</small>" if len(groups) > 1 else escape(run.name),
                str(run.seed),
                _number(run.mean),
                _number(train_value(run)),
                _feasible([run]),
            ],
            arm.style,
        )
        for group in groups
        for arm in group.arms
        for run in arm.runs
    ]
    table = _table(heads, f"<tbody>{''.join(rows)}</tbody>")
    return f"<details><summary>Every run by itself</summary>{table}</details>"


def _arm_cells(arm: Arm) -> list[str]:
    seeds = f" <small>{len(arm.runs)} seeds</small>" if len(arm.runs) > 1 else ""
    shares = [run.descending_share for run in arm.runs if run.descending_share is not None]
    seconds = [run.seconds for run in arm.runs if run.seconds is not None and isfinite(run.seconds)]
    return [
        escape(arm.label) + seeds,
        _spread([run.mean for run in arm.runs]),
        _spread([train_value(run) for run in arm.runs]),
        _feasible(arm.runs),
        f"{fmean(shares):.0%}" if shares else "–",
        _duration(fmean(seconds)) if seconds else "–",
    ]


def train_value(run: RunView) -> float | None:
    """The metric at the training noise, if it was measured there."""
    if run.train_value is not None:
        return run.train_value
    return dict(zip(run.noise, run.values, strict=True)).get(run.train_noise)


def _feasible(runs: Sequence[RunView]) -> str:
    known = [run.feasible for run in runs if run.feasible is not None]
    if not known:
        return "–"
    words = f"{sum(known)} of {len(known)}" if len(known) > 1 else "yes" if known[0] else "no"
    if not all(known):
        return f"<strong>{words}</strong>" if runs[0].constrained else words
    return words if all(run.certain for run in runs) else f"{words} <small>as far as can be told</small>"


def _table(heads: Sequence[str], bodies: str) -> str:
    head = "".join(f'<th scope="col">{text}</th>' for text in heads)
    return f"<table><thead><tr>{head}</tr></thead>{bodies}</table>"


def _row(heads: Sequence[str], cells: Sequence[str], style: Style | None = None) -> str:
    key = f'<i class="key" style="--light:{style.light};--dark:{style.dark}"></i>' if style else ""
    rest = "".join(f'<td data-head="{head}">{cell}</td>' for head, cell in zip(heads[1:], cells[1:], strict=True))
    return f'<tr><th scope="row">{key}{cells[0]}</th>{rest}</tr>'


def _spread(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return _number(known[0] if known else None)
    digits = 3 if abs(fmean(known)) < 1 else 2
    spread = f" ± {stdev(known):.{digits}f}" if all(map(isfinite, known)) else ""
    return _number(fmean(known)) + spread


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    if not isfinite(value):
        return "diverged"
    return f"{value:.2f}" if 1 <= abs(value) < 1e4 or value == 0 else f"{value:.3g}"


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
