"""The page of a study: one file, no network.

It opens with a few sentences and the grid of gains. Folded claims, figures, tables, pictures and answers follow.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from descend.errors import InputError
from descend.paper.grid import cells
from descend.paper.report.cells import arm_name
from descend.paper.report.chart import Chart, Series
from descend.paper.report.claims import Claim, Held
from descend.paper.report.drawing import asked_of, put_figures, shown
from descend.paper.report.estimates import gain
from descend.paper.report.evidence import mean_gain, win_counts
from descend.paper.report.heat_map import heat_map, opened
from descend.paper.report.parts import Shown
from descend.paper.report.plotly_charts import plot_panel
from descend.paper.report.results import Results, Setting
from descend.paper.report.selections import answered, table_regimes
from descend.paper.scales import SCALES
from descend.records.studies import Answer
from descend.report.figures import plain_layout
from descend.report.page import put_page
from descend.report.viewer import slider, viewer

FRAMES_BUDGET = 4_500_000
"""Characters that pictures may take: with plotly.js (5 MB) and the runs the page stays below 15 MB."""

MOST_PROMPTS = 12

_TABLES = {"video": "table-3", "text": "table-4", "language": "table-5"}
_MARKS: dict[Held, tuple[str, str]] = {
    "held": ("✔", "Held"),
    "not held": ("✘", "Not held"),
    "undecided": ("≈", "Undecided"),
    "not run": ("–", "Not run"),
}
_SIGNS = {
    **{"circle": "●○", "diamond": "◆◇", "square": "■□", "triangle-up": "▲△"},
    **{"triangle-down": "▼▽", "star": "★☆", "x": "✕✕"},
}
_CURVES = {
    **{"loss": "Loss", "multiplier": "Multipliers λ", "weight": "Weights, negative ones too"},
    **{"violation": "Violations (above 0: broken)", "slack": "Slack", "ratios": "Ratios of single samples"},
}
_GRID = """How much better constrained training is than ERM, in per cent of ERM’s number: the mean error over test
noise, or the area under the accuracy. ✔ better and ✘ worse beyond doubt (the 95 % interval does not hold 0), ≈ not
decided. A cell opens its runs."""
_ANSWERS = """What the models answer, each token under noise, the model’s own too. Move the slider from clean inputs to
noisy ones."""


def write_study(out: Path) -> tuple[list[Claim], Path]:
    """Draw what a study's folder asks for, from its cells alone, and judge the claims: ``OUT/figures`` and the page.

    Args:
        out: The study's folder, with ``cells.jsonl``. If its ``study.json`` says what was asked for, that is drawn,
            else everything.

    Returns:
        The claims, in the order of the paper, and the page.

    Raises:
        InputError: If ``cells.jsonl`` is missing or damaged, or ``study.json`` is damaged.
    """
    results = Results.read(out)
    asked = asked_of(out, results)
    drawn = shown(asked, results)
    return put_figures(out, drawn), put_study_page(out, results, drawn, asked.scale)


def put_study_page(out: Path, results: Results, drawn: Mapping[str, Shown], scale: str) -> Path:
    """Write ``OUT/report.html``, with pictures from ``frames.npz`` of run folders that are still there."""
    sections: list[str] = []
    data: list[dict[str, Any]] = []

    def add(ident: str, heading: str, html: str, **more: Any) -> None:
        number = len(data)
        sections.append(f'<section id="{ident}" data-section="{number}"><h2>{escape(heading)}</h2>{html}</section>')
        data.append({"state": {"log": True}, "plots": {}, "frames": None, **more})

    add("grid", "What constraints gain", f'{heat_map(results)}<p class="words">{_GRID}</p>')
    for name, one in drawn.items():
        html, plots = _shown(one)
        title = next(part.title for part in (one.chart, one.table) if part)
        add(name, f"{_named(name)}: {title}", html, plots=plots)
    for place, (setting, frames) in enumerate(_pictured(results)):
        number, budget = len(data), FRAMES_BUDGET // 3
        pictures, html = viewer(number, frames, setting.gamma, budget, note=" Shown is the first seed of each method.")
        state = {"noise": setting.gamma, "layer": setting.depth, "clip": 0, "log": True}
        add(f"frames-{place}", f"Pictures: {setting.words}", html, frames=pictures, state=state, train=setting.gamma)
    for place, (setting, told_by) in enumerate(answered(results)):
        html, level = _answers(len(data), told_by)
        add(f"answers-{place}", f"Answers: {setting.words}", html, state={"noise": level, "log": True})
    claims = [claim for one in drawn.values() for claim in one.claims]
    return put_page(
        out,
        title="The paper, reproduced" + (f" at scale {scale}" if scale else ""),
        subtitle=escape(_extent(results, scale)),
        verdict=_opening(results, drawn, scale),
        table="",
        sections=[sections[0], _claims(claims) + _contents(sections), *sections[1:], _dialog()],
        data=data,
        more={"layout": plain_layout("", "").to_plotly_json(), **opened(results)},
        css=_asset("study.css"),
        js=_asset("study.js"),
    )


def _named(name: str) -> str:
    return name.replace("-", " ").capitalize()


def _extent(results: Results, scale: str) -> str:
    settings, runs = results.settings, results.runs
    seconds = sum(run.seconds or 0 for run in runs)
    words = f"{len(runs)} runs in {len(settings)} settings, {len(runs) - sum(not run.variant for run in runs)} of them "
    about = "" if not scale or SCALES[scale].telling else f". {SCALES[scale].about.capitalize()}"
    return f"{words}in ablations; {seconds / 3600:.1f} hours of computing{about}"


def _opening(results: Results, drawn: Mapping[str, Shown], scale: str) -> str:
    """What was found, in at most five sentences."""
    claims = [claim for one in drawn.values() for claim in one.claims]
    tables = {
        task: results.of_cells(cells([name], scale)) if scale else results
        for task, name in _TABLES.items()
        if name in drawn
    }
    sentences = [_warning(scale), *(_gains(task, table) for task, table in tables.items()), _feasible(tables.values())]
    words = escape(" ".join(filter(None, sentences))).replace(" %", "&nbsp;%")
    return f'<div class="verdict"><h2 class="headline">{_counts(claims)}</h2><p>{words}</p></div>'


def _counts(claims: Sequence[Claim]) -> str:
    counts = Counter(claim.held for claim in claims)
    words = ", ".join(f"{counts[held]} {said.lower()}" for held, (_, said) in _MARKS.items() if counts[held])
    return f"The paper’s claims: {words}" if claims else "No claim of the paper was asked for"


def _warning(scale: str) -> str:
    return "" if not scale or SCALES[scale].telling else f"Scale {scale} says nothing about the method."


def _gains(task: str, table: Results) -> str:
    """In how many of a table's settings constrained training is better than ERM, and by how much on average."""
    settings = next(iter(table_regimes(table, task).values()), [])
    if not settings:
        return ""
    wins = win_counts(settings)
    return (
        f"On {task}, constrained training beats ERM over test noise in {wins.wins} of {len(settings)} settings and "
        f"loses in {wins.losses}; {mean_gain([gain(setting) for setting in settings])}."
    )


def _feasible(tables: Iterable[Results]) -> str:
    found = {run.name: run for table in tables for run in table.runs}
    runs = [run for run in found.values() if run.arm == "constrained" and not run.variant]
    met = sum(run.summary.feasible is True for run in runs)
    return f"{met} of {len(runs)} constrained runs of the tables meet their constraints on test data." if runs else ""


def _claims(claims: Sequence[Claim]) -> str:
    items = "".join(_claim(claim, link=True) for claim in claims)
    if not claims:
        return ""
    return f'<details id="claims"><summary>All {len(claims)} claims</summary><ul class="claims">{items}</ul></details>'


def _claim(claim: Claim, *, link: bool) -> str:
    mark, said = _MARKS[claim.held]
    where = f'<a href="#{claim.figure}">{_named(claim.figure)}</a>. ' if link else ""
    return (
        f'<li class="{claim.held.replace(" ", "-")}"><span class="mark" aria-hidden="true">{mark}</span>'
        f'<div><p class="claim"><strong class="word">{said}</strong> {where}{escape(claim.claim)}</p>'
        f'<p class="sentence">{escape(claim.sentence).replace(" %", "&nbsp;%")}</p></div></li>'
    )


def _contents(sections: Sequence[str]) -> str:
    links = []
    for html in sections:
        ident = html.split('"', 2)[1]
        heading = html.split("<h2>", 1)[1].split("</h2>", 1)[0]
        links.append(f'<li><a href="#{ident}">{heading}</a></li>')
    return f'<nav aria-label="On this page"><ol class="contents">{"".join(links)}</ol></nav>'


def _shown(one: Shown) -> tuple[str, dict[str, Any]]:
    html = ""
    plots: dict[str, Any] = {}
    if one.claims:
        html += f'<ul class="claims">{"".join(_claim(claim, link=False) for claim in one.claims)}</ul>'
    if one.chart:
        panels, plots = _panels(one.chart)
        missing = f'<p class="words missing">{escape(one.chart.missing)}</p>' if one.chart.missing else ""
        html += f'{_legend(one.chart)}{panels}<p class="words">{escape(one.chart.words)}</p>{missing}'
    if one.table:
        html += f'{one.table.html()}<p class="words">{escape(one.table.words)}</p>'
    return html, plots


def _panels(chart: Chart) -> tuple[str, dict[str, Any]]:
    plots: dict[str, Any] = {}
    blocks = []
    for place, panel in enumerate(chart.panels):
        name = escape(panel.title)
        plots[str(place)] = plot_panel(panel).to_plotly_json()
        blocks.append(
            f'<figure><h3>{name}</h3><div class="plot" role="img" aria-label="Plot: {name}" data-plot="{place}"></div>'
            "</figure>"
        )
    wide = " wide" if chart.columns < 3 else ""
    return f'<div class="plots small{wide}">{"".join(blocks)}</div>' if blocks else "", plots


def _legend(chart: Chart) -> str:
    items = "".join(f"<li>{_sign(series)} {escape(name)}</li>" for name, series in chart.legend().items())
    return f'<ul class="legend">{items}</ul>' if items else ""


def _sign(series: Series) -> str:
    signs = "━╍" if series.kind == "steps" else _SIGNS[series.style.symbol]
    colours = f"--light:{series.style.light};--dark:{series.style.dark}"
    return f'<span class="sign" aria-hidden="true" style="{colours}">{signs[series.dashed]}</span>'


def _pictured(results: Results) -> list[tuple[Setting, dict[str, Any]]]:
    """Of each video data set the deepest setting at its strongest noise that has its pictures still."""
    found: dict[str, tuple[Setting, dict[str, Any]]] = {}
    for setting in sorted(results.where(task="video"), key=lambda one: (-one.gamma, -one.depth)):
        if setting.data in found or not setting.paired:
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
            found[setting.data] = (setting, frames)
    return list(found.values())[:3]


def _answers(number: int, told: Mapping[str, Sequence[Answer]]) -> tuple[str, float]:
    """A table for each noise level, prompts by methods, and the level that is shown first: the strongest."""
    levels = sorted({each.noise for answers in told.values() for each in answers})
    prompts = list(dict.fromkeys(each.prompt for answers in told.values() for each in answers))
    names = [escape(arm_name(arm)) for arm in told]
    heads = "".join(f'<th scope="col">{name}</th>' for name in names)
    tables = ""
    for level in levels:
        texts = [{each.prompt: each.text for each in answers if each.noise == level} for answers in told.values()]
        rows = ""
        for prompt in prompts[:MOST_PROMPTS]:
            pairs = zip(names, texts, strict=True)
            cells = "".join(f'<td data-head="{name}">{escape(by.get(prompt, "–"))}</td>' for name, by in pairs)
            rows += f'<tr><th scope="row">{escape(prompt)}</th>{cells}</tr>'
        tables += (
            f'<table class="answers" data-at-noise="{level:g}"><caption>γ = {level:g}</caption>'
            f'<thead><tr><th scope="col">Prompt</th>{heads}</tr></thead><tbody>{rows}</tbody></table>'
        )
    more = f" The first {MOST_PROMPTS} of {len(prompts)} prompts." if len(prompts) > MOST_PROMPTS else ""
    controls = slider(f"answers-noise-{number}", "noise", "Noise γ", levels, levels[-1]) if len(levels) > 1 else ""
    return f'<p class="words">{_ANSWERS}{more}</p><div class="controls">{controls}</div>{tables}', levels[-1]


def _dialog() -> str:
    figures = "".join(
        f'<figure><h3>{heading}</h3><div class="plot" role="img" aria-label="{heading}" data-curve="{name}"></div>'
        "</figure>"
        for name, heading in _CURVES.items()
    )
    return (
        '<dialog id="cell" aria-labelledby="cell-title"><form method="dialog"><button>Close</button></form>'
        '<h2 id="cell-title"></h2><p class="words" id="cell-words"></p>'
        '<div class="controls"><label>Method <select id="cell-arm"></select></label>'
        '<label>Seed <select id="cell-seed"></select></label></div>'
        f'<p id="cell-verdict" aria-live="polite"></p><div class="plots small">{figures}</div></dialog>'
    )


def _asset(name: str) -> str:
    return files("descend.paper.report").joinpath(name).read_text(encoding="utf-8")
