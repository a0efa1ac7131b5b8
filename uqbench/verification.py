"""Verification of published leaderboards: everything that is wrong with a folder."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime, timedelta
from functools import cache
from importlib.metadata import requires
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

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
from uqbench.records import EVALUATOR_VERSION, Identity
from uqbench.registry import BUILT_IN, method_names, method_source
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
ROUNDING = 1e-6
"""By how much a metric may lie outside the range of its definition."""
_WRITTEN = datetime(2026, 12, 1, tzinfo=UTC)
"""When this was written: a clock that says less is wrong."""
_IDENTITY = [part.name for part in fields(Identity)]
_OTHER_FILES = (FILE_NAME, "schema.json", "README.md", "__init__.py")
_OTHER_FOLDERS = ("paper", SUBMISSIONS, "__pycache__")


@dataclass(frozen=True)
class Folder:
    """A folder of leaderboards as it was found. submissions: those that can be understood.

    unread: boards with submissions that cannot.
    """

    definitions: Mapping[str, BoardDefinition]
    submissions: Sequence[Submission]
    faults: Sequence[Fault]
    unread: frozenset[str] = frozenset()

    def of_board(self, board: str) -> list[Submission]:
        return [one for one in self.submissions if one.board == board]


def read_folder(folder: str | Path) -> Folder:
    """Read boards' definitions and all submissions; raise UsageError without the former."""
    folder = Path(folder)
    definitions = board_definitions(folder)
    submissions, faults, unread = [], list(_strangers(folder, definitions)), set()
    for board in definitions:
        home = folder / SUBMISSIONS / board
        stems = [path.name.removesuffix(ENVIRONMENT_SUFFIX) for path in home.glob("*.json")]
        if not all((home / f"{stem}.csv").is_file() for stem in stems):
            unread.add(board)
        for path in sorted(home.glob("*.csv")):
            if path.is_symlink() or path.stat().st_size > MOST_BYTES:
                unread.add(board)  # and among the strangers
                continue
            name = f"{SUBMISSIONS}/{board}/{path.name}"
            submission, found = read(path, name)
            faults += found
            if submission is not None and f"{SUBMISSIONS}/{submission.name}" == name:
                submissions.append(submission)
                continue
            unread.add(board)
            if submission is not None:
                what = f"holds what belongs into {SUBMISSIONS}/{printable(submission.name)}"
                faults.append(Fault(name, what))
    return Folder(definitions, submissions, faults, frozenset(unread))


def verify(folder: str | Path) -> list[Fault]:
    """Return everything that is wrong with a folder of leaderboards, nothing if all is well.

    What follows from another fault is left out: rows with faults of their own are not held against
    other submissions, and a board only against submissions without faults but of the hash: an
    edited number shows in both. Nothing of the submissions is run, and no data set is needed.
    Raises :class:`UsageError` if the folder has no definitions of boards.
    """
    found = read_folder(folder)
    faults = [*found.faults, *spelling_faults(found.submissions)]
    for board, definition in found.definitions.items():
        submissions = found.of_board(board)
        of_board = submission_faults(definition, submissions)
        if not of_board and board not in found.unread:
            of_board = list(_board_faults(Path(folder), board, definition, submissions))
        faults += of_board
    return faults


def report(faults: Iterable[Fault]) -> list[str]:
    """Return one line for each kind of fault in a file: the first, and how many more there are."""
    kinds: dict[tuple, list[Fault]] = {}
    for fault in faults:
        # faults of one column are alike, and those of several that say the same of other values
        field = fault.field.split(".")[0]
        alike = re.sub(r"'[^']*'|\S*[\d/]\S*|\bNaN\b", "", fault.what)
        kind = fault.file, fault.other_file, fault.row > 0, field in Row.model_fields and field
        kinds.setdefault((*kind, alike), []).append(fault)
    shown = []
    for first, *others in kinds.values():
        more = len(others)
        rows = len({first.row, *(other.row for other in others)}) == more + 1
        unit = counted(more, "more row") if rows else f"{more} more like it"
        shown.append(f"{first} (and {unit})" if more else str(first))
    return shown


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
    sound: list[_Place] = []
    for submission in submissions:
        name = f"{SUBMISSIONS}/{submission.name}"
        own = list(_completeness_faults(name, definition, submission))
        for number, row in enumerate(submission.rows, start=2):
            found = list(_row_faults(definition, problems, submission, row))
            if any(field in _IDENTITY for field, _ in found):
                found = [fault for fault in found if fault[0] != "key"]  # follows from those
            own += [Fault(name, what, field, number) for field, what in found]
        spoiled = {fault.row for fault in own}
        places = [_Place(name, number, row) for number, row in enumerate(submission.rows, start=2)]
        sound += [place for place in places if place.number not in spoiled]
        faults += own
    return [*faults, *_contradictions(sound), *_source_contradictions(sound)]


class _Place(NamedTuple):
    """A row, and where it is."""

    file: str
    number: int
    row: Row


def spelling_faults(submissions: Sequence[Submission]) -> list[Fault]:
    """Return where names differ in case only, which some file systems take for the same name."""
    faults = []
    for field, built_in in (("method", _built_in()), ("who", ())):
        known = {name.casefold(): {name: ""} for name in built_in}
        for submission in sorted(submissions, key=lambda one: one.name):
            file, name = f"{SUBMISSIONS}/{submission.name}", getattr(submission, field)
            spellings = known.setdefault(name.casefold(), {name: file})
            if name in spellings:
                continue
            other, place = next(iter(spellings.items()))
            whose = "" if place else ", which is a method of uqbench,"
            what = f"{other}{whose} and {name} differ in case only; use another name"
            faults.append(Fault(place or file, what, field, other_file=place and file))
            spellings[name] = file
    return faults


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
    first: dict[tuple[str, int], int] = {}
    for number, row in enumerate(rows, start=2):
        earlier = first.setdefault((row.problem, row.seed), number)
        if earlier != number:
            what = f"is of {printable(row.problem)} seed {row.seed}, as row {earlier} is"
            yield Fault(name, what, "seed", number)
    for problem in definition.problems:
        seeds = definition.seeds_of(problem)
        missing = [seed for seed in range(seeds) if (problem, seed) not in first]
        if missing:
            plural = "s" if len(missing) > 1 else ""
            what = f"{problem}: lacks seed{plural} {', '.join(map(str, missing))}"
            yield Fault(name, what, "seed")
        of_problem = [row for row in rows if row.problem == problem]
        if len({row.status for row in of_problem}) > 1:
            yield Fault(name, f"{problem}: skipped with some seeds only", "status")
        if len({compact_json(row.settings) for row in of_problem}) > 1:
            yield Fault(name, f"{problem}: seeds differ in settings", "settings")
    sources = list(dict.fromkeys(filter(None, (row.method_source for row in rows))))
    if len(sources) > 1:
        one, other = map(_short_source, sources[:2])
        what = f"the rows are of different code, {one} and {other}; run all again with --rerun all"
        yield Fault(name, what, "method_source")
    if all(row.status == "skipped" for row in rows):
        yield Fault(name, "no problem has a result", "status")


def _short_source(source: str) -> str:
    return printable(re.sub("(?<=sha256:.{12}).*", "…", source))


@cache
def _built_in() -> frozenset[str]:
    """Names of uqbench's own methods."""
    return frozenset(name for name in method_names() if method_source(name) == BUILT_IN)


@cache
def _libraries() -> frozenset[str]:
    """Packages that are no home of methods: uqbench, and what it needs itself."""
    names = (re.match(r"[\w.-]+", line) for line in [BUILT_IN, *(requires(BUILT_IN) or ())])
    return frozenset(_normalised(name[0]) for name in names if name)


def _normalised(package: str) -> str:
    """A package's name as indices compare it (PEP 503)."""
    return re.sub("[-_.]+", "-", package).lower()


def _source_faults(row: Row) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with the source that a row names, by :func:`method_source`'s rules."""
    seen, shown = row.method_source, _short_source(row.method_source)
    if row.method in _built_in():
        # blank: was run before records knew their source
        if seen not in ("", BUILT_IN):
            what = f"is {shown}, but {row.method} is a method of uqbench; name yours otherwise"
            yield "method_source", what
    elif not seen:
        what = f"is blank, but {row.method} is no method of uqbench; run again with --rerun all"
        yield "method_source", what
    elif seen == BUILT_IN:
        yield "method_source", f"is {BUILT_IN}, which has no method named {row.method}"
    elif not seen.partition(" ")[2].startswith("sha256:"):
        package = seen.partition(" ")[0]
        if package.endswith(".py"):
            yield "method_source", f"is {shown}, but a file has its sha256"
        if _normalised(package) in _libraries():
            yield "method_source", f"is {shown}, but {package} is a library that has no methods"


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
    yield from _source_faults(row)
    if row.started_at > max(datetime.now(UTC), _WRITTEN) + timedelta(days=1):  # clocks differ
        yield "started", f"is {row.started}, which is in the future"
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
    task = problem.task.value
    for name, ood_set, value in numbers:
        metric = METRICS.get(name)
        if metric is None or metric.per_ood != bool(ood_set):
            shown = shortened(printable(name), 60)
            yield _column(name, ood_set), f"no metric named '{shown}'.{did_you_mean(name, METRICS)}"
        elif metric.task not in ("any", task):
            yield _column(name, ood_set), f"is no metric of {task}"
        elif out := _outside(value, *metric.range_in(task)):
            yield _column(name, ood_set), out
    for name in ALWAYS_DEFINED[task]:
        yield from _due(name, row.metrics.get(name))
    for one in expected:
        sets = [name for name in row.ood if name == one or name.startswith(f"{one}:")]
        for ood_set in sets or [one]:
            for name in ALWAYS_DEFINED_ON_OOD:
                yield from _due(_column(name, ood_set), row.ood.get(ood_set, {}).get(name))
    for name in ("map_seconds", "fit_seconds", "tune_seconds", "predict_seconds"):
        seconds = getattr(row, name)
        trains_its_own = name == "map_seconds" and math.isnan(seconds)
        if not trains_its_own and not (math.isfinite(seconds) and seconds >= 0):
            yield name, f"is {seconds}, must be 0 or more"
    for name, value in row.tuned.items():
        if not math.isfinite(value):
            yield f"tuned.{name}", f"is {value}, must be a finite number"
    for name in ("threads", "repeats"):
        if getattr(row, name) < 1:
            yield name, f"is {getattr(row, name)}, must be 1 or more"


def _outside(value: float, lowest: float, highest: float) -> str:
    """Say that a number is not in its range; empty if it is, or is undefined."""
    if math.isnan(value) or lowest - ROUNDING <= value <= highest + ROUNDING:
        return ""
    limits = f"{lowest:.4g} or more" if math.isinf(highest) else f"{lowest:.4g} to {highest:.4g}"
    return f"is {value:.6g}, must be {limits}"


def _column(name: str, ood_set: str) -> str:
    return f"ood:{ood_set}:{name}" if ood_set else name


def _due(column: str, value: float | None) -> Iterator[tuple[str, str]]:
    if value is None or math.isnan(value):
        yield column, f"is {'missing' if value is None else 'NaN'}, must be a number"


def _contradictions(places: Sequence[_Place]) -> Iterator[Fault]:
    """Yield where two rows of one cell, or of one problem and seed, say different things."""
    cells: dict[str, list[_Place]] = {}
    data: dict[tuple[str, int], list[_Place]] = {}
    for place in sorted(places):
        cells.setdefault(place.row.key, []).append(place)
        if place.row.status == "ok":
            data.setdefault((place.row.problem, place.row.seed), []).append(place)
    for group in cells.values():
        for pair in _at_odds(group, lambda one, other: not contradiction(one, other)):
            one, other = sorted(pair)
            what = (
                f"one cell has two results: {contradiction(one.row, other.row)}; a board has one, "
                "so leave the method out (--methods)"
            )
            yield Fault(one.file, what, "key", one.number, other.file, other.number)
    for group in data.values():
        odd: list[_Place] = []
        for name in ("fingerprint", "map_checkpoint"):
            value = attrgetter(name)
            # a method that trains its own networks has no MAP network
            known = [place for place in group if value(place.row) and place not in odd]
            for pair in _at_odds(known, lambda one, other, of=value: of(one) == of(other)):
                odd.append(pair[1])  # other data make another network
                one, other = sorted(pair)
                values = f"{value(one.row)[:12]} and {value(other.row)[:12]}"
                what = f"{values}, but problem and seed are the same"
                yield Fault(one.file, what, name, one.number, other.file, other.number)


def _at_odds(
    places: Sequence[_Place], agree: Callable[[Row, Row], bool]
) -> Iterator[tuple[_Place, _Place]]:
    """Yield the row with which most agree, and one that does not, for each that does not.

    Of two rows nobody knows which is wrong, of many it is rather the odd one.
    """
    if len(places) < 2:
        return
    most = max(places, key=lambda one: sum(agree(one.row, other.row) for other in places))
    yield from ((most, place) for place in places if not agree(most.row, place.row))


def _source_contradictions(places: Sequence[_Place]) -> Iterator[Fault]:
    """Yield where two submissions of one method are of different code."""
    sources: dict[str, dict[str, _Place]] = {}
    for place in sorted(places):
        if place.row.method_source:
            sources.setdefault(place.row.method, {}).setdefault(place.row.method_source, place)
    for method, of_source in sources.items():
        one, *others = of_source.values()
        for other in others:
            if other.file != one.file:  # else it is a fault of that submission
                codes = " and ".join(_short_source(side.row.method_source) for side in (one, other))
                what = f"{method} is of different code, {codes}; give one of them another name"
                yield Fault(one.file, what, "method_source", one.number, other.file, other.number)


def _board_faults(
    folder: Path,
    board: str,
    definition: BoardDefinition,
    submissions: Sequence[Submission],
) -> Iterator[Fault]:
    """Yield where the board is not what its submissions generate."""
    path = folder / f"{board}.csv"
    if not submissions:
        if path.is_file():
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
