"""Evaluation of a method on anybody's own network and tensors."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from uqbench.context import Context
from uqbench.data import Split, TrainingData
from uqbench.errors import UnsupportedError, UsageError
from uqbench.evaluator import EvaluationData, evaluate_method, require_task
from uqbench.method import Method, Task
from uqbench.networks import as_matrix, described, isolated_randomness
from uqbench.own_data import default_recipe
from uqbench.problems import NetworkSpec, Problem, Recipe, validated
from uqbench.records import Cost
from uqbench.registry import build_method
from uqbench.seeds import derive_seed

Pair = tuple[ArrayLike | Tensor, ArrayLike | Tensor]


@dataclass(frozen=True)
class Evaluation:
    """What a method measured and cost on one network.

    metrics: name -> number on the test split. ood: OoD set -> name -> number.
    tuned: what was chosen on the validation split.
    """

    metrics: Mapping[str, float]
    ood: Mapping[str, Mapping[str, float]]
    tuned: Mapping[str, float]
    cost: Cost


def evaluate(
    method: str | Method,
    network: nn.Module,
    train: Pair,
    validation: Pair,
    test: Pair,
    *,
    ood: Mapping[str, ArrayLike | Tensor] | None = None,
    settings: Mapping[str, Any] | None = None,
    recipe: Recipe | Mapping[str, Any] | None = None,
    task: Task | str | None = None,
    seed: int = 0,
    batch: int = 1000,
) -> Evaluation:
    """Fit a method to a trained network, predict the test split, and measure.

    ``network`` maps inputs (n, ...) to (n,) or (n, 1) for regression, or to logits (n, C). It is
    copied and used in eval mode, on its own device and in its own dtype; inputs are cast to them.
    Post-hoc methods (nuqls, lla, ...) start from its weights; the others (de) train new networks
    of its architecture by ``recipe``.

    method: a name, as in ``uqbench list methods``, with ``settings``; or a Method.
    train, validation, test: (inputs, targets). Targets are real numbers, (n,) or (n, 1), best
    standardised, or class indices 0..C-1. ood: name -> inputs, for classification.
    recipe: a Recipe or its fields; by default Adam for about 2,000 steps of 200 rows.
    task: found from the targets' dtype (integers are classes) unless given.

    Raises UsageError for inputs that do not fit together, UnsupportedError if the method does not
    cover the task or the network.
    """
    network = copy.deepcopy(network).eval()
    device, dtype = _place(network)
    task = _task(train[1]) if task is None else Task(task)
    parts = {"train": train, "validation": validation, "test": test}
    splits = {name: _split(name, pair, task, device, dtype) for name, pair in parts.items()}
    outputs = _outputs(network, splits["train"].inputs[:3])
    _check_targets(splits, task, outputs)
    name = method if isinstance(method, str) else type(method).__name__
    built = build_method(method, settings or {}) if isinstance(method, str) else method
    require_task(name, built, task)
    built.check_task(task)
    if not isinstance(recipe, Recipe):
        given = asdict(default_recipe(len(splits["train"]))) | dict(recipe or {})
        recipe = validated(Recipe, given, "recipe")
    problem = Problem(
        name="own network",
        dataset="tensors",
        task=task,
        network=NetworkSpec(),
        training=recipe,
        dtype=str(dtype).removeprefix("torch."),
        predict_batch=batch,
    )
    data = EvaluationData(
        TrainingData(
            task,
            splits["train"],
            splits["validation"],
            None if task is Task.REGRESSION else outputs,
        ),
        splits["test"],
        {key: _tensor(inputs, dtype, device) for key, inputs in (ood or {}).items()},
    )
    context = Context(device, dtype, derive_seed(problem.name, seed, "method"))
    outcome, cost = evaluate_method(built, problem, network, data, context)
    return Evaluation(outcome.metrics, outcome.ood, outcome.tuned, cost)


def _tensor(values: ArrayLike | Tensor, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.as_tensor(values).detach().to(device=device, dtype=dtype)


def _task(targets: ArrayLike | Tensor) -> Task:
    return Task.REGRESSION if torch.as_tensor(targets).is_floating_point() else Task.CLASSIFICATION


def _split(name: str, pair: Pair, task: Task, device: torch.device, dtype: torch.dtype) -> Split:
    inputs, targets = pair
    kind = dtype if task is Task.REGRESSION else torch.int64
    inputs, targets = _tensor(inputs, dtype, device), _tensor(targets, kind, device)
    if targets.ndim == 2 and targets.shape[1] == 1:
        targets = targets.squeeze(1)
    if targets.ndim != 1 or len(targets) != len(inputs):
        raise UsageError(
            f"{name}: inputs have shape {tuple(inputs.shape)} and targets {tuple(targets.shape)}; "
            "targets must be (n,) or (n, 1) with one row for each input"
        )
    if len(targets) == 0:
        raise UsageError(f"{name}: has no rows")
    for what, values in (("inputs", inputs), ("targets", targets)):
        bad = (~values.isfinite()).nonzero()
        if len(bad):
            raise UsageError(f"{name} {what}: row {bad[0, 0].item()} is not finite")
    return Split(inputs, targets)


def _place(network: nn.Module) -> tuple[torch.device, torch.dtype]:
    first = next(network.parameters(), None)
    if first is None:
        raise UnsupportedError(f"{described('', network)} has no parameters")
    for name, parameter in network.named_parameters():
        if parameter.dtype not in {torch.float32, torch.float64}:
            raise UnsupportedError(
                f"parameter '{name}' is {parameter.dtype}; convert the network with network.float()"
            )
        if (parameter.dtype, parameter.device) != (first.dtype, first.device):
            raise UnsupportedError(
                f"parameter '{name}' is {parameter.dtype} on {parameter.device}, others are "
                f"{first.dtype} on {first.device}; bring all to one dtype and device"
            )
    return first.device, first.dtype


@torch.no_grad()
def _outputs(network: nn.Module, inputs: Tensor) -> int:
    """Try out a few ``inputs``; return how many outputs the network has.

    Raises UsageError if it does not take them, and UnsupportedError if it changes them or if an
    input's outputs are not its own alone.
    """
    some = inputs.clone()
    try:
        with isolated_randomness(0):
            together = as_matrix(network(some))
            alone = torch.cat([as_matrix(network(row)) for row in inputs.clone().split(1)])
    except (RuntimeError, ValueError, IndexError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise UsageError(
            f"{described('', network)} does not run on inputs of shape {tuple(inputs.shape[1:])} "
            f"in eval mode, one at a time: {reason}"
        ) from error
    if some._version or not torch.equal(some, inputs):
        raise UnsupportedError(
            f"{described('', network)} changes its inputs in place; let it work on a copy"
        )
    if not torch.allclose(together, alone, rtol=1e-3, atol=1e-4, equal_nan=True):
        raise UnsupportedError(
            f"{described('', network)} in eval mode gives an input other outputs in another call "
            "or batch: use no functional dropout without training=self.training, nor BatchNorm "
            "without running statistics"
        )
    return together.shape[1]


def _check_targets(splits: Mapping[str, Split], task: Task, outputs: int) -> None:
    """Raise UsageError if the network's outputs do not fit the targets."""
    if task is Task.REGRESSION:
        if outputs != 1:
            raise UsageError(f"regression needs a network with one output; this one has {outputs}")
        return
    if outputs < 2:
        raise UsageError(
            "classification needs a network with one output per class; this one has 1 (targets of "
            "an integer dtype are classes; give task='regression' if they are numbers)"
        )
    for name, split in splits.items():
        low, high = split.targets.min().item(), split.targets.max().item()
        if low < 0 or high >= outputs:
            raise UsageError(
                f"{name} targets: class {low if low < 0 else high} is outside 0..{outputs - 1}, "
                "the network's outputs"
            )
