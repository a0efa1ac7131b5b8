"""The leaderboard as tables for a terminal of some width."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from uqbench.boards import Board, Row
from uqbench.leaderboard_columns import (
    Cell,
    TextColumn,
    metric_column,
    seeds_column,
    time_columns,
)

if TYPE_CHECKING:
    from rich.table import Table

_GAP = 2
"""Blanks between two columns."""


def folded_tables(board: Board, width: int, star: bool) -> tuple[list[Table], bool]:
    """Return the board as tables of at most ``width`` columns, and whether times have a std.

    Of the layouts, roomy first, the one of the fewest tables.
    """
    rows = board.shown_rows
    if not rows:
        return [], True
    labels = TextColumn("method", [Cell(row.label) for row in rows])
    label_width = min(labels.width, max(16, width // 4))
    layouts = []
    for time_std in (True, False):
        for separator in (" ± ", "±"):
            units = [[seeds_column(board)]]
            units += [[metric_column(board, c, separator, star=star)] for c in board.columns]
            units += [time_columns(board, time_std)]
            layouts.append((_packed(units, width - label_width), time_std))
    packed, time_std = min(layouts, key=lambda layout: len(layout[0]))
    return [_table(rows, labels, label_width, columns) for columns in packed], time_std


def _packed(units: Sequence[list[TextColumn]], width: int) -> list[list[TextColumn]]:
    """Fill tables of ``width`` columns in order; the columns of a unit stay together."""
    tables: list[list[TextColumn]] = [[]]
    used = 0
    for unit in units:
        needed = sum(column.width + _GAP for column in unit)
        if tables[-1] and used + needed > width:
            tables.append([])
            used = 0
        tables[-1] += unit
        used += needed
    return tables


def _table(
    rows: Sequence[Row], labels: TextColumn, label_width: int, columns: Sequence[TextColumn]
) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column(labels.header, width=label_width, overflow="fold")
    for column in columns:
        justify = "right" if column.right else "left"
        table.add_column(Text("\n".join(column.header_lines)), width=column.width, justify=justify)
    for position, row in enumerate(rows):
        cells = [column.cells[position] for column in columns]
        texts = [Text(cell.text, style="bold" if cell.bold else "") for cell in cells]
        is_last_complete = row.status == "complete" and any(
            other.status != "complete" for other in rows[position + 1 : position + 2]
        )
        table.add_row(Text(row.label), *texts, end_section=is_last_complete)
    return table
