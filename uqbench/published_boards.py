"""Published boards: what each demands, and the CSV that its submissions generate."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import PositiveInt

from uqbench.errors import UsageError
from uqbench.formatting import compact_json, shortened
from uqbench.leaderboard import CSV_COLUMNS, INTERVAL_COLUMNS, Leaderboard
from uqbench.problems import load_suite, read_toml, suite_names, validated
from uqbench.submissions import Submission, close

FILE_NAME = "boards.toml"
BOARD_COLUMNS = (
    *(
        column
        for column in CSV_COLUMNS
        if column not in ("quick", "seeds_planned", "suite", *INTERVAL_COLUMNS)
    ),
    "evaluator",
    "who",
    "method_source",
)
"""``evaluator``: the metrics' version; ``who``: whose rows they are, several with a + in the order
in which they started; ``method_source``: whose code the method is, blank if no row says."""


@dataclass(frozen=True)
class BoardDefinition:
    """What a submission must hold: all of ``problems``, each with the seeds 0 to ``seeds`` - 1.

    fewer_seeds: problem -> its number of seeds, where ``seeds`` would cost too much.
    Problems whose data not everybody has belong on a board of their own.
    """

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012
    suite: str
    problems: tuple[str, ...]
    seeds: PositiveInt
    fewer_seeds: Mapping[str, PositiveInt] = field(default_factory=dict)
    description: str = ""

    def seeds_of(self, problem: str) -> int:
        """How many seeds of a problem are on the board."""
        return self.fewer_seeds.get(problem, self.seeds)


def board_definitions(folder: Path) -> dict[str, BoardDefinition]:
    """Read ``boards.toml``; raise UsageError if it is not there or does not make sense."""
    path = folder / FILE_NAME
    if not path.is_file():
        raise UsageError(
            f"{folder}: no leaderboards here (there is no {FILE_NAME}). Name the folder "
            "leaderboards/ of a checkout of uqbench."
        )
    boards = validated(dict[str, BoardDefinition], read_toml(path), str(path))
    taken: dict[tuple[str, str], str] = {}
    for name, board in boards.items():
        if not re.fullmatch("[a-z0-9][a-z0-9-]*", name) or name in ("paper", "submissions"):
            raise UsageError(f"{path}: {name!r}: not a name for a board (a-z, 0-9 and -)")
        if board.suite not in suite_names():
            raise UsageError(f"{path}: {name}.suite: no suite named '{board.suite}'")
        known = [problem.name for problem in load_suite(board.suite).problems]
        for problem in board.problems or ("",):
            if problem not in known:
                raise UsageError(f"{path}: {name}.problems: suite {board.suite} has no '{problem}'")
            if (board.suite, problem) in taken:
                other = taken[board.suite, problem]
                raise UsageError(f"{path}: {name}.problems: '{problem}' is on {other} already")
            taken[board.suite, problem] = name
        for problem in board.fewer_seeds:
            if problem not in board.problems:
                raise UsageError(f"{path}: {name}.fewer_seeds: '{problem}' is not on the board")
    return boards


def board_csv(definition: BoardDefinition, submissions: Sequence[Submission]) -> str:
    """Return the board's CSV: problems in the board's order, then as :func:`uqbench.boards.boards`.

    Of a cell that several submissions hold, the row that started first counts, with its costs; of
    rows that started together, that of the first sender in alphabetical order. ``who`` names all.
    Raises UQBenchError where rows of one problem cannot be compared.
    """
    order = {name: position for position, name in enumerate(definition.problems)}
    senders: dict[tuple[str, str, str], dict[str, None]] = {}
    sources: dict[tuple[str, str, str], str] = {}
    records = {}
    rows = [(row.started_at, one.who, row) for one in submissions for row in one.rows]
    for _, who, row in sorted(rows, key=lambda each: each[:2]):
        records.setdefault(row.key, row.record)
        shown = row.problem, row.method, compact_json(row.settings)
        senders.setdefault(shown, {})[who] = None
        sources[shown] = sources.get(shown) or row.method_source
    ordered = sorted(
        records.values(),
        key=lambda record: (
            order.get(record.identity.problem, len(order)),
            record.identity.method,
            compact_json(record.identity.settings),
            record.identity.seed,
        ),
    )
    text = io.StringIO()
    writer = csv.DictWriter(text, BOARD_COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    versions = {record.identity.problem: record.identity.evaluator for record in ordered}
    for line in Leaderboard.of(ordered).tidy_rows(intervals=False):
        shown = line["problem"], line["method"], line["settings"]
        numbers = {name: _decimal(line[name]) for name in ("mean", "std")}
        origin = {
            "evaluator": versions[line["problem"]],
            "who": "+".join(senders[shown]),
            "method_source": sources[shown],
        }
        writer.writerow(line | numbers | origin)
    return text.getvalue()


def differences(found: str, generated: str) -> list[tuple[int, str, str]]:
    """Return (row, field, what) where a board differs from the generated one.

    Means and deviations may differ by rounding, which is not the same on every machine.
    """
    left, right = _table(found), _table(generated)
    if left[:1] != right[:1]:
        return [(1, "", "is not the header of a board")]
    header = right[0]
    lead = header.index("mean")
    different = []
    for number, (cells, due) in enumerate(zip(left[1:], right[1:], strict=False), start=2):
        if len(cells) != len(due):
            return [*different, (number, "", f"has {len(cells)} cells, the header {len(due)}")]
        if cells[:lead] != due[:lead]:  # and so may be all that follow
            seen, wanted = (" ".join(filter(None, row[:lead])) for row in (cells, due))
            what = f"is of {shortened(seen, 60)!r}, the submissions give {shortened(wanted, 60)!r}"
            return [*different, (number, "", what)]
        for column, cell, wanted in zip(header, cells, due, strict=True):
            if not _same(column, cell, wanted):
                what = f"is {shortened(cell, 40)!r}, the submissions give {shortened(wanted, 40)!r}"
                different.append((number, column, what))
    if len(left) != len(right):
        what = f"has {len(left) - 1} rows, the submissions give {len(right) - 1}"
        different.append((0, "", what))
    return different


def _same(field: str, cell: str, wanted: str) -> bool:
    if cell == wanted:
        return True
    try:
        return field in ("mean", "std") and close(float(cell), float(wanted), 1e-9)
    except ValueError:
        return False


def _table(text: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(text, newline="")))


def _decimal(value: float) -> str:
    return "" if value != value else repr(value)
