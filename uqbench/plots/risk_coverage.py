"""Selective prediction: the error rate of the most confident points against their share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

from uqbench.formatting import format_mean_std
from uqbench.metrics.detection import risk_coverage
from uqbench.plots.selection import Selection, classifications
from uqbench.plots.style import draw_lines, line_legend, line_picture

if TYPE_CHECKING:
    from uqbench.records import Record
    from uqbench.results import Results

_SETTLED = 0.05
"""At a smaller coverage single points decide the error rate; it has no say in the axis."""

_Curve = tuple[np.ndarray, np.ndarray]


def figure(results: Results, problem: str | None = None, seed: int | None = None) -> Figure:
    """Return one curve per method, BASE last; the mean of a curve is the metric ``aurc``.

    The axis suits the methods other than BASE, which knows nothing and is far above them. Raises
    UsageError and DataError as the other pictures do.
    """
    chosen = classifications(results, problem, seed)
    curves = {}
    for record in chosen.records:
        predictions = results.predictions(record)
        wrong = predictions.test.predicted != predictions.targets
        curves[record.key] = risk_coverage(predictions.test.confidence, wrong)
    top = _highest(chosen, curves)

    picture, axes = line_picture(chosen.title(), "Coverage", "Error rate of the covered points")
    axes.set(xlim=(0, 1), ylim=(0, top))

    def curve(record: Record) -> tuple[np.ndarray, np.ndarray, str]:
        found = curves[record.key]
        aurc = record.outcome.metrics.get("aurc", np.nan)
        beyond = ", above the axis" if _settled(found).min() > top else ""
        return *found, f"AURC {format_mean_std(aurc)[0]}{beyond}"

    listed = draw_lines(axes, chosen.entries, curve)
    line_legend(picture, listed)
    return picture


def _highest(chosen: Selection, curves: dict[str, _Curve]) -> float:
    """Return where the axis of the error rate ends."""
    others = [one.key for one in chosen.records if one.identity.method != "base"]
    peak = max(_settled(curves[key]).max() for key in others or curves)
    return 1.08 * peak or 1.0


def _settled(curve: _Curve) -> np.ndarray:
    coverage, risk = curve
    return risk[coverage >= _SETTLED]
