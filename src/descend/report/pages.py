"""What writes the pages, each one HTML file without a network: of runs, of answers side by side, and of a sweep."""

import base64
import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from math import inf, nan
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from descend.errors import refuse
from descend.methods import GREY
from descend.progress import counted
from descend.report import figures
from descend.report.asked import asked, findings
from descend.report.charts import GRID, INK, MUTED, Chart, Series, chart
from descend.report.gains import gain_lines, gains
from descend.report.levels import in_std, ways_to_compare
from descend.report.numbers import layers_needed
from descend.report.runs import METHOD_NAMES, SPARE_STYLES, STYLES, Group, group_runs, groups_differ
from descend.report.samples import pictures, texts
from descend.report.tables import Cell, Row, Style, Table
from descend.results import (
    PAGE_FILE,
    SWEEP_FILE,
    Completion,
    MethodSearch,
    Results,
    SweepFile,
    put,
    read_completions,
    refuse_foreign,
)

FRAMES_BUDGET = 500_000
"""Most characters that frames take, so that a page stays below 1.5 MB."""

LEAST_BUDGET = 200_000
"""What each group may take at least, however many share the page."""

MOST_NAMES = 3
"""Most runs that a page's title names."""

FAR = 4
"""A trial is left out of the charts if it is this many times as far from the best as three quarters of all are."""

_FEASIBLE = {None: "–", True: "yes", False: "no"}

TEMPLATES = Environment(
    loader=PackageLoader("descend.report"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
"""The templates of the pages. Every value is escaped unless it is marked as HTML."""
TEMPLATES.policies["json.dumps_kwargs"] = {"allow_nan": False}  # a browser can't read NaN


SCRIPT = Markup(TEMPLATES.get_template("page.js").render())
"""The pages' own script, a text of ours alone. Their policy allows it by its hash, and no other one."""
SCRIPT_HASH = "sha256-" + base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()


def write_page(runs: Sequence[Results | Path | str], out: Path, title: str = "") -> Path:
    """Write the report of some runs as one self-contained HTML file.

    Runs of the same data set, training noise and model but for its depth, evaluated by one metric on the same split at
    the same checkpoint, share a section; among these, runs of one method and setting count as seeds. Frames are those
    of the first seed of each method.

    Args:
        runs: Run folders, or runs already read.
        out: The file to write; a folder gets ``report.html``.
        title: The page's title, plain text; by default the names of up to `MOST_NAMES` runs, or how many they are.

    Returns:
        The file written.

    Raises:
        InputError: If there is no run, a folder has not been evaluated or one of its files is damaged.
    """
    refuse((not runs, "a report needs at least one run folder; got none."))
    shown = [in_std(run if isinstance(run, Results) else Results.read(Path(run))) for run in runs]
    groups = group_runs(shown)
    names = list(dict.fromkeys(run.name for run in shown))
    several = (
        f"{len(shown)} runs in {len(groups)} settings, which are not compared with each other: they differ in "
        f"{groups_differ(groups)}"
    )
    budget = max(FRAMES_BUDGET // len(groups), LEAST_BUDGET)
    return write_page_of(
        "runs.html",
        out,
        title=title or f"Descend: {', '.join(names) if len(names) <= MOST_NAMES else f'{len(shown)} runs'}",
        subtitle=" ".join([f"{several}.", *ways_to_compare(shown)]) if len(groups) > 1 else groups[0].name,
        sections=[_section(group, group.name if len(groups) > 1 else "", budget) for group in groups],
    )


def _section(group: Group, name: str, budget: int) -> dict[str, object]:
    """The values of the template for a group of runs."""
    box, gained = asked(group), gains(group)

    def curious() -> list[Chart]:
        losses = [figures.losses(group)] if box is None and group.measure.entry != "layer_losses" else []
        return [*losses, *figures.norms(group), *figures.samples(group)]

    parts: dict[str, Callable[[], object]] = {
        "losses": lambda: [figures.losses(group), *figures.prices(group)] if box else [],
        "needed": lambda: layers_needed(group),
        "curves": lambda: [
            each for each in (figures.quality(group), figures.further(group), figures.time(group)) if each
        ],
        "pictures": lambda: pictures(group, budget),
        "texts": lambda: texts(group),
        "robustness": lambda: [
            each for each in (figures.robustness(group), figures.gain_over_noise(group, gained)) if each
        ],
        "gains": lambda: gain_lines(gained),
        "by_noise": lambda: figures.by_noise(group),
        "findings": lambda: findings(group),
        "curious": curious,
    }
    made = {part: make() for part, make in counted(parts.items(), "drawing the page", "part")}
    return {"name": name, "asked": box, "styles": {arm.label: arm.style for arm in group.arms}, **made}


def write_completions(paths: Sequence[Path], out: Path) -> Path:
    """Write one page over files of answers: a row for each prompt that all of them have, a column for each file.

    Args:
        paths: Files in AlpacaEval's form.
        out: The file to write; a folder gets ``completions.html``.

    Returns:
        The file written.

    Raises:
        InputError: If a file can't be read, or the files have no prompt in common.
    """
    files = [read_completions(path) for path in paths]
    answers = [_by_prompt(completions) for completions in files]
    shared = [prompt for prompt in answers[0] if all(prompt in each for each in answers)]
    path = out if out.suffix == ".html" else out / "completions.html"
    refuse(
        (not shared, f"{' and '.join(map(str, paths))} have no prompt in common."),
        (
            out.is_file() and path != out,
            f"{out} is a file; give --out a folder for the page, or a name that ends in .html.",
        ),
    )
    return write_page_of(
        "completions.html",
        path,
        title="Answers side by side",
        subtitle=f"{len(shared)} prompts, and what each model went on with.",
        heads=_names(paths, files),
        rows=[(prompt[0], [each[prompt] for each in answers]) for prompt in shared],
    )


def _by_prompt(completions: Sequence[Completion]) -> dict[tuple[str, int], str]:
    """(prompt, how often it came before) → answer: a prompt may come with several inputs."""
    counts: Counter[str] = Counter()
    answers = {}
    for each in completions:
        answers[each.instruction, counts[each.instruction]] = each.output
        counts[each.instruction] += 1
    return answers


def _names(paths: Sequence[Path], files: Sequence[Sequence[Completion]]) -> list[str]:
    """Each file's generator and name; its whole path where two would be alike."""
    for shown in ([path.name for path in paths], paths):
        names = [
            f"{each[0].generator} ({path})" if each else str(path) for path, each in zip(shown, files, strict=True)
        ]
        if len(set(names)) == len(names):
            break
    return names


def write_sweep(folder: Path) -> Path:
    """Write the page of a sweep into its folder.

    Args:
        folder: The sweep's folder, with ``sweep.json``.

    Returns:
        The path of the page.

    Raises:
        InputError: If ``sweep.json`` is missing or damaged, or the page is somebody else's.
    """
    content = SweepFile.read(folder / SWEEP_FILE)
    return write_page_of(
        "sweep.html",
        folder,
        title=f"Descend: sweep {folder.absolute().name}",
        subtitle=f"{content.model}, {content.recipe}: settings chosen on validation data",
        sweep=content,
        far=FAR,
        overview=_overview(content),
        charts=_charts(content),
        trials=[_trials(content, method, search) for method, search in content.methods.items()],
    )


def _overview(content: SweepFile) -> Table:
    """A row for each method: its numbers of trials, its best, and what mattered."""
    rows = []
    for method, search in content.methods.items():
        shares = search.importance.items() if len(search.searched) > 1 else ()
        rows.append(
            [
                method,
                *(str(search.counts.get(state, 0)) for state in ("finished", "pruned", "diverged")),
                _number(search.best.value if search.best else None),
                _FEASIBLE[search.best.feasible if search.best else None],
                ", ".join(f"{name} {100 * share:.0f} %" for name, share in shares) or "–",
            ]
        )
    heads = ["Method", "Finished", "Pruned", "Diverged", f"Best mean {content.metric}", "Feasible", "What mattered"]
    return Table(heads, [Row(list(map(Cell, cells))) for cells in rows])


def _trials(content: SweepFile, method: str, search: MethodSearch) -> Table:
    """All trials of a method; the chosen one stands out."""
    rows = []
    for trial in search.trials:
        chosen = search.best is not None and trial.number == search.best.number
        cells = [
            f"{trial.number}{' (chosen)' * chosen}",
            trial.state,
            _number(trial.value),
            _FEASIBLE[trial.feasible],
            *(str(trial.settings.get(name, "–")) for name in search.searched),
        ]
        rows.append(Row([Cell(each, strong=chosen) for each in cells]))
    heads = ["Trial", "State", f"Mean {content.metric}", "Feasible", *search.searched]
    return Table(heads, rows, f"{method}: all trials")


def _charts(content: SweepFile) -> list[Chart]:
    """The value trial by trial, by each setting that is a number, and during training."""
    name, found, history = f"mean {content.metric}", [], []
    for method, search in content.methods.items():
        style = STYLES.get(method, GREY)
        drawn = _near(search, content.higher_is_better)
        values = list(drawn.values())
        ended = [trial for trial in search.trials if trial.number in drawn]
        history.append(_points(method, style, list(drawn), values))
        for setting, kind in search.searched.items():
            if not kind.choices:
                drawn_at = [trial.settings.get(setting, nan) for trial in ended]
                x = [value if isinstance(value, float) else nan for value in drawn_at]  # a file may be damaged
                found.append(
                    chart(
                        f"{method}: value by {setting}",
                        "",
                        (setting, name),
                        [_points(method, style, x, values)],
                        log_x=kind.log,
                    )
                )
        shown = [trial.curve for trial in search.trials if trial.state == "pruned" or trial.number in drawn]
        curves = [Series("", curve.steps, curve.values, style.light, width=1.0) for curve in shown]
        axes = "training step", f"{content.metric} at the training noise"
        found.append(chart(f"{method}: value during training", "", axes, curves))
    return [chart("Trial by trial", "", ("trial", name), history), *found]


def _points(method: str, style: Style, x: Sequence[Any], y: list[float]) -> Series:
    return Series(METHOD_NAMES.get(method, method), x, y, style.light, style.marker, "")


def _near(search: MethodSearch, higher: bool) -> dict[int, float]:
    """Number → value of the finished trials that are drawn: one that lies far off would squash the others."""
    known = {trial.number: trial.value for trial in search.trials if trial.value is not None}
    values = sorted(known.values(), reverse=higher)
    reach = FAR * abs(values[3 * len(values) // 4] - values[0]) or inf if values else inf
    return {number: value for number, value in known.items() if abs(value - values[0]) <= reach}


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"


def write_page_of(template: str, out: Path, **values: Any) -> Path:
    """Render a page and write it in one piece, even if two commands write it at once or one is stopped.

    Args:
        template: A template that extends ``page.html``.
        out: The file to write; a folder gets ``report.html``.
        values: The template's values.

    Returns:
        The file written.
    """
    # The charts' colours are named by what they are on light ground; here is what they are on dark ground.
    styles = {style.light: style.dark for style in (*STYLES.values(), *SPARE_STYLES, GREY)}
    dark = styles | {INK: "var(--ink)", GRID: "var(--rule)", MUTED: "var(--muted)"}
    colours = " ".join(f"--c{light[1:]}: {colour};" for light, colour in dark.items())
    policy = {"script": SCRIPT, "script_hash": SCRIPT_HASH}
    page = TEMPLATES.get_template(template).render(colours=colours, **policy, **values)
    path = out / PAGE_FILE if out.is_dir() else out
    refuse_foreign([path], "another place")
    path.parent.mkdir(parents=True, exist_ok=True)
    put(path, lambda part: part.write_bytes(page.encode(errors="replace")))  # a folder's name need not be UTF-8
    return path
