"""Reliability diagrams: accuracy against confidence in the ten bins of the ECE, per method."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from uqbench.formatting import format_mean_std
from uqbench.metrics.classification import ECE_BINS, ece_bins
from uqbench.plots.selection import classifications
from uqbench.plots.style import (
    BLACK,
    BLUE,
    SKY,
    VERMILLION,
    panel_grid,
    panel_legend,
    panel_reason,
    panel_title,
    picture_title,
)
from uqbench.saved_predictions import SavedPredictions

if TYPE_CHECKING:
    from uqbench.results import Results


def figure(results: Results, problem: str | None = None, seed: int | None = None) -> Figure:
    """Return one panel per method, BASE last.

    A bar is the accuracy of the points in a bin, a dot the mean confidence and the accuracy; its
    distance from the diagonal, weighted with the number of points (above the bar), adds up to the
    ECE. Raises UsageError and DataError as the other pictures do.
    """
    chosen = classifications(results, problem, seed)
    predictions = {record.key: results.predictions(record) for record in chosen.records}
    picture, panels = panel_grid(len(chosen.entries), "Confidence", "Accuracy")
    panels[0].set(xlim=(0, 1), ylim=(0, 1), xticks=(0, 0.5, 1), yticks=(0, 0.5, 1))
    for axes, entry in zip(panels, chosen.entries, strict=True):
        panel_title(axes, entry.label)
        if entry.record is None:
            panel_reason(axes, entry.reason)
        else:
            ece = entry.record.outcome.metrics.get("ece", np.nan)
            _draw(axes, predictions[entry.record.key], ece)
    panel_legend(picture)
    picture_title(picture, chosen.title("points per bin above the bars"))
    return picture


def _draw(axes: Axes, predictions: SavedPredictions, ece: float) -> None:
    test = predictions.test
    bins = ece_bins(test.confidence)
    counts = np.bincount(bins, minlength=ECE_BINS)
    filled = counts > 0
    correct = test.predicted == predictions.targets
    accuracy, confidence = (
        np.bincount(bins, values, ECE_BINS)[filled] / counts[filled]
        for values in (correct, test.confidence)
    )
    centres = ((np.arange(ECE_BINS) + 0.5) / ECE_BINS)[filled]

    bar = {"color": SKY, "alpha": 0.45, "edgecolor": "white", "label": "accuracy"}
    axes.bar(centres, accuracy, 1 / ECE_BINS, **bar)
    axes.plot([0, 1], [0, 1], "--", color=BLACK, lw=1, label="calibrated")
    axes.vlines(confidence, accuracy, confidence, color=VERMILLION, lw=2, label="gap")
    dots = {"color": BLUE, "markersize": 4, "clip_on": False}
    axes.plot(confidence, accuracy, "o", **dots, label="mean confidence, accuracy")
    legible = {"facecolor": "white", "alpha": 0.7, "edgecolor": "none", "pad": 1}
    text = f"ECE {format_mean_std(ece)[0]}"
    axes.text(0.04, 0.94, text, va="top", fontsize="small", bbox=legible)
    top = axes.secondary_xaxis("top")
    top.set_xticks(centres, labels=map(str, counts[filled]), rotation=90, fontsize="xx-small")
    top.tick_params(length=0)
