"""Quality against cost: the NLL of every method against its seconds, and who is worth its time.

A method is on the Pareto front if no other has both a lower NLL and no more seconds, or an equal
NLL in fewer. Its marker is filled, and a line joins the front. Bars are ± the sample standard
deviation of the NLL over seeds, as in the table: where they overlap, the front says little.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from uqbench.boards import Board, Column, Row
from uqbench.errors import UsageError
from uqbench.formatting import counted, format_mean_std, format_seconds
from uqbench.plots.selection import board_title, choose_board, with_seed
from uqbench.plots.style import (
    BLACK,
    BLUE,
    GREEN,
    ORANGE,
    PURPLE,
    SKY,
    VERMILLION,
    line_legend,
    line_panels,
    line_title,
    log_ticks,
)

if TYPE_CHECKING:
    from uqbench.results import Results

_COLOURS = (BLUE, VERMILLION, GREEN, ORANGE, PURPLE, SKY, BLACK)
_MARKERS = "osD^vPX*"
_PANELS = {
    "total_seconds": "Total seconds: MAP training, fit, tuning, prediction",
    "post_hoc_seconds": "Post-hoc seconds: the same without MAP training",
}
_NLL = Column("nll")
_MARGIN = 0.06
"""Room above and below what is drawn: a share of its range."""
_REACH = 2
"""Bars extend the axis of the NLL at most by so many median ones, or by the range of the means."""


def figure(results: Results, problem: str | None = None, seed: int | None = None) -> Figure:
    """Return the NLL against the total and the post-hoc seconds, both on logarithmic axes of time.

    Points are means over the seeds of a method with its standard deviation, or the numbers of
    ``seed``. The axis of the NLL suits the methods better than BASE and cuts off bars that are far
    longer than the others'; methods that are not better stand at its upper end, without a bar.
    Methods that train their own networks have no post-hoc time. Raises UsageError if there is
    nothing to draw.
    """
    board = choose_board(
        results,
        problem,
        None,
        lambda one: any(_point(row, "total_seconds") for row in one.rows),
        none="no problem has a result with an NLL and a time here.",
        unfit="has no result with an NLL and a time",
    )
    board, seeds = with_seed(results, board, seed)
    if not any(_point(row, "total_seconds") for row in board.rows):
        raise UsageError(f"{board.problem}: no method has a result with seed {seed}")
    rows = board.shown_rows
    parts = [seeds]
    if any(row.seeds and not row.timing_valid for row in rows):
        parts.append("timed on a shared device")
    if any(_deviation(row) for row in rows):
        parts.append("bars: ± std")
    picture, panels = line_panels(rows=2, sharey=True)
    axes_of = dict(zip(_PANELS, panels, strict=True))
    line_title(axes_of["total_seconds"], board_title(board, *parts))
    top = _highest(board)
    axes_of["total_seconds"].set_ylim(_limits(rows, top))
    looks = list(itertools.islice(_looks(), len(rows)))
    for name, label in _PANELS.items():
        axes_of[name].set(xlabel=label, ylabel="NLL", xscale="log")
        _draw(axes_of[name], rows, name, looks, top)
        log_ticks(axes_of[name].xaxis, seconds=True)
    line_legend(picture, _listed(rows, looks, top))
    return picture


def front(points: Sequence[tuple[float, float] | None]) -> list[int]:
    """Return the positions of the points (cost, loss) that no other dominates, cheapest first."""
    known = [position for position, point in enumerate(points) if point is not None]
    best, found = math.inf, []
    last = None
    for position in sorted(known, key=lambda position: points[position]):
        if points[position][1] < best or points[position] == last:
            found.append(position)
            best, last = points[position][1], points[position]
    return found


def _point(row: Row, cost: str) -> tuple[float, float] | None:
    """Seconds and NLL; None if one is unknown. An axis of logarithms begins above 0."""
    if _NLL not in row.metrics:
        return None
    seconds, nll = row.cost[cost].mean, row.metrics[_NLL].mean
    return (seconds, nll) if math.isfinite(nll) and 0 < seconds < math.inf else None


def _deviation(row: Row) -> float:
    """Of the NLL over seeds; 0 if there is none."""
    std = row.metrics[_NLL].std if _NLL in row.metrics else math.nan
    return std if math.isfinite(std) else 0.0


def _highest(board: Board) -> float:
    """Return where the axis of the NLL ends: the worst method that is better than BASE."""
    points = [(row, point[1]) for row in board.rows if (point := _point(row, "total_seconds"))]
    base = min((nll for row, nll in points if row.method == "base"), default=math.inf)
    better = [nll for _, nll in points if nll < base]
    return max(better or [nll for _, nll in points])


def _limits(rows: Sequence[Row], top: float) -> tuple[float, float]:
    """Return the ends of the axis of the NLL, which shows the means up to ``top``."""
    shown = [row for row in rows if (point := _point(row, "total_seconds")) and point[1] <= top]
    means = np.array([row.metrics[_NLL].mean for row in shown])
    deviations = np.array([_deviation(row) for row in shown])
    reach = max(np.ptp(means), _REACH * np.median(deviations))
    low = max((means - deviations).min(), means.min() - reach)
    high = min((means + deviations).max(), means.max() + reach)
    margin = _MARGIN * (high - low) or 0.5
    return low - margin, high + margin


def _looks() -> Iterator[dict[str, str]]:
    """Yield marker and colour of one method after the other; the first 56 differ."""
    while True:
        for marker in _MARKERS:
            for colour in _COLOURS:
                yield {"marker": marker, "color": colour}


def _draw(
    axes: Axes, rows: Sequence[Row], cost: str, looks: Sequence[dict[str, str]], top: float
) -> None:
    points = [_point(row, cost) for row in rows]
    on_front = front(points)
    steps = np.array([points[position] for position in on_front]).reshape(-1, 2)
    axes.plot(*steps.T, color=BLACK, lw=0.8, alpha=0.5, drawstyle="steps-post", zorder=1)
    _, end = axes.get_ylim()
    for position, (row, point, look) in enumerate(zip(rows, points, looks, strict=True)):
        if point is None:
            continue
        seconds, nll = point
        if nll <= top and _deviation(row):
            bar = {"fmt": "none", "ecolor": look["color"], "elinewidth": 0.8, "zorder": 1.5}
            axes.errorbar(seconds, nll, _deviation(row), **bar)
        face = look["color"] if position in on_front else "white"
        shown = [seconds], [nll if nll <= top else end]
        axes.plot(*shown, linestyle="none", markerfacecolor=face, clip_on=False, **look)


def _listed(
    rows: Sequence[Row], looks: Sequence[dict[str, str]], top: float
) -> Iterator[tuple[Line2D | None, str, str]]:
    on_front = front([_point(row, "total_seconds") for row in rows])
    for position, (row, look) in enumerate(zip(rows, looks, strict=True)):
        point = _point(row, "total_seconds")
        if point is None:
            yield None, row.label, row.status if not row.seeds else "no NLL or no time"
            continue
        face = look["color"] if position in on_front else "white"
        remark = f"{format_mean_std(point[1])[0]} in {format_seconds(point[0])}"
        if row.status != "complete":
            remark += f", {counted(row.seeds, 'seed')} only"
        if point[1] > top:
            remark += ", above the axis"
        yield Line2D([], [], linestyle="none", markerfacecolor=face, **look), row.label, remark
