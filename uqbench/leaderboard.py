"""The leaderboard: boards as a table for the terminal, as CSV and as Markdown."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from uqbench.boards import Board, Statistic, boards
from uqbench.formatting import UNDEFINED, compact_json
from uqbench.leaderboard_columns import WORSE_THAN_BASE
from uqbench.records import Record
from uqbench.text_formats import check_format, plain_text, write_text

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions

FEW_SEEDS = 10
"""Below this number of seeds the legend says that the test has little power."""

INTERVAL_COLUMNS = ("ci95_low", "ci95_high")
CSV_COLUMNS = (
    "suite",
    "problem",
    "task",
    "quick",
    "method",
    "settings",
    "metric",
    "ood_set",
    "mean",
    "std",
    *INTERVAL_COLUMNS,
    "seeds",
    "seeds_planned",
    "status",
    "mark",
    "worse_than_base",
    "timing_valid",
    "reason",
)


@dataclass(frozen=True)
class Leaderboard:
    """The boards of one or more runs. Printed by rich it fits the console's width."""

    boards: tuple[Board, ...]

    @classmethod
    def of(cls, records: Sequence[Record]) -> Leaderboard:
        """Aggregate records; see :func:`boards` for the errors."""
        return cls(boards(records))

    def render(self, format: str = "table", *, width: int = 120) -> str:
        """Return the leaderboard as text: ``table`` (of ``width`` columns), ``csv`` or ``md``."""
        check_format(format, "leaderboard")
        if format == "csv":
            return self._csv()
        return self._markdown() if format == "md" else plain_text(self, width)

    def write(self, path: str | Path, format: str | None = None) -> None:
        """Write the leaderboard to a file, which is whole or unchanged at any time.

        format: as in :meth:`render`; by default from the suffix, ``.csv``, ``.md`` or ``.txt``.
        """
        write_text(path, format, "leaderboard", self.render)

    def tidy_rows(self, *, intervals: bool = True) -> Iterator[dict[str, Any]]:
        """Yield one mapping per problem, method and number (metrics, then costs).

        ``mark`` is "best", "equal best" or empty; ``reason`` tells why seeds are missing. A method
        without any result has one row, whose ``metric`` is empty. ``ci95_low`` and ``ci95_high``
        are :attr:`uqbench.boards.Statistic.interval`; without ``intervals`` they are left out.
        """
        for board in self.boards:
            for row in board.rows:
                lead = {
                    "suite": board.suite,
                    "problem": board.problem,
                    "task": board.task,
                    "quick": board.quick,
                    "method": row.method,
                    "settings": compact_json(row.settings),
                }
                tail = {
                    "seeds_planned": len(board.seeds),
                    "status": row.status,
                    "timing_valid": row.timing_valid,
                    "reason": board.note(row),
                }
                numbers = [(*column, number) for column, number in row.metrics.items()]
                numbers += [(name, "", number) for name, number in row.cost.items()]
                for metric, ood_set, number in numbers if row.seeds else [("", "", Statistic(()))]:
                    ends = zip(INTERVAL_COLUMNS, number.interval, strict=True) if intervals else ()
                    yield {
                        **lead,
                        "metric": metric,
                        "ood_set": ood_set,
                        "mean": number.mean,
                        "std": number.std,
                        **dict(ends),
                        "seeds": number.seeds,
                        "mark": number.mark,
                        "worse_than_base": number.worse_than_base,
                        **tail,
                    }

    def _csv(self) -> str:
        text = io.StringIO()
        writer = csv.DictWriter(text, CSV_COLUMNS, lineterminator="\n")
        writer.writeheader()
        for row in self.tidy_rows():
            blank = {
                name: "" for name in ("mean", "std", *INTERVAL_COLUMNS) if math.isnan(row[name])
            }
            writer.writerow(row | blank)
        return text.getvalue()

    def _markdown(self) -> str:
        from uqbench.leaderboard_markdown import board_as_markdown, escaped

        legend = " ".join(self.legend())
        parts = [*map(board_as_markdown, self.boards), escaped(legend)]
        return "\n\n".join(parts) + "\n"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Any]:
        from rich.padding import Padding
        from rich.text import Text

        from uqbench.leaderboard_table import folded_tables

        star = console.color_system is None  # bold cannot be seen there
        time_std = True
        for board in self.boards:
            yield Text(board.title, style="bold")
            folded, shows_std = folded_tables(board, options.max_width, star)
            time_std = time_std and shows_std
            for position, table in enumerate(folded):
                if position:
                    yield Text()
                yield table
            for label, text in board.notes:
                yield Padding(Text.assemble((label, "bold"), f": {text}"), (0, 0, 0, 2))
            yield Text()
        for sentence in self.legend(star, time_std):
            yield Text(sentence, style="dim")

    def legend(self, star: bool = False, time_std: bool = True) -> list[str]:
        """What a reader needs to know, and only what occurs."""
        rows = [row for board in self.boards for row in board.shown_rows]
        if not rows:
            return [] if self.boards else ["No records."]
        shown = [
            (row, row.metrics[column])
            for board in self.boards
            for row in board.shown_rows
            for column in board.columns
        ]
        seeds = [len(board.seeds) for board in self.boards]
        fewest, most = min(seeds), max(seeds)
        several = most > 1
        count = f"{most}" if fewest == most else f"{fewest} to {most}"
        over = f"Mean ± sample standard deviation over {count} seeds" if several else "One seed"
        test = "; one seed allows no test"
        if several:
            test = (
                f", or not significantly worse on {count} seeds: corrected resampled t-test, "
                "paired seeds, 5%, Holm"
            )
        if several and fewest < FEW_SEEDS:
            test += "; with so few seeds, only large differences are significant"
        marks = f"{'*' if star else 'Bold'}: best{test}."
        sentences = {
            f"{over}; lowest NLL first.": True,
            marks: any(number.mark for _, number in shown),
            "Rows that lack seeds are not ranked and take no part in the test.": any(
                row.status == "incomplete" for row in rows
            ),
            f"{WORSE_THAN_BASE}: worse than BASE, which knows nothing.": any(
                number.worse_than_base for _, number in shown
            ),
            f"{UNDEFINED}: undefined. (n): defined on n seeds only.": any(
                number.seeds < row.seeds for row, number in shown
            ),
            "total: MAP training + fit + tuning + prediction; post-hoc: the same without MAP "
            f"training, {UNDEFINED} for methods that train their own networks.": any(
                row.seeds for row in rows
            ),
            "A time without ± is the mean over seeds; its deviation is in the CSV.": (
                several and not time_std
            ),
            "†: timed while other jobs shared the device.": any(
                not row.timing_valid for row in rows
            ),
        }
        return [sentence for sentence, applies in sentences.items() if applies]
