"""The critical-difference diagram: mean ranks on a line, bars over what does not differ.

Source: Demšar, "Statistical comparisons of classifiers over multiple data sets", JMLR 7, 2006.
"""

from __future__ import annotations

import math
import textwrap

from matplotlib.figure import Figure

from uqbench.plots.style import BLACK, VERMILLION
from uqbench.report_ranks import Ranks, cliques

_WIDTH, _LINE = 8.0, 0.24
"""Inches: of the picture, and between two labels."""
_BAR = 0.5
"""Between two bars, in lines."""
_LABEL_CHARACTERS = 30


def picture(ranks: Ranks) -> Figure:
    """Draw the best half of the methods to the left, the others to the right.

    ranks: with a critical difference.
    """
    number = len(ranks.methods)
    left = math.ceil(number / 2)
    bars = cliques(ranks.mean_ranks, ranks.critical_difference)
    first = 1 + _BAR * (len(bars) + 1)
    height = first + left
    drawing = Figure(figsize=(_WIDTH, _LINE * (height + 4)), layout="constrained")
    axes = drawing.subplots()
    room = 0.35 * (number - 1)
    axes.set(xlim=(1 - room, number + room), ylim=(height, -2.5))
    axes.axis("off")

    axes.plot([1, number], [0, 0], color=BLACK, lw=1)
    step = max(1, round(number / 10))
    for tick in range(1, number + 1, step):
        axes.plot([tick, tick], [-0.25, 0], color=BLACK, lw=1)
        axes.text(tick, -0.4, str(tick), ha="center", va="bottom", fontsize="small")
    difference = ranks.critical_difference
    shown = min(difference, number - 1)
    axes.plot([1, 1 + shown], [-1.7, -1.7], color=VERMILLION, lw=2, marker="|")
    more = "" if difference == shown else ", more than the axis"
    text = f"CD {difference:.2f}{more}"
    axes.text(1 + shown / 2, -1.85, text, ha="center", va="bottom", fontsize="small")
    for position, (begin, end) in enumerate(bars):
        ends = ranks.mean_ranks[begin] - 0.04, ranks.mean_ranks[end] + 0.04
        y = 0.6 + _BAR * position
        axes.plot(ends, [y, y], color=BLACK, lw=3.5, solid_capstyle="butt")

    for position, (label, rank) in enumerate(zip(ranks.methods, ranks.mean_ranks, strict=True)):
        on_left = position < left
        y = first + (position if on_left else number - 1 - position)
        edge = 1 - 0.03 * room if on_left else number + 0.03 * room
        axes.plot([rank, rank, edge], [0, y, y], color=BLACK, lw=0.8)
        wanted = textwrap.shorten(label, _LABEL_CHARACTERS, placeholder="…")
        text = f"{wanted}  {rank:.2f}" if on_left else f"{rank:.2f}  {wanted}"
        side = {"ha": "right" if on_left else "left", "va": "center"}
        nudge = -0.03 * room if on_left else 0.03 * room
        axes.text(edge + nudge, y, text, fontsize="small", parse_math=False, **side)
    return drawing
