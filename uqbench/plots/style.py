"""The look that pictures share: colours, panels, lines, ticks, titles, and what is said of gaps."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, NullFormatter

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from uqbench.plots.selection import Entry
    from uqbench.records import Record

BLUE, GREEN, VERMILLION = "#0072B2", "#009E73", "#D55E00"
ORANGE, PURPLE, SKY, BLACK = "#E69F00", "#CC79A7", "#56B4E9", "#000000"
"""Okabe and Ito's palette, which people with any colour vision can tell apart. Its yellow is left
out: lines of it are lost on white."""

_DASHES = ("-", "--", "-.", ":")
_PANEL_INCHES = (3.2, 2.5)
_TITLE_CHARACTERS, _CHARACTERS_PER_INCH = 38, 9
_LINES_INCHES, _MORE_LINES_INCHES = (7.6, 4.4), (3.8, 2.6)
_LINES_TITLE_CHARACTERS, _LEGEND_CHARACTERS, _LEGEND_LINE_INCHES = 45, 34, 0.15

_MULTIPLES = ((1,), (3,), (2, 5), (1.5, 4, 7))
"""Of the units of a logarithmic axis, until it has enough ticks."""
_STEPS = (1, 2, 2.5, 5, 10)
_ENOUGH_TICKS, _LEAST_TICKS, _TICKS_APART = 4, 3, 0.13
"""The last is a share of the axis."""
_WIDE, _PLAIN = 2, (1e-3, 1e5)
"""Decades from which on an axis may have powers of ten; what is a plain number on any axis."""
_MINUTE, _HOUR = 60, 3600


def line_styles() -> Iterator[dict[str, str]]:
    """Yield colour and dashes of one line after the other; the first 28 differ."""
    while True:
        for dashes in _DASHES:
            for colour in (BLUE, VERMILLION, GREEN, ORANGE, PURPLE, SKY, BLACK):
                yield {"color": colour, "linestyle": dashes}


def panel_grid(number: int, x_label: str, y_label: str) -> tuple[Figure, list[Axes]]:
    """Return a picture of panels on common axes, as near to a square as they fill.

    Axis labels stand below and to the left of the outer panels.
    """
    columns = number if number < 4 else math.ceil(math.sqrt(number))
    rows = math.ceil(number / columns)
    width, height = _PANEL_INCHES
    figure = Figure(figsize=(width * columns + 0.4, height * rows + 0.9), layout="constrained")
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).ravel()
    for unused in grid[number:]:
        unused.remove()
    panels = list(grid[:number])
    for axes in panels[max(number - columns, 0) :]:
        axes.set_xlabel(x_label)
        axes.xaxis.set_tick_params(labelbottom=True)
    for axes in panels[::columns]:
        axes.set_ylabel(y_label)
    return figure, panels


def panel_legend(figure: Figure) -> None:
    """Explain what the first panel that shows anything shows, below all panels."""
    shown = next(axes for axes in figure.axes if axes.lines).get_legend_handles_labels()
    one_column = figure.axes[0].get_gridspec().ncols == 1
    columns = 2 if one_column else len(shown[0])
    figure.legend(*shown, loc="outside lower center", ncols=columns, frameon=False)


def panel_title(axes: Axes, title: str) -> None:
    """Put a method's label above its panel."""
    wrapped = textwrap.fill(title, _TITLE_CHARACTERS)
    axes.set_title(wrapped, fontsize="medium", parse_math=False)


def panel_reason(axes: Axes, reason: str) -> None:
    """Say in the middle of a panel why it shows nothing."""
    axes.text(
        0.5,
        0.5,
        textwrap.fill(reason, _TITLE_CHARACTERS),
        transform=axes.transAxes,
        horizontalalignment="center",
        verticalalignment="center",
        fontsize="small",
        parse_math=False,
    )


def picture_title(figure: Figure, title: str) -> None:
    """Put a title above the whole picture."""
    wrapped = textwrap.fill(title, int(_CHARACTERS_PER_INCH * figure.get_figwidth()))
    figure.suptitle(wrapped, fontsize="large", parse_math=False)


def line_picture(title: str, x_label: str, y_label: str) -> tuple[Figure, Axes]:
    """Return a picture with room for one line per method, and for a legend on its right."""
    figure, (axes,) = line_panels()
    line_title(axes, title)
    axes.set(xlabel=x_label, ylabel=y_label)
    return figure, axes


def line_panels(rows: int = 1, columns: int = 1, **shared: bool) -> tuple[Figure, list[Axes]]:
    """Return a picture like :func:`line_picture`'s of several panels, row by row.

    shared: ``sharex`` and ``sharey``, as matplotlib takes them.
    """
    inches = [
        one + more * (number - 1)
        for one, more, number in zip(
            _LINES_INCHES, _MORE_LINES_INCHES, (columns, rows), strict=True
        )
    ]
    figure = Figure(figsize=inches, layout="constrained")
    return figure, list(figure.subplots(rows, columns, squeeze=False, **shared).ravel())


def line_title(axes: Axes, title: str) -> None:
    """Put a picture's title above one of its panels, which is narrower than the picture."""
    wrapped = textwrap.fill(title, _LINES_TITLE_CHARACTERS)
    axes.set_title(wrapped, fontsize="large", parse_math=False)


def log_ticks(axis: Axis, *, seconds: bool = False) -> None:
    """Give a logarithmic axis, whose limits are final, ticks that can be read on any range.

    At least three, as far as there are round numbers: plain ones up to two decades, powers of ten
    beyond. seconds: durations like 0.5 s, 2 min and 1 h.
    """
    low, high = sorted(axis.axes.get_xlim() if axis.axis_name == "x" else axis.axes.get_ylim())
    span = math.log(high / low)
    exponents = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
    units = [10.0**exponent for exponent in exponents]
    if seconds:
        longer = [unit * 10**power for unit in (_MINUTE, _HOUR) for power in (0, 1)]
        units = [unit for unit in units if unit < _MINUTE] + longer
    ticks: list[float] = []
    for multiples in _MULTIPLES:
        if len(ticks) >= _ENOUGH_TICKS:
            break
        for tick in sorted(multiple * unit for unit in units for multiple in multiples):
            has_room = all(abs(math.log(tick / one)) >= _TICKS_APART * span for one in ticks)
            if low <= tick <= high and has_room:
                ticks.append(tick)
    if len(ticks) < _LEAST_TICKS:
        locator = MaxNLocator(_ENOUGH_TICKS + 1, steps=_STEPS, min_n_ticks=_LEAST_TICKS)
        even = locator.tick_values(low, high)
        ticks = [tick for tick in even if low <= tick <= high]
    plain = span < _WIDE * math.log(10) or (_PLAIN[0] <= low and high < _PLAIN[1])
    text = _duration if seconds else number_text if plain else _power
    axis.set_ticks(ticks, labels=map(text, ticks))
    axis.set_minor_formatter(NullFormatter())


def number_text(value: float) -> str:
    """Return a number as an axis shows it: at most six digits, ``1e6`` for a million."""
    return "∞" if math.isinf(value) else f"{value:.6g}".replace("e+0", "e").replace("e-0", "e-")


def _power(value: float) -> str:
    exponent = math.log10(value)
    whole = round(exponent)
    return f"$10^{{{whole}}}$" if math.isclose(exponent, whole) else number_text(value)


def _duration(seconds: float) -> str:
    for unit, size in ("h", _HOUR), ("min", _MINUTE), ("s", 0.1):
        if seconds >= size:
            return f"{number_text(seconds / (1 if unit == 's' else size))} {unit}"
    return f"{number_text(1000 * seconds)} ms"


def draw_lines(
    axes: Axes,
    entries: Iterable[Entry],
    curve: Callable[[Record], tuple[ArrayLike, ArrayLike, str]],
) -> list[tuple[Line2D | None, str, str]]:
    """Draw one line per method with a result; return what :func:`line_legend` lists.

    curve: the x and the y of a record's line, and its remark in the legend.
    """
    listed: list[tuple[Line2D | None, str, str]] = []
    for entry, style in zip(entries, line_styles(), strict=False):
        if entry.record is None:
            listed.append((None, entry.label, entry.reason))
            continue
        x, y, remark = curve(entry.record)
        (line,) = axes.plot(x, y, **style, lw=1.5, label=entry.label)
        listed.append((line, entry.label, remark))
    return listed


def line_legend(figure: Figure, entries: Iterable[tuple[Line2D | None, str, str]]) -> None:
    """List the methods on the right of a picture, which grows with the list.

    entries: the line (None: there is none), the method's label, and its number or why it has none.
    """
    handles, texts = [], []
    for line, label, remark in entries:
        handles.append(line or Line2D([], [], linestyle="none"))
        texts.append(textwrap.fill(f"{label}: {remark}", _LEGEND_CHARACTERS))
    look = {"loc": "outside right upper", "frameon": False, "handlelength": 3}
    legend = figure.legend(handles, texts, **look)
    for text in legend.get_texts():
        text.set(fontsize="small", parse_math=False)
    height = _LEGEND_LINE_INCHES * sum(1.5 + text.count("\n") for text in [*texts, ""])
    figure.set_figheight(max(figure.get_figheight(), height))
