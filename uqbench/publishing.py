"""Publishing: from a run to submissions and a board, or the reason why not."""

from __future__ import annotations

import getpass
import re
from collections.abc import Iterable, Mapping, Sequence
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
from uqbench.verification import SUBMISSIONS, read_folder, submission_faults


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
    that were not committed, numbers that contradict what others published.
    """
    who = _sender(who)
    folder = Path(to)
    found = read_folder(folder)
    records = _chosen(Results.load(runs).records, methods)
    new: dict[str, Submission] = {}
    for board, definition in found.definitions.items():
        on_board = [
            record
            for record in records
            if record.identity.suite == definition.suite
            and record.identity.problem in definition.problems
        ]
        for method in dict.fromkeys(record.identity.method for record in on_board):
            own = [record for record in on_board if record.identity.method == method]
            submission = _submission(board, definition, method, who, own)
            new[submission.name] = submission
    if not new:
        suites = sorted({definition.suite for definition in found.definitions.values()})
        raise UsageError(
            "nothing to publish: no board has these problems. There are boards of problems of "
            f"{counted(len(suites), 'suite')}: {', '.join(suites)}."
        )
    boards = _boards(found.definitions, found.submissions, found.faults, new)
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


def _submission(
    board: str, definition: BoardDefinition, method: str, who: str, records: Sequence[Record]
) -> Submission:
    order = {problem: position for position, problem in enumerate(definition.problems)}
    rows: list[Row] = []
    environments: dict[str, Environment] = {}
    seen: dict[tuple[str, int], Record] = {}
    for record in sorted(records, key=lambda r: (order[r.identity.problem], r.identity.seed)):
        identity = record.identity
        if identity.seed >= definition.seeds_of(identity.problem):
            continue
        cell = f"{printable(method)}: {identity.problem} seed {identity.seed}"
        if record.status not in ("ok", "skipped"):
            raise _refusal(
                board, f"{cell}: has no result ({record.status}); run it again with --rerun failed"
            )
        try:
            row = row_of(record)
        except ValidationError as error:
            field, what = next(complaints(error))
            raise _refusal(board, f"{cell}: {field} {what}") from None
        if seen.setdefault((identity.problem, identity.seed), record) is not record:
            raise _refusal(
                board,
                f"{cell}: there are two results, with different settings or data; name a run with "
                "one of them only",
            )
        rows.append(row)
        environments[row.environment] = environment_of(record)
    _require_all(board, definition, method, seen)
    return Submission(
        schema_version=SUBMISSION_VERSION,
        board=board,
        method=method,
        who=who,
        csv_sha256=digest_of(csv_text(rows).encode()),
        environments=environments,
        rows=rows,
    )


def _require_all(
    board: str,
    definition: BoardDefinition,
    method: str,
    seen: Mapping[tuple[str, int], Record],
) -> None:
    """Raise if cells are missing, with the command that runs them."""
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
        raise _refusal(
            board,
            f"{printable(method)}: the run is incomplete, it lacks {problem} seed {seed}{more}; "
            f"run 'uqbench run --suite {definition.suite} --problems {','.join(alike)} "
            f"--methods {method} --seeds {seeds}' into the same folder",
        )


def _refusal(board: str, reason: str) -> UsageError:
    return UsageError(f"not published on {board}: {reason}.")


def _boards(
    definitions: Mapping[str, BoardDefinition],
    old: Sequence[Submission],
    old_faults: Sequence[Fault],
    new: Mapping[str, Submission],
) -> dict[str, str]:
    """Return board -> CSV with the new submissions; raise if anything would not verify."""
    boards = {}
    replaced = tuple(
        f"{SUBMISSIONS}/{name.removesuffix('.csv')}{suffix}"
        for name in new
        for suffix in (".csv", ENVIRONMENT_SUFFIX)
    )
    for board in dict.fromkeys(submission.board for submission in new.values()):
        beside = [one for one in old if one.board == board and one.name not in new]
        mine = [one for one in new.values() if one.board == board]
        # first those that are new, alone: the others are not to blame for them
        faults = submission_faults(definitions[board], mine)
        faults += [
            fault
            for fault in old_faults
            if fault.file.startswith(f"{SUBMISSIONS}/{board}/") and fault.file not in replaced
        ]
        faults = faults or submission_faults(definitions[board], [*beside, *mine])
        if faults:
            more = f" (and {counted(len(faults) - 1, 'more fault')})" if len(faults) > 1 else ""
            raise _refusal(board, f"{faults[0]}{more}")
        boards[board] = board_csv(definitions[board], [*beside, *mine])
    return boards


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
