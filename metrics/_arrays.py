"""Inputs of the metrics: float64 arrays whose shapes agree, because nothing is ever broadcast.

Targets given as (n,) and predictions as (n, 1), or the reverse, mean the same; any other mismatch
is a ValueError that names both shapes. NaN passes through: a metric of NaN is NaN.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

# a sum of C float32 probabilities may exceed 1 by rounding; a logit or a percentage exceeds it more
_PROBABILITY_SLACK = 1e-6


def vector(values: ArrayLike, name: str) -> Floats:
    """Return ``values``, (n,) or (n, 1), as float64 (n,); ValueError for any other shape."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim == 2 and array.shape[1] == 1:
        return array[:, 0]
    if array.ndim != 1:
        raise ValueError(f"{name} must have shape (n,) or (n, 1), got {array.shape}")
    return array


def vectors(**named: ArrayLike) -> list[Floats]:
    """Return the named values as float64 (n,) arrays; ValueError unless all have the same n."""
    arrays = {name: vector(values, name) for name, values in named.items()}
    (first, reference), *others = arrays.items()
    for name, array in others:
        if array.shape != reference.shape:
            shapes = f"{first} has shape {reference.shape} and {name} has shape {array.shape}"
            raise ValueError(f"{shapes}; they must be equal")
    return list(arrays.values())


def matrix(values: ArrayLike, name: str) -> Floats:
    """Return ``values`` as float64 (N, C), C ≥ 1; ValueError for any other shape."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 2 or array.shape[1] == 0:
        raise ValueError(f"{name} must have shape (N, C), got {array.shape}")
    return array


def non_negative(array: Floats, name: str) -> Floats:
    """Return ``array``; ValueError if a value is negative (NaN passes)."""
    if (array < 0).any():
        raise ValueError(f"{name} must not be negative, got {np.nanmin(array):g}")
    return array


def variance_matrix(values: ArrayLike, name: str) -> Floats:
    """Return variances as float64 (N, C); ValueError if one is negative."""
    return non_negative(matrix(values, name), name)


def probability_matrix(values: ArrayLike, name: str = "probabilities") -> Floats:
    """Return class probabilities as float64 (N, C); ValueError if one is outside [0, 1]."""
    array = non_negative(matrix(values, name), name)
    if (array > 1 + _PROBABILITY_SLACK).any():
        raise ValueError(f"{name} must be at most 1, got {np.nanmax(array):g}")
    return array


def class_labels(values: ArrayLike, shape: tuple[int, int]) -> NDArray[np.intp]:
    """Return the labels of an (N, C) array of probabilities as integers (N,), each in 0..C-1."""
    array = vector(values, "labels")
    samples, classes = shape
    if len(array) != samples:
        raise ValueError(
            f"probabilities has shape {shape} and labels has shape {array.shape}; "
            "they must have the same number of rows"
        )
    invalid = ~np.isin(array, np.arange(classes))
    if invalid.any():
        raise ValueError(
            f"labels must be class indices 0 to {classes - 1}, got {array[invalid][0]:g}"
        )
    return array.astype(np.intp)


def average(values: Floats) -> float:
    """Return the mean, NaN for an empty array, as a plain float."""
    return float(values.mean()) if values.size else float("nan")
