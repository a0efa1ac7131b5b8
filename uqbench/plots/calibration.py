"""Calibration of regressions: what central predictive intervals cover, against what they should."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

from uqbench.formatting import format_mean_std
from uqbench.metrics.regression import coverage
from uqbench.plots.selection import regressions
from uqbench.plots.style import BLACK, draw_lines, line_legend, line_picture

if TYPE_CHECKING:
    from uqbench.records import Record
    from uqbench.results import Results

_LEVELS = np.arange(201) / 200
"""Those of the ECE are among them."""


def figure(results: Results, problem: str | None = None, seed: int | None = None) -> Figure:
    """Return one curve per method; its distance from the diagonal at 11 levels makes the ECE.

    The curve is the metrics' ``coverage`` of Gaussian intervals on the test split. Below the
    diagonal a method is overconfident. Raises UsageError and DataError as the other pictures do.
    """
    chosen = regressions(results, problem, seed)
    picture, axes = line_picture(
        chosen.title(), "Nominal coverage of the central interval", "Observed coverage"
    )
    axes.plot([0, 1], [0, 1], color=BLACK, lw=0.8)

    def curve(record: Record) -> tuple[np.ndarray, np.ndarray, str]:
        predictions = results.predictions(record)
        test = predictions.test
        observed = coverage(predictions.targets, test.mean, test.variance, _LEVELS)
        ece = record.outcome.metrics.get("ece", np.nan)
        return _LEVELS, observed, f"ECE {format_mean_std(ece)[0]}"

    listed = draw_lines(axes, chosen.entries, curve)
    axes.set(xlim=(-0.01, 1.01), ylim=(-0.01, 1.01))
    line_legend(picture, listed)
    return picture
