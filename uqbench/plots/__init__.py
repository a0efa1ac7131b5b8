"""Pictures of a run: one module per kind, imported when a picture of that kind is drawn.

Each has a function ``figure(results, problem, seed)`` that returns a matplotlib Figure, and that
takes the options which ``KINDS`` lists, by name; a kind is a name there and a module of that name
(``_`` for ``-``).
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from uqbench.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from uqbench.results import Results

KINDS: dict[str, tuple[str, ...]] = {
    "toy": (),
    "calibration": (),
    "violin": ("ood", "log"),
    "reliability": (),
    "risk-coverage": (),
    "ood-roc": ("ood",),
    "pareto": (),
    "convergence": (),
}
"""Every kind of picture, with the options that it has besides the problem and the seed."""

SUFFIXES = (".png", ".svg", ".pdf")

_DOTS_PER_INCH = 200


def draw(
    kind: str,
    results: Results,
    problem: str | None = None,
    seed: int | None = None,
    **options: Any,
) -> Figure:
    """Return the picture of a kind; see :meth:`uqbench.Results.plot`.

    options: those that are neither None nor False must be among the kind's.
    """
    if kind not in KINDS:
        from uqbench.suggestions import did_you_mean

        raise UsageError(f"no kind of picture named '{kind}'.{did_you_mean(kind, KINDS)}")
    given = {name: value for name, value in options.items() if value not in (None, False)}
    for name in given:
        if name not in KINDS[kind]:
            kinds = ", ".join(kind for kind, has in KINDS.items() if name in has)
            raise UsageError(f"--{name}: a picture of kind {kind} has no such option; {kinds} has")
    module = import_module(f"{__name__}.{kind.replace('-', '_')}")
    return module.figure(results, problem, seed, **given)


def check_suffix(path: str | Path) -> None:
    """Raise UsageError unless the file's suffix says what to write."""
    suffix = Path(path).suffix
    if suffix.lower() not in SUFFIXES:
        wanted = ", ".join(SUFFIXES)
        raise UsageError(f"{path}: unknown suffix '{suffix}' for a picture; use {wanted}.")


def write(figure: Figure, path: str | Path) -> None:
    """Write a picture to a file of one of ``SUFFIXES``; it is whole or unchanged at any time.

    The same picture gives the same bytes, so that a page that is generated again shows no change.
    """
    import matplotlib

    from uqbench.replacement import replacement

    check_suffix(path)
    path = Path(path)
    kind = path.suffix.lower().lstrip(".")
    undated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind)
    try:
        with replacement(path) as file, matplotlib.rc_context({"svg.hashsalt": "uqbench"}):
            figure.savefig(file, format=kind, dpi=_DOTS_PER_INCH, metadata=undated)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror}") from None
