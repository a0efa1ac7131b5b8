"""Mean ± 3σ of every method on a regression with one feature: Figures 1 and 4 of the NUQLS paper.

σ is the square root of the predictive variance of y, as the method predicts it.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from uqbench.boards import Board, Row, boards
from uqbench.errors import DataError, UsageError
from uqbench.formatting import compact_json, printable
from uqbench.records import Identity, Record
from uqbench.saved_predictions import Curve
from uqbench.suggestions import did_you_mean

if TYPE_CHECKING:
    from uqbench.results import Results

# Of Okabe and Ito's palette, which people with any colour vision can tell apart
_MEAN, _BAND, _POINTS, _TRUTH = "#0072B2", "#009E73", "#D55E00", "black"
_PANEL_INCHES = (3.2, 2.5)
_TITLE_CHARACTERS = 38
_TRUTH_MARGIN, _POINTS_MARGIN = 0.15, 0.4
"""Room above and below, for the bands: shares of the true function's range or of the points'."""

_TRUTH_POINTS = 200
_FAR = 10
"""Curves are cut at this many heights of a panel beyond it; renderers fail at huge coordinates."""


@dataclass(frozen=True)
class _Panel:
    """title: the method. curve: what it predicts; where there is none, ``reason`` says why."""

    title: str
    curve: Curve | None = None
    reason: str = ""


@dataclass(frozen=True)
class _Truth:
    """The function that noise was added to, and where it is drawn."""

    function: Callable[[np.ndarray], np.ndarray]
    domain: tuple[float, float]


def figure(results: Results, problem: str | None = None, seed: int | None = None) -> Figure:
    """Return one panel per method, in the order of the records, on common axes.

    problem: needed if the results hold several regressions on one feature. seed: default: the
    lowest of the problem's. Raises UsageError if there is no such problem or seed, DataError if the
    predictions of a finished cell are not there.
    """
    board = _board(results, problem)
    if seed is None:
        seed = board.seeds[0]
    elif seed not in board.seeds:
        there = ", ".join(map(str, board.seeds))
        raise UsageError(f"{board.problem}: no seed {seed} in these results; there is {there}")
    records = [record for record in _records(results, board) if record.identity.seed == seed]
    panels = _panels(results, board, records, seed)
    curves = [panel.curve for panel in panels if panel.curve is not None]
    if not curves:
        raise UsageError(f"{board.problem}: no method has a result with seed {seed}")
    identity = records[0].identity
    truth = _truth(identity)
    x_limits, y_limits = _limits(curves, truth)

    columns = len(panels) if len(panels) < 4 else math.ceil(math.sqrt(len(panels)))
    rows = math.ceil(len(panels) / columns)
    width, height = _PANEL_INCHES
    picture = Figure(figsize=(width * columns + 0.4, height * rows + 0.9), layout="constrained")
    grid = picture.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).ravel()
    grid[0].set(xlim=x_limits, ylim=y_limits)
    for axes, panel in zip(grid, panels, strict=False):
        _draw(axes, panel, truth)
    for unused in grid[len(panels) :]:
        unused.remove()
    scale = " (standardised)" if identity.training.get("standardise") else ""
    for axes in grid[max(len(panels) - columns, 0) : len(panels)]:
        axes.set_xlabel(f"x{scale}")
        axes.xaxis.set_tick_params(labelbottom=True)
    for axes in grid[: len(panels) : columns]:
        axes.set_ylabel(f"y{scale}")
    shown = next(axes for axes in picture.axes if axes.lines).get_legend_handles_labels()
    ncols = len(shown[0]) if columns > 1 else 2
    picture.legend(*shown, loc="outside lower center", ncols=ncols, frameon=False)
    quick = "QUICK RUN, " if board.quick else ""
    title = printable(f"{board.problem}: {quick}seed {seed}")
    picture.suptitle(title, fontsize="large", parse_math=False)
    return picture


def _board(results: Results, problem: str | None) -> Board:
    """Return the board of the problem to draw: a regression on one feature."""
    found = {}
    unreadable = None
    for board in boards(results.records):
        if board.task != "regression" or problem not in (None, board.problem):
            continue
        try:
            one_dimensional = _has_curve(results, board)
        except DataError as error:  # matters only if no other problem can be drawn
            unreadable = unreadable or error
            continue
        if one_dimensional and (board.problem not in found or not board.quick):
            found[board.problem] = board
    if len(found) == 1:
        return next(iter(found.values()))
    if found:
        raise UsageError(
            f"several problems can be drawn: {', '.join(found)}. Name one with --problem."
        )
    if unreadable is not None:
        raise unreadable
    if problem is None:
        raise UsageError(
            "no regression on one feature has a result here, and other problems have no curve. "
            "Run one, like --suite toy."
        )
    there = sorted({record.identity.problem for record in results.records})
    if problem not in there:
        raise UsageError(f"no problem named '{problem}' here.{did_you_mean(problem, there)}")
    raise UsageError(f"{problem}: not a regression on one feature with a result; it has no curve")


def _records(results: Results, board: Board) -> list[Record]:
    return [
        record
        for record in results.records
        if (record.identity.problem, record.identity.quick) == (board.problem, board.quick)
    ]


def _has_curve(results: Results, board: Board) -> bool:
    finished = (record for record in _records(results, board) if record.status == "ok")
    first = next(finished, None)
    return first is not None and results.predictions(first).curve is not None


def _panels(results: Results, board: Board, records: Sequence[Record], seed: int) -> list[_Panel]:
    """One panel per method and group of settings, those without a result included."""
    by_row = {_row_key(record.identity): record for record in records}
    order = list(dict.fromkeys(_row_key(one.identity) for one in _records(results, board)))
    panels = []
    for row in sorted(board.rows, key=lambda row: order.index(_row_key(row))):
        record = by_row.get(_row_key(row))
        if record is not None and record.status == "ok":
            panels.append(_Panel(row.label, results.predictions(record).curve))
        else:
            gap = next(gap for gap in row.gaps if seed in gap.seeds)
            reason = ": ".join(text for text in (gap.status, gap.reason) if text)
            panels.append(_Panel(row.label, reason=reason))
    return panels


def _row_key(one: Identity | Row) -> tuple[str, str]:
    return one.method, compact_json(one.settings)


def _truth(identity: Identity) -> _Truth | None:
    """Return the function behind the data if they are those of ``toy/cubic``.

    A record names no data set; its fingerprint tells.
    """
    from uqbench.datasets.bundled import TOY_DOMAIN, cubic, toy_cubic
    from uqbench.seeds import derive_seed

    data = toy_cubic(derive_seed(identity.problem, identity.seed, "split"))
    return _Truth(cubic, TOY_DOMAIN) if data.fingerprint == identity.fingerprint else None


def _limits(
    curves: Sequence[Curve], truth: _Truth | None
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return the limits of x and y; the bands, which may be huge, have no say in them."""
    if truth is not None:
        x = np.linspace(*truth.domain, _TRUTH_POINTS)
        y = truth.function(x)
        margin = _TRUTH_MARGIN * np.ptp(y)
    else:
        x = np.concatenate([curve.inputs for curve in curves])
        y = np.concatenate([curve.train_targets for curve in curves])
        margin = _POINTS_MARGIN * np.ptp(y)
    return (x.min(), x.max()), (y.min() - margin, y.max() + margin)


def _draw(axes: Axes, panel: _Panel, truth: _Truth | None) -> None:
    title = textwrap.fill(panel.title, _TITLE_CHARACTERS)
    axes.set_title(title, fontsize="medium", parse_math=False)
    if panel.curve is None:
        axes.text(
            0.5,
            0.5,
            textwrap.fill(panel.reason, _TITLE_CHARACTERS),
            transform=axes.transAxes,
            horizontalalignment="center",
            verticalalignment="center",
            fontsize="small",
            parse_math=False,
        )
        return
    curve = panel.curve
    deviation = np.sqrt(curve.variance)
    low, high = axes.get_ylim()
    far = _FAR * (high - low)
    lower, mean, upper = (
        np.clip(values, low - far, high + far)
        for values in (curve.mean - 3 * deviation, curve.mean, curve.mean + 3 * deviation)
    )
    band = {"color": _BAND, "alpha": 0.3, "linewidth": 0, "label": "mean ± 3σ"}
    axes.fill_between(curve.inputs, lower, upper, **band)
    if truth is not None:
        x = np.linspace(*truth.domain, _TRUTH_POINTS)
        axes.plot(x, truth.function(x), "--", color=_TRUTH, lw=1, label="true function")
    axes.plot(curve.inputs, mean, color=_MEAN, lw=1.6, label="mean")
    points = {"color": _POINTS, "markersize": 3.5, "label": "training points"}
    axes.plot(curve.train_inputs, curve.train_targets, "o", **points)
