"""What becomes of methods as one of their settings grows: NLL, and distance from ``ntk_gp``.

SEV = ‖Var − Var_NTK-GP‖₂, over the test points, of the predictive variances of y: Figure 2 of the
NUQLS paper. Points are means over seeds, of SEV geometric ones. From 5 seeds on, bands are 95%
intervals of Student's t, of SEV on logarithms, as it differs by powers of ten from seed to seed;
fewer seeds determine no interval (with 3, its half width is 2.5 standard deviations), and each is a
thin line instead. Seeds share data and network at all values of the setting: how far they are apart
does not say whether the setting matters. The axes therefore suit the means, and may cut off bands
and thin lines. Where the NLL needs a logarithmic axis its band, which may reach below 0, is not
drawn.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator

from uqbench.boards import Board, Column, Row, Statistic
from uqbench.errors import UsageError
from uqbench.formatting import counted, format_mean_std
from uqbench.plots.selection import board_title, choose_board, records_of, row_key, with_seed
from uqbench.plots.series import AGAIN, Point, Series, points, series_of
from uqbench.plots.style import (
    line_legend,
    line_panels,
    line_styles,
    log_ticks,
    number_text,
    picture_title,
)
from uqbench.records import Record
from uqbench.statistics import LEAST_SEEDS

if TYPE_CHECKING:
    from uqbench.results import Results

_NLL = Column("nll")
_FLOOR = 1e-12
"""Smaller SEVs, which are rounding errors, are drawn here."""
_LOG_FROM = 30
"""The axis of NLL is logarithmic if all are positive, the largest so many times the smallest."""
_MARGIN, _REACH, _LEAST_REACH = 0.06, 0.6, 0.05
"""Room above and below, a share of what is drawn; how far levels, and then bands and thin lines,
extend an axis, as a share of the range of the means, and the least of that."""
_REFERENCE, _REFERENCE_REACH = "ntk_gp", 4
"""The level that methods converge to, and its own reach."""
_TICKS_APART = 0.09
"""A share of the axis of the setting."""


def figure(results: Results, problem: str | None = None, seed: int | None = None) -> Figure:
    """Return the NLL against the setting, and SEV where the run has ``ntk_gp`` with one setting.

    A method with several values of a numeric setting is a line with a marker for each, open where
    seeds are missing, and for ``inf`` a dotted level marked ∞; others are levels in the panel of
    the NLL. seed: that one alone (default: all). Raises UsageError if there is no method with two
    values, one that differs in several settings, or methods that differ in different ones;
    DataError if the predictions that SEV needs are not there.
    """
    board = choose_board(
        results,
        problem,
        None,
        lambda board: max(Counter(row.method for row in board.shown_rows).values(), default=0) > 1,
        none=f"no method has several values of a setting here. {AGAIN}",
        unfit=f"no method has several values of a setting. {AGAIN}",
    )
    board, seeds = with_seed(results, board, seed)
    series = series_of(board)
    nll = _nll_points(board, series)
    sev = _sev_points(results, board, series)
    levels = [row for row in board.shown_rows if row.method not in nll]

    picture, (left, *right) = line_panels(columns=2 if sev else 1, sharex=True)
    drawn = _joined(nll)
    nlls = [_nll(row).mean for row in levels if row.method != _REFERENCE]
    references = [_nll(row).mean for row in levels if row.method == _REFERENCE]
    _limit(left, drawn, _logarithmic(drawn), nlls, references)
    left.set_ylabel("NLL")
    for axes in right:
        _limit(axes, _joined(sev), log=True)
        lowest = min(point.mean for point in _joined(sev))
        name = f"max(SEV, {_FLOOR:g})" if lowest < 2 * _FLOOR else "SEV"
        axes.set_ylabel(f"{name}: ‖Var − Var of ntk_gp‖₂")
    styles = line_styles()
    listed = []
    for one, style in zip(series, styles, strict=False):
        line = _draw(left, nll[one.method], style, one.method)
        for axes in right:
            _draw(axes, sev[one.method], style, one.method)
        listed.append((line, one.method, _remark(one, nll[one.method])))
    for row, style in zip(levels, styles, strict=False):
        mean, line = _nll(row).mean, None
        if math.isfinite(mean):
            line = left.axhline(mean, **style, lw=1, label=row.label)
        remark = f"NLL {format_mean_std(mean)[0]}{_beyond(left, mean)}"
        if row.status == "incomplete":
            remark += f", {counted(row.seeds, 'seed')} only"
        listed.append((line, row.label, remark if row.seeds else row.status))
    for axes in (left, *right):
        _scale_setting(axes, series)
    everything = (*drawn, *_joined(sev))
    shown = {
        "bands: 95%": any(point.low < point.high for point in everything),
        "thin: each seed": len(board.seeds) > 1 and any(_seed_lines(everything)),
    }
    picture_title(picture, board_title(board, seeds, *[text for text in shown if shown[text]]))
    line_legend(picture, listed)
    return picture


_Points = dict[str, list[Point]]
"""By method, in the order of the setting's values; those that have a finite mean."""


def _nll_points(board: Board, series: Sequence[Series]) -> _Points:
    found = {}
    for one in series:
        values = {value: _nll(row).defined for value, row in one.rows.items()}
        found[one.method] = _points(values, len(board.seeds))
    if all(len(of_method) < 2 for of_method in found.values()):
        lacking = "; ".join(f"{one.method}: {_remark(one, found[one.method])}" for one in series)
        raise UsageError(
            f"{board.problem}: two values of {series[0].setting} must have an NLL. {lacking}"
        )
    if not _logarithmic(_joined(found)):
        return found
    return {
        method: [_without_interval(point) for point in of_method]
        for method, of_method in found.items()
    }


def _sev_points(results: Results, board: Board, series: Sequence[Series]) -> _Points:
    """Empty if there is nothing to compare with: a regression's ``ntk_gp`` with one setting."""
    finished: dict[tuple[str, str], list[Record]] = {}
    for record in sorted(records_of(results, board), key=lambda record: record.identity.seed):
        if record.status == "ok":
            finished.setdefault(row_key(record.identity), []).append(record)
    processes = [records for (method, _), records in finished.items() if method == "ntk_gp"]
    if board.task != "regression" or len(processes) != 1:
        return {}
    expected = {one.identity.seed: _variance(results, one) for one in processes[0]}
    found = {}
    for one in series:
        values = {
            value: [
                np.linalg.norm(_variance(results, record) - expected[record.identity.seed])
                for record in finished.get(row_key(row), [])
                if record.identity.seed in expected
            ]
            for value, row in one.rows.items()
        }
        shown = {value: np.maximum(sevs, _FLOOR) for value, sevs in values.items()}
        found[one.method] = _points(shown, len(board.seeds), geometric=True)
    return found if any(found.values()) else {}


def _points(
    values: Mapping[float, Sequence[float]], seeds: int, *, geometric: bool = False
) -> list[Point]:
    """Return the points of :func:`points`, without an interval where the seeds are too few."""
    found = points(values, seeds, geometric=geometric)
    return found if seeds >= LEAST_SEEDS else [_without_interval(point) for point in found]


def _without_interval(point: Point) -> Point:
    return point._replace(low=point.mean, high=point.mean)


def _variance(results: Results, record: Record) -> np.ndarray:
    return results.predictions(record).test.variance


def _joined(points_of: _Points) -> list[Point]:
    return [point for of_method in points_of.values() for point in of_method]


def _logarithmic(nll: Sequence[Point]) -> bool:
    means = [point.mean for point in nll]
    return min(means) > 0 and max(means) > _LOG_FROM * min(means)


def _nll(row: Row) -> Statistic:
    return row.metrics.get(_NLL, Statistic(()))


def _draw(axes: Axes, points: Sequence[Point], style: Mapping[str, str], label: str) -> Line2D:
    finite = [point for point in points if math.isfinite(point.value)]
    ends = [point[:4] for point in finite]
    x, y, low, high = np.array(ends).reshape(-1, 4).T
    axes.fill_between(x, low, high, color=style["color"], alpha=0.15, linewidth=0)
    for numbers in zip(*_seed_lines(finite), strict=True):
        places = [point.value for point in finite if point.whole]
        axes.plot(places, numbers, color=style["color"], lw=0.6, alpha=0.5)
    (line,) = axes.plot(x, y, **style, lw=1.5, marker="o", markersize=4, label=label)
    missing = [(point.value, point.mean) for point in finite if not point.whole]
    look = {"linestyle": "none", "marker": "o", "markersize": 4, "markerfacecolor": "white"}
    axes.plot(*np.array(missing).reshape(-1, 2).T, **look, color=style["color"])
    for point in points:
        if math.isinf(point.value):
            axes.axhline(point.mean, color=style["color"], lw=1.5, ls=":", label=f"{label} ∞")
            axes.annotate(
                "∞",
                (1, point.mean),
                xycoords=axes.get_yaxis_transform(),
                xytext=(3, 0),
                textcoords="offset points",
                va="center",
                color=style["color"],
            )
    return line


def _seed_lines(points: Sequence[Point]) -> list[tuple[float, ...]]:
    """Return the numbers to draw seed by seed at each value of the setting that has all seeds."""
    return [
        point.numbers for point in points if point.whole and 1 < len(point.numbers) < LEAST_SEEDS
    ]


def _remark(series: Series, points: Sequence[Point]) -> str:
    """Say the last NLL, and at which values there is none or seeds are missing."""
    parts = []
    if points:
        last = points[-1]
        parts.append(f"NLL {format_mean_std(last.mean)[0]} at {number_text(last.value)}")
    drawn = {point.value: point for point in points}
    for value, row in series.rows.items():
        if value not in drawn:
            why = f"NLL {format_mean_std(_nll(row).mean)[0]}" if row.seeds else row.status
            parts.append(f"none at {number_text(value)} ({why})")
        elif not drawn[value].whole:
            parts.append(f"seeds missing at {number_text(value)}")
    return ", ".join(parts)


def _limit(
    axes: Axes,
    points: Sequence[Point],
    log: bool,
    levels: Sequence[float] = (),
    references: Sequence[float] = (),
) -> None:
    """Set the scale and limits of an axis that suit the points.

    Levels, references, bands and seeds may extend it, but not so far that the points look alike.
    """

    def coordinates(values: Iterable[float]) -> np.ndarray:
        known = np.array([one for one in values if math.isfinite(one)])
        return np.log(np.maximum(known, np.finfo(float).tiny)) if log else known

    def reached(values: np.ndarray, share: float) -> tuple[float, float]:
        reach = max(share * np.ptp(values), _LEAST_REACH)
        return values.min() - reach, values.max() + reach

    means = coordinates([point.mean for point in points])
    shown = list(means)
    for values, share in (levels, _REACH), (references, _REFERENCE_REACH):
        low, high = reached(means, share)
        shown += [one for one in coordinates(values) if low <= one <= high]
    bands = [(point.low, point.high) for point in points]
    ends = coordinates(itertools.chain(*bands, *_seed_lines(points)))
    shown += list(ends.clip(*reached(np.array(shown), _REACH)))
    axes.set_yscale("log" if log else "linear")
    axes.set_ylim(_with_margin(min(shown), max(shown), log))
    if log:
        log_ticks(axes.yaxis)


def _with_margin(low: float, high: float, log: bool) -> np.ndarray:
    """Return the limits of an axis between two coordinates, which may be logarithms."""
    margin = _MARGIN * (high - low) or _LEAST_REACH
    limits = np.array([low - margin, high + margin])
    return np.exp(limits) if log else limits


def _beyond(axes: Axes, value: float) -> str:
    low, high = axes.get_ylim()
    if math.isfinite(value) and not low <= value <= high:
        return ", above the axis" if value > high else ", below the axis"
    return ""


def _scale_setting(axes: Axes, series: Sequence[Series]) -> None:
    """Draw the setting's axis, logarithmic if it can be, with ticks at values that have room."""
    values = sorted({value for one in series for value in one.rows if math.isfinite(value)})
    log = values[0] > 0
    places = np.log(values) if log else np.array(values)
    span = np.ptp(places)
    ticks = [0]
    for position, place in enumerate(places):
        if place - places[ticks[-1]] > _TICKS_APART * span:
            ticks.append(position)
    axes.set(xscale="log" if log else "linear", xlabel=series[0].setting)
    shown = [values[tick] for tick in ticks]
    axes.set_xticks(shown, labels=map(number_text, shown))
    axes.set_xlim(_with_margin(places[0], places[-1], log))
    axes.xaxis.set_minor_locator(NullLocator())
