"""Mean ± 3σ of every method on a regression with one feature: Figures 1 and 4 of the NUQLS paper.

The curves go through the predictions on the test split, in the order of its inputs: what is drawn
is what the metrics judge. σ is the square root of the predictive variance of y.
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
from uqbench.saved_predictions import SavedPredictions
from uqbench.suggestions import did_you_mean

if TYPE_CHECKING:
    from uqbench.results import Results

# Of Okabe and Ito's palette, which people with any colour vision can tell apart
_MEAN, _BAND, _POINTS, _TRUTH = "#0072B2", "#009E73", "#D55E00", "black"
_PANEL_INCHES = (3.2, 2.5)
_TITLE_CHARACTERS = 38
_MARGIN = 0.15
_FAR = 10
"""Curves are cut at this many heights of a panel beyond it; renderers fail at huge coordinates."""


@dataclass(frozen=True)
class _Panel:
    """title: the method. predictions: of its cell; where there are none, ``reason`` says why."""

    title: str
    predictions: SavedPredictions | None = None
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
    drawn = [panel.predictions for panel in panels if panel.predictions is not None]
    if not drawn:
        raise UsageError(f"{board.problem}: no method has a result with seed {seed}")
    identity = records[0].identity
    truth = _truth(identity)
    x_limits, y_limits = _limits(drawn, truth)

    columns = len(panels) if len(panels) < 4 else math.ceil(math.sqrt(len(panels)))
    rows = math.ceil(len(panels) / columns)
    width, height = _PANEL_INCHES
    picture = Figure(figsize=(width * columns + 0.4, height * rows + 0.9), layout="constrained")
    grid = picture.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flat
    for axes, panel in zip(grid, panels, strict=False):
        _draw(axes, panel, truth, x_limits, y_limits)
    for position in range(len(panels), rows * columns):
        grid[position].remove()
        grid[position - columns].xaxis.set_tick_params(labelbottom=True)
    axes_with_legend = next(a for a in picture.axes if a.get_legend_handles_labels()[0])
    picture.legend(
        *axes_with_legend.get_legend_handles_labels(),
        loc="outside lower center",
        ncols=4 if columns > 1 else 2,
        frameon=False,
    )
    scale = " (standardised)" if identity.training.get("standardise") else ""
    picture.supxlabel(f"x{scale}", fontsize="medium")
    picture.supylabel(f"y{scale}", fontsize="medium")
    quick = "QUICK RUN, " if board.quick else ""
    picture.suptitle(printable(f"{board.problem}: {quick}seed {seed}"), parse_math=False)
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
    return first is not None and results.predictions(first).inputs is not None


def _panels(results: Results, board: Board, records: Sequence[Record], seed: int) -> list[_Panel]:
    """One panel per method and group of settings, those without a result included."""
    by_row = {_row_key(record.identity): record for record in records}
    order = list(dict.fromkeys(_row_key(one.identity) for one in _records(results, board)))
    panels = []
    for row in sorted(board.rows, key=lambda row: order.index(_row_key(row))):
        record = by_row.get(_row_key(row))
        if record is not None and record.status == "ok":
            panels.append(_Panel(row.label, results.predictions(record)))
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
    drawn: Sequence[SavedPredictions], truth: _Truth | None
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return the limits of x and y; the bands, which may be huge, have no say in them."""
    if truth is not None:
        x = np.linspace(*truth.domain, 200)
        y = truth.function(x)
    else:
        x = np.concatenate([values[:, 0] for p in drawn for values in (p.inputs, p.train_inputs)])
        y = np.concatenate([values for p in drawn for values in (p.targets, p.train_targets)])
    margin = _MARGIN * np.ptp(y)
    return (x.min(), x.max()), (y.min() - margin, y.max() + margin)


def _draw(
    axes: Axes,
    panel: _Panel,
    truth: _Truth | None,
    x_limits: tuple[float, float],
    y_limits: tuple[float, float],
) -> None:
    axes.set_title(
        textwrap.fill(panel.title, _TITLE_CHARACTERS), fontsize="medium", parse_math=False
    )
    axes.set(xlim=x_limits, ylim=y_limits)
    if panel.predictions is None:
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
    saved = panel.predictions
    order = np.argsort(saved.inputs[:, 0])
    x, mean = saved.inputs[order, 0], saved.test.mean[order]
    deviation = np.sqrt(saved.test.variance[order])
    far = _FAR * (y_limits[1] - y_limits[0])
    lower, mean, upper = (
        np.clip(values, y_limits[0] - far, y_limits[1] + far)
        for values in (mean - 3 * deviation, mean, mean + 3 * deviation)
    )
    axes.fill_between(x, lower, upper, color=_BAND, alpha=0.3, linewidth=0, label="mean ± 3σ")
    if truth is not None:
        dense = np.linspace(*truth.domain, 200)
        axes.plot(dense, truth.function(dense), "--", color=_TRUTH, lw=1, label="true function")
    axes.plot(x, mean, color=_MEAN, lw=1.6, label="mean")
    axes.plot(
        saved.train_inputs[:, 0],
        saved.train_targets,
        "o",
        color=_POINTS,
        markersize=3.5,
        label="training points",
    )
