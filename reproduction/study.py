"""A study: the cells it needs, those that are done, the cost of the rest, and running them."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from tqdm import tqdm

from descend.errors import InputError
from descend.progress import is_quiet
from descend.results import CONFIG_FILE, locked, read_config
from descend.results.ownership import PAGE_FILE, refuse_foreign
from reproduction import cell_store
from reproduction.costs import Costs
from reproduction.data_check import NeededPath, needed_paths
from reproduction.grid import OUT, ROOT, cells, names, settings
from reproduction.plan import processes
from reproduction.records import CELLS_FILE, STUDY_FILE, Cell, StudyFile
from reproduction.scales import SCALES
from reproduction.study_file import FIGURES_FOLDER, read_request
from reproduction.workers import RUNS, Job, Report, Work, carry_out


@dataclass(frozen=True)
class Study:
    """A study in its folder.

    Attributes:
        wanted: Figures and tables, by name.
        scale: The scale, a key of `SCALES`.
        out: The study's folder.
        root: The folder of real data; None without any.
        cells: The cells it needs.
        missing: Those that are not done.
        costs: Estimates of the cells' seconds.
    """

    wanted: list[str]
    scale: str
    out: Path
    root: Path | None
    cells: list[Cell]
    missing: list[Cell]
    costs: Costs

    @classmethod
    def of(cls, words: Sequence[str], scale: str, out: Path, root: Path | None) -> "Study":
        """Read a study's folder.

        Args:
            words: Names of figures and tables, or ``all``.
            scale: The scale.
            out: The study's folder; it need not exist.
            root: The folder of real data.

        Raises:
            InputError: If a name or the scale is unknown, or the folder holds a study of another scale.
        """
        if scale not in SCALES:
            raise InputError(f"scale must be one of {', '.join(SCALES)}; got {scale!r}.")
        wanted = names(words)
        _before(out, scale)
        needed, done, costs = cells(wanted, scale), cell_store.read(out), Costs(scale)
        for cell in cells(names(["all"]), scale):
            if cell.name in done:
                costs.learn(cell, done[cell.name].seconds)
        missing = [cell for cell in needed if cell.name not in done]
        missing.sort(key=lambda cell: cell.seed)  # a study that is not finished has all settings, with fewer seeds
        return cls(wanted, scale, out, root, needed, missing, costs)

    def estimate(self, workers: int) -> str:
        """How many cells are left and how long they take, in words."""
        known = [seconds for cell in self.missing if (seconds := self.costs.of(cell)) is not None]
        unknown = len(self.missing) - len(known)
        words = "all" if self.wanted == names(["all"]) else ", ".join(self.wanted)
        lines = [
            f"{words} at scale {self.scale}: {SCALES[self.scale].about}.",
            f"{len(self.cells)} cells: {len(self.cells) - len(self.missing)} done, {len(self.missing)} to run.",
        ]
        if known:
            hours = f"{_duration(sum(known))} of one core, {_duration(sum(known) / workers)} with --workers {workers}"
            lines.append(f"They take about {hours}.")
        if unknown:
            lines.append(f"The time of {unknown} of them is unknown: no similar cell was timed yet.")
        return "\n".join(lines)

    def models(self) -> dict[Path, Path]:
        """Models to convert before the cells that start from them can run: target → source."""
        used = {value for cell in self.missing for value in _words(cell)}
        pairs = settings()[self.scale].get("converted", {}).items()
        return {self._path(target): self._path(source) for target, source in pairs if target in used}

    def needed_paths(self) -> list[NeededPath]:
        """What the missing cells read under the data root."""
        return needed_paths(self.missing, settings()[self.scale].get("converted", {}))

    def check_data(self) -> None:
        """Check that the data of all missing cells exist, with all their sides.

        Raises:
            InputError: If some are missing; it names them and the data sets they belong to.
        """
        needed = self.needed_paths()
        if not needed:
            return
        if self.root is None:
            words = ", ".join(each.words() for each in needed)
            raise InputError(f"expected --data-root, a folder with {words}; got none.")
        lacking = [(each, each.missing(self.root)) for each in needed]
        words = ", ".join(each.words(sides or ()) for each, sides in lacking if sides is None or sides)
        if words:
            raise InputError(f"{self.root} must hold {words}; it does not. Put them there, or link to them.")

    def by_hand(self, card: float) -> list[Job]:
        """The missing cells that need several processes to train, except those trained already.

        A worker trains in one process, so these are to be started by hand in their run folders. A run that is finished
        there is judged by a worker and stored as any other.

        Args:
            card: Memory of an accelerator in GB.
        """
        large = [Job(cell, self.out, self.root) for cell in self.missing if processes(cell, card) != 1]
        return [job for job in large if not _trained(job.folder)]

    def _path(self, value: str) -> Path:
        return Path(value.replace(ROOT, str(self.root)).replace(OUT, str(self.out)))

    def carry_out(self, work: Work, *, workers: int, preload: Sequence[str], left_out: Sequence[Job] = ()) -> Report:
        """Run the missing cells.

        Args:
            work: Runs one cell.
            workers: Processes at a time.
            preload: Modules to import once.
            left_out: Cells that are not run here.

        Raises:
            KeyboardInterrupt: On Ctrl-C or SIGTERM, after all workers have saved and stopped.
            StudyError: If the disk is full.
        """
        (self.out / RUNS).mkdir(parents=True, exist_ok=True)
        with _Progress(self, workers) as progress:
            skipped = {job.cell.name for job in left_out}
            jobs = [Job(cell, self.out, self.root) for cell in self.missing if cell.name not in skipped]
            return carry_out(jobs, work, workers=workers, preload=preload, tell=progress.tell)

    def write(self) -> None:
        """Write ``study.json``, for all commands so far, and move cells of other settings to another file."""
        self.out.mkdir(parents=True, exist_ok=True)
        known = {cell.name for cell in cells(names(["all"]), self.scale)}
        with locked(self.out, wait=True):
            before = _before(self.out, self.scale)  # again: another command may have begun
            if not before and (done := cell_store.read(self.out)) and known.isdisjoint(done):
                raise InputError(
                    f"{self.out / CELLS_FILE} has no cell of scale {self.scale}, and its own scale is unknown. Choose "
                    "another folder with --out."
                )
            what = names([*(before.what if before else []), *self.wanted])
            versions = {name: version(name) for name in ("descend", "torch", "transformers")}
            if before and not self.missing:  # drawn again, not run again
                versions = before.versions or versions
            StudyFile(scale=self.scale, what=what, versions=versions).write(self.out / STUDY_FILE)
        old = cell_store.supersede(self.out, known)
        if old:
            print(f"Moved {old} cells of other settings to {self.out / cell_store.OLD_FILE}.")


def _before(out: Path, scale: str) -> StudyFile | None:
    """The folder's ``study.json``; refuses one of another scale."""
    before = read_request(out)
    if before is None and not (out / CELLS_FILE).exists():
        written = (CONFIG_FILE, PAGE_FILE, FIGURES_FOLDER, cell_store.OLD_FILE)
        other = [name for name in written if (out / name).exists()] or ([out.name] if out.is_file() else [])
        if other:
            found = ", ".join(other)
            raise InputError(
                f"{out} holds no study, but a run or other files: {found}. Choose another folder with --out."
            )
    refuse_foreign([out / PAGE_FILE], "another folder with --out")
    if before and before.scale != scale:
        raise InputError(
            f"{out} holds a study at --scale {before.scale}; got {scale}. Choose another folder with --out."
        )
    return before


class _Progress:
    """A progress bar with the cells done and the time left; without a terminal, a line for each cell."""

    def __init__(self, study: Study, workers: int):
        self.study, self.workers = study, workers
        self.left = {cell.name: cell for cell in study.missing}
        self.bar = tqdm(
            total=len(study.cells),
            initial=len(study.cells) - len(study.missing),
            unit="cell",
            disable=True if is_quiet() else None,
            bar_format="{percentage:3.0f}%|{bar}| {n_fmt} of {total_fmt} cells, {elapsed} gone{postfix}",
        )

    def __enter__(self) -> "_Progress":
        return self

    def __exit__(self, *error: object) -> None:
        self.bar.close()

    def tell(self, cell: Cell, report: Report) -> None:
        """Count a cell as done or failed."""
        self.left.pop(cell.name)
        if cell.name in report.seconds:
            self.study.costs.learn(cell, report.seconds[cell.name])
        known = [seconds for one in self.left.values() if (seconds := self.study.costs.of(one)) is not None]
        more = " and more" if len(known) < len(self.left) else ""
        left = f"about {_duration(sum(known) / self.workers)}{more} left"
        wrong = f", {len(report.failed)} failed" if report.failed else ""
        if self.bar.disable and not is_quiet():
            done = len(self.study.cells) - len(self.left)
            print(f"[{done}/{len(self.study.cells)}] {cell.name}; {left}{wrong}", file=sys.stderr, flush=True)
        self.bar.set_postfix_str(left + wrong, refresh=False)
        self.bar.update()


def _trained(folder: Path) -> bool:
    """Whether a folder holds a run that came to its end."""
    return (folder / CONFIG_FILE).is_file() and read_config(folder).finished


def _words(cell: Cell) -> list[str]:
    """The values of a cell's settings that are text, among them paths."""
    return [value for value in (*cell.settings.values(), *cell.answer.values()) if isinstance(value, str)]


def _duration(seconds: float) -> str:
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"
