"""Predictions that a run keeps: one file per finished cell, ``RUN/predictions/KEY.npz``.

``KEY`` is the record's key. The file holds what pictures need, one number per point and quantity
(never N x C), as NumPy arrays:

==================  =========  ====================================================================
``targets``         (N,)       of the test split: float64 values on the standardised scale, or
                               int32 class indices
regression
``mean``            (N,)       float64; predictive mean of y on the test split
``variance``        (N,)       float64; predictive variance of y
classification
``predicted``       (N,)       int32; class of the highest mean probability, the first of equals
``confidence``      (N,)       float64; that probability (float32 would round 1 - 1e-8 to 1)
``entropy``         (N,)       float32; of the mean probabilities, in nats
``vmsp``            (N,)       float64; variance over samples of the predicted class's probability
``logit_variance``  (N,)       float32; variance over samples of the logits, summed over classes
==================  =========  ====================================================================

``vmsp`` and ``logit_variance`` are NaN for fewer than two samples. The predictions on an OoD set
have the same names after ``ood:SET:``, like ``ood:held-out:confidence``. A regression on one
feature has all that :class:`Curve` lists, after ``curve:``. A file is whole or absent; running the
cell again replaces it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TypeVar
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from uqbench.errors import DataError
from uqbench.replacement import replacement

Floats = NDArray[np.float64]
P = TypeVar("P")


@dataclass(frozen=True, eq=False)
class RegressionMoments:
    """Predictive mean and variance of y, (N,) each."""

    mean: Floats
    variance: Floats


@dataclass(frozen=True, eq=False)
class ClassificationSummary:
    """What is kept of a classification, (N,) each; see the module's table."""

    predicted: NDArray[np.int32]
    confidence: Floats
    entropy: NDArray[np.float32]
    vmsp: Floats
    logit_variance: NDArray[np.float32]

    @classmethod
    def of(
        cls, probabilities: Floats, variance: Floats | None, logit_variance: Floats | None
    ) -> ClassificationSummary:
        """Summarise moments, (N, C) each; the variances are None for fewer than two samples."""
        from uqbench.metrics.detection import predictive_entropy
        from uqbench.metrics.vmsp import vmsp

        if logit_variance is None:
            summed = np.full(len(probabilities), np.nan)
        else:
            summed = logit_variance.sum(-1)
        return cls(
            predicted=probabilities.argmax(-1).astype(np.int32),
            confidence=probabilities.max(-1),
            entropy=predictive_entropy(probabilities).astype(np.float32),
            vmsp=vmsp(probabilities, variance),
            logit_variance=summed.astype(np.float32),
        )


Points = RegressionMoments | ClassificationSummary


@dataclass(frozen=True, eq=False)
class Curve:
    """A regression on one feature, to be drawn; float64.

    inputs: (G,), evenly spaced over the range of all splits, with their predictive mean and
    variance, (G,) each. train_inputs, train_targets: (n,). test_inputs: (N,).
    """

    inputs: Floats
    mean: Floats
    variance: Floats
    train_inputs: Floats
    train_targets: Floats
    test_inputs: Floats


@dataclass(frozen=True, eq=False)
class SavedPredictions:
    """The predictions of one cell.

    targets: (N,), of the test split. test: predictions on it. ood: OoD set -> predictions on it.
    curve: None unless it is a regression on one feature.
    """

    targets: NDArray
    test: Points
    ood: Mapping[str, Points] = field(default_factory=dict)
    curve: Curve | None = None


_OOD = "ood:"
_CURVE = "curve:"
_AGAIN = "Run the same command with --rerun all to make it again."


def predictions_path(run_dir: Path, key: str) -> Path:
    """Return where a run keeps the predictions of the cell with this key."""
    return run_dir / "predictions" / f"{key}.npz"


def write_predictions(path: Path, predictions: SavedPredictions) -> None:
    """Write the file, which is whole or unchanged at any time. Raises OSError."""
    arrays = {"targets": predictions.targets, **vars(predictions.test)}
    for name, points in predictions.ood.items():
        arrays |= {f"{_OOD}{name}:{part}": values for part, values in vars(points).items()}
    if predictions.curve is not None:
        arrays |= {f"{_CURVE}{part}": values for part, values in vars(predictions.curve).items()}
    with replacement(path) as file:
        np.savez(file, **arrays)


def read_predictions(path: Path) -> SavedPredictions:
    """Read the file. Raises :class:`DataError` if it is missing or damaged."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = dict(file)
        return _parsed(arrays)
    except FileNotFoundError:
        raise DataError(
            f"{path}: no such file: the run was made before predictions were kept, or the file was "
            f"deleted. {_AGAIN}"
        ) from None
    except (OSError, EOFError, ValueError, KeyError, TypeError, BadZipFile) as error:
        raise DataError(f"{path}: no readable predictions ({error}). {_AGAIN}") from None


def _parsed(arrays: Mapping[str, NDArray]) -> SavedPredictions:
    kind = RegressionMoments if "mean" in arrays else ClassificationSummary
    ood_sets = dict.fromkeys(name.rsplit(":", 1)[0] for name in arrays if name.startswith(_OOD))
    return SavedPredictions(
        targets=arrays["targets"],
        test=_part(kind, arrays),
        ood={s.removeprefix(_OOD): _part(kind, arrays, f"{s}:") for s in ood_sets},
        curve=_part(Curve, arrays, _CURVE) if f"{_CURVE}inputs" in arrays else None,
    )


def _part(kind: type[P], arrays: Mapping[str, NDArray], prefix: str = "") -> P:
    return kind(**{part.name: arrays[f"{prefix}{part.name}"] for part in fields(kind)})
