"""What a leaderboard and a comparison are written as: a table, CSV or Markdown."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

from uqbench.errors import UsageError
from uqbench.formatting import printable
from uqbench.replacement import replacement
from uqbench.suggestions import did_you_mean

FORMATS = ("table", "csv", "md")
SUFFIXES = {".csv": "csv", ".md": "md", ".txt": "table"}


def check_format(format: str, what: str) -> None:
    """Raise a :class:`UsageError` if ``what`` has no such format."""
    if format not in FORMATS:
        hint = did_you_mean(format, FORMATS)
        raise UsageError(f"no {what} format named '{printable(format)}'.{hint}")


def write_text(
    path: str | Path, format: str | None, what: str, render: Callable[[str], str]
) -> None:
    """Write ``render(format)`` to a file, which is whole or unchanged at any time.

    format: by default from the suffix, ``.csv``, ``.md`` or ``.txt``.
    """
    path = Path(path)
    if format is None:
        if path.suffix.lower() not in SUFFIXES:
            raise UsageError(
                f"{path}: unknown suffix '{path.suffix}' for a {what}; use "
                f"{', '.join(SUFFIXES)}, or name the format."
            )
        format = SUFFIXES[path.suffix.lower()]
    text = render(format)
    try:
        with replacement(path) as file:
            file.write(text.encode())
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror}") from None


def plain_text(renderable: Any, width: int) -> str:
    """Return what rich prints on ``width`` columns, without colours and trailing blanks."""
    from rich.console import Console

    text = io.StringIO()
    # in a notebook rich would show the text instead of writing it
    console = Console(
        file=text, width=width, color_system=None, legacy_windows=False, force_jupyter=False
    )
    console.print(renderable)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()) + "\n"
