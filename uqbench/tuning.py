"""Grid search on a validation score."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Annotated

from pydantic import Field, PositiveFloat

from uqbench.errors import TuningError

Grid = Annotated[tuple[PositiveFloat, ...], Field(min_length=1)]
"""The type of a setting that holds candidates for tuning."""


def log_grid(low: float, high: float, count: int) -> tuple[float, ...]:
    """``count`` values equally spaced on a log scale, both ends included."""
    step = (math.log10(high) - math.log10(low)) / (count - 1)
    return tuple(10 ** (math.log10(low) + step * k) for k in range(count))


def best_on_grid(name: str, grid: Sequence[float], score: Callable[[float], float]) -> float:
    """Return the candidate of ``grid`` with the lowest score, the first of equals.

    Candidates whose score is NaN or infinite are passed over, and so are those whose arithmetic
    or factorisation fails. Raises TuningError, which names the grid, if no candidate is left.
    """
    from torch.linalg import LinAlgError

    best, lowest = None, math.inf
    for candidate in grid:
        try:
            value = float(score(candidate))
        except (LinAlgError, ArithmeticError):
            continue
        if math.isfinite(value) and value < lowest:
            best, lowest = candidate, value
    if best is None:
        values = ", ".join(f"{candidate:g}" for candidate in grid)
        raise TuningError(f"{name}: no value of the grid [{values}] has a finite validation score")
    return best
