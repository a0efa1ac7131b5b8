"""Mean ranks of methods over several problems: the Friedman test and Nemenyi's critical difference.

Source of both, of their use here and of the diagram: Demšar, "Statistical comparisons of
classifiers over multiple data sets", JMLR 7, 2006. The tests assume that problems are independent
of each other; the number of a method on a problem is the mean over its seeds, whose spread does
not enter. Problems that share their data, such as a table and its gap split, are not independent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from uqbench.boards import LEVEL, Board, Column, direction

METRICS = ("nll", "ece", "rmse", "crps", "accuracy", "brier")
LEAST_METHODS, LEAST_PROBLEMS = 3, 5
"""Below these numbers the tests are not made: the χ² approximation of Friedman's does not hold."""


@dataclass(frozen=True)
class Ranks:
    """Ranks by one metric on the problems that have it.

    methods: best mean rank first. mean_ranks: 1 is the best; ties share the mean of their ranks.
    p_value: of the Friedman test, NaN where it is not made. critical_difference: of Nemenyi's test
    at ``LEVEL``; NaN where it is not made.
    left_out: labels of methods without a full result on all of the problems.
    """

    metric: str
    problems: tuple[str, ...]
    methods: tuple[str, ...]
    mean_ranks: tuple[float, ...]
    p_value: float
    critical_difference: float
    left_out: tuple[str, ...]

    @property
    def tested(self) -> bool:
        return not math.isnan(self.critical_difference)


def ranks(boards: Sequence[Board]) -> list[Ranks]:
    """Return the ranks by every metric that two methods or more have on two problems or more.

    Methods are the same on two problems if their labels are.
    """
    return [found for metric in METRICS if (found := _by_metric(boards, metric)) is not None]


def _by_metric(boards: Sequence[Board], metric: str) -> Ranks | None:
    better, target = direction(metric)
    losses: dict[str, dict[str, float]] = {}
    seen: dict[str, None] = {}
    for board in boards:
        seen.update((row.label, None) for row in board.rows if Column(metric) in row.metrics)
        found = {}
        for row in board.rows:
            mean = row.metrics[Column(metric)].mean if Column(metric) in row.metrics else math.nan
            if row.status == "complete" and not math.isnan(mean):
                distance = mean if target is None else abs(mean - target)
                found[row.label] = -distance if better == "higher" else distance
        if found:
            losses[board.problem] = found
    common = [name for name in seen if all(name in found for found in losses.values())]
    if len(losses) < 2 or len(common) < 2:
        return None
    table = np.array([[found[name] for name in common] for found in losses.values()])
    means = mean_ranks(table)
    order = np.argsort(means, kind="stable")
    tested = len(common) >= LEAST_METHODS and len(losses) >= LEAST_PROBLEMS
    return Ranks(
        metric=metric,
        problems=tuple(losses),
        methods=tuple(common[position] for position in order),
        mean_ranks=tuple(float(means[position]) for position in order),
        p_value=friedman(table) if tested else math.nan,
        critical_difference=critical_difference(len(common), len(losses)) if tested else math.nan,
        left_out=tuple(name for name in seen if name not in common),
    )


def mean_ranks(losses: ArrayLike) -> NDArray[np.float64]:
    """Return the mean rank of every method, (k,). losses: (N, k), the lower the better."""
    from scipy.stats import rankdata

    return rankdata(losses, axis=1).mean(axis=0)


def friedman(losses: ArrayLike) -> float:
    """Return the p value of the hypothesis that all methods are equally good (Friedman 1937).

    scipy's χ² approximation with its correction for ties. losses: (N, k), k at least 3. Losses that
    are all equal give 1.
    """
    from scipy.stats import friedmanchisquare

    losses = np.asarray(losses, dtype=np.float64)
    if (losses == losses[:, :1]).all():
        return 1.0
    return float(friedmanchisquare(*losses.T).pvalue)


def critical_difference(methods: int, problems: int, level: float = LEVEL) -> float:
    """Return the difference of two mean ranks that is significant (Nemenyi 1963).

    q √(k (k + 1) / (6 N)), q the upper quantile of the studentised range of k methods at infinitely
    many degrees of freedom over √2; it holds for all pairs at once.
    """
    from scipy.stats import studentized_range

    quantile = studentized_range.ppf(1 - level, methods, math.inf) / math.sqrt(2)
    return float(quantile * math.sqrt(methods * (methods + 1) / (6 * problems)))


def cliques(mean_ranks: Sequence[float], critical_difference: float) -> list[tuple[int, int]]:
    """Return (first, last) of each longest run of ranks that do not differ significantly.

    mean_ranks: ascending. Runs of one are left out.
    """
    found: list[tuple[int, int]] = []
    for first, lowest in enumerate(mean_ranks):
        last = max(i for i, rank in enumerate(mean_ranks) if rank - lowest <= critical_difference)
        if last > first and (not found or last > found[-1][1]):
            found.append((first, last))
    return found
