"""The figures of the NUQLS paper that a run can draw, beside a comparison's page of Markdown."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from uqbench.errors import DataError, UsageError

if TYPE_CHECKING:
    from uqbench.records import Record
    from uqbench.results import Results

_FIGURES = {
    ("toy/cubic", "toy"): "Figures 1 and 4: the methods on the toy problem",
    ("fashion-mnist/lenet5", "violin"): "Figure 3: VMSP of LeNet5 on FashionMNIST",
    ("cifar-10/resnet50", "violin"): "Figure 3: VMSP of ResNet50 on CIFAR-10",
    ("cifar-100/resnet50", "violin"): "Figure 3: VMSP of ResNet50 on CIFAR-100",
    ("svhn/resnet50", "violin"): "Figure 6: VMSP of ResNet50 on SVHN",
    ("imagenet/resnet50", "violin"): "Figure 6: VMSP of ResNet50 on ImageNet",
    ("fashion-mnist/wrn", "violin"): "Figure 6: VMSP of WRN-34-1 on FashionMNIST",
    ("fashion-mnist/resnet9", "violin"): "Figure 6: VMSP of ResNet9 on FashionMNIST",
}
"""The figure that shows a problem in a kind of picture."""


@dataclass(frozen=True)
class DrawnFigure:
    """title: which figure it is. file: the picture, or None, and then ``reason`` says why.

    plot: the options of ``uqbench plot`` that draw it. records: what is on it.
    """

    title: str
    plot: str
    records: list[Record]
    file: Path | None = None
    reason: str = ""


def draw_figures(results: Results, page: Path) -> Iterator[DrawnFigure]:
    """Draw every figure that the results cover next to ``page``, in files named after it."""
    finished = [r for r in results.records if r.status == "ok" and not r.identity.quick]
    for (problem, kind), title in _FIGURES.items():
        records = [record for record in finished if record.identity.problem == problem]
        if not records:
            continue
        file = page.with_name(f"{page.stem}-{problem.replace('/', '-')}.svg")
        try:
            results.plot(kind, file, problem=problem)
        except (UsageError, DataError) as error:
            file, reason = None, str(error)
        else:
            reason = ""
        plot = f"--kind {kind} --problem {problem}"
        yield DrawnFigure(title, plot, records, file, reason)
