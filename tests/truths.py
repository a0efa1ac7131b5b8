"""Problems whose posteriors and predictives are known in closed form, and naive references."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from uqbench.context import Context
from uqbench.data import Split, TrainingData
from uqbench.linearised import Jacobian
from uqbench.method import Task
from uqbench.problems import NetworkSpec, Problem, Recipe

CPU = torch.device("cpu")


def problem(task: Task = Task.REGRESSION, **recipe: object) -> Problem:
    return Problem(
        name="test/problem",
        dataset="none",
        task=task,
        network=NetworkSpec(hidden=(7,), weight_init="xavier_normal"),
        training=Recipe(**{"epochs": 5, "lr": 1e-2, **recipe}),
    )


def context(seed: int = 0, dtype: torch.dtype = torch.float64) -> Context:
    return Context(CPU, dtype, seed)


def mlp(
    inputs: int,
    outputs: int,
    hidden: tuple[int, ...] = (7,),
    *,
    seed: int = 0,
    bias: bool = True,
    activation: type[nn.Module] = nn.Tanh,
    dtype: torch.dtype = torch.float64,
) -> nn.Sequential:
    """A network with N(0, 1/fan_in) weights, in eval mode."""
    generator = torch.Generator().manual_seed(seed)
    layers: list[nn.Module] = []
    widths = [inputs, *hidden, outputs]
    for fan_in, fan_out in pairwise(widths):
        layers += [nn.Linear(fan_in, fan_out, bias=bias), activation()]
    network = nn.Sequential(*layers[:-1]).to(dtype).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            scale = parameter.shape[-1] ** -0.5 if parameter.ndim > 1 else 0.3
            draws = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_(scale * draws)
    return network


def rows(n: int, inputs: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(n, inputs, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def regression_data(n: int = 30, inputs: int = 3, seed: int = 0) -> TrainingData:
    def split(count: int, offset: int) -> Split:
        x = rows(count, inputs, seed + offset)
        noise = rows(count, 1, seed + offset + 100).squeeze(-1)
        return Split(x, torch.sin(x.sum(1)) + 0.1 * noise)

    return TrainingData(Task.REGRESSION, split(n, 1), split(20, 2))


def classification_data(
    n: int = 30, inputs: int = 3, classes: int = 3, seed: int = 0
) -> TrainingData:
    def split(count: int, offset: int) -> Split:
        x = rows(count, inputs, seed + offset)
        noise = 0.5 * rows(count, classes, seed + offset + 100)
        return Split(x, (x[:, :1] * torch.arange(classes) + noise).argmax(1))

    return TrainingData(Task.CLASSIFICATION, split(n, 1), split(20, 2), classes)


def naive_jacobian(network: nn.Module, inputs: Tensor) -> Tensor:
    """J (N·C, p), one output of one input at a time, by reverse-mode differentiation."""
    parameters = [p for p in network.parameters() if p.requires_grad]
    gradients = []
    for row in inputs:
        outputs = network(row.unsqueeze(0)).reshape(-1)
        for output in outputs:
            parts = torch.autograd.grad(
                output, parameters, retain_graph=True, materialize_grads=True
            )
            gradients.append(torch.cat([part.reshape(-1) for part in parts]))
    return torch.stack(gradients).detach()


def assert_is_jacobian(operator: Jacobian, expected: Tensor, tolerance: float = 1e-10) -> None:
    """Every product of ``operator`` agrees with the dense Jacobian ``expected`` (N·C, p)."""
    n, classes = operator.outputs.shape
    assert (operator.rows, operator.num_parameters) == expected.shape
    generator = torch.Generator().manual_seed(1)
    draws = {"generator": generator, "dtype": expected.dtype}
    tangents = torch.randn(4, expected.shape[1], **draws)
    cotangents = torch.randn(4, n, classes, **draws)
    blocks = expected.view(n, classes, -1)
    for found, true in (
        (operator.matvec(tangents), (tangents @ expected.mT).view(4, n, classes)),
        (operator.rmatvec(cotangents), cotangents.flatten(1) @ expected),
        (operator.dense(), expected),
        (operator.gram(), expected @ expected.mT),
        (operator.gram_blocks(), blocks @ blocks.mT),
    ):
        torch.testing.assert_close(found, true, rtol=tolerance, atol=tolerance * true.abs().max())


@dataclass(frozen=True)
class LinearGaussian:
    """y = wᵀx + b + N(0, σ²) with prior N(θ_MAP, I/λ) folded into the MAP network's own weights.

    The network is linear, so linearised methods are exact: the posterior over displacements from
    the MAP weights has precision ΦᵀΦ/σ² + λI with features Φ = [x, 1].
    """

    network: nn.Linear
    data: TrainingData
    noise: float
    prior_precision: float

    def features(self, inputs: Tensor) -> Tensor:
        return torch.cat([inputs, torch.ones_like(inputs[:, :1])], 1)

    def predictive_variance(self, inputs: Tensor) -> Tensor:
        """φᵀ(ΦᵀΦ/σ² + λI)⁻¹φ + σ²."""
        design = self.features(self.data.train.inputs)
        precision = design.mT @ design / self.noise**2
        precision += self.prior_precision * torch.eye(design.shape[1], dtype=design.dtype)
        features = self.features(inputs)
        return ((features @ precision.inverse()) * features).sum(1) + self.noise**2


def linear_gaussian(n: int = 40, inputs: int = 3, noise: float = 0.3) -> LinearGaussian:
    """n rows; the network holds the MAP estimate under prior N(0, I/λ)."""
    prior_precision = 0.7
    true_weights = rows(inputs + 1, 1, 5)

    def split(count: int, seed: int) -> Split:
        x = rows(count, inputs, seed)
        features = torch.cat([x, torch.ones(count, 1, dtype=x.dtype)], 1)
        y = features @ true_weights + noise * rows(count, 1, seed + 50)
        return Split(x, y.squeeze(-1))

    data = TrainingData(Task.REGRESSION, split(n, 1), split(25, 2))
    features = torch.cat([data.train.inputs, torch.ones(n, 1, dtype=torch.float64)], 1)
    precision = features.mT @ features / noise**2 + prior_precision * torch.eye(inputs + 1)
    weights = torch.linalg.solve(precision, features.mT @ data.train.targets / noise**2)
    network = nn.Linear(inputs, 1).double().eval()
    with torch.no_grad():
        network.weight.copy_(weights[:-1].unsqueeze(0))
        network.bias.copy_(weights[-1:])
    return LinearGaussian(network, data, noise, prior_precision)
