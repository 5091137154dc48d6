"""The page of a study: one file, no network.

It opens with a few sentences, a picture and the grids of gains. Folded claims, figures, tables, pictures and answers
follow.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from descend.errors import InputError
from descend.report import Frames, Slider, pictures_view, plain_layout, write_interactive
from reproduction.records import Answer
from reproduction.report.cells import arm_name
from reproduction.report.chart import Series
from reproduction.report.claims import Claim, Held
from reproduction.report.drawing import put_figures, requested, shown
from reproduction.report.heat_map import HeatMap, heat_maps, opened
from reproduction.report.opening import SETTING_WORDS, findings, picture
from reproduction.report.parts import Shown
from reproduction.report.plotly_charts import plot_panel
from reproduction.report.results import FORMS, Results, Setting
from reproduction.report.selections import answered
from reproduction.scales import SCALES

FRAMES_BUDGET = 4_500_000
"""Characters that pictures may take: with plotly.js (5 MB) and the runs the page stays below 15 MB."""

MOST_PROMPTS = 12


class Mark(NamedTuple):
    """How a verdict is shown."""

    sign: str
    word: str


_MARKS: dict[Held, Mark] = {
    "held": Mark("✔", "Held"),
    "not held": Mark("✘", "Not held"),
    "undecided": Mark("≈", "Undecided"),
    "not run": Mark("–", "Not run"),
}
_SIGNS = {
    **{"circle": "●○", "diamond": "◆◇", "square": "■□", "triangle-up": "▲△"},
    **{"triangle-down": "▼▽", "star": "★☆", "x": "✕✕", "pentagon": "⬟⬠"},
    **{"cross": "✚✛", "hexagon": "⬢⬡", "triangle-left": "◀◁"},
}
_CURVES = {
    **{"loss": "Loss", "multiplier": "Multipliers λ", "weight": "Weights, negative ones too"},
    **{"violation": "Violations (above 0: broken)", "slack": "Slack", "ratios": "Ratios of single samples"},
}
_GRID = """How much better each form of the constraints is than ERM, in per cent of ERM’s number: the mean error over
test noise, or the area under the accuracy. All grids share one scale of colours. ✔ better and ✘ worse beyond doubt (the
95 % interval does not hold 0), ≈ not decided. A cell opens the runs of all methods."""
_ANSWERS = """The models’ answers with noise on every token, the answer’s own tokens too. Move the slider from clean
inputs to noisy ones."""
_FIRST_SEED = " Shown is the first seed of each method."


@dataclass(frozen=True)
class AnswersView:
    """Answers of a language model: for each noise level a row per prompt and a column per method."""

    words: str
    slider: Slider
    names: Sequence[str]
    tables: Sequence[tuple[float, Sequence[tuple[str, Sequence[str]]]]]


@dataclass(frozen=True)
class JudgedClaim:
    """A claim of the paper with its verdicts: one for each form of the constraints, or one alone."""

    figure: str
    claim: str
    verdicts: Sequence[Claim]


@dataclass(frozen=True)
class Section:
    """A section of the page; one of its last four fields is its content."""

    ident: str
    heading: str
    grids: Sequence[HeatMap] = ()
    figure: Shown | None = None
    pictures: Mapping[str, Any] | None = None
    answers: AnswersView | None = None


def write_study(out: Path) -> tuple[list[Claim], Path]:
    """Draw what a study's folder asks for, from its cells alone, and judge the claims: ``OUT/figures`` and the page.

    Args:
        out: The study's folder, with ``cells.jsonl``. If it has a ``study.json``, the figures and tables requested
            there are drawn, else all.

    Returns:
        The claims, in the order of the paper, and the page.

    Raises:
        InputError: If ``cells.jsonl`` is missing or damaged, or ``study.json`` is damaged.
    """
    results = Results.read(out)
    study = requested(out, results)
    drawn = shown(study, results)
    return put_figures(out, drawn), put_study_page(out, results, drawn, study.scale)


def put_study_page(out: Path, results: Results, drawn: Mapping[str, Shown], scale: str) -> Path:
    """Write ``OUT/report.html``, with pictures from ``frames.npz`` of run folders that are still there."""
    sections: list[Section] = []
    data: list[dict[str, Any]] = []

    def add(section: Section, **values: Any) -> None:
        sections.append(section)
        add_data(**values)

    def add_data(**values: Any) -> None:
        data.append({"state": {"log": True}, "plots": {}, "frames": None, **values})

    plots = picture(results)
    add_data(plots={str(place): figure.to_plotly_json() for place, figure in enumerate(plots.values())})
    add(Section("grid", "What constraints gain", grids=heat_maps(results)))
    for name, figure in drawn.items():
        title = next(part.title for part in (figure.chart, figure.table) if part)
        panels = figure.chart.panels if figure.chart else ()
        drawn_panels = {str(place): plot_panel(panel).to_plotly_json() for place, panel in enumerate(panels)}
        add(Section(name, f"{_title(name)}: {title}", figure=figure), plots=drawn_panels)
    for place, (setting, frames) in enumerate(_pictured(results)):
        pictures, view = pictures_view(len(data), frames, setting.gamma, FRAMES_BUDGET // 3, note=_FIRST_SEED)
        state = {"noise": setting.gamma, "layer": setting.depth, "clip": 0, "log": True}
        section = Section(f"frames-{place}", f"Pictures: {setting.words}", pictures=view)
        add(section, frames=pictures, state=state, train=setting.gamma)
    for place, (setting, by_arm) in enumerate(answered(results)):
        answers = _answers(len(data), by_arm)
        section = Section(f"answers-{place}", f"Answers: {setting.words}", answers=answers)
        add(section, state={"noise": answers.slider.start, "log": True})
    claims = [claim for figure in drawn.values() for claim in figure.claims]
    return write_interactive(
        out,
        "study.html",
        package="reproduction.report",
        data=data,
        pictures=True,  # every RMSE of a study is that of videos
        more={"layout": plain_layout("", "").to_plotly_json(), **opened(results)},
        css=_asset("study.css"),
        js=_asset("study.js"),
        title="The paper’s figures, run again" + (f" at scale {scale}" if scale else ""),
        subtitle=_extent(results, scale),
        counts=_counts(claims),
        opening=_opening(results, scale),
        picture=list(plots),
        setting_words=SETTING_WORDS,
        sections=sections,
        all_claims=_judged(claims),
        judged=_judged,
        arm_name=arm_name,
        marks=_MARKS,
        curves=_CURVES,
        grid_words=_GRID,
        title_of=_title,
        sign_of=_sign,
        unbroken=_unbroken,
    )


def _title(name: str) -> str:
    """A figure's or table's name as a heading has it."""
    return name.replace("-", " ").capitalize()


def _unbroken(words: str) -> str:
    """No line break between a number and its per cent sign."""
    return words.replace(" %", "\u00a0%")


def _extent(results: Results, scale: str) -> str:
    settings, runs = results.settings, results.runs
    seconds = sum(run.seconds or 0 for run in runs)
    words = f"{len(runs)} runs in {len(settings)} settings, {len(runs) - sum(not run.variant for run in runs)} of them "
    about = "" if not scale or SCALES[scale].telling else f". {SCALES[scale].about.capitalize()}"
    return f"{words}in ablations; {seconds / 3600:.1f} hours of computing{about}"


def _opening(results: Results, scale: str) -> list[str]:
    """The answers at the top, after a warning if a scale's runs say nothing."""
    warning = "" if not scale or SCALES[scale].telling else f"Scale {scale} says nothing about the method."
    return [*filter(None, [warning]), *findings(results)]


def _counts(claims: Sequence[Claim]) -> list[str]:
    """How many claims got which verdict, for each form and for those that are judged once."""
    lines = []
    for form in (*FORMS, ""):
        counts = Counter(claim.held for claim in claims if claim.form == form)
        words = ", ".join(f"{counts[held]} {mark.word.lower()}" for held, mark in _MARKS.items() if counts[held])
        if words:
            lines.append(f"{arm_name(form) if form else 'Whatever the form'}: {words}.")
    return lines


def _judged(claims: Iterable[Claim]) -> list[JudgedClaim]:
    """The claims with their verdicts on both forms together."""
    together: dict[tuple[str, str], list[Claim]] = {}
    for claim in claims:
        together.setdefault((claim.figure, claim.claim), []).append(claim)
    return [JudgedClaim(*key, verdicts) for key, verdicts in together.items()]


def _sign(series: Series) -> str:
    return ("━╍" if series.kind == "steps" else _SIGNS[series.style.symbol])[series.dashed]


def _pictured(results: Results) -> list[tuple[Setting, dict[str, Frames]]]:
    """For each video data set the deepest setting at its strongest noise whose pictures are still there."""
    pictured: dict[str, tuple[Setting, dict[str, Frames]]] = {}
    for setting in sorted(results.where(task="video"), key=lambda setting: (-setting.gamma, -setting.depth)):
        if setting.data in pictured or not setting.paired:
            continue
        frames = {}
        for arm, runs in setting.arms.items():
            try:
                first = next(filter(None, map(results.frames, runs)), None)
            except InputError:  # a damaged file is no reason to have no page
                first = None
            if first:
                frames[arm_name(arm)] = first
        if frames:
            pictured[setting.data] = (setting, frames)
    return list(pictured.values())[:3]


def _answers(number: int, by_arm: Mapping[str, Sequence[Answer]]) -> AnswersView:
    """The answers of each method; the strongest noise is shown first."""
    levels = sorted({answer.noise for answers in by_arm.values() for answer in answers})
    prompts = list(dict.fromkeys(answer.prompt for answers in by_arm.values() for answer in answers))
    more = f" The first {MOST_PROMPTS} of {len(prompts)} prompts." if len(prompts) > MOST_PROMPTS else ""
    tables = []
    for level in levels:
        texts = [{each.prompt: each.text for each in answers if each.noise == level} for answers in by_arm.values()]
        rows = [(prompt, [column.get(prompt, "–") for column in texts]) for prompt in prompts[:MOST_PROMPTS]]
        tables.append((level, rows))
    slider = Slider(f"answers-noise-{number}", "noise", "Noise γ", levels, levels[-1])
    return AnswersView(_ANSWERS + more, slider, list(map(arm_name, by_arm)), tables)


def _asset(name: str) -> str:
    return files("reproduction.report").joinpath(name).read_text(encoding="utf-8")
