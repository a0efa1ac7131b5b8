"""The pictures of a report, as SVG that takes its colours from the page."""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from uqbench.boards import Board
from uqbench.errors import DataError, UsageError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from uqbench.results import Results

_CAPTIONS = {
    "toy": "Mean ± 3σ of every method",
    "calibration": "Calibration: observed against nominal coverage of central intervals",
    "pareto": "Quality against cost; filled: on the Pareto front, no other method is both better "
    "and cheaper; bars: ± std over seeds",
    "violin": "VMSP of ID correct, ID incorrect and OoD points",
    "reliability": "Reliability: accuracy against confidence",
    "risk-coverage": "Selective prediction: error rate against coverage",
    "ood-roc": "Telling OoD points by the predictive entropy",
    "convergence": "What becomes of methods as one of their settings grows",
}
_OF_CLASSIFICATIONS = ("violin", "reliability", "risk-coverage", "ood-roc")
_ON_OOD_SETS = ("violin", "ood-roc")
_NOT_OF_ALL = ("toy", "convergence")
"""Their UsageErrors say that the board has no such thing to draw, which is no news on a page."""


@dataclass(frozen=True)
class Picture:
    """svg: empty if there is none, and then ``reason`` says why."""

    caption: str
    svg: str = ""
    reason: str = ""


def pictures(results: Results, board: Board) -> Iterator[Picture]:
    """Yield what can be drawn of one board, and why a picture is missing.

    results: the records of the board alone. Pictures of predictions show the lowest seed.
    """
    from uqbench import plots

    for kind, ood in _kinds(results, board):
        caption = _CAPTIONS[kind] + (f" (OoD: {ood})" if ood else "")
        log = "auto" if kind == "violin" else None
        try:
            drawn = plots.draw(kind, results, board.problem, ood=ood, log=log)
            svg = as_svg(drawn, f"{board.title}: {caption}")
        except (UsageError, DataError) as error:
            if kind not in _NOT_OF_ALL or isinstance(error, DataError):
                yield Picture(caption, reason=str(error))
        else:
            yield Picture(caption, svg)


def _kinds(results: Results, board: Board) -> Iterator[tuple[str, str | None]]:
    """Yield kinds of pictures with their OoD sets; of a rotated set the pictures are too many."""
    finished = [record for record in results.records if record.status == "ok"]
    if not finished:
        return
    yield "pareto", None
    yield "convergence", None
    if board.task == "regression":
        yield "toy", None
        if board.test_rows != 1:  # one point has no curve
            yield "calibration", None
    if board.task != "classification":
        return
    sets = dict.fromkeys(name for record in finished for name in record.outcome.ood)
    ood_sets = [name for name in sets if not name.startswith("rotated:")]
    for kind in _OF_CLASSIFICATIONS:
        if kind not in _ON_OOD_SETS:
            yield kind, None
            continue
        for name in ood_sets:
            yield kind, name
        if not ood_sets and not sets and kind == "violin":
            yield kind, None


_TAG = re.compile(r"<[^>]*>")
_COMMENTS = re.compile(r"<metadata>.*?</metadata>|<!--.*?-->", re.DOTALL)
_REFERENCE = re.compile(r"""(?<=[ ]id=")|(?<=url\(\#)|(?<=href="\#)""", re.VERBOSE)
_SIZE = re.compile(r' width="([\d.]+)pt" height="[\d.]+pt"')
_PIXELS_PER_POINT = 4 / 3
_COLOURS = {"#000000": "currentColor", "#ffffff": "var(--page)", "#0072b2": "var(--blue)"}
"""What black, white, and the palette's blue, which is lost on dark pages, become."""


def as_svg(figure: Figure, title: str) -> str:
    """Return a figure as an SVG element for a page of any colours.

    Ids begin with a digest of the title, which must be the picture's own.
    """
    import matplotlib

    figure.patch.set_alpha(0)
    for axes in figure.axes:
        axes.patch.set_alpha(0)
    file = io.StringIO()
    prefix = f"p{hashlib.sha256(title.encode()).hexdigest()[:12]}-"
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": prefix}):
        figure.savefig(file, format="svg", metadata={"Date": None})
    svg = file.getvalue()
    svg = _COMMENTS.sub("", svg[svg.index("<svg") :])

    def adapted(tag: re.Match[str]) -> str:  # tags only: a label may look like a colour
        text = _REFERENCE.sub(prefix, tag[0])
        for colour, of_page in _COLOURS.items():
            text = text.replace(colour, of_page)
        return text

    svg = _TAG.sub(adapted, svg)
    width = float(_SIZE.search(svg)[1]) * _PIXELS_PER_POINT
    look = f' role="img" aria-label="{escape(title)}" style="width: {width:.0f}px"'
    return _SIZE.sub(lambda _: look, svg, count=1)
