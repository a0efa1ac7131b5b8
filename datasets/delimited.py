"""Delimited text files (CSV and its kin): encoding, separator, decimal mark, and line numbers.

pandas parses; Python's csv module, which knows the line of every record, is run over the file only
to say where a fault lies.
"""

from __future__ import annotations

import codecs
import csv
import io
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import pandas as pd

from uqbench.errors import DataError

WHITESPACE = "whitespace"
SEPARATORS = (",", ";", "\t", "|")
"""Tried in this order; any run of blanks separates where none of them is in the header."""

_SAMPLE_BYTES = 1 << 16
_SAMPLE_RECORDS = 100
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_COMMA_NUMBER = re.compile(r"[-+]?\d*,\d+([eE][-+]?\d+)?")
_THOUSANDS = re.compile(r"[-+]?[1-9]\d{0,2}(,\d{3})+")


def exact_floats() -> dict[str, str]:
    """pandas' option for correctly rounded floats, which are its default since 3.1."""
    version = tuple(int(part) for part in pd.__version__.split(".")[:2])
    return {} if version >= (3, 1) else {"float_precision": "round_trip"}


@dataclass(frozen=True)
class DelimitedText:
    """A delimited text file.

    content: UTF-8, without a byte-order mark. separator: one of ``SEPARATORS`` or ``WHITESPACE``.
    decimal: the decimal mark, "." or ",". header: the column names, stripped.
    """

    path: Path
    content: bytes
    separator: str
    decimal: str
    header: tuple[str, ...]

    @classmethod
    def open(cls, path: Path) -> DelimitedText:
        """Read a file; raise a DataError if it is missing, empty, binary, or has a bad header."""
        content = _read_utf8(path)
        separator = _separator(path, content)
        text = cls(path, content, separator, ".", ())
        text = replace(text, header=text._read_header())
        return replace(text, decimal=text._decimal_mark())

    def frame(self) -> pd.DataFrame:
        """Parse the rows, (N, columns); cells of a column that is not numeric stay text."""
        blanks = self.separator == WHITESPACE
        try:
            with warnings.catch_warnings():
                # of rows longer than the header: pandas would drop the surplus with a warning
                warnings.simplefilter("error", pd.errors.ParserWarning)
                frame = pd.read_csv(
                    io.BytesIO(self.content),
                    sep=r"\s+" if blanks else self.separator,
                    decimal=self.decimal,
                    quoting=csv.QUOTE_NONE if blanks else csv.QUOTE_MINIMAL,
                    skipinitialspace=not blanks,
                    index_col=False,
                    na_filter=False,
                    low_memory=False,
                    **exact_floats(),
                )
        except (pd.errors.ParserError, pd.errors.ParserWarning, ValueError) as error:
            self.require_rectangular()
            raise DataError(f"{self.path}: {_first_line(error)}") from None
        if frame.empty:
            raise DataError(f"{self.path}: a header but no rows")
        frame.columns = list(self.header)
        return frame

    def records(self, limit: int | None = None) -> Iterator[tuple[int, list[str]]]:
        """Yield (line on which the record starts, its fields); the header first, no blank lines.

        limit: stop after this many bytes.
        """
        stream = io.BytesIO(self.content if limit is None else self.content[:limit])
        lines = io.TextIOWrapper(stream, encoding="utf-8", errors="replace", newline="")
        if self.separator == WHITESPACE:
            for number, line in enumerate(lines, 1):
                if fields := line.split():
                    yield number, fields
            return
        reader = csv.reader(lines, delimiter=self.separator, skipinitialspace=True, strict=True)
        start = 1
        while True:
            try:
                fields = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                if limit is not None:
                    return
                raise DataError(
                    f"{self.path}: line {start}: quotes do not match ({error})"
                ) from None
            if len(fields) > 1 or (fields and fields[0].strip()):
                yield start, fields
            start = reader.line_num + 1

    def record(self, row: int) -> tuple[int, list[str]]:
        """The line (1-based) on which a row of the frame (0-based) starts, and its fields."""
        return next(islice(self.records(), row + 1, None))

    def require_rectangular(self) -> None:
        """Raise a DataError that names the first line whose field count is not the header's."""
        for line, fields in islice(self.records(), 1, None):
            if len(fields) != len(self.header):
                raise DataError(
                    f"{self.path}: line {line}: {_count(len(fields), 'field')}, but the header "
                    f"names {_count(len(self.header), 'column')}"
                )

    def _read_header(self) -> tuple[str, ...]:
        line, names = next(self.records())
        names = tuple(name.strip() for name in names)
        seen: set[str] = set()
        for position, name in enumerate(names, 1):
            if not name:
                raise DataError(
                    f"{self.path}: line {line}: column {position} has no name; name it, or drop it "
                    "if it only numbers the rows"
                )
            if name in seen:
                raise DataError(f"{self.path}: line {line}: two columns are named '{name}'")
            seen.add(name)
        return names

    def _decimal_mark(self) -> str:
        """A comma if numbers are written with one, judged by the start of the file.

        Where a comma separates the columns it cannot be the decimal mark. ``1,234`` alone may mean
        1.234 or 1234, so it decides nothing and is refused.
        """
        if self.separator == ",":
            return "."
        ambiguous = None
        for line, fields in islice(self.records(_SAMPLE_BYTES), 1, None):
            for name, cell in zip(self.header, fields, strict=False):
                if not _COMMA_NUMBER.fullmatch(cell.strip()):
                    continue
                if not _THOUSANDS.fullmatch(cell.strip()):
                    return ","
                ambiguous = ambiguous or (line, name, cell.strip())
        if ambiguous:
            line, name, cell = ambiguous
            raise DataError(
                f"{self.path}: line {line}, column '{name}': '{cell}' may have a decimal comma or "
                "a thousands separator; write decimal points and no thousands separators"
            )
        return "."


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]


def require_file(path: Path) -> None:
    """Raise a DataError unless the path is a file."""
    if path.is_dir():
        raise DataError(f"{path}: a folder, not a file")
    if not path.exists():
        raise DataError(f"{path}: no such file")


def _read_utf8(path: Path) -> bytes:
    """Return the file's text in UTF-8 without a byte-order mark, whatever its encoding."""
    require_file(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from None
    if content.startswith(_UTF16):
        content = content.decode("utf-16").encode()
    content = content.removeprefix(codecs.BOM_UTF8)
    if not content.strip():
        raise DataError(f"{path}: the file is empty")
    if b"\0" in content[:_SAMPLE_BYTES]:
        raise DataError(f"{path}: not a text file (it holds zero bytes)")
    try:
        content.decode("utf-8")
    except UnicodeDecodeError:
        content = content.decode(_encoding(path, content)).encode()
    return content


def _encoding(path: Path, content: bytes) -> str:
    import charset_normalizer

    guess = charset_normalizer.from_bytes(content).best()
    if guess is None:
        raise DataError(f"{path}: unknown text encoding; save it as UTF-8")
    return guess.encoding


def _separator(path: Path, content: bytes) -> str:
    """The separator that cuts the first records into the same, largest number of fields."""
    best, best_score = None, (0.0, 0)
    for separator in (*SEPARATORS, WHITESPACE):
        if separator == WHITESPACE and best:
            break
        text = DelimitedText(path, content, separator, ".", ())
        records = text.records(_SAMPLE_BYTES)
        widths = [len(fields) for _, fields in islice(records, _SAMPLE_RECORDS)]
        if not widths or widths[0] < 2:
            continue
        agreement = sum(width == widths[0] for width in widths) / len(widths)
        if (agreement, widths[0]) > best_score:
            best, best_score = separator, (agreement, widths[0])
    if best is None:
        line = content.splitlines()[0][:40].decode("utf-8", errors="replace")
        raise DataError(
            f"{path}: line 1: a single column ('{line}'); a table needs the target and at least "
            "one feature, separated by comma, semicolon, tab, | or blanks"
        )
    return best
