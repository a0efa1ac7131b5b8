"""VMSP values of anybody's methods: read from a file, and summarised as Tables 10 and 11 do.

The file is an ``.npz`` with three arrays per method, one value per point: ``METHOD/id_correct``,
``METHOD/id_incorrect`` and ``METHOD/ood``.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from uqbench.errors import DataError
from uqbench.formatting import printable

GROUPS = ("id_correct", "id_incorrect", "ood")
_AUROC = {"id_incorrect": "vmsp_auc_error", "ood": "vmsp_auc_ood"}

_LARGEST = 0.5 + 1e-6
"""Two probabilities, 0 and 1, have the largest unbiased variance there is; 1e-6 is for rounding."""


@dataclass(frozen=True, eq=False)
class VMSPGroups:
    """The VMSP of one method's points, (n,) each; ood is None where there is no OoD set."""

    id_correct: NDArray[np.float64]
    id_incorrect: NDArray[np.float64]
    ood: NDArray[np.float64] | None = None

    @property
    def groups(self) -> dict[str, NDArray[np.float64]]:
        """The groups that exist, by name."""
        return {name: values for name, values in vars(self).items() if values is not None}


def read_vmsp(path: str | Path) -> dict[str, VMSPGroups]:
    """Return the groups of each method, in the order of the file but for BASE, which comes last.

    Raises DataError, with the file and the array at fault, unless every method has its three
    arrays, each (n,) with n > 0, of numbers in [0, ½].
    """
    arrays = _arrays(Path(path))
    by_method: dict[str, dict[str, NDArray[np.float64]]] = {}
    for key, array in arrays.items():
        place = f"{path}: array '{printable(key)}'"
        method, _, group = key.rpartition("/")
        if not method or group not in GROUPS:
            raise DataError(
                f"{place} is none of METHOD/id_correct, METHOD/id_incorrect and METHOD/ood."
            )
        by_method.setdefault(method, {})[group] = _checked(array, place)
    for method, groups in by_method.items():
        for group in GROUPS:
            if group not in groups:
                name = printable(method)
                raise DataError(f"{path}: no array '{name}/{group}' beside the others of {name}.")
    order = sorted(by_method, key=_is_base)
    return {method: VMSPGroups(**by_method[method]) for method in order}


def statistics_table(values: Mapping[str, VMSPGroups]) -> Iterator[tuple[str, ...]]:
    """Yield a heading and one row per method and group, as text with four significant digits.

    The AUROC of a group is that of its VMSP against the ID correct points. A value that is worse
    than that of the method named BASE has the leaderboard's mark.
    """
    from uqbench.metrics.vmsp import vmsp_metrics, vmsp_ood_metrics

    numbers = {
        method: {
            **vmsp_metrics(groups.id_correct, groups.id_incorrect),
            **vmsp_ood_metrics(groups.id_correct, groups.ood),
        }
        for method, groups in values.items()
    }
    base = next((own for method, own in numbers.items() if _is_base(method)), {})
    yield "method", "group", "count", "median", "skew", "25%", "75%", "AUROC"
    for method, own in numbers.items():
        for group in GROUPS:
            names = [f"vmsp_{group}_{key}" for key in ("median", "skew", "q25", "q75")]
            names.append(_AUROC.get(group, ""))
            texts = [_text(one, own.get(one, np.nan), base.get(one, np.nan)) for one in names]
            yield printable(method), group, f"{own[f'vmsp_{group}_count']:.0f}", *texts


def _text(metric: str, value: float, base: float) -> str:
    from uqbench.leaderboard_columns import WORSE_THAN_BASE
    from uqbench.metrics import METRICS

    if np.isnan(value):
        return "–"
    better = METRICS[metric].better
    worse = value > base if better == "lower" else value < base if better else False
    return f"{value:#.4g}{WORSE_THAN_BASE if worse else ''}"


def _is_base(method: str) -> bool:
    return method.lower() == "base"


def _arrays(path: Path) -> dict[str, NDArray]:
    if not path.is_file():
        what = "not a file" if path.exists() else "no such file"
        raise DataError(f"{path}: {what}. It must be an .npz file of VMSP values.")
    arrays = {}
    place = f"{path}"
    try:
        with np.load(path, allow_pickle=False) as file:
            for key in file.files:
                place = f"{path}: array '{printable(key)}'"
                arrays[key] = file[key]
    except (OSError, EOFError, ValueError, TypeError, RuntimeError, BadZipFile, zlib.error):
        raise DataError(f"{place}: cannot be read. It must be an .npz file of numbers.") from None
    if not arrays:
        raise DataError(f"{path}: holds no arrays.")
    return arrays


def _checked(array: NDArray, place: str) -> NDArray[np.float64]:
    if array.dtype.kind not in "fiu":
        raise DataError(f"{place} holds no real numbers but {array.dtype}.")
    if array.ndim != 1:
        raise DataError(f"{place} must have shape (n,), one value per point; it has {array.shape}.")
    if not array.size:
        raise DataError(f"{place} is empty.")
    values = array.astype(np.float64)
    wrong = ~((values >= 0) & (values <= _LARGEST))  # NaN as well
    if wrong.any():
        first = int(np.argmax(wrong))
        raise DataError(f"{place}: VMSP lies in [0, 0.5], but value {first} is {values[first]:g}.")
    return values
