"""Publishing: from a run to submissions and a board, or the reason why not."""

from __future__ import annotations

import getpass
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from uqbench.errors import UsageError
from uqbench.formatting import counted, printable
from uqbench.published_boards import BoardDefinition, board_csv
from uqbench.records import EVALUATOR_VERSION, Record
from uqbench.replacement import replacement
from uqbench.results import Results
from uqbench.submissions import (
    ENVIRONMENT_SUFFIX,
    SUBMISSION_VERSION,
    Environment,
    Fault,
    Row,
    Submission,
    complaints,
    csv_text,
    digest_of,
    environment_of,
    head_text,
    row_of,
)
from uqbench.suggestions import did_you_mean
from uqbench.verification import (
    SUBMISSIONS,
    Folder,
    read_folder,
    report,
    spelling_faults,
    submission_faults,
)

MOST_LINES = 5
"""Of a refusal."""


@dataclass(frozen=True)
class Published:
    """The files that were written."""

    submissions: tuple[Path, ...]
    boards: tuple[Path, ...]


def publish(
    runs: str | Path | Iterable[str | Path],
    to: str | Path = "leaderboards",
    *,
    who: str | None = None,
    methods: Sequence[str] = (),
) -> Published:
    """Write one submission per board and method of some runs, and generate the boards again.

    who: whose they are (default: the name of the user's account). methods: which (default: all).
    A submission of the same name is replaced. Raises :class:`UsageError`, and writes nothing, if
    anything could not be verified: a quick run, cells that are missing or without a result, changes
    that were not committed, numbers that contradict what others published. The error has a line for
    each reason.
    """
    who = _sender(who)
    folder = Path(to)
    found = read_folder(folder)
    records = _chosen(Results.load(runs).records, methods)
    new: dict[str, Submission] = {}
    reasons: list[_Reason] = []
    for board, definition in found.definitions.items():
        on_board = [r for r in records if r.identity.problem in definition.problems]
        of_suite = [r for r in on_board if r.identity.suite == definition.suite]
        for method in dict.fromkeys(record.identity.method for record in of_suite):
            own = [record for record in on_board if record.identity.method == method]
            submission = _submission(board, definition, method, who, own)
            if isinstance(submission, Submission):
                new[submission.name] = submission
            else:
                reasons += submission
    if not new and not reasons:
        raise UsageError(f"nothing to publish: {_no_board(records, found.definitions)}")
    faults = _faults(found, new)
    if reasons or faults:
        raise UsageError("\n".join(_refusals(reasons, faults)))
    boards = {}
    for board in dict.fromkeys(one.board for one in new.values()):
        beside = [one for one in found.of_board(board) if one.name not in new]
        mine = [one for one in new.values() if one.board == board]
        boards[board] = board_csv(found.definitions[board], [*beside, *mine])
    return _written(folder, new, boards)


def _sender(who: str | None) -> str:
    if who is None:
        try:
            who = getpass.getuser()
        except (KeyError, OSError):
            raise UsageError("who publishes? Give --who NAME.") from None
    if not re.fullmatch("[A-Za-z0-9][A-Za-z0-9_-]{0,63}", who):
        raise UsageError(
            f"--who {printable(who)}: a sender's name is letters, digits, _ and -, at most 64, and "
            "starts with a letter or digit"
        )
    return who


def _chosen(records: Sequence[Record], methods: Sequence[str]) -> list[Record]:
    """The records of some methods; quick ones and old metrics' only where there is nothing else."""
    known = {record.identity.method for record in records}
    for method in methods:
        if method not in known:
            raise UsageError(f"the run has no method '{method}'.{did_you_mean(method, known)}")
    chosen = [r for r in records if not methods or r.identity.method in methods]
    full = {(r.identity.problem, r.identity.method) for r in chosen if _counts(r)}
    return [r for r in chosen if _counts(r) or (r.identity.problem, r.identity.method) not in full]


def _counts(record: Record) -> bool:
    return not record.identity.quick and record.identity.evaluator == EVALUATOR_VERSION


def _no_board(records: Sequence[Record], definitions: Mapping[str, BoardDefinition]) -> str:
    """Say why no cell is on a board: another suite's problem of that name is, or none."""
    for record in records:
        problem, suite = record.identity.problem, record.identity.suite
        for board, definition in definitions.items():
            if problem in definition.problems:
                return (
                    f"the run has {problem} of suite {printable(suite)}; board {board} wants suite "
                    f"{definition.suite} (--suite {definition.suite})."
                )
    suites = sorted({definition.suite for definition in definitions.values()})
    return (
        "no board has these problems. There are boards of problems of "
        f"{counted(len(suites), 'suite')}: {', '.join(suites)}."
    )


@dataclass(frozen=True)
class _Reason:
    """Why a method is not published. cell: the one at fault, empty if no cell is.

    what: ``METHODS`` stands for all methods of which the same is true.
    """

    board: str
    method: str
    cell: str
    what: str


def _submission(
    board: str, definition: BoardDefinition, method: str, who: str, records: Sequence[Record]
) -> Submission | list[_Reason]:
    order = {problem: position for position, problem in enumerate(definition.problems)}
    of_suite = [record for record in records if record.identity.suite == definition.suite]
    rows: list[Row] = []
    reasons: list[_Reason] = []
    environments: dict[str, Environment] = {}
    seen: dict[tuple[str, int], Record] = {}
    for record in sorted(of_suite, key=lambda r: (order[r.identity.problem], r.identity.seed)):
        identity = record.identity
        if identity.seed >= definition.seeds_of(identity.problem):
            continue
        cell = f"{identity.problem} seed {identity.seed}"
        if seen.setdefault((identity.problem, identity.seed), record) is not record:
            what = (
                "there are two results, with different settings or data; name a run with one of "
                "them only"
            )
            reasons.append(_Reason(board, method, cell, what))
            continue
        if record.status not in ("ok", "skipped"):
            what = f"has no result ({record.status}); run it again with --rerun failed"
            reasons.append(_Reason(board, method, cell, what))
            continue
        try:
            row = row_of(record)
        except ValidationError as error:
            found = dict(complaints(error))
            if "commit" in found:  # then nobody knows about changes either
                found.pop("dirty", None)
            reasons += [_Reason(board, method, cell, f"{name} {found[name]}") for name in found]
            continue
        rows.append(row)
        environments[row.environment] = environment_of(record)
    others = {record.identity.problem: record.identity.suite for record in records}
    reasons += _missing(board, definition, method, seen, others)
    if reasons:
        return reasons
    return Submission(
        schema_version=SUBMISSION_VERSION,
        board=board,
        method=method,
        who=who,
        csv_sha256=digest_of(csv_text(rows).encode()),
        environments=environments,
        rows=rows,
    )


def _missing(
    board: str,
    definition: BoardDefinition,
    method: str,
    seen: Mapping[tuple[str, int], Record],
    suites: Mapping[str, str],
) -> Iterator[_Reason]:
    """Yield what the run lacks, if anything, with the command that runs it.

    suites: problem -> a suite of which the run has it.
    """
    wanted = [
        (problem, seed)
        for problem in definition.problems
        for seed in range(definition.seeds_of(problem))
    ]
    missing = [cell for cell in wanted if cell not in seen]
    if missing:
        problem, seed = missing[0]
        more = f" and {counted(len(missing) - 1, 'other cell')}" if len(missing) > 1 else ""
        seeds = definition.seeds_of(problem)
        alike = [other for other in definition.problems if definition.seeds_of(other) == seeds]
        suite = suites.get(problem, definition.suite)
        if suite != definition.suite:
            more += f" (of suite {definition.suite}; that of suite {printable(suite)} is another)"
        what = (
            f"the run is incomplete, it lacks {problem} seed {seed}{more}; run 'uqbench run "
            f"--suite {definition.suite} --problems {','.join(alike)} --methods METHODS "
            f"--seeds {seeds}' into the same folder"
        )
        yield _Reason(board, method, "", what)


def _refusals(reasons: Sequence[_Reason], faults: Mapping[str, Sequence[Fault]]) -> list[str]:
    """Return one line for each reason, at most :data:`MOST_LINES`; the same one is said once."""
    alike: dict[tuple[str, str], list[_Reason]] = {}
    for reason in reasons:
        alike.setdefault((reason.board, reason.what), []).append(reason)
    lines = []
    for (board, what), group in alike.items():
        methods = [printable(method) for method in dict.fromkeys(one.method for one in group)]
        cell, more = group[0].cell, ""
        place = f"{methods[0]}: {cell}" if cell else ", ".join(methods)
        if cell and len(group) > 1:
            more = f" (and {counted(len(group) - 1, 'more cell')})"
        text = what.replace("METHODS", ",".join(methods))
        lines.append(f"not published on {board}: {place}: {text}{more}.")
    for board, found in faults.items():
        lines += [f"not published on {board}: {line}." for line in report(found)]
    if len(lines) > MOST_LINES:
        rest = counted(len(lines) - MOST_LINES + 1, "more reason")
        lines[MOST_LINES - 1 :] = [f"And {rest}."]
    return lines


def _faults(found: Folder, new: Mapping[str, Submission]) -> dict[str, list[Fault]]:
    """Return board -> what would not verify."""
    replaced = tuple(
        f"{SUBMISSIONS}/{name.removesuffix('.csv')}{suffix}"
        for name in new
        for suffix in (".csv", ENVIRONMENT_SUFFIX)
    )
    kept = [one for one in found.submissions if one.name not in new]
    spelling = spelling_faults([*kept, *new.values()])
    faults = {}
    for board in dict.fromkeys(submission.board for submission in new.values()):
        definition = found.definitions[board]
        mine = [one for one in new.values() if one.board == board]
        # first those that are new, alone: the others are not to blame for them
        of_board = submission_faults(definition, mine) or [
            fault
            for fault in found.faults
            if fault.file.startswith(f"{SUBMISSIONS}/{board}/") and fault.file not in replaced
        ]
        beside = [one for one in kept if one.board == board]
        of_board = of_board or submission_faults(definition, [*beside, *mine])
        if of_board or spelling:
            faults[board] = [*spelling, *of_board]
            spelling = []
    return faults


def _written(folder: Path, new: Mapping[str, Submission], boards: Mapping[str, str]) -> Published:
    """Write all files, each whole or unchanged; the boards last, which verification compares."""
    texts: dict[Path, str] = {}
    for name, submission in new.items():
        path = folder / SUBMISSIONS / name
        texts[path] = csv_text(submission.rows)
        texts[path.with_name(path.stem + ENVIRONMENT_SUFFIX)] = head_text(submission)
    board_texts = {folder / f"{board}.csv": text for board, text in boards.items()}
    for path, text in (texts | board_texts).items():
        try:
            with replacement(path) as file:
                file.write(text.encode())
        except OSError as error:
            raise UsageError(
                f"{path}: cannot be written: {error.strerror}. The same command completes it."
            ) from None
    submissions = tuple(path for path in texts if path.suffix == ".csv")
    return Published(submissions, tuple(board_texts))
