"""Series: the rows of a board that differ in one numeric setting, and their means over seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import t as student

from uqbench.boards import Board, Row
from uqbench.errors import UsageError
from uqbench.formatting import compact_json

AGAIN = "Run a method again with another value into the same folder, like --set nuqls.members=100."
"""What gives a series where there is none."""


class Point(NamedTuple):
    """A mean over seeds and its 95% interval, which for one seed is the mean itself.

    whole: whether no seed is missing. numbers: one per seed.
    """

    value: float
    mean: float
    low: float
    high: float
    whole: bool
    numbers: tuple[float, ...]


@dataclass(frozen=True)
class Series:
    """The rows of one method, by the value of the one setting in which they differ."""

    method: str
    setting: str
    rows: Mapping[float, Row]


def series_of(board: Board) -> list[Series]:
    """Return the methods with several values of a number, which must be the same setting.

    Raises UsageError if there is none, or one differs in several settings.
    """
    found, unfit = [], []
    for method in dict.fromkeys(row.method for row in board.shown_rows):
        rows = [row for row in board.shown_rows if row.method == method]
        names = _differing([row.settings for row in rows])
        if not names:
            continue
        if len(names) > 1:
            raise UsageError(
                f"{board.problem}: {method} differs in {' and '.join(names)}; only one setting may "
                "differ. Run each series into a folder of its own (--out)."
            )
        values = [_number(row.settings.get(names[0])) for row in rows]
        if None in values:
            unfit.append(f"{method} has values of {names[0]} that are no numbers")
        else:
            by_value = dict(sorted(zip(values, rows, strict=True), key=lambda item: item[0]))
            found.append(Series(method, names[0], by_value))
    if not found:
        why = unfit or ["no method has several values of a setting"]
        raise UsageError(f"{board.problem}: {'; '.join(why)}. {AGAIN}")
    if len({one.setting for one in found}) > 1:
        named = ", ".join(f"{one.method} in {one.setting}" for one in found)
        raise UsageError(
            f"{board.problem}: methods differ in different settings: {named}. Run each series into "
            "a folder of its own (--out)."
        )
    return found


def _differing(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    names = sorted({name for one in settings for name in one})
    return [name for name in names if len({compact_json(one.get(name)) for one in settings}) > 1]


def _number(value: Any) -> float | None:
    """Return a setting as a number; None if it is none. Records write infinity as a string."""
    if value == "inf":
        return math.inf
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def points(
    values: Mapping[float, Sequence[float]], seeds: int, *, geometric: bool = False
) -> list[Point]:
    """Return the points of numbers that are given by the setting's value, one per seed."""
    found = []
    for value, numbers in values.items():
        if len(numbers) and np.isfinite(numbers).all():
            ends = _interval(np.log(numbers) if geometric else numbers)
            ends = np.exp(ends) if geometric else ends
            whole = len(numbers) == seeds
            found.append(Point(value, *map(float, ends), whole, tuple(map(float, numbers))))
    return found


def _interval(values: Sequence[float]) -> np.ndarray:
    """Return the mean and the ends of its 95% interval, all the same for a single value."""
    mean, half = np.mean(values), 0.0
    if len(values) > 1:
        deviation = np.std(values, ddof=1) / math.sqrt(len(values))
        half = student.ppf(0.975, len(values) - 1) * deviation
    return np.array([mean, mean - half, mean + half])
