"""What a picture shows: one problem, one seed, one entry per method."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from uqbench.boards import Board, Row, boards
from uqbench.errors import DataError, UsageError
from uqbench.formatting import compact_json, counted, printable
from uqbench.records import Identity, Record
from uqbench.suggestions import did_you_mean

if TYPE_CHECKING:
    from uqbench.results import Results


@dataclass(frozen=True)
class Entry:
    """One method with one group of settings.

    label: as on the leaderboard. record: its cell; None if that has no result, and then ``reason``
    says why.
    """

    label: str
    record: Record | None = None
    reason: str = ""


@dataclass(frozen=True)
class Selection:
    """The cells of one problem and one seed, in the order of the records."""

    board: Board
    seed: int
    entries: tuple[Entry, ...]

    @property
    def records(self) -> list[Record]:
        return [entry.record for entry in self.entries if entry.record is not None]

    def title(self, *parts: str) -> str:
        """Name the problem, the seed and whatever else was chosen."""
        return board_title(self.board, f"seed {self.seed}", *parts)


def board_title(board: Board, *parts: str) -> str:
    """Name the problem and whatever else is shown, on one line."""
    quick = ["QUICK RUN"] if board.quick else []
    return printable(f"{board.problem}: {', '.join([*quick, *parts])}")


def classifications(results: Results, problem: str | None, seed: int | None) -> Selection:
    """Select a classification; the method ``base``, which knows nothing, comes last.

    Raises UsageError if there is no such problem or seed, or several problems and none is named.
    """
    return _of_task("classification", "sklearn/digits", results, problem, seed)


def regressions(results: Results, problem: str | None, seed: int | None) -> Selection:
    """Select a regression as :func:`classifications` does a classification."""
    return _of_task("regression", "sklearn/diabetes", results, problem, seed)


def _of_task(
    task: str, example: str, results: Results, problem: str | None, seed: int | None
) -> Selection:
    board = choose_board(
        results,
        problem,
        task,
        lambda one: any(record.status == "ok" for record in records_of(results, one)),
        none=f"no {task} has a result here. Run one, like --problems {example}.",
        unfit=f"not a {task} with a result",
    )
    selection = select(results, board, seed)
    base = {row.label for row in board.rows if row.method == "base"}
    entries = sorted(selection.entries, key=lambda entry: entry.label in base)
    return replace(selection, entries=tuple(entries))


def choose_board(
    results: Results,
    problem: str | None,
    task: str | None,
    can_draw: Callable[[Board], bool],
    *,
    none: str,
    unfit: str,
) -> Board:
    """Return the board to draw; a quick run's only if there is no other of its problem.

    task: None for any. none: what to say if no problem can be drawn; unfit: what is wrong with one
    that cannot.
    """
    found: dict[str, Board] = {}
    unreadable = None
    for board in boards(results.records):
        if task not in (None, board.task) or problem not in (None, board.problem):
            continue
        try:
            drawable = can_draw(board)
        except DataError as error:  # matters only if no other problem can be drawn
            unreadable = unreadable or error
            continue
        if drawable and (board.problem not in found or not board.quick):
            found[board.problem] = board
    if len(found) == 1:
        return next(iter(found.values()))
    if found:
        raise UsageError(
            f"several problems can be drawn: {', '.join(found)}. Name one with --problem."
        )
    if unreadable is not None:
        raise unreadable
    if problem is None:
        raise UsageError(none)
    there = sorted({record.identity.problem for record in results.records})
    if problem not in there:
        raise UsageError(f"no problem named '{problem}' here.{did_you_mean(problem, there)}")
    raise UsageError(f"{problem}: {unfit}")


def select(results: Results, board: Board, seed: int | None) -> Selection:
    """Return what became of every method with one seed (default: the lowest of the board's).

    Raises UsageError if there is no such seed, or no method has a result with it.
    """
    if seed is None:
        seed = board.seeds[0]
    _check_seed(board, seed)
    records = records_of(results, board)
    order = list(dict.fromkeys(row_key(record.identity) for record in records))
    by_row = {row_key(one.identity): one for one in records if one.identity.seed == seed}
    entries = []
    for row in sorted(board.rows, key=lambda row: order.index(row_key(row))):
        record = by_row.get(row_key(row))
        if record is not None and record.status == "ok":
            entries.append(Entry(row.label, record))
        else:
            gap = next(gap for gap in row.gaps if seed in gap.seeds)
            entries.append(
                Entry(row.label, reason=": ".join(filter(None, (gap.status, gap.reason))))
            )
    if not any(entry.record for entry in entries):
        raise UsageError(f"{board.problem}: no method has a result with seed {seed}")
    return Selection(board, seed, tuple(entries))


def with_seed(results: Results, board: Board, seed: int | None) -> tuple[Board, str]:
    """Return the board of one seed alone (None: of all), and what a title says of its seeds.

    Raises UsageError if there is no such seed.
    """
    if seed is None:
        return board, counted(len(board.seeds), "seed")
    _check_seed(board, seed)
    (of_seed,) = boards([one for one in records_of(results, board) if one.identity.seed == seed])
    return of_seed, f"seed {seed}"


def records_of(results: Results, board: Board) -> list[Record]:
    """Return the records that a board is made of."""
    return [
        record
        for record in results.records
        if (record.identity.problem, record.identity.quick) == (board.problem, board.quick)
        and record.identity.seed in board.seeds
    ]


def choose_ood(selection: Selection, name: str | None) -> tuple[Selection, str | None]:
    """Return the OoD set to draw, the named one or the only one, and the cells that have it.

    It is None where there is no OoD set at all, and then the selection is as it was. Raises
    UsageError if there is no set of that name, or several and none is named.
    """
    there = list(dict.fromkeys(one for record in selection.records for one in record.outcome.ood))
    problem = selection.board.problem
    if name is not None and name not in there:
        known = did_you_mean(name, there) or " There is none."
        raise UsageError(f"{problem}: no OoD set named '{name}' in these results.{known}")
    if name is None and len(there) > 1:
        raise UsageError(f"{problem}: several OoD sets: {', '.join(there)}. Name one with --ood.")
    if not there:
        return selection, None
    chosen = name or there[0]
    entries = [
        Entry(entry.label, reason=f"not evaluated on {chosen}")
        if entry.record is not None and chosen not in entry.record.outcome.ood
        else entry
        for entry in selection.entries
    ]
    return replace(selection, entries=tuple(entries)), chosen


def row_key(one: Identity | Row) -> tuple[str, str]:
    """Return what tells the rows of a board apart: the method and its settings."""
    return one.method, compact_json(one.settings)


def _check_seed(board: Board, seed: int) -> None:
    if seed not in board.seeds:
        there = ", ".join(map(str, board.seeds))
        raise UsageError(f"{board.problem}: no seed {seed} in these results; there is {there}")
