"""Verification of published leaderboards: everything that is wrong with a folder, one line each."""

from __future__ import annotations

import csv
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from uqbench.cells import Cell
from uqbench.errors import UQBenchError
from uqbench.formatting import compact_json, counted, printable, shortened
from uqbench.metrics import METRICS
from uqbench.problems import Problem, digest, load_suite
from uqbench.published_boards import (
    FILE_NAME,
    BoardDefinition,
    board_csv,
    board_definitions,
    differences,
)
from uqbench.records import EVALUATOR_VERSION
from uqbench.registry import BUILT_IN
from uqbench.submissions import (
    ENVIRONMENT_SUFFIX,
    Fault,
    Row,
    Submission,
    contradiction,
    read,
)
from uqbench.suggestions import did_you_mean

ALWAYS_DEFINED = {
    "regression": (
        *("rmse", "rmse_raw", "nll", "ece", "mace", "crps", "sharpness", "coverage95", "width95"),
        *("coverage90", "width90", "interval_score", "mean_prediction"),
    ),
    "classification": ("nll", "accuracy", "ece", "brier", "aurc"),
}
"""Metrics that every prediction has; others are undefined where a group of points is empty."""
ALWAYS_DEFINED_ON_OOD = ("ood_auc", "auc_roc", "fpr95")
HELD_OUT = "held-out"
SUBMISSIONS = "submissions"
MOST_BYTES = 16 * 2**20
_OTHER_FILES = (FILE_NAME, "schema.json", "README.md", "__init__.py")
_OTHER_FOLDERS = ("paper", SUBMISSIONS, "__pycache__")


@dataclass(frozen=True)
class Folder:
    """A folder of leaderboards as it was found. submissions: those that can be understood."""

    definitions: Mapping[str, BoardDefinition]
    submissions: Sequence[Submission]
    faults: Sequence[Fault]

    def of_board(self, board: str) -> list[Submission]:
        return [one for one in self.submissions if one.board == board]


def read_folder(folder: str | Path) -> Folder:
    """Read boards' definitions and all submissions; raise UsageError without the former."""
    folder = Path(folder)
    definitions = board_definitions(folder)
    submissions, faults = [], list(_strangers(folder, definitions))
    for board in definitions:
        for path in sorted((folder / SUBMISSIONS / board).glob("*.csv")):
            if path.is_symlink() or path.stat().st_size > MOST_BYTES:
                continue  # is among the strangers
            name = f"{SUBMISSIONS}/{board}/{path.name}"
            submission, found = read(path, name)
            faults += found
            if submission is not None and f"{SUBMISSIONS}/{submission.name}" != name:
                what = f"holds what belongs into {SUBMISSIONS}/{printable(submission.name)}"
                faults.append(Fault(name, what))
            elif submission is not None:
                submissions.append(submission)
    return Folder(definitions, submissions, faults)


def verify(folder: str | Path) -> list[Fault]:
    """Return everything that is wrong with a folder of leaderboards, nothing if all is well.

    Nothing of the submissions is run, and no data set is needed. Raises :class:`UsageError` if the
    folder has no definitions of boards.
    """
    found = read_folder(folder)
    faults = list(found.faults)
    for board, definition in found.definitions.items():
        submissions = found.of_board(board)
        faults += submission_faults(definition, submissions)
        unread = any(fault.file.startswith(f"{SUBMISSIONS}/{board}/") for fault in found.faults)
        faults += _board_faults(Path(folder), board, definition, submissions, unread)
    return faults


def summary(folder: str | Path) -> str:
    """Return one line on what a folder holds."""
    found = read_folder(folder)
    boards = {one.board for one in found.submissions}
    counts = f"{counted(len(found.submissions), 'submission')} on {counted(len(boards), 'board')}"
    return f"{folder}: {counts}, no faults"


def submission_faults(
    definition: BoardDefinition, submissions: Sequence[Submission]
) -> list[Fault]:
    """Return what is wrong with one board's submissions, each alone and beside the others."""
    problems = {problem.name: problem for problem in load_suite(definition.suite).problems}
    faults: list[Fault] = []
    for submission in submissions:
        name = f"{SUBMISSIONS}/{submission.name}"
        faults += _completeness_faults(name, definition, submission)
        for number, row in enumerate(submission.rows, start=2):
            found = _row_faults(definition, problems, submission, row)
            faults += [Fault(name, what, field, number) for field, what in found]
    return faults + list(_contradictions(submissions))


def _strangers(folder: Path, definitions: Mapping[str, BoardDefinition]) -> Iterator[Fault]:
    """Yield what lies in the folder and is neither a board nor a submission."""
    for path in sorted(folder.iterdir()):
        if path.name in _OTHER_FILES or path.name in _OTHER_FOLDERS:
            continue
        if path.suffix != ".csv" or path.stem not in definitions or path.is_symlink():
            yield Fault(path.name, f"is no board of {FILE_NAME}")
    if not (folder / SUBMISSIONS).is_dir():
        return
    for home in sorted((folder / SUBMISSIONS).iterdir()):
        name = f"{SUBMISSIONS}/{home.name}"
        if home.name not in definitions or home.is_symlink() or not home.is_dir():
            if home.name != "README.md":
                yield Fault(name, f"is not the folder of a board of {FILE_NAME}")
            continue
        names = {path.name for path in home.iterdir()}
        for path in sorted(home.iterdir()):
            place = f"{name}/{path.name}"
            stem = path.name.removesuffix(ENVIRONMENT_SUFFIX).removesuffix(".csv")
            if path.is_symlink() or not path.is_file():
                yield Fault(place, "is not a plain file")
            elif path.stat().st_size > MOST_BYTES:
                yield Fault(place, f"is larger than {MOST_BYTES} bytes")
            elif path.name not in (f"{stem}.csv", f"{stem}{ENVIRONMENT_SUFFIX}"):
                yield Fault(place, "is no file of a submission")
            elif f"{stem}.csv" not in names:
                yield Fault(place, f"has no {stem}.csv beside it")


def _completeness_faults(
    name: str, definition: BoardDefinition, submission: Submission
) -> Iterator[Fault]:
    rows = submission.rows
    times = Counter((row.problem, row.seed) for row in rows)
    for number, row in enumerate(rows, start=2):
        if times[row.problem, row.seed] > 1:
            what = (
                f"{printable(row.problem)} seed {row.seed} has {times[row.problem, row.seed]} rows"
            )
            yield Fault(name, what, "seed", number)
    for problem in definition.problems:
        seeds = definition.seeds_of(problem)
        missing = [seed for seed in range(seeds) if not times[problem, seed]]
        if missing:
            plural = "s" if len(missing) > 1 else ""
            what = f"{problem}: lacks seed{plural} {', '.join(map(str, missing))}"
            yield Fault(name, what, "seed")
        of_problem = [row for row in rows if row.problem == problem]
        if len({row.status for row in of_problem}) > 1:
            yield Fault(name, f"{problem}: skipped with some seeds only", "status")
        if len({compact_json(row.settings) for row in of_problem}) > 1:
            yield Fault(name, f"{problem}: seeds differ in settings", "settings")
    sources = dict.fromkeys(row.method_source for row in rows)
    # what was run before records knew their source is uqbench's own, as the other rows say
    if len(sources) > 1 and set(sources) != {"", BUILT_IN}:
        one, other = [_short_source(source) for source in sources][:2]
        what = f"the rows are of different code, {one} and {other}; run all again with --rerun all"
        yield Fault(name, what, "method_source")
    if all(row.status == "skipped" for row in rows):
        yield Fault(name, "no problem has a result", "status")


def _short_source(source: str) -> str:
    return printable(re.sub("(?<=sha256:.{12}).*", "…", source)) or "unknown"


def _row_faults(
    definition: BoardDefinition,
    problems: Mapping[str, Problem],
    submission: Submission,
    row: Row,
) -> Iterator[tuple[str, str]]:
    """Yield field and complaint for each thing that is wrong with one row."""
    if row.problem not in definition.problems:
        yield "problem", f"{printable(row.problem)} is not on the board"
        return
    seeds = definition.seeds_of(row.problem)
    if row.seed >= seeds:
        yield "seed", f"is {row.seed}, the board has the seeds 0 to {seeds - 1}"
    for field, wanted in (
        ("method", submission.method),
        ("suite", definition.suite),
        ("evaluator", EVALUATOR_VERSION),
    ):
        if (seen := getattr(row, field)) != wanted:
            again = "; run again with this uqbench" if field == "evaluator" else ""
            yield field, f"is {printable(str(seen))}, must be {wanted}{again}"
    if row.environment not in submission.environments:
        yield "environment", f"{row.environment} is not in the environment file"
    problem = problems[row.problem]
    due = asdict(Cell(definition.suite, problem, "", {}, 0, False, "", "").identity())
    for field in ("network", "split", "dtype", "training"):
        if compact_json(getattr(row, field)) != compact_json(due[field]):
            yield field, f"is not that of {problem.name} in this uqbench; run again"
    if digest(asdict(row.identity)) != row.key:
        yield "key", "is not the digest of the row's identity: one of the two was changed"
    yield from _number_faults(problem, row)


def _number_faults(problem: Problem, row: Row) -> Iterator[tuple[str, str]]:
    numbers = [(name, "", value) for name, value in row.metrics.items()]
    for ood_set, metrics in row.ood.items():
        numbers += [(name, ood_set, value) for name, value in metrics.items()]
    if row.status == "skipped":
        if numbers:
            yield "status", "is skipped, but there are metrics"
        if not row.reason:
            yield "reason", "is empty, but the problem was skipped"
        return
    expected = [*problem.ood, *([HELD_OUT] if problem.held_out_classes else [])]
    for ood_set in row.ood:
        if not any(ood_set == one or ood_set.startswith(f"{one}:") for one in expected):
            yield f"ood:{ood_set}", f"{problem.name} has no OoD set of that name"
    for name, ood_set, _ in numbers:
        metric = METRICS.get(name)
        if metric is None or metric.per_ood != bool(ood_set):
            shown = shortened(printable(name), 60)
            yield _column(name, ood_set), f"no metric named '{shown}'.{did_you_mean(name, METRICS)}"
        elif metric.task not in ("any", problem.task.value):
            yield _column(name, ood_set), f"is no metric of {problem.task.value}"
    for name in ALWAYS_DEFINED[problem.task.value]:
        yield from _due(name, row.metrics.get(name))
    for one in expected:
        sets = [name for name in row.ood if name == one or name.startswith(f"{one}:")]
        for ood_set in sets or [one]:
            for name in ALWAYS_DEFINED_ON_OOD:
                yield from _due(_column(name, ood_set), row.ood.get(ood_set, {}).get(name))
    for name in ("fit_seconds", "tune_seconds", "predict_seconds"):
        seconds = getattr(row, name)
        if not (math.isfinite(seconds) and seconds >= 0):
            yield name, f"is {seconds}, must be 0 or more"


def _column(name: str, ood_set: str) -> str:
    return f"ood:{ood_set}:{name}" if ood_set else name


def _due(column: str, value: float | None) -> Iterator[tuple[str, str]]:
    if value is None or math.isnan(value):
        yield column, f"is {'missing' if value is None else 'NaN'}, must be a number"


def _contradictions(submissions: Sequence[Submission]) -> Iterator[Fault]:
    """Yield where a row says something else than an earlier one of the same problem and seed."""
    first: dict[tuple[str, ...], tuple[str, Row]] = {}
    for submission in sorted(submissions, key=lambda one: one.name):
        name = f"{SUBMISSIONS}/{submission.name}"
        for number, row in enumerate(submission.rows, start=2):
            place = f"{name}: row {number}"
            twin_place, twin = first.setdefault(("key", row.key), (place, row))
            if different := contradiction(row, twin):
                what = (
                    f"is that of {twin_place} too, with other numbers ({different}); a board has "
                    "one result of a cell, so leave the method out (--methods)"
                )
                yield Fault(name, what, "key", number)
            if row.status != "ok":
                continue
            for field in ("fingerprint", "map_checkpoint"):
                if not getattr(row, field):  # a method that trains its own networks
                    continue
                cell = (field, row.problem, str(row.seed))
                other_place, other = first.setdefault(cell, (place, row))
                if getattr(other, field) != getattr(row, field):
                    what = (
                        f"is {getattr(row, field)[:12]}, of the same problem and seed it is "
                        f"{getattr(other, field)[:12]} in {other_place}"
                    )
                    yield Fault(name, what, field, number)


def _board_faults(
    folder: Path,
    board: str,
    definition: BoardDefinition,
    submissions: Sequence[Submission],
    unread: bool,
) -> Iterator[Fault]:
    """Yield where the board is not what its submissions generate."""
    path = folder / f"{board}.csv"
    if not submissions:
        if path.is_file() and not unread:
            yield Fault(path.name, "no submission is behind it; remove it")
        return
    try:
        generated = board_csv(definition, submissions)
    except UQBenchError as error:
        yield Fault(path.name, f"cannot be generated: {printable(str(error).splitlines()[0])}")
        return
    try:
        found = path.read_bytes().decode()
    except FileNotFoundError:
        yield Fault(path.name, "is missing; 'uqbench publish' writes it")
        return
    except (OSError, UnicodeDecodeError) as error:
        yield Fault(path.name, f"cannot be read: {error}")
        return
    try:
        for row, field, what in differences(found, generated):
            yield Fault(path.name, what, field, row)
    except csv.Error as error:
        yield Fault(path.name, f"is not CSV: {error}")
