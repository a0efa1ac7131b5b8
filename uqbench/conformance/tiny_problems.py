"""Problems of a few dozen rows, with networks of every kind that a method may be given."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout

from uqbench.context import Context
from uqbench.data import Split, TrainingData
from uqbench.evaluator import train_map
from uqbench.method import Task
from uqbench.networks import isolated_randomness
from uqbench.problems import NetworkSpec, Problem, Recipe

FEATURES, HIDDEN, CLASSES = 3, 12, 3
TRAIN, VALIDATION, TEST = 20, 12, 4
PLAIN = "multilayer perceptron"
BATCH_NORM, DROPOUT, CONVOLUTIONS = "batch normalisation", "dropout", "convolutions"


class _FunctionalDropout(nn.Module):
    """Dropout that is no module: it shows only in the forward pass."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(FEATURES, HIDDEN)
        self.output = nn.Linear(HIDDEN, outputs)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.hidden(inputs).tanh()
        return self.output(dropout(hidden, 0.2, training=self.training))


def _sequence(
    outputs: int, *between: nn.Module, activation: nn.Module | None = None, bias: bool = True
) -> nn.Sequential:
    activation = activation or nn.Tanh()
    first, last = nn.Linear(FEATURES, HIDDEN, bias=bias), nn.Linear(HIDDEN, outputs, bias=bias)
    return nn.Sequential(first, *between, activation, last)


def _tied(outputs: int) -> nn.Sequential:
    first, second = nn.Linear(HIDDEN, HIDDEN), nn.Linear(HIDDEN, HIDDEN)
    second.weight = first.weight
    return _sequence(outputs, nn.Tanh(), first, nn.Tanh(), second)


def _frozen(outputs: int) -> nn.Sequential:
    network = _sequence(outputs)
    network[0].requires_grad_(False)
    return network


def _convolutions(outputs: int) -> nn.Sequential:
    """For images (N, 1, 8, 8)."""
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(36, outputs)
    )


@dataclass(frozen=True)
class Architecture:
    """build: outputs -> network. words: of which a refusal of it must have one."""

    name: str
    build: Callable[[int], nn.Module]
    words: tuple[str, ...]


UNUSUAL = (
    Architecture(
        BATCH_NORM, lambda outputs: _sequence(outputs, nn.BatchNorm1d(HIDDEN)), ("BatchNorm",)
    ),
    Architecture(DROPOUT, lambda outputs: _sequence(outputs, nn.Dropout(0.2)), ("Dropout",)),
    Architecture("functional dropout", _FunctionalDropout, ("dropout",)),
    Architecture(
        "in-place activations",
        lambda outputs: _sequence(outputs, activation=nn.ReLU(inplace=True)),
        ("in place", "in-place", "inplace", "ReLU"),
    ),
    Architecture("tied parameters", _tied, ("tied", "share")),
    Architecture("frozen parameters", _frozen, ("frozen", "requires_grad", "trainable")),
    Architecture("missing biases", lambda outputs: _sequence(outputs, bias=False), ("bias",)),
    Architecture(CONVOLUTIONS, _convolutions, ("Conv", "image", "inputs of shape")),
)
_BUILDERS = {PLAIN: _sequence, **{unusual.name: unusual.build for unusual in UNUSUAL}}


@dataclass(frozen=True)
class TinyProblem:
    """What a method is fitted to, and inputs (TEST, ...) to predict at."""

    problem: Problem
    data: TrainingData
    network: nn.Module
    inputs: Tensor

    def context(self, seed: int) -> Context:
        return Context(self.inputs.device, self.inputs.dtype, seed)

    def copy_to(self, device: str) -> TinyProblem:
        """A copy that a method may spoil without harm to the next."""

        def moved(split: Split) -> Split:
            parts = (split.inputs, split.targets)
            return Split(*(part.clone().to(device) for part in parts))

        data = replace(
            self.data, train=moved(self.data.train), validation=moved(self.data.validation)
        )
        network = copy.deepcopy(self.network).to(device)
        return TinyProblem(self.problem, data, network, self.inputs.clone().to(device))


@cache
def tiny_problem(task: Task, architecture: str, dtype: str, trained: bool) -> TinyProblem:
    """The problem with the MAP network if ``trained``, else with an untrained one.

    The parameters are drawn and trained in float64 and rounded, so that all dtypes have the same
    network.
    """
    problem = Problem(
        name=f"check/{task}",
        dataset="none",
        task=task,
        network=NetworkSpec(hidden=(HIDDEN,), activation="tanh"),
        training=Recipe(lr=1e-2, epochs=3, batch_size=10),
        dtype=dtype,
    )
    data, inputs = _data(task, images=architecture == CONVOLUTIONS)
    with isolated_randomness(0):
        network = _BUILDERS[architecture](data.num_outputs)
    network = network.double()
    if trained:
        network = train_map(problem, network, data, seed=0)
    kind = getattr(torch, dtype)
    splits = {"train": data.train, "validation": data.validation}
    rounded = {name: _rounded(split, task, kind) for name, split in splits.items()}
    return TinyProblem(problem, replace(data, **rounded), network.to(kind), inputs.to(kind))


def _rounded(split: Split, task: Task, dtype: torch.dtype) -> Split:
    targets = split.targets.to(dtype) if task is Task.REGRESSION else split.targets
    return Split(split.inputs.to(dtype), targets)


def _data(task: Task, images: bool) -> tuple[TrainingData, Tensor]:
    """Targets are a function of the inputs' sum s ~ N(0, 1): sin 2s + noise, or its three parts."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    def features(rows: int) -> Tensor:
        return normal(rows, 1, 8, 8) if images else normal(rows, FEATURES)

    def split(rows: int) -> Split:
        inputs, noise = features(rows), normal(rows)
        score = inputs.flatten(1).sum(1) / inputs[0].numel() ** 0.5
        if task is Task.REGRESSION:
            return Split(inputs, (2 * score).sin() + 0.1 * noise)
        return Split(inputs, torch.bucketize(score + 0.2 * noise, torch.tensor([-0.4, 0.4])))

    classes = CLASSES if task is Task.CLASSIFICATION else None
    data = TrainingData(task, split(TRAIN), split(VALIDATION), classes)
    return data, features(TEST)
