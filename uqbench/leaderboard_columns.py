"""The columns of a printed leaderboard as text, shared by the table and the Markdown."""

from __future__ import annotations

import math
from textwrap import wrap
from typing import NamedTuple

from uqbench.boards import Board, Column
from uqbench.formatting import (
    format_interval,
    format_mean_std,
    format_seconds,
    printable,
    shortened,
)

WORSE_THAN_BASE = "▿"
_NO_BREAK = "\N{NO-BREAK SPACE}"


class Cell(NamedTuple):
    text: str
    bold: bool = False


class TextColumn(NamedTuple):
    """One column as text, one cell per shown row. right: whether cells are flush right."""

    header: str
    cells: list[Cell]
    right: bool = False

    @property
    def header_lines(self) -> list[str]:
        """The header broken into as many lines as fit the cells, but two at most."""
        for width in range(self._cell_width, len(self.header)):
            lines = wrap(self.header, max(width, 1), break_long_words=False, break_on_hyphens=False)
            if len(lines) <= 2 and max(map(len, lines)) <= width:
                return [line.replace(_NO_BREAK, " ") for line in lines]
        return [self.header.replace(_NO_BREAK, " ")]

    @property
    def width(self) -> int:
        return max(self._cell_width, *map(_displayed_width, self.header_lines))

    @property
    def _cell_width(self) -> int:
        return max((_displayed_width(cell.text) for cell in self.cells), default=0)


def _displayed_width(text: str) -> int:
    from rich.cells import cell_len

    return cell_len(text)


def seeds_column(board: Board) -> TextColumn:
    planned = len(board.seeds)
    cells = []
    for row in board.shown_rows:
        texts = {"complete": f"{planned}", "incomplete": f"{row.seeds}/{planned}"}
        cells.append(Cell(texts.get(row.status, row.status)))
    return TextColumn("seeds", cells, right=True)


def metric_column(
    board: Board, column: Column, separator: str, *, star: bool = False, align: bool = True
) -> TextColumn:
    """Means and deviations as text; with ``align`` they are padded so that all ± line up."""
    halves = []
    for row in board.shown_rows:
        number = row.metrics[column]
        mean, std = format_mean_std(number.mean, number.std)
        after = f"{separator}{std}" if std else ""
        if number.mark and star:
            after += "*"
        if number.worse_than_base:
            after += WORSE_THAN_BASE
        if 0 < number.seeds < row.seeds:
            after += f" ({number.seeds})"
        halves.append((mean, after, bool(number.mark)))
    pad = max(len(mean) for mean, _, _ in halves) if align else 0
    pad_after = max(len(after) for _, after, _ in halves) if align else 0
    cells = [Cell(f"{mean:>{pad}}{after:<{pad_after}}", bold) for mean, after, bold in halves]
    return TextColumn(_header(column), cells)


def interval_column(board: Board, column: Column) -> TextColumn:
    """The intervals of the means, with a dash where there is none."""
    cells = [Cell(format_interval(*row.metrics[column].interval)) for row in board.shown_rows]
    return TextColumn(_header(column), cells, right=True)


def _header(column: Column) -> str:
    from uqbench.metrics import METRICS

    arrow = {"lower": f"{_NO_BREAK}↓", "higher": f"{_NO_BREAK}↑"}
    title, better = column.metric, None
    if column.metric in METRICS:
        title, better = METRICS[column.metric].title, METRICS[column.metric].better
    header = title
    if column.ood_set:
        ood_set = shortened(printable(column.ood_set), 24).replace(" ", _NO_BREAK)
        header += f" ({ood_set})"
    if better is not None:
        target = better.removeprefix("closer to ")
        header += arrow.get(better, f"{_NO_BREAK}→{_NO_BREAK}{target}")
    return header


def time_columns(board: Board, with_std: bool) -> list[TextColumn]:
    columns = []
    for header, name in (("total", "total_seconds"), ("post-hoc", "post_hoc_seconds")):
        cells = []
        for row in board.shown_rows:
            number = row.cost[name]
            text = format_seconds(number.mean, number.std if with_std else math.nan)
            shared = number.seeds and not row.timing_valid
            cells.append(Cell(f"{text}†" if shared else text))
        columns.append(TextColumn(header, cells, right=True))
    return columns
