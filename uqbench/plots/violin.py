"""VMSP of ID correct, ID incorrect and OoD points, three violins per method: Figure 3 of the paper.

The axis is linear, as the paper's; a method whose VMSP is far smaller than another's is a flat line
on it, and wants a logarithmic one. A violin is a Gaussian kernel density with Scott's bandwidth
between the group's smallest and largest value, its median a line; all are equally wide at their
widest, whatever the number of points. On a logarithmic axis the density is that of log10 VMSP.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.mlab import GaussianKDE
from matplotlib.patches import Patch

from uqbench.errors import UsageError
from uqbench.plots.selection import choose_ood, classifications
from uqbench.plots.style import BLUE, GREEN, VERMILLION, log_ticks, picture_title
from uqbench.saved_predictions import SavedPredictions
from uqbench.vmsp_values import VMSPGroups

if TYPE_CHECKING:
    from uqbench.results import Results

_LOOK = {
    "id_correct": (GREEN, "ID correct"),
    "id_incorrect": (VERMILLION, "ID incorrect"),
    "ood": (BLUE, "OoD"),
}
_APART = 0.28
_WIDTH = 0.26
"""Distance between a method's violins, and their width; methods are 1 apart."""

_POINTS = 400
_FLOOR = 1e-20
"""A logarithmic axis shows smaller values, and zeros, here."""
_FLAT = 1e-2
"""Of another method's largest median: one that is lower, with all its violins, looks flat."""

_METHODS_IN_ROW = 7
_METHOD_INCHES, _LEAST_INCHES, _ROW_INCHES = 1.2, 5.0, 3.2
_LABEL_CHARACTERS, _MEDIUM_LABEL_CHARACTERS = 16, 13
_NOTE_CHARACTERS_PER_INCH = 14


def figure(
    results: Results,
    problem: str | None = None,
    seed: int | None = None,
    *,
    ood: str | None = None,
    log: bool | Literal["auto"] = False,
) -> Figure:
    """Return the violins of every method on one problem with one seed, BASE last.

    ood: the OoD set; default: the only one (none: two violins per method). log: logarithmic axis;
    "auto": where the largest medians of two methods differ by more than two powers of ten.
    What has no VMSP is named below. Raises UsageError if nothing has, or on a choice that is not
    there, DataError if the predictions of a finished cell are not there.
    """
    chosen = classifications(results, problem, seed)
    chosen, ood = choose_ood(chosen, ood)
    values, notes = {}, []
    for entry in chosen.entries:
        if entry.record is None:
            notes.append(f"{entry.label} ({entry.reason})")
            continue
        predictions = results.predictions(entry.record)
        if np.isnan(predictions.test.vmsp).any():
            notes.append(f"{entry.label} (one sample, which has no VMSP)")
        else:
            values[entry.label] = _groups(predictions, ood)
    if not values:
        raise UsageError(f"{chosen.board.problem}: nothing has VMSP: {'; '.join(notes)}")
    if log == "auto":
        log = _has_flat(values)
    parts = [] if ood is None else [f"OoD {ood}"]
    return picture(values, chosen.title(*parts), log=log, notes=notes)


def picture(
    values: Mapping[str, VMSPGroups], title: str, *, log: bool = False, notes: Sequence[str] = ()
) -> Figure:
    """Draw the violins of VMSP values by method, in their order, in rows on one scale.

    notes: what is not shown, and why.
    """
    rows = math.ceil(len(values) / _METHODS_IN_ROW)
    columns = math.ceil(len(values) / rows)
    width = max(_LEAST_INCHES, _METHOD_INCHES * columns + 1)
    height = _ROW_INCHES * rows + 0.8
    drawing = Figure(figsize=(width, height), layout="constrained")
    grid = drawing.subplots(rows, sharey=True, squeeze=False).ravel()
    shown = [name for name in _LOOK if any(name in one.groups for one in values.values())]
    small = max(map(len, values)) >= _MEDIUM_LABEL_CHARACTERS
    for row, axes in enumerate(grid):
        labels = list(values)[row * columns : (row + 1) * columns]
        for position, name in enumerate(shown):
            offset = _APART * (position - (len(shown) - 1) / 2)
            groups = [values[label].groups.get(name) for label in labels]
            _draw(axes, name, groups, offset, log)
        axes.set(xlim=(-0.6, columns - 0.4), ylabel=_axis_label(values, log))
        axes.set_xticks(
            range(len(labels)),
            labels=[textwrap.fill(label, _LABEL_CHARACTERS) for label in labels],
            fontsize="small" if small else "medium",
            parse_math=False,
        )
    if log:
        grid[0].set_yscale("log")
        log_ticks(grid[0].yaxis)
    if notes:
        text = f"Not shown: {'; '.join(notes)}"
        wrapped = textwrap.fill(text, int((width - 1) * _NOTE_CHARACTERS_PER_INCH))
        grid[-1].set_xlabel(wrapped, fontsize="small", parse_math=False)
    drawing.legend(
        handles=[Patch(**_face(name), label=_LOOK[name][1]) for name in shown],
        loc="outside lower center",
        ncols=len(shown),
        frameon=False,
    )
    picture_title(drawing, title)
    return drawing


def _groups(predictions: SavedPredictions, ood: str | None) -> VMSPGroups:
    test = predictions.test
    correct = test.predicted == predictions.targets
    outside = None if ood is None else predictions.ood[ood].vmsp
    return VMSPGroups(test.vmsp[correct], test.vmsp[~correct], outside)


def _has_flat(values: Mapping[str, VMSPGroups]) -> bool:
    medians = [
        max(np.median(group) for group in one.groups.values() if group.size)
        for one in values.values()
    ]
    known = [median for median in medians if median > 0]  # zeros are flat on any axis
    return bool(known) and min(known) < _FLAT * max(known)


def _draw(
    axes: Axes, name: str, groups: Sequence[np.ndarray | None], offset: float, log: bool
) -> None:
    """Draw one group of every method, at the methods' positions plus an offset."""
    drawn = {}
    for method, values in enumerate(groups):
        x = method + offset
        if values is not None and values.size:
            drawn[x] = _violin(values, log)
        else:
            axes.text(x, 0.02, "no points", **_NO_POINTS, transform=axes.get_xaxis_transform())
    if not drawn:
        return
    parts = axes.violin(
        list(drawn.values()),
        positions=list(drawn),
        widths=_WIDTH,
        showextrema=False,
        showmedians=True,
    )
    for body in parts["bodies"]:
        body.set(**_face(name))
        body.set_gid(name)
    parts["cmedians"].set(color=_LOOK[name][0], linewidth=2.2, label=name)


_NO_POINTS = {"rotation": 90, "ha": "center", "va": "bottom", "fontsize": "x-small"}


def _face(name: str) -> dict[str, Any]:
    colour, _ = _LOOK[name]
    return {"facecolor": (colour, 0.35), "edgecolor": colour, "linewidth": 0.8, "alpha": None}


def _violin(values: np.ndarray, log: bool) -> dict[str, Any]:
    """Return what matplotlib draws a violin from."""
    shown = np.log10(np.maximum(values, _FLOOR)) if log else values
    low, high = shown.min(), shown.max()
    span = high - low
    share = np.linspace(0, 1, _POINTS)
    density = np.ones(_POINTS)
    if span > 0:  # the density of shares: the square of a VMSP near 1e-170 would underflow
        density = GaussianKDE((shown - low) / span).evaluate(share)
    coordinates = low + span * share
    if log:
        coordinates = 10**coordinates
    median = max(np.median(values), _FLOOR) if log else np.median(values)
    ends = {"min": coordinates[0], "max": coordinates[-1]}
    return {"coords": coordinates, "vals": density, "mean": np.nan, "median": median, **ends}


def _axis_label(values: Mapping[str, VMSPGroups], log: bool) -> str:
    if not log:
        return "VMSP"
    smallest = min(
        group.min() for one in values.values() for group in one.groups.values() if group.size
    )
    return f"max(VMSP, {_FLOOR:g})" if smallest < _FLOOR else "VMSP"
