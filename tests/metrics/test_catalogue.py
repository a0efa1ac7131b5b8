"""The catalogue of metrics agrees with what the bundles return."""

import math
import subprocess
import sys

import numpy as np
import pytest

from uqbench.metrics import METRICS
from uqbench.metrics.classification import classification_metrics
from uqbench.metrics.detection import ood_metrics
from uqbench.metrics.regression import regression_metrics
from uqbench.metrics.vmsp import vmsp, vmsp_ood_metrics

PROBABILITIES = np.array([[0.5, 0.5], [0.9, 0.1]])


def names(task, per_ood=False):
    return {
        metric.name
        for metric in METRICS.values()
        if metric.task in (task, "any") and metric.per_ood == per_ood
    }


def test_the_regression_bundle_and_the_catalogue_agree():
    assert regression_metrics([0.0], [0.0], [1.0], 1.0).keys() == names("regression")


def test_the_classification_bundle_and_the_catalogue_agree():
    assert classification_metrics(PROBABILITIES, [0, 0]).keys() == names("classification")


def test_the_ood_bundles_and_the_catalogue_agree():
    bundle = ood_metrics(PROBABILITIES, PROBABILITIES) | vmsp_ood_metrics()
    assert bundle.keys() == names("classification", per_ood=True)
    assert names("regression", per_ood=True) == set()


def test_every_metric_is_filed_under_its_name_with_a_title_of_its_own():
    assert all(name == metric.name for name, metric in METRICS.items())
    assert len({metric.title for metric in METRICS.values()}) == len(METRICS)
    assert all(metric.description for metric in METRICS.values())


def test_the_direction_of_vmsp_differs_between_the_groups():
    assert METRICS["vmsp_id_correct_median"].better == "lower"
    assert METRICS["vmsp_id_correct_skew"].better == "higher"
    for group in ("id_incorrect", "ood"):
        assert METRICS[f"vmsp_{group}_median"].better == "higher"
        assert METRICS[f"vmsp_{group}_skew"].better == "lower"


ROUNDING = 1e-9


def all_metrics(task, rng):
    """The metrics of one extreme prediction of a few points."""
    count = rng.integers(1, 6)
    if task == "regression":
        targets, mean = rng.standard_normal((2, count)) * 10.0 ** rng.integers(-3, 3)
        variance = rng.choice([0.0, 1e-12, 1.0, 1e12], count)
        return regression_metrics(rng.choice([targets, mean]), mean, variance, 3.0)
    sets = []
    for _ in range(2):
        members = rng.dirichlet(np.full(3, rng.choice([1e-3, 1.0])), (2, count))  # (S, N, C)
        logits = rng.standard_normal((2, count, 3))
        entropy = -(members * np.log(np.maximum(members, 1e-300))).sum(-1).mean(0)
        sets.append((members.mean(0), members.var(0, ddof=1), logits.var(0, ddof=1), entropy))
    (ours, variance, logits, entropy), (other, _, other_logits, other_entropy) = sets
    labels = rng.integers(0, 3, count)
    values = vmsp(ours, variance)
    return (
        classification_metrics(ours, labels, variance, entropy)
        | ood_metrics(
            ours,
            other,
            id_logit_variance=logits,
            ood_logit_variance=other_logits,
            id_expected_entropy=entropy,
            ood_expected_entropy=other_entropy,
        )
        | vmsp_ood_metrics(values, vmsp(other, variance))
    )


@pytest.mark.parametrize("task", ["regression", "classification"])
def test_no_prediction_has_a_metric_outside_its_range(task):
    rng = np.random.default_rng(0)
    seen = {}
    for _ in range(300):
        for name, value in all_metrics(task, rng).items():
            seen.setdefault(name, []).append(value)
    assert len(seen) == len([m for m in METRICS.values() if m.task in (task, "any")])
    for name, values in seen.items():
        lowest, highest = METRICS[name].range_in(task)
        defined = [value for value in values if not math.isnan(value)]
        assert defined, name
        assert lowest - ROUNDING <= min(defined), name
        assert max(defined) <= highest + ROUNDING, name


WORST = np.array([[1.0, 0.0], [1.0, 0.0]])
EVEN = np.full((2, 2), 0.5)


@pytest.mark.parametrize(
    ("task", "lows", "highs"),
    [
        (
            "regression",
            (regression_metrics([0, 0], [0, 0], [0, 0], 1.0), ("rmse", "crps", "sharpness")),
            (regression_metrics([0, 0], [0, 0], [1, 1], 1.0), ("ece", "mace", "coverage95")),
        ),
        (
            "classification",
            (classification_metrics(WORST, [0, 0]), ("nll", "brier", "ece", "aurc")),
            (classification_metrics(WORST, [1, 1]), ("nll", "brier", "ece", "aurc")),
        ),
        (
            "classification",
            (ood_metrics(EVEN, WORST), ("ood_auc", "auc_roc")),
            (ood_metrics(WORST, EVEN), ("ood_auc", "auc_roc")),
        ),
        (
            "classification",
            (vmsp_ood_metrics([0.5, 0.5], [0, 0]), ("vmsp_ood_median", "vmsp_auc_ood")),
            (vmsp_ood_metrics([0, 0], [0.5, 0.5]), ("vmsp_ood_q75", "vmsp_auc_ood")),
        ),
    ],
)
def test_the_ends_of_the_ranges_are_reached(task, lows, highs):
    for (values, names), end in zip((lows, highs), (0, 1), strict=True):
        ends = {name: METRICS[name].range_in(task)[end] for name in names}
        assert {name: values[name] for name in names} == pytest.approx(ends, abs=1e-12)


def test_listing_and_computing_metrics_does_not_import_torch():
    code = (
        "import sys, uqbench.metrics; assert 'numpy' not in sys.modules; "
        "import uqbench.metrics.classification, uqbench.metrics.regression; "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
