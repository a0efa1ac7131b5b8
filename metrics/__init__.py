"""Metrics: plain functions of arrays, one file per family, and the catalogue of their names."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Better = Literal["lower", "higher", "closer to 0.95", "closer to 0.9"]

Range = tuple[float, float]
_ANY: Range = (-math.inf, math.inf)
_NOT_NEGATIVE: Range = (0, math.inf)
_SHARE: Range = (0, 1)
_VMSP: Range = (0, 0.5)
"""The unbiased variance of two or more numbers from 0 to 1."""


@dataclass(frozen=True)
class Metric:
    """What the benchmark knows about a metric besides its value.

    name: the key in records and tables. task: where it is defined; ``any`` for names that both
    tasks share. better: the direction of improvement, None where the value describes and does not
    rank. title: a column's heading. per_ood: one value per OoD set, not one per problem.
    range: lowest and highest possible value, by the definition. classification_range: the same of
    classification, where the definitions of the two tasks differ.
    """

    name: str
    task: Literal["regression", "classification", "any"]
    better: Better | None
    title: str
    description: str
    range: Range = _ANY
    per_ood: bool = False
    classification_range: Range | None = None

    def range_in(self, task: str) -> Range:
        """Return lowest and highest possible value in a task; a value may also be undefined, NaN.

        Definitions hold for exact arithmetic: a value may lie outside by rounding.
        """
        return (task == "classification" and self.classification_range) or self.range


def _vmsp_group(group: str, title: str, certain: bool, per_ood: bool = False) -> list[Metric]:
    """The metrics of one VMSP group; the predictions of ``certain`` groups should not vary."""

    def metric(
        key: str, better: Better | None, heading: str, description: str, range: Range = _VMSP
    ) -> Metric:
        name = f"vmsp_{group}_{key}"
        heading = f"VMSP {title} {heading}"
        return Metric(name, "classification", better, heading, description, range, per_ood)

    median, skew = ("lower", "higher") if certain else ("higher", "lower")
    return [
        metric("median", median, "median", f"median VMSP of {title} points"),
        metric("skew", skew, "skew", f"Fisher–Pearson skew g1 of the VMSP of {title} points", _ANY),
        metric("q25", None, "25%", f"lower quartile of the VMSP of {title} points"),
        metric("q75", None, "75%", f"upper quartile of the VMSP of {title} points"),
        metric("count", None, "count", f"number of {title} points", _NOT_NEGATIVE),
    ]


_ALL = [
    Metric(
        "rmse",
        "regression",
        "lower",
        "RMSE",
        "root mean squared error, standardised targets",
        _NOT_NEGATIVE,
    ),
    Metric(
        "rmse_raw",
        "regression",
        "lower",
        "RMSE (raw)",
        "RMSE in the units of the data",
        _NOT_NEGATIVE,
    ),
    Metric(
        "nll",
        "any",
        "lower",
        "NLL",
        "negative log-likelihood per point in nats; for regression Gaussian, with ½ log 2π",
        classification_range=(0, -math.log(math.ulp(0.0))),
    ),
    Metric(
        "ece",
        "any",
        "lower",
        "ECE",
        "expected calibration error; regression: mean squared coverage error at the 11 levels "
        "0, 0.1, ..., 1; classification: top label, 10 equal bins, L1",
        (0, 2.85 / 11),
        classification_range=_SHARE,
    ),
    Metric(
        "mace",
        "regression",
        "lower",
        "MACE",
        "mean absolute coverage error at the 100 levels 0.005, 0.015, ..., 0.995",
        (0, 0.5),
    ),
    Metric(
        "crps",
        "regression",
        "lower",
        "CRPS",
        "continuous ranked probability score, Gaussian",
        _NOT_NEGATIVE,
    ),
    Metric(
        "sharpness",
        "regression",
        None,
        "Sharpness",
        "mean predictive standard deviation; smaller is better at equal calibration only",
        _NOT_NEGATIVE,
    ),
    Metric(
        "coverage95",
        "regression",
        "closer to 0.95",
        "Coverage 95%",
        "share of targets inside the central 95% interval",
        _SHARE,
    ),
    Metric(
        "width95",
        "regression",
        None,
        "Width 95%",
        "mean width of the central 95% interval; narrower is better at equal coverage only",
        _NOT_NEGATIVE,
    ),
    Metric(
        "coverage90",
        "regression",
        "closer to 0.9",
        "Coverage 90%",
        "share of targets inside the central 90% interval",
        _SHARE,
    ),
    Metric(
        "width90",
        "regression",
        None,
        "Width 90%",
        "mean width of the central 90% interval; narrower is better at equal coverage only",
        _NOT_NEGATIVE,
    ),
    Metric(
        "interval_score",
        "regression",
        "lower",
        "Interval score",
        "width of the central 95% interval plus 40 times the distance of targets outside it",
        _NOT_NEGATIVE,
    ),
    Metric(
        "mean_prediction",
        "regression",
        None,
        "Mean prediction",
        "mean of the predictive means, on the scale of the targets",
    ),
    Metric(
        "accuracy",
        "classification",
        "higher",
        "Accuracy",
        "share of points predicted correctly",
        _SHARE,
    ),
    Metric(
        "brier",
        "classification",
        "lower",
        "Brier",
        "squared error of the probabilities, summed over classes; 0 to 2",
        (0, 2),
    ),
    Metric(
        "aurc",
        "classification",
        "lower",
        "AURC",
        "area under the risk–coverage curve: error rate when the least confident are left out",
        _SHARE,
    ),
    Metric(
        "mutual_information",
        "classification",
        None,
        "Mutual information",
        "mean mutual information of label and member, in nats: how much members disagree",
        _NOT_NEGATIVE,
    ),
    *_vmsp_group("id_correct", "ID correct", certain=True),
    *_vmsp_group("id_incorrect", "ID incorrect", certain=False),
    Metric(
        "vmsp_auc_error",
        "classification",
        "higher",
        "VMSP AUC error",
        "AUROC of VMSP, ID incorrect against ID correct points",
        _SHARE,
    ),
    Metric(
        "ood_auc",
        "classification",
        "higher",
        "OoD AUC",
        "AUROC of the predictive entropy, OoD against ID points",
        _SHARE,
        per_ood=True,
    ),
    Metric(
        "auc_roc",
        "classification",
        "higher",
        "AUC-ROC",
        "AUROC of the maximum probability, ID against OoD points",
        _SHARE,
        per_ood=True,
    ),
    Metric(
        "logit_var_auc",
        "classification",
        "higher",
        "Logit-variance AUC",
        "AUROC of the logit variance summed over classes, OoD against ID points",
        _SHARE,
        per_ood=True,
    ),
    Metric(
        "fpr95",
        "classification",
        "lower",
        "FPR95",
        "share of ID points flagged by the predictive entropy when 95% of OoD points are",
        _SHARE,
        per_ood=True,
    ),
    Metric(
        "mutual_information_auc",
        "classification",
        "higher",
        "MI AUC",
        "AUROC of the mutual information of label and member, OoD against ID points",
        _SHARE,
        per_ood=True,
    ),
    *_vmsp_group("ood", "OoD", certain=False, per_ood=True),
    Metric(
        "vmsp_auc_ood",
        "classification",
        "higher",
        "VMSP AUC OoD",
        "AUROC of VMSP, OoD against ID correct points",
        _SHARE,
        per_ood=True,
    ),
]

METRICS: dict[str, Metric] = {metric.name: metric for metric in _ALL}
"""Every metric by name, in the order of tables."""
