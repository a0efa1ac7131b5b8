"""The catalogue of metrics agrees with what the bundles return."""

import subprocess
import sys

import numpy as np

from uqbench.metrics import METRICS
from uqbench.metrics.classification import classification_metrics
from uqbench.metrics.detection import ood_metrics
from uqbench.metrics.regression import regression_metrics
from uqbench.metrics.vmsp import vmsp_ood_metrics

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


def test_listing_and_computing_metrics_does_not_import_torch():
    code = (
        "import sys, uqbench.metrics; assert 'numpy' not in sys.modules; "
        "import uqbench.metrics.classification, uqbench.metrics.regression; "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
