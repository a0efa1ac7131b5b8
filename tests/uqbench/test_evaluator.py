"""What the evaluator does with a method that breaks the contract: a clear error, no more."""

import random
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
import torch

from uqbench import evaluator
from uqbench.api import request
from uqbench.cells import plan
from uqbench.context import Context
from uqbench.data import Split, TrainingData
from uqbench.errors import ContractError, DataError, DivergenceError
from uqbench.evaluator import EvaluationData, evaluate_cell, evaluate_method
from uqbench.method import Method, Posterior, Task
from uqbench.methods.base import RandomBaseline
from uqbench.prediction import ClassificationPrediction, RegressionPrediction
from uqbench.problems import Problem

ROWS, CLASSES = 12, 3


class Fixed(Posterior):
    """Predicts whatever ``answer`` makes of the number of rows."""

    def __init__(self, answer, **attributes):
        self.answer = answer
        vars(self).update(attributes)

    def predict(self, inputs):
        return self.answer(len(inputs))


@dataclass(frozen=True)
class Stub(Method):
    """Returns ``posterior``, after ``deed``."""

    posterior: ClassVar = None
    deed: ClassVar = None

    def fit(self, problem, data, network, context):
        if self.deed:
            type(self).deed()
        return self.posterior


def evaluated(task, posterior, deed=None):
    kind = type(
        "Given", (Stub,), {"posterior": posterior, "deed": staticmethod(deed or (lambda: None))}
    )
    inputs = torch.arange(ROWS * 2.0).view(ROWS, 2).double()
    labels = torch.arange(ROWS) % CLASSES
    split = Split(inputs, labels if task is Task.CLASSIFICATION else labels.double())
    classes = CLASSES if task is Task.CLASSIFICATION else None
    data = EvaluationData(TrainingData(task, split, split, classes), split, {})
    problem = Problem("p", "toy/cubic", task, predict_batch=5)
    context = Context(torch.device("cpu"), torch.float64, 0)
    method = posterior if isinstance(posterior, Method) else kind()
    return evaluate_method(method, problem, torch.nn.Identity(), data, context)


def regression(mean=None, variance=None):
    return lambda n: RegressionPrediction(
        torch.zeros(n) if mean is None else mean(n),
        torch.ones(n) if variance is None else variance(n),
    )


def classification(samples=2, **changes):
    def answer(n):
        parts = {
            "probabilities": torch.full((n, CLASSES), 1 / CLASSES),
            "variance": torch.zeros(n, CLASSES),
            "logit_variance": torch.zeros(n, CLASSES),
            "expected_entropy": torch.zeros(n),
        }
        parts |= {name: make(n) for name, make in changes.items()}
        return ClassificationPrediction(**parts, samples=samples)

    return answer


def test_a_prediction_that_keeps_the_contract_is_scored():
    outcome, cost = evaluated(Task.REGRESSION, Fixed(regression()))
    assert outcome.metrics["rmse"] == pytest.approx((5 / 3) ** 0.5)
    assert cost.repeats == 3
    outcome, _ = evaluated(Task.CLASSIFICATION, Fixed(classification()))
    assert outcome.metrics["nll"] == pytest.approx(np.log(3))


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (
            regression(mean=lambda n: torch.zeros(n, 1)),
            r"mean must have shape \(5,\), it has \(5, 1\)",
        ),
        (regression(variance=lambda n: torch.ones(n, 1)), r"variance must have shape \(5,\)"),
        (
            regression(mean=lambda n: torch.zeros(n - 1)),
            r"mean must have shape \(5,\), it has \(4,\)",
        ),
        (regression(mean=lambda n: torch.tensor(0.0)), r"it has \(\)"),
        (regression(variance=lambda n: -torch.ones(n)), "variance must not be negative.* -1"),
        (regression(mean=lambda n: np.zeros(n)), "mean must be a tensor, it is ndarray"),
        (regression(mean=lambda n: 0.0), "mean must be a tensor, it is float"),
        (
            regression(mean=lambda n: torch.zeros(n).long()),
            r"real floating point, it is torch.int64",
        ),
        (
            regression(mean=lambda n: torch.zeros(n) + 0j),
            "real floating point, it is torch.complex",
        ),
        (classification(), "must return a RegressionPrediction, it returned ClassificationPred"),
        (lambda n: (torch.zeros(n), torch.ones(n)), "it returned tuple"),
        (lambda n: None, "it returned NoneType"),
    ],
)
def test_a_regression_that_breaks_the_contract_is_an_error_that_names_the_fault(answer, message):
    with pytest.raises(ContractError, match=message):
        evaluated(Task.REGRESSION, Fixed(answer))


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (classification(probabilities=lambda n: torch.ones(n, 3)), "a point sum to 3, not to 1"),
        (
            classification(probabilities=lambda n: torch.ones(n, 2) / 2),
            r"shape \(5, 3\), it has \(5, 2\)",
        ),
        (
            classification(probabilities=lambda n: torch.ones(n, 4) / 4),
            r"shape \(5, 3\), it has \(5, 4\)",
        ),
        (classification(probabilities=lambda n: torch.ones(n)), r"it has \(5,\)"),
        (
            classification(probabilities=lambda n: torch.tensor([[-1.0, 1.0, 1.0]]).expand(n, 3)),
            "probabilities must not be negative, its lowest is -1",
        ),
        (classification(variance=lambda n: -torch.ones(n, 3)), "variance must not be negative"),
        (classification(variance=lambda n: torch.ones(n)), r"variance must have shape \(5, 3\)"),
        (
            classification(logit_variance=lambda n: None),
            "logit_variance must be a tensor, it is None",
        ),
        (classification(expected_entropy=lambda n: torch.ones(n, 1)), "expected_entropy must have"),
        (classification(samples=0), "samples must be a whole number above 0, it is 0"),
        (classification(samples="2"), "samples must be a whole number above 0, it is '2'"),
        (regression(), "must return a ClassificationPrediction, it returned RegressionPrediction"),
    ],
)
def test_a_classification_that_breaks_the_contract_is_an_error_that_names_the_fault(
    answer, message
):
    with pytest.raises(ContractError, match=message):
        evaluated(Task.CLASSIFICATION, Fixed(answer))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("part", ["mean", "variance"])
def test_a_prediction_that_is_not_finite_is_a_divergence(part, value):
    answer = regression(**{part: lambda n: torch.full((n,), value)})
    with pytest.raises(DivergenceError, match=f"5 of 5 values of the predictive {part}"):
        evaluated(Task.REGRESSION, Fixed(answer))


def test_what_one_sample_leaves_undefined_is_not_looked_at():
    answer = classification(samples=1, variance=lambda n: None, logit_variance=lambda n: None)
    outcome, _ = evaluated(Task.CLASSIFICATION, Fixed(answer))
    assert np.isnan(outcome.metrics["vmsp_auc_error"])
    assert outcome.metrics["nll"] == pytest.approx(np.log(3))


def test_the_random_baseline_may_have_more_classes_than_the_problem():
    outcome, _ = evaluated(Task.CLASSIFICATION, RandomBaseline(classes=10))
    assert outcome.metrics["nll"] > np.log(CLASSES)


@pytest.mark.parametrize(
    ("posterior", "message"),
    [
        (None, "fit must return a uqbench Posterior, it returned NoneType"),
        (Fixed(regression(), tuned={"a": "abc"}), r"tuned\['a'\] must be a number, it is 'abc'"),
        (
            Fixed(regression(), forward_passes=2.5),
            "forward_passes must be a whole number, it is 2.5",
        ),
    ],
)
def test_a_posterior_that_breaks_the_contract_is_named(posterior, message):
    with pytest.raises(ContractError, match=message):
        evaluated(Task.REGRESSION, posterior)


def test_what_a_method_does_to_the_process_is_undone():
    def deed():
        torch.manual_seed(1)
        np.random.seed(1)  # noqa: NPY002
        random.seed(1)
        torch.set_default_dtype(torch.float64)
        torch.set_grad_enabled(False)
        torch.set_num_threads(1)

    def state():
        return (
            torch.get_default_dtype(),
            torch.is_grad_enabled(),
            torch.get_num_threads(),
            torch.get_rng_state().tolist(),
            np.random.get_state()[1].tolist(),  # noqa: NPY002
            random.getstate(),
        )

    before = state()
    evaluated(Task.REGRESSION, Fixed(regression()), deed)
    assert state() == before
    with pytest.raises(ContractError):
        evaluated(Task.REGRESSION, None, deed)
    assert state() == before


def test_float32_is_never_shortened_to_tf32_while_a_method_works():
    backends = torch.backends.cuda.matmul, torch.backends.cudnn
    before, seen = [backend.allow_tf32 for backend in backends], []

    def answer(rows):
        seen.append([backend.allow_tf32 for backend in backends])
        return regression()(rows)

    evaluated(Task.REGRESSION, Fixed(answer), lambda: answer(1))
    assert len(seen) > 2
    assert not any(any(allowed) for allowed in seen)
    assert [backend.allow_tf32 for backend in backends] == before
    assert before[1]  # else this would prove nothing


def test_data_that_changed_after_planning_are_not_recorded_under_the_old_fingerprint(tmp_path):
    (cell,) = plan(request(methods="map", problems="sklearn/diabetes", seeds=1, quick=True))
    with pytest.raises(DataError, match="sklearn/diabetes: the data have changed since"):
        evaluate_cell(replace(cell, fingerprint="0" * 64), cache_dir=tmp_path)


def test_results_of_committed_code_do_not_start_from_a_network_of_changed_code(
    tmp_path, monkeypatch
):
    (cell,) = plan(request("map", problems="toy/cubic", seeds=1, quick=True))
    training = replace(cell.problem.training, epochs=2)
    cell = replace(cell, problem=replace(cell.problem, training=training))
    trained = []

    def train(*arguments):
        trained.append(code["dirty"])
        return original(*arguments)

    original = evaluator.train
    monkeypatch.setattr(evaluator, "train", train)
    monkeypatch.setattr(evaluator, "environment", lambda device: code)
    for dirty in (True, True, False, False, True):
        code = {"commit": "c", "dirty": dirty}
        _, _, provenance = evaluate_cell(cell, cache_dir=tmp_path)
        assert provenance == code
    assert trained == [True, False]
