"""The leaderboard as Markdown tables."""

from __future__ import annotations

import re
from collections.abc import Sequence

from uqbench.boards import Board
from uqbench.leaderboard_columns import (
    Cell,
    TextColumn,
    metric_column,
    seeds_column,
    time_columns,
)

_MARKDOWN = re.compile(r"[\\`*\[\]{}<>|~$#&!@]|(?<![0-9A-Za-z])_|_(?![0-9A-Za-z])")


def escaped(text: str) -> str:
    """Escape what Markdown would read as markup, pipes of tables among it."""
    return _MARKDOWN.sub(lambda found: f"\\{found.group()}", text)


def board_as_markdown(board: Board) -> str:
    """Return a heading, the table of one board, and a list of its notes."""
    lines = [f"### {escaped(board.title)}", ""]
    columns = [
        TextColumn("method", [Cell(row.label) for row in board.shown_rows]),
        seeds_column(board),
        *(metric_column(board, column, " ± ", align=False) for column in board.columns),
        *time_columns(board, with_std=True),
    ]
    if board.shown_rows:
        lines.append(markdown_row([escaped(" ".join(column.header_lines)) for column in columns]))
        lines.append(markdown_row([":--", *["--:"] * (len(columns) - 1)]))
        for position in range(len(board.shown_rows)):
            lines.append(markdown_row([_cell(column.cells[position]) for column in columns]))
        lines.append("")
    lines += [f"- {escaped(label)}: {escaped(text)}" for label, text in board.notes]
    return "\n".join(lines).rstrip()


def _cell(cell: Cell) -> str:
    return f"**{escaped(cell.text)}**" if cell.bold else escaped(cell.text)


def markdown_row(cells: Sequence[str]) -> str:
    """Return one line of a table; the cells are escaped already."""
    return f"| {' | '.join(cells)} |"
