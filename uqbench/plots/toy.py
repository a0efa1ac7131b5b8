"""Mean ± 3σ of every method on a regression with one feature: Figures 1 and 4 of the NUQLS paper.

σ is the square root of the predictive variance of y, as the method predicts it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from uqbench.boards import Board
from uqbench.plots.selection import choose_board, records_of, select
from uqbench.plots.style import (
    BLACK,
    BLUE,
    GREEN,
    VERMILLION,
    panel_grid,
    panel_legend,
    panel_reason,
    panel_title,
    picture_title,
)
from uqbench.records import Identity
from uqbench.saved_predictions import Curve

if TYPE_CHECKING:
    from uqbench.results import Results

_MEAN, _BAND, _POINTS, _TRUTH = BLUE, GREEN, VERMILLION, BLACK
_TRUTH_MARGIN, _POINTS_MARGIN = 0.15, 0.4
"""Room above and below, for the bands: shares of the true function's range or of the points'."""

_TRUTH_POINTS = 200
_FAR = 10
"""Curves are cut at this many heights of a panel beyond it; renderers fail at huge coordinates."""


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
    board = choose_board(
        results,
        problem,
        "regression",
        lambda board: _has_curve(results, board),
        none="no regression on one feature has a result here, and other problems have no curve. "
        "Run one, like --suite toy.",
        unfit="not a regression on one feature with a result; it has no curve",
    )
    chosen = select(results, board, seed)
    identity = chosen.records[0].identity
    curves = {record.key: results.predictions(record).curve for record in chosen.records}
    truth = _truth(identity)
    x_limits, y_limits = _limits(list(curves.values()), truth)

    scale = " (standardised)" if identity.training.get("standardise") else ""
    picture, panels = panel_grid(len(chosen.entries), f"x{scale}", f"y{scale}")
    panels[0].set(xlim=x_limits, ylim=y_limits)
    for axes, entry in zip(panels, chosen.entries, strict=True):
        panel_title(axes, entry.label)
        if entry.record is None:
            panel_reason(axes, entry.reason)
        else:
            _draw(axes, curves[entry.record.key], truth)
    panel_legend(picture)
    picture_title(picture, chosen.title())
    return picture


def _has_curve(results: Results, board: Board) -> bool:
    finished = (record for record in records_of(results, board) if record.status == "ok")
    first = next(finished, None)
    return first is not None and results.predictions(first).curve is not None


def _truth(identity: Identity) -> _Truth | None:
    """Return the function behind the data if they are those of ``toy/cubic``.

    A record names no data set; its fingerprint tells.
    """
    from uqbench.datasets.synthetic import TOY_DOMAIN, cubic, toy_cubic
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


def _draw(axes: Axes, curve: Curve, truth: _Truth | None) -> None:
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
