"""Predictions that a run keeps: what is in the file, and that it is whole or absent."""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch

from uqbench import saved_predictions, worker
from uqbench.cells import Cell, Request, plan
from uqbench.checkpoints import cached_network
from uqbench.context import Context
from uqbench.data import Split, TrainingData
from uqbench.errors import DataError
from uqbench.evaluator import CURVE_POINTS, EvaluationData, evaluate_cell, evaluate_method
from uqbench.method import Method, Posterior, Task
from uqbench.networks import build_network
from uqbench.prediction import ClassificationPrediction
from uqbench.problems import Problem, problem_data
from uqbench.provenance import environment
from uqbench.records import decode
from uqbench.saved_predictions import (
    ClassificationSummary,
    Curve,
    RegressionMoments,
    SavedPredictions,
    predictions_path,
    read_predictions,
    write_predictions,
)


def same(one, other):
    """Whether two objects hold the same arrays, dtypes included, NaN equal to NaN."""
    for name, value in vars(one).items():
        twin = getattr(other, name)
        if isinstance(value, dict):
            assert list(value) == list(twin)
            for key in value:
                same(value[key], twin[key])
        elif isinstance(value, np.ndarray):
            assert value.dtype == twin.dtype
            np.testing.assert_array_equal(value, twin)
        elif value is None:
            assert twin is None
        else:
            assert type(value) is type(twin)
            same(value, twin)


def summary(random, n):
    return ClassificationSummary(
        predicted=random.integers(0, 10, n).astype(np.int32),
        confidence=random.random(n),
        entropy=random.random(n).astype(np.float32),
        vmsp=10.0 ** random.uniform(-300, 0, n),
        logit_variance=np.full(n, np.nan, np.float32),
    )


def regression(n=4):
    random = np.random.default_rng(0)
    moments = RegressionMoments(random.normal(size=n), random.random(n))
    curve = Curve(*(random.normal(size=size) for size in (5, 5, 5, 3, 3, n)))
    return SavedPredictions(random.normal(size=n), moments, curve=curve)


def classification(n=7):
    random = np.random.default_rng(1)
    ood = {name: summary(random, 3) for name in ("svhn", "my: réseau/images")}
    return SavedPredictions(np.arange(n, dtype=np.int32), summary(random, n), ood)


@pytest.mark.parametrize("make", [regression, classification])
def test_what_is_written_is_read_back(tmp_path, make):
    write_predictions(tmp_path / "new" / "a.npz", make())
    same(make(), read_predictions(tmp_path / "new" / "a.npz"))


def test_the_file_has_the_documented_names(tmp_path):
    write_predictions(tmp_path / "a.npz", classification())
    with np.load(tmp_path / "a.npz") as file:
        names = set(file)
    assert {"targets", "confidence", "vmsp", "ood:svhn:entropy"} <= names
    for name in names - {"targets"}:
        assert f"``{name.rsplit(':')[-1]}``" in saved_predictions.__doc__


def test_imagenets_predictions_fit_in_two_megabytes(tmp_path):
    write_predictions(tmp_path / "a.npz", classification(50_000))
    assert (tmp_path / "a.npz").stat().st_size < 2e6


def test_a_missing_file_says_what_to_do(tmp_path):
    with pytest.raises(DataError, match=r"a\.npz: no such file: the run was made .* --rerun all"):
        read_predictions(tmp_path / "a.npz")


@pytest.mark.parametrize("damage", ["cut", "garbage", "empty", "folder", "array", "part"])
def test_a_damaged_file_says_what_to_do(tmp_path, damage):
    path = tmp_path / "a.npz"
    write_predictions(path, regression())
    whole = path.read_bytes()
    if damage == "folder":
        path.unlink()
        path.mkdir()
    elif damage == "array":
        with path.open("wb") as file:
            np.save(file, np.zeros(3))
    elif damage == "part":
        np.savez(path, targets=np.zeros(3), mean=np.zeros(3))
    else:
        path.write_bytes(
            {"cut": whole[: len(whole) // 2], "garbage": b"x" * 99, "empty": b""}[damage]
        )
    with pytest.raises(DataError, match=r"a\.npz: no readable predictions \(.* --rerun all"):
        read_predictions(path)


def test_a_write_that_fails_leaves_the_old_file_and_no_other(tmp_path, monkeypatch):
    path = tmp_path / "a.npz"
    write_predictions(path, regression())
    before = path.read_bytes()

    def half(file, **arrays):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", half)
    with pytest.raises(OSError, match="No space"):
        write_predictions(path, classification())
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@dataclass(frozen=True)
class Sampled(Method):
    """A posterior of ``samples`` draws of logits for 9 points; further points are its OoD set."""

    tasks: ClassVar = frozenset({Task.CLASSIFICATION})
    samples: int = 5

    def fit(self, problem, data, network, context):
        return SampledPosterior(self.samples)


class SampledPosterior(Posterior):
    def __init__(self, samples):
        random = np.random.default_rng(3)
        self.logits = 4 * random.normal(size=(samples, 14, 3))

    def predict(self, inputs):
        logits = torch.as_tensor(self.logits[:, inputs[:, 0].long().numpy()])
        probabilities = logits.softmax(-1)
        return ClassificationPrediction(
            probabilities.mean(0),
            probabilities.var(0) if len(logits) > 1 else torch.zeros_like(logits[0]),
            logits.var(0) if len(logits) > 1 else torch.zeros_like(logits[0]),
            torch.special.entr(probabilities).sum(-1).mean(0),
            len(logits),
        )


def kept(method):
    points = torch.arange(14.0)[:, None]
    split = Split(points[:9], torch.arange(9) % 3)
    data = EvaluationData(
        TrainingData(Task.CLASSIFICATION, split, split, 3), split, {"far": points[9:]}
    )
    problem = Problem("p", "d", Task.CLASSIFICATION, predict_batch=4)
    found = []
    context = Context(torch.device("cpu"), torch.float32, 0)
    evaluate_method(method, problem, torch.nn.Identity(), data, context, keep=found.append)
    (saved,) = found
    return saved


def test_a_classification_keeps_what_a_loop_over_its_samples_finds():
    saved = kept(Sampled(5))
    np.testing.assert_array_equal(saved.targets, np.arange(9) % 3)
    assert saved.targets.dtype == np.int32
    assert saved.curve is None
    logits = SampledPosterior(5).logits
    for points, offset, n in ((saved.test, 0, 9), (saved.ood["far"], 9, 5)):
        assert len(points.predicted) == n
        for i in range(n):
            members = [np.exp(z) / np.exp(z).sum() for z in logits[:, offset + i]]
            mean = sum(members) / 5
            best = int(np.argmax(mean))
            votes = [member[best] for member in members]
            assert points.predicted[i] == best
            assert points.confidence[i] == pytest.approx(mean[best], rel=1e-12)
            assert points.entropy[i] == pytest.approx(-sum(p * math.log(p) for p in mean), rel=1e-6)
            variance = sum((vote - mean[best]) ** 2 for vote in votes) / 4
            assert points.vmsp[i] == pytest.approx(variance, rel=1e-10)
            spread = sum(np.var(logits[:, offset + i, c], ddof=1) for c in range(3))
            assert points.logit_variance[i] == pytest.approx(spread, rel=1e-6)
    assert saved.test.vmsp.dtype == saved.test.confidence.dtype == np.float64
    assert saved.test.entropy.dtype == saved.test.logit_variance.dtype == np.float32


def test_what_one_sample_leaves_undefined_is_nan():
    saved = kept(Sampled(1))
    assert np.isnan(saved.test.vmsp).all()
    assert np.isnan(saved.ood["far"].logit_variance).all()
    assert np.isfinite(saved.test.entropy).all()


def cell(method="map", problem="toy/cubic") -> Cell:
    (found,) = plan(Request(methods=(method,), problems=(problem,), seeds=1, quick=True))
    training = replace(found.problem.training, epochs=20)
    return replace(found, problem=replace(found.problem, training=training))


def test_a_regression_on_one_feature_keeps_its_predictions_and_a_curve(tmp_path):
    one, found = cell(), []
    outcome, _, _ = evaluate_cell(one, cache_dir=tmp_path, keep=found.append)
    (saved,) = found
    data = problem_data(one.problem, 0)
    network, _ = cached_network(
        build_network(one.problem.network, (1,), 1).double(),
        pytest.fail,  # the checkpoint is there
        one.map_checkpoint,
        tmp_path,
        torch.device("cpu"),
        environment(torch.device("cpu")),
    )

    def predicted(inputs):
        with torch.no_grad():
            return network(torch.as_tensor(inputs).reshape(-1, 1)).ravel().numpy()

    residuals = data.validation.targets - predicted(data.validation.inputs)
    np.testing.assert_array_equal(saved.targets, data.test.targets)
    np.testing.assert_allclose(saved.test.mean, predicted(data.test.inputs), rtol=1e-12)
    np.testing.assert_allclose(saved.test.variance, np.mean(residuals**2), rtol=1e-12)
    rmse = np.sqrt(np.mean((saved.targets - saved.test.mean) ** 2))
    assert outcome.metrics["rmse"] == pytest.approx(rmse, rel=1e-12)

    curve = saved.curve
    np.testing.assert_allclose(curve.mean, predicted(curve.inputs), rtol=1e-12)
    np.testing.assert_allclose(curve.variance, np.mean(residuals**2), rtol=1e-12)
    low, high = data.test.inputs.min(), data.test.inputs.max()
    np.testing.assert_allclose(curve.inputs, np.linspace(low, high, CURVE_POINTS), rtol=1e-9)
    np.testing.assert_array_equal(curve.train_inputs, data.train.inputs[:, 0])
    np.testing.assert_array_equal(curve.train_targets, data.train.targets)
    np.testing.assert_array_equal(curve.test_inputs, data.test.inputs[:, 0])


def test_a_regression_on_several_features_keeps_no_inputs(tmp_path):
    found = []
    evaluate_cell(cell(problem="sklearn/diabetes"), cache_dir=tmp_path, keep=found.append)
    assert found[0].curve is None
    assert len(found[0].test.variance) == len(found[0].targets)


def test_keeping_predictions_changes_no_result(tmp_path):
    one = cell("nuqls")
    found = []
    kept_outcome, _, _ = evaluate_cell(one, cache_dir=tmp_path, keep=found.append)
    outcome, _, _ = evaluate_cell(one, cache_dir=tmp_path)
    assert kept_outcome == outcome


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "predictions").iterdir())


def test_a_finished_cell_leaves_one_file_that_a_rerun_replaces(tmp_path):
    one, job = cell(), worker.Job(tmp_path, "cpu")
    path = predictions_path(tmp_path, one.key)
    for _ in range(2):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"of an earlier run")
        record = decode(worker.run_cell(one, job))
        assert (record.status, record.key) == ("ok", one.key)
        saved = read_predictions(path)
        rmse = np.sqrt(np.mean((saved.targets - saved.test.mean) ** 2))
        assert record.outcome.metrics["rmse"] == pytest.approx(rmse, rel=1e-12)
        assert files(tmp_path) == [path.name]


def test_a_cell_without_a_result_leaves_no_file(tmp_path):
    record = decode(worker.run_cell(cell("base"), worker.Job(tmp_path, "cpu")))
    assert record.status == "skipped"
    assert not (tmp_path / "predictions").exists()


def test_a_cell_whose_predictions_cannot_be_written_has_failed(tmp_path):
    (tmp_path / "predictions").touch()
    record = decode(worker.run_cell(cell(), worker.Job(tmp_path, "cpu")))
    assert (record.status, record.error_type) == ("failed", "FileExistsError")
