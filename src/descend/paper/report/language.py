"""The figures on a language model: 6 (layers and noise) and 16 (answers under noise)."""

from collections.abc import Mapping, Sequence

from descend.paper.report.cells import Answer, arm_name, listed
from descend.paper.report.chart import Chart, Panel, arm_style
from descend.paper.report.claims import Claim, above, every, joint, not_run, ranged
from descend.paper.report.estimates import Interval, over_seeds
from descend.paper.report.parts import (
    BANDS,
    SEEDS,
    Shown,
    banded,
    by_level,
    layer_panel,
    noise_panel,
    outside,
    smoother,
    unit,
)
from descend.paper.report.results import Results, Setting

MARGIN = 0.5
"""Points of token accuracy that we take for none; the paper says "virtually no" loss in distribution."""

GRAM = 3
"""Words in a row that count as a repetition."""


def figure_6(results: Results) -> Shown:
    """Loss along the layers and token accuracy against noise, of a fine-tuned language model."""
    settings = results.where(task="language", paired=True)
    panels = []
    for setting in settings:
        panels.append(layer_panel(setting.arms, f"Loss, {setting.words}", setting.gamma))
        panels.append(noise_panel(setting.arms, setting.metric, setting.gamma))
    missing = "" if settings else "Not run: a language model with ERM and constrained."
    chart = Chart(
        "figure-6", "A language model: along the layers, and against noise", f"{SEEDS} {BANDS}", panels, 2, missing
    )
    says = (
        "The constrained language model descends more evenly along its layers.",
        "It is more accurate under strong noise.",
        f"Up to the training noise it is as accurate (here: at most {MARGIN:g} points less).",
    )
    if not settings:
        return Shown([not_run("figure-6", words, "a language model with ERM and constrained") for words in says], chart)
    setting = settings[-1]
    strong = outside(setting.constrained, setting.plain, setting.gamma).interval
    judged = every(by_level(setting.constrained, setting.plain, setting.gamma), above, -MARGIN)
    kind = unit(setting.constrained[0].higher)
    ends = listed([f"{ranged(end, kind)} at γ = {level:g}" for level, end in judged.ends.items()])
    claims = [
        smoother("figure-6", says[0], setting, neither="undecided"),
        Claim(
            "figure-6",
            says[1],
            above(strong),
            f"Over test noise above γ = {setting.gamma:g} the gain is {ranged(strong, kind)}.",
        ),
        Claim("figure-6", says[2], judged.held, f"The gain is {ends}."),
    ]
    return Shown(claims, chart)


def answers(results: Results) -> list[tuple[Setting, dict[str, list[Answer]]]]:
    """The settings whose runs went on from prompts, and the answers of each method's first seed."""
    found = []
    for setting in results.where(task="language"):
        told = {
            arm: next(run.completions for run in runs if run.completions)
            for arm, runs in setting.arms.items()
            if any(run.completions for run in runs)
        }
        if told:
            found.append((setting, told))
    return found


def figure_16(results: Results) -> Shown:
    """How much answers repeat themselves as the noise grows."""
    says = "Under noise the unconstrained model's answers fall into repetition; the constrained model's do so less."
    title = "How much answers repeat themselves"
    words = (
        f"The share of {GRAM} words in a row that an answer has had before; 0 without repetition. Bands: 95 % "
        "intervals over prompts."
    )
    panels, told = [], []
    for setting, by_arm in answers(results):
        found = {arm: _repeated(given) for arm, given in by_arm.items()}
        series = []
        for arm, levels in found.items():
            ends = [over_seeds(list(levels[level].values()), "over prompts") for level in sorted(levels)]
            series.append(banded(arm_name(arm), arm_style(arm), sorted(levels), ends))
        panels.append(Panel(setting.words, "noise γ on every token", "share repeated", series))
        ours, theirs = found.get("constrained", {}), found.get("erm", {})
        shared = sorted(ours.keys() & theirs.keys())
        if shared:
            level = shared[-1]
            told.append((level, _less(theirs[level], ours[level]), _less(theirs[level], theirs[min(theirs)])))
    missing = "" if told else "Not run: answers of ERM and constrained to the same prompts."
    chart = Chart("figure-16", title, words, panels, 1, missing)
    if not told:
        return Shown([not_run("figure-16", says, "answers of ERM and constrained")], chart)
    level, less, more = told[-1]
    sentence = (
        f"At γ = {level:g} ERM repeats more than it does without noise by {ranged(more, ' points')}, and more than "
        f"constrained does by {ranged(less, ' points')}; one seed of each method: other seeds may differ by more."
    )
    return Shown([Claim("figure-16", says, joint([above(more), above(less)]), sentence)], chart)


def _less(more: Mapping[str, float], fewer: Mapping[str, float]) -> Interval:
    """How many points more is repeated in the answers to the same prompts."""
    shared = sorted(more.keys() & fewer.keys())
    return over_seeds([100 * (more[prompt] - fewer[prompt]) for prompt in shared], f"over {len(shared)} prompts")


def _repeated(answers: Sequence[Answer]) -> dict[float, dict[str, float]]:
    """γ → prompt → the share of its answer that is repeated; an answer without words has none, and is left out."""
    found: dict[float, dict[str, float]] = {}
    for each in answers:
        if each.text.split():
            found.setdefault(each.noise, {})[each.prompt] = repetition(each.text)
    return found


def repetition(text: str) -> float:
    """The share of runs of words that occurred before in a text."""
    words = text.lower().split()
    grams = [tuple(words[place : place + GRAM]) for place in range(len(words) - GRAM + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0
