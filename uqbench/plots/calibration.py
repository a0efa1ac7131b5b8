"""Calibration of regressions: what central predictive intervals cover, against what they should."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

from uqbench.formatting import format_mean_std
from uqbench.metrics.regression import coverage
from uqbench.plots.selection import regressions
from uqbench.plots.style import BLACK, line_legend, line_picture, line_styles

if TYPE_CHECKING:
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
    listed = []
    for entry, style in zip(chosen.entries, line_styles(), strict=False):
        if entry.record is None:
            listed.append((None, entry.label, entry.reason))
            continue
        predictions = results.predictions(entry.record)
        test = predictions.test
        observed = coverage(predictions.targets, test.mean, test.variance, _LEVELS)
        (line,) = axes.plot(_LEVELS, observed, **style, lw=1.5, label=entry.label)
        ece = entry.record.outcome.metrics.get("ece", np.nan)
        listed.append((line, entry.label, f"ECE {format_mean_std(ece)[0]}"))
    axes.set(xlim=(-0.01, 1.01), ylim=(-0.01, 1.01))
    line_legend(picture, listed)
    return picture
