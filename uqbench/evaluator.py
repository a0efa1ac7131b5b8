"""The evaluation of one cell: data, network, fit, timed prediction, metrics."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from uqbench import memory
from uqbench.checkpoints import cached_network, given_id, given_network
from uqbench.context import Context, ignore_progress
from uqbench.data import Split, TrainingData
from uqbench.datasets.arrays import Arrays
from uqbench.datasets.image_inputs import ImageInputs
from uqbench.datasets.root import data_root as data_folder
from uqbench.errors import ContractError, DataError, UnsupportedError
from uqbench.method import Method, Posterior, Task
from uqbench.networks import build_network, initialise
from uqbench.prediction import (
    ClassificationPrediction,
    Prediction,
    RegressionPrediction,
    concatenate,
    require_valid,
)
from uqbench.problems import Problem, problem_data
from uqbench.provenance import environment
from uqbench.records import Cost, Outcome
from uqbench.registry import build_method
from uqbench.saved_predictions import (
    ClassificationSummary,
    Curve,
    Points,
    RegressionMoments,
    SavedPredictions,
)
from uqbench.seeds import derive_seed
from uqbench.streamed import Inputs, StreamedInputs
from uqbench.timing import Stopwatch, median_seconds
from uqbench.training import mean_loss, train

if TYPE_CHECKING:
    from uqbench.cells import Cell

PREDICT_REPEATS = 3
TIMED_BYTES = 2**28
"""Size of the streamed inputs whose prediction is timed."""
CURVE_POINTS = 301


@dataclass(frozen=True)
class EvaluationData:
    """What a method is fitted to, and what it is judged on.

    ood: name -> inputs. target_std: the factor from standardised targets to the data's units.
    """

    fit: TrainingData
    test: Split
    ood: Mapping[str, Inputs]
    target_std: float = 1.0

    @property
    def parts(self) -> Mapping[str, Inputs]:
        """The inputs of the three splits and of the OoD sets, as records call them."""
        splits = {"train": self.fit.train, "validation": self.fit.validation, "test": self.test}
        ood = {f"ood:{name}": inputs for name, inputs in self.ood.items()}
        return {name: split.inputs for name, split in splits.items()} | ood


def evaluate_cell(
    cell: Cell,
    device: str = "cpu",
    data_root: Path | None = None,
    cache_dir: Path = Path("checkpoints"),
    progress: Callable[[str, int, int], None] = ignore_progress,
    keep: Callable[[SavedPredictions], None] | None = None,
) -> tuple[Outcome, Cost, dict[str, Any]]:
    """Run one cell and return what it measured, what it cost, and where it ran.

    keep: called with the predictions once all else has succeeded.
    Raises UnsupportedError if the method does not cover the problem's task, and DataError if the
    data are not those that the cell was planned with; whatever the method raises passes through.
    """
    problem, device = cell.problem, torch.device(device)
    provenance = environment(device)  # of the code that was imported; it may be edited meanwhile
    method = build_method(cell.method, cell.settings)
    require_task(cell.method, method, problem.task)
    half = memory.available_bytes(device) // 2 if device.type == "cuda" else None
    arrays = problem_data(problem, cell.seed, data_root, half)
    if arrays.fingerprint != cell.fingerprint:
        raise DataError(
            f"{problem.name}: the data have changed since the run was planned; run it again"
        )
    dtype = getattr(torch, problem.dtype)

    def tensor(values: np.ndarray, kind: torch.dtype = dtype) -> Tensor:
        # what cells share is read-only and is copied; anything else would be copied in vain
        values = np.require(values, requirements="W")
        return torch.as_tensor(values, dtype=kind, device=device)

    target_kind = dtype if problem.task is Task.REGRESSION else torch.int64

    def inputs(values: np.ndarray | ImageInputs) -> Inputs:
        if isinstance(values, ImageInputs):
            return StreamedInputs(values, dtype, device)
        return tensor(values)

    def split(part: Arrays) -> Split:
        return Split(inputs(part.inputs), tensor(part.targets, target_kind))

    training = TrainingData(
        problem.task, split(arrays.train), split(arrays.validation), arrays.num_classes
    )
    data = EvaluationData(
        training,
        split(arrays.test),
        {name: inputs(values) for name, values in arrays.ood.items()},
        arrays.target_std,
    )
    network = build_network(problem.network, arrays.train.inputs.shape[1:], training.num_outputs)
    network = network.to(device=device, dtype=dtype)
    map_seconds = 0.0
    if method.post_hoc and problem.network.weights is not None:
        weights, folder = problem.network.weights, data_folder(data_root)
        if given_id(weights, folder) != cell.map_checkpoint:
            raise DataError(f"{weights}: has changed since the run was planned; run it again")
        network = given_network(network, weights, folder)
    elif method.post_hoc:
        map_seed = derive_seed(problem.name, cell.seed, "map")
        network, map_seconds = cached_network(
            network,
            lambda: train_map(problem, network, training, map_seed, progress),
            cell.map_checkpoint,
            cache_dir,
            device,
            provenance,
        )
    context = Context(device, dtype, derive_seed(problem.name, cell.seed, "method"), progress)
    outcome, cost = evaluate_method(method, problem, network, data, context, map_seconds, keep)
    return (
        replace(outcome, class_names=arrays.class_names, ood_conversions=arrays.ood_conversions),
        cost,
        provenance,
    )


def require_task(name: str, method: Method, task: Task) -> None:
    """Raise UnsupportedError if the method's definition does not cover the task."""
    if task not in method.tasks:
        covered = " and ".join(sorted(method.tasks))
        raise UnsupportedError(f"{name} is defined for {covered}, not for {task}")


def train_map(
    problem: Problem,
    template: nn.Module,
    data: TrainingData,
    seed: int,
    progress: Callable[[str, int, int], None] = ignore_progress,
) -> nn.Module:
    """Initialise a copy of ``template`` and train it as the problem's recipe says."""
    network = initialise(copy.deepcopy(template), problem.network, seed)
    loss = mean_loss(data.task)
    with full_precision():
        return train(network, data.train, problem.training, loss, seed, progress)


def evaluate_method(
    method: Method,
    problem: Problem,
    network: nn.Module,
    data: EvaluationData,
    context: Context,
    map_seconds: float = 0.0,
    keep: Callable[[SavedPredictions], None] | None = None,
) -> tuple[Outcome, Cost]:
    """Fit the method, predict and time the test split, and compute all metrics.

    keep: called with the predictions once all else has succeeded.
    Predicting is timed on inputs that are held in memory: reading images is no part of a method.
    Of a streamed test split these are the first batches (``TIMED_BYTES``, at least one batch), and
    their time is scaled to the whole split. The time to fit includes waiting for streamed inputs.
    Raises ContractError if the method returns what it must not.
    """
    device = context.device
    memory.reset_peak_host_bytes()
    memory.reset_peak_device_bytes(device)

    def checked(batch: Tensor) -> Prediction:
        prediction = posterior.predict(batch)
        require_valid(prediction, len(batch), posterior.classes or data.fit.num_classes)
        return prediction

    def predict(inputs: Inputs) -> Prediction:
        return concatenate(map(checked, inputs.split(problem.predict_batch)), len(inputs))

    def predict_again() -> None:
        for batch in timed.split(problem.predict_batch):
            posterior.predict(batch)

    with global_state_restored(), full_precision():
        method.import_libraries()
        with Stopwatch(device) as fitting:
            posterior = method.fit(problem, data.fit, network, context)
        require_posterior(posterior)
        test = predict(data.test.inputs)  # also warms the timed repeats up
        timed = _timed(data.test.inputs, problem.predict_batch)
        predict_seconds, repeats = median_seconds(predict_again, device, PREDICT_REPEATS)
        ood = {name: predict(inputs) for name, inputs in data.ood.items()}
        curve = _curve(data, predict) if keep is not None else None
    metrics, ood_metrics = measure(data, test, ood)
    sizes = {name: len(part) for name, part in data.parts.items()}
    outcome = Outcome(
        metrics=metrics,
        ood=ood_metrics,
        tuned={name: float(value) for name, value in posterior.tuned.items()},
        grid_size=context.grid_size,
        sizes=sizes if len(timed) == len(data.test) else {**sizes, "timed": len(timed)},
        streamed=tuple(n for n, part in data.parts.items() if isinstance(part, StreamedInputs)),
    )
    cost = Cost(
        map_seconds=map_seconds,
        fit_seconds=fitting.seconds - context.tune_seconds,
        tune_seconds=context.tune_seconds,
        predict_seconds=predict_seconds * len(data.test) / len(timed),
        repeats=repeats,
        peak_device_bytes=memory.peak_device_bytes(device),
        peak_host_bytes=memory.peak_host_bytes(),
        forward_passes=posterior.forward_passes,
        device=str(device),
        threads=torch.get_num_threads(),
    )
    if keep is not None:
        keep(_saved(data, test, ood, curve))
    return outcome, cost


def _timed(inputs: Inputs, batch: int) -> Tensor:
    """The inputs whose prediction is timed: all, or whole batches of streamed ones."""
    if isinstance(inputs, Tensor):
        return inputs
    batches = TIMED_BYTES * len(inputs) // inputs.nbytes // batch
    return inputs[: max(batches, 1) * batch]


@contextmanager
def full_precision() -> Iterator[None]:
    """Keep a GPU from computing float32 products in TF32, of 10 bits.

    cuDNN does so for convolutions unless told otherwise; a record that says float32 must mean it on
    every device.
    """
    backends = torch.backends.cuda.matmul, torch.backends.cudnn
    allowed = [backend.allow_tf32 for backend in backends]
    try:
        for backend in backends:
            backend.allow_tf32 = False
        yield
    finally:
        for backend, was in zip(backends, allowed, strict=True):
            backend.allow_tf32 = was


@contextmanager
def global_state_restored() -> Iterator[None]:
    """Undo what a method may have done to the process, which evaluates other cells after it."""
    grad, dtype = torch.is_grad_enabled(), torch.get_default_dtype()
    threads = torch.get_num_threads()
    of_python, of_numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            yield
    finally:
        random.setstate(of_python)
        np.random.set_state(of_numpy)  # noqa: NPY002
        if torch.get_default_dtype() is not dtype:
            torch.set_default_dtype(dtype)  # what a method changed; uqbench itself never sets it
        torch.set_grad_enabled(grad)
        torch.set_num_threads(threads)


def require_posterior(posterior: Any) -> None:
    """Raise ContractError if ``posterior`` is none, or reports what is no number."""
    if not isinstance(posterior, Posterior):
        kind = type(posterior).__name__
        raise ContractError(f"fit must return a uqbench Posterior, it returned {kind}")
    for name, value in posterior.tuned.items():
        try:
            float(value)
        except (TypeError, ValueError):
            raise ContractError(f"tuned['{name}'] must be a number, it is {value!r}") from None
    passes = posterior.forward_passes
    if isinstance(passes, bool) or not isinstance(passes, int) or passes < 0:
        raise ContractError(f"forward_passes must be a whole number, it is {passes!r}")


def measure(
    data: EvaluationData, test: Prediction, ood: Mapping[str, Prediction]
) -> tuple[dict[str, float], dict[str, dict[str, float]]]:
    """Return the metrics of the test split, and those of each OoD set."""
    from uqbench.metrics.classification import classification_metrics
    from uqbench.metrics.detection import ood_metrics
    from uqbench.metrics.regression import regression_metrics
    from uqbench.metrics.vmsp import vmsp, vmsp_ood_metrics

    targets = data.test.targets.cpu().numpy()
    if isinstance(test, RegressionPrediction):
        mean, variance = _array(test.mean), _array(test.variance)
        return regression_metrics(targets, mean, variance, data.target_std), {}
    inside = _ClassificationArrays(test)
    metrics = classification_metrics(
        inside.probabilities, targets, inside.variance, inside.expected_entropy
    )
    correct = inside.probabilities.argmax(-1) == targets
    id_correct = vmsp(inside.probabilities, inside.variance)[correct]
    by_set = {}
    for name, prediction in ood.items():
        outside = _ClassificationArrays(prediction)
        by_set[name] = {
            **ood_metrics(
                inside.probabilities,
                outside.probabilities,
                id_logit_variance=inside.logit_variance,
                ood_logit_variance=outside.logit_variance,
                id_expected_entropy=inside.expected_entropy,
                ood_expected_entropy=outside.expected_entropy,
            ),
            **vmsp_ood_metrics(id_correct, vmsp(outside.probabilities, outside.variance)),
        }
    return metrics, by_set


def _curve(data: EvaluationData, predict: Callable[[Tensor], RegressionPrediction]) -> Curve | None:
    """Predict a regression on one feature over the range of its data; None for other problems."""
    if data.fit.task is not Task.REGRESSION or data.test.inputs.shape[1:] != (1,):
        return None
    train, test = data.fit.train.inputs, data.test.inputs
    seen = torch.cat([train, data.fit.validation.inputs, test])
    inputs = torch.linspace(
        seen.min().item(), seen.max().item(), CURVE_POINTS, dtype=seen.dtype, device=seen.device
    )
    prediction = predict(inputs[:, None])
    return Curve(
        inputs=_array(inputs),
        mean=_array(prediction.mean),
        variance=_array(prediction.variance),
        train_inputs=_array(train[:, 0]),
        train_targets=_array(data.fit.train.targets),
        test_inputs=_array(test[:, 0]),
    )


def _saved(
    data: EvaluationData,
    test: Prediction,
    ood: Mapping[str, Prediction],
    curve: Curve | None,
) -> SavedPredictions:
    """Return what a run keeps of the predictions."""
    targets = _array(data.test.targets)
    return SavedPredictions(
        targets=targets if data.fit.task is Task.REGRESSION else targets.astype(np.int32),
        test=_points(test),
        ood={name: _points(prediction) for name, prediction in ood.items()},
        curve=curve,
    )


def _points(prediction: Prediction) -> Points:
    if isinstance(prediction, RegressionPrediction):
        return RegressionMoments(_array(prediction.mean), _array(prediction.variance))
    arrays = _ClassificationArrays(prediction)
    return ClassificationSummary.of(arrays.probabilities, arrays.variance, arrays.logit_variance)


class _ClassificationArrays:
    """A prediction's arrays; what is undefined for fewer than two samples is None."""

    def __init__(self, prediction: ClassificationPrediction) -> None:
        self.probabilities = _array(prediction.probabilities)
        sampled = prediction.samples >= 2
        self.variance = _array(prediction.variance) if sampled else None
        self.logit_variance = _array(prediction.logit_variance) if sampled else None
        self.expected_entropy = _array(prediction.expected_entropy) if sampled else None


def _array(values: Tensor) -> np.ndarray:
    return values.detach().double().cpu().numpy()
