"""Telling OoD from ID points by the predictive entropy: one ROC curve per method."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

from uqbench.errors import UsageError
from uqbench.formatting import format_mean_std
from uqbench.metrics.detection import roc_curve
from uqbench.plots.selection import choose_ood, classifications
from uqbench.plots.style import BLACK, draw_lines, line_legend, line_picture

if TYPE_CHECKING:
    from uqbench.records import Record
    from uqbench.results import Results


def figure(
    results: Results,
    problem: str | None = None,
    seed: int | None = None,
    *,
    ood: str | None = None,
) -> Figure:
    """Return one curve per method, BASE last; the area under a curve is the metric ``ood_auc``.

    ood: the OoD set (default: the only one), whose points are the positives. Raises UsageError and
    DataError as the other pictures do, and UsageError if there is no OoD set.
    """
    chosen = classifications(results, problem, seed)
    chosen, ood = choose_ood(chosen, ood)
    if ood is None:
        raise UsageError(f"{chosen.board.problem}: has no OoD set to tell from the test points")
    picture, axes = line_picture(
        chosen.title(f"OoD {ood}"),
        "False-positive rate (ID), by predictive entropy",
        "True-positive rate (OoD)",
    )
    axes.plot([0, 1], [0, 1], color=BLACK, lw=0.6, alpha=0.5)

    def curve(record: Record) -> tuple[np.ndarray, np.ndarray, str]:
        predictions = results.predictions(record)
        area = record.outcome.ood[ood].get("ood_auc", np.nan)
        rates = roc_curve(predictions.ood[ood].entropy, predictions.test.entropy)
        return *rates, f"AUROC {format_mean_std(area)[0]}"

    listed = draw_lines(axes, chosen.entries, curve)
    axes.set(xlim=(-0.01, 1.01), ylim=(-0.01, 1.01))
    line_legend(picture, listed)
    return picture
