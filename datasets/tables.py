"""Tables of people's own: CSV and Parquet files, read strictly.

Nothing is guessed that could change a number in silence: an empty cell, NaN, inf or a stray word in
a numeric column is an error that names the file, the line and the column.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from pandas.api import types

from uqbench.datasets.arrays import Table
from uqbench.datasets.delimited import DelimitedText, require_file
from uqbench.datasets.splits import require_varying
from uqbench.errors import DataError, UsageError
from uqbench.method import Task
from uqbench.suggestions import did_you_mean

TEXT_SUFFIXES = (".csv", ".tsv", ".txt", ".data")
PARQUET_SUFFIXES = (".parquet", ".pq")
MAX_CATEGORIES = 50
"""A text column with more distinct values is refused, not one-hot encoded."""
MAX_INTEGER_CLASSES = 20
"""Whole numbers with at most this many distinct values are class labels (see read_table)."""


def read_table(path: str | Path, target: str, task: Task | str | None = None) -> Table:
    """Read a CSV (``,``, ``;``, tab, ``|`` or blanks; a header line) or Parquet file.

    target: the column to predict; all others are features. Numeric columns are kept as they are;
    text and true/false columns are one-hot encoded, categories in sorted order; dates are refused.

    task: if None, found from the target: text and true/false are classes; whole numbers written
    without a decimal point are classes if there are at most 20 distinct ones, each occurring twice
    or more on average; all other numbers are a regression. Class labels are sorted (as numbers if
    they are numbers) and become 0..C-1.

    A column counts as numeric if most of its non-empty cells are finite numbers.

    Raises UsageError for a missing column, an unsupported suffix, or a regression on text, and
    DataError for all that is wrong with the file.
    """
    path = Path(path)
    task = Task(task) if task is not None else None
    file = _open(path)
    names = list(file.frame.columns)
    if target not in names:
        hint = did_you_mean(target, names)
        if pd.to_numeric(pd.Series(names), errors="coerce").notna().all():
            hint = " The first line holds numbers only; it must name the columns."
        raise UsageError(f"{path}: no column named '{target}'.{hint}")
    if len(names) < 2:
        raise DataError(f"{path}: no columns besides the target '{target}'")

    targets, task, class_names = _read_target(file, target, task)
    blocks: list[np.ndarray] = []
    feature_names: list[str] = []
    for name in names:
        if name == target:
            continue
        if file.is_numeric(name):
            blocks.append(file.numbers(name)[:, None])
            feature_names.append(name)
        else:
            encoded, categories = _one_hot(file, name)
            blocks.append(encoded)
            feature_names += [f"{name}={category}" for category in categories]
    return Table(
        name=path.stem,
        inputs=np.concatenate(blocks, axis=1),
        targets=targets,
        feature_names=tuple(feature_names),
        target_name=target,
        task=task,
        class_names=class_names,
        source=str(path),
    )


def read_numeric_csv(path: Path) -> tuple[tuple[str, ...], np.ndarray]:
    """Read a delimited file of finite numbers; return the column names and values (N, columns)."""
    text = DelimitedText.open(path)
    file = _TableFile(path, text.frame(), text)
    values = [file.numbers(name) for name in text.header]
    return text.header, np.stack(values, axis=1)


@dataclass(frozen=True)
class _TableFile:
    """A parsed file and where its rows lie: ``text`` is None for Parquet."""

    path: Path
    frame: pd.DataFrame
    text: DelimitedText | None = None

    def is_numeric(self, name: str) -> bool:
        column = self.frame[name]
        if types.is_numeric_dtype(column) and not types.is_bool_dtype(column):
            return True
        filled = ~_blank(column)
        return np.isfinite(self.parsed(name)).sum() > filled.sum() / 2

    def numbers(self, name: str) -> np.ndarray:
        """The column as finite float64, (N,); a DataError names the first cell that is not."""
        values = self.parsed(name)
        self._require(name, np.isfinite(values), "is not a finite number")
        return values

    def labels(self, name: str) -> np.ndarray:
        """The column as stripped text, (N,); a DataError names the first empty cell."""
        column = self.frame[name]
        texts = column.astype(str).str.strip()
        missing = _blank(column) | (texts.str.lower() == "nan").to_numpy()
        self._require(name, ~missing, "reads as a missing value")
        return texts.to_numpy(dtype=object)

    def parsed(self, name: str) -> np.ndarray:
        """The column as float64, NaN where it is not a number (true and false are none)."""
        column = self.frame[name]
        if types.is_bool_dtype(column):
            return np.full(len(column), np.nan)
        if types.is_numeric_dtype(column):
            return column.to_numpy(dtype=np.float64, na_value=np.nan)
        if self.text is not None and self.text.decimal == ",":
            texts = column.astype(str)
            points = texts.str.contains(".", regex=False)
            column = texts.str.replace(",", ".", regex=False).mask(points, "")
        return pd.to_numeric(column, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)

    def _require(self, name: str, good: np.ndarray, complaint: str) -> None:
        if good.all():
            return
        row = int(np.argmin(good))
        where, cell = f"row {row + 1}", str(self.frame[name].iloc[row])
        if self.text is not None:
            self.text.require_rectangular()
            line, fields = self.text.record(row)
            where, cell = f"line {line}", fields[self.text.header.index(name)].strip()
        empty = _blank(self.frame[name])[row]
        found = "the cell is empty" if empty else f"'{cell}' {complaint}"
        raise DataError(f"{self.path}: {where}, column '{name}': {found}")


def _blank(column: pd.Series) -> np.ndarray:
    """Where a cell is empty, blank, or a null of its type (a float NaN is not empty), (N,)."""
    missing = column.isna().to_numpy()
    if types.is_float_dtype(column):
        return np.zeros(len(column), dtype=bool)
    if types.is_numeric_dtype(column):
        return missing
    return missing | (column.astype(str).str.strip() == "").to_numpy()


def _open(path: Path) -> _TableFile:
    suffix = path.suffix.lower()
    if suffix in TEXT_SUFFIXES:
        text = DelimitedText.open(path)
        return _TableFile(path, text.frame(), text)
    if suffix in PARQUET_SUFFIXES:
        return _TableFile(path, _read_parquet(path))
    require_file(path)
    known = ", ".join((*TEXT_SUFFIXES, *PARQUET_SUFFIXES))
    raise UsageError(f"{path}: cannot read '{suffix or 'no'}' files as a table (known: {known})")


def _read_parquet(path: Path) -> pd.DataFrame:
    require_file(path)
    try:
        frame = pd.read_parquet(path)
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise DataError(f"{path}: not a readable Parquet file ({reason})") from None
    if frame.empty:
        raise DataError(f"{path}: no rows")
    frame.columns = [str(name) for name in frame.columns]
    for name in frame.columns[frame.columns.duplicated()]:
        raise DataError(f"{path}: two columns are named '{name}'")
    for name, column in frame.items():
        if types.is_datetime64_any_dtype(column) or types.is_timedelta64_dtype(column):
            raise DataError(_dates(path, name))
    return frame


_DATE = re.compile(r"(\d{4}([-/.])\d{1,2}\2\d{1,2}|\d{1,2}([-/.])\d{1,2}\3\d{2,4})(?!\d)")


def _dates(path: Path, name: str) -> str:
    return f"{path}: column '{name}' holds dates or times; turn it into numbers or drop it"


def _read_target(
    file: _TableFile, name: str, task: Task | None
) -> tuple[np.ndarray, Task, tuple[str, ...]]:
    """Return the targets (N,), the task, and the class names."""
    numeric = file.is_numeric(name)
    if task is Task.REGRESSION and not numeric:
        example = file.labels(name)[0]
        raise UsageError(
            f"{file.path}: column '{name}' holds text ('{example}'); a regression needs numbers "
            "(task = classification?)"
        )
    if task is not Task.CLASSIFICATION and numeric:
        values = file.numbers(name)
        require_varying(str(file.path), name, values)
        if task is Task.REGRESSION or not _few_integers(file.frame[name], values):
            return values, Task.REGRESSION, ()
    targets, class_names = _classes(file, name)
    return targets, Task.CLASSIFICATION, class_names


def _few_integers(column: pd.Series, values: np.ndarray) -> bool:
    distinct = len(np.unique(values))
    few = distinct <= MAX_INTEGER_CLASSES and 2 * distinct <= len(values)
    return types.is_integer_dtype(column) and few


def _classes(file: _TableFile, name: str) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return class indices (N,) and the sorted labels."""
    labels = file.labels(name)
    values = file.parsed(name)
    if np.isfinite(values).all():
        distinct, targets = np.unique(values, return_inverse=True)
        class_names = tuple(
            f"{value:.0f}" if value.is_integer() else repr(value) for value in distinct.tolist()
        )
    else:
        distinct, targets = np.unique(labels.astype(str), return_inverse=True)
        class_names = tuple(distinct.tolist())
    if len(class_names) < 2:
        raise DataError(
            f"{file.path}: column '{name}' has a single class ('{class_names[0]}'); there is "
            "nothing to predict"
        )
    if 2 * len(class_names) > len(targets):
        raise DataError(
            f"{file.path}: column '{name}' has {len(class_names)} different values in "
            f"{len(targets)} rows, too many for classes (a regression, or the wrong column?)"
        )
    return targets.astype(np.int64), class_names


def _one_hot(file: _TableFile, name: str) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return the indicator columns (N, categories) and the sorted categories."""
    # takes seconds to import, and few tables have text
    from sklearn.preprocessing import OneHotEncoder

    labels = file.labels(name)
    _refuse_thousands_separators(file, name, labels)
    if all(_DATE.match(label) for label in labels):
        raise DataError(_dates(file.path, name))
    distinct = len(set(labels))
    too_many = distinct > MAX_CATEGORIES
    if too_many or (len(labels) >= 20 and distinct > 0.9 * len(labels)):
        reason = f"at most {MAX_CATEGORIES}" if too_many else "only values that recur"
        raise DataError(
            f"{file.path}: column '{name}' is text with {distinct} different values in "
            f"{len(labels)} rows ({reason} can be one-hot encoded); drop the column, or turn it "
            "into numbers"
        )
    encoder = OneHotEncoder(sparse_output=False, dtype=np.float64)
    return encoder.fit_transform(labels[:, None]), tuple(encoder.categories_[0].tolist())


def _refuse_thousands_separators(file: _TableFile, name: str, labels: np.ndarray) -> None:
    texts = pd.Series(labels).astype(str)
    plain = pd.to_numeric(texts.str.replace(",", "", regex=False), errors="coerce")
    if plain.notna().sum() > len(texts) / 2:
        example = next(text for text, value in zip(texts, plain, strict=True) if value == value)
        raise DataError(
            f"{file.path}: column '{name}': '{example}' has a thousands separator; write plain "
            "numbers"
        )
