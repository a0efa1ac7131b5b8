"""Functional covariances of the linearised Laplace approximation.

The posterior of the linearised network is N(θ̂, Σ) with Σ = (J̃ᵀJ̃ + λI)⁻¹, where the rows of J̃
are those of J_X weighted by a square root of the likelihood's Hessian: 1/σ for Gaussian noise,
Lᵢᵀ with LᵢLᵢᵀ = diag(pᵢ) − pᵢpᵢᵀ for a softmax (generalised Gauss-Newton). What is needed is
J(x) Σ J(x)ᵀ, a C × C block for each input.

Three classes compute it: in function space (nC × nC), by Woodbury's identity
Σ = λ⁻¹(I − J̃ᵀ(J̃J̃ᵀ + λI)⁻¹J̃), the same posterior far cheaper when nC < p; in parameter space
(p × p); and with Σ's inverse replaced by its diagonal. No class holds more of a dense Jacobian
than a chunk of ``linearised.CHUNK_BYTES``. They also draw θ − θ̂ ~ N(0, Σ).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import cached_property

import torch
from torch import Generator, Tensor, nn

from uqbench.data import Split
from uqbench.linearised import CHUNK_BYTES, Jacobian, linearise, num_parameters
from uqbench.method import Task
from uqbench.stacked import activations_per_row, members_at_a_time


def hessian_root(task: Task, outputs: Tensor) -> Tensor:
    """L (n, C, C) with LLᵀ the Hessian of −log likelihood in the outputs (n, C).

    Regression: 1 (for σ = 1). Classification: L = diag(s) − p sᵀ with s = √p elementwise, since
    LLᵀ = diag(p) − 2ppᵀ + p(sᵀs)pᵀ = diag(p) − ppᵀ.
    """
    if task is Task.REGRESSION:
        return torch.ones_like(outputs).unsqueeze(-1)
    probabilities = outputs.softmax(-1)
    roots = probabilities.sqrt()
    return torch.diag_embed(roots) - probabilities.unsqueeze(-1) * roots.unsqueeze(-2)


class FunctionalCovariance(ABC):
    """J(x) Σ J(x)ᵀ for given prior precision λ and (in regression) noise σ."""

    def __init__(self, network: nn.Module, split: Split, task: Task) -> None:
        self.network = network
        self.task = task

    @abstractmethod
    def at(self, inputs: Tensor) -> Prepared:
        """Precompute what does not depend on λ and σ, for inputs (N, ...)."""

    @abstractmethod
    def update(self, prior_precision: float, noise: float = 1.0) -> None:
        """Set λ and σ; raises LinAlgError if the precision matrix cannot be factored."""

    @abstractmethod
    def sample(self, count: int, generator: Generator) -> Tensor:
        """Draws of θ − θ̂ ~ N(0, Σ), (count, p), for the λ and σ that were last set."""


class Prepared(ABC):
    """Inputs whose covariances can be had for many λ and σ."""

    @abstractmethod
    def covariance(self) -> Tensor:
        """J(x)ΣJ(x)ᵀ, (N, C, C), for the λ and σ that were last set."""


def functional_covariance(
    structure: str, network: nn.Module, split: Split, task: Task
) -> FunctionalCovariance:
    """The covariance of ``structure`` (full or diag) in the cheaper of the two spaces."""
    if structure == "diag":
        return DiagonalCovariance(network, split, task)
    outputs = linearise(network, split.inputs[:1]).outputs.shape[1]
    in_function_space = len(split) * outputs < num_parameters(network)
    kind = FunctionSpaceCovariance if in_function_space else ParameterSpaceCovariance
    return kind(network, split, task)


def rows_per_chunk(network: nn.Module, inputs: Tensor) -> int:
    """How many inputs' dense Jacobians, with the activations behind them, fit into a chunk.

    At least one. Every output has its own backward pass, so that a last layer with few parameters
    has small Jacobians but not small activations.
    """
    outputs = linearise(network, inputs[:1]).outputs
    numbers = num_parameters(network) + activations_per_row(network, inputs[:1].to(outputs.dtype))
    return max(CHUNK_BYTES // (outputs.numel() * numbers * outputs.element_size()), 1)


class FunctionSpaceCovariance(FunctionalCovariance):
    """The full structure in function space: matrices of size nC."""

    def __init__(self, network: nn.Module, split: Split, task: Task) -> None:
        super().__init__(network, split, task)
        self._inputs = split.inputs
        self._jacobian = linearise(network, split.inputs)
        self._root = hessian_root(task, self._jacobian.outputs)
        rows = self._weight(self._jacobian.gram())
        self._gram = self._weight(rows.mT.contiguous())

    def _weight(self, matrix: Tensor, transposed: bool = False) -> Tensor:
        """Multiply the columns' blocks of (R, n·C) by L, or by Lᵀ."""
        n, classes, _ = self._root.shape
        if self.task is Task.REGRESSION:
            return matrix
        root = self._root.mT if transposed else self._root
        return (matrix.view(-1, n, 1, classes) @ root).view(len(matrix), n * classes)

    def update(self, prior_precision: float, noise: float = 1.0) -> None:
        self._prior, self._noise = prior_precision, noise
        precision = self._gram.clone()
        precision.diagonal().add_(prior_precision * noise**2)
        self._factor = torch.linalg.cholesky(precision)

    def sample(self, count: int, generator: Generator) -> Tensor:
        """Matheron's rule: z − J̃ᵀ(J̃J̃ᵀ + λI)⁻¹(J̃z + ε) with z ~ N(0, I/λ), ε ~ N(0, I)."""
        outputs = self._jacobian.outputs
        prior = _normal(outputs, count, self._jacobian.num_parameters, generator)
        prior /= self._prior**0.5
        noise = self._noise * _normal(outputs, count, outputs.numel(), generator)
        rows = self._rows
        if rows is not None:
            weights = torch.cholesky_solve((noise + prior @ rows.mT).mT, self._factor)
            return prior - weights.mT @ rows
        draws = []
        size = members_at_a_time(self.network, self._inputs)
        for some, errors in zip(prior.split(size), noise.split(size), strict=True):
            errors = errors + self._weight(self._jacobian.matvec(some).flatten(1))
            weights = torch.cholesky_solve(errors.mT, self._factor).mT.contiguous()
            weights = self._weight(weights, transposed=True).view(len(some), *outputs.shape)
            draws.append(some - self._jacobian.rmatvec(weights))
        return torch.cat(draws)

    @cached_property
    def _rows(self) -> Tensor | None:
        """LᵀJ, (nC, p), where it fits into a chunk: faster than the operator's products."""
        jacobian = self._jacobian
        if jacobian.rows * jacobian.num_parameters * self._gram.element_size() > CHUNK_BYTES:
            return None
        return torch.cat(list(_weighted_rows(jacobian, self.task)))

    def at(self, inputs: Tensor) -> Prepared:
        jacobian = linearise(self.network, inputs)
        cross = self._weight(jacobian.gram(self._jacobian))
        return _FunctionSpacePrepared(self, jacobian.gram_blocks(), cross)


class _FunctionSpacePrepared(Prepared):
    def __init__(self, owner: FunctionSpaceCovariance, blocks: Tensor, cross: Tensor) -> None:
        self._owner, self._blocks, self._cross = owner, blocks, cross

    def covariance(self) -> Tensor:
        n, classes, _ = self._blocks.shape
        factor = self._owner._factor
        solved = torch.linalg.solve_triangular(factor, self._cross.mT, upper=False)
        if classes == 1:
            explained = solved.square().sum(0).view(n, 1, 1)
        else:
            solved = solved.view(-1, n, classes).permute(1, 2, 0)
            explained = solved @ solved.mT
        # rounding must not leave a negative variance at training inputs
        covariance = (self._blocks - explained) / self._owner._prior
        covariance.diagonal(dim1=1, dim2=2).clamp_(min=0)
        return covariance


class ParameterSpaceCovariance(FunctionalCovariance):
    """The full structure in parameter space: matrices of size p."""

    def __init__(self, network: nn.Module, split: Split, task: Task) -> None:
        super().__init__(network, split, task)
        self._curvature = 0
        for inputs in split.inputs.split(rows_per_chunk(network, split.inputs)):
            for rows in _weighted_rows(linearise(network, inputs), task):
                self._curvature = self._curvature + rows.mT @ rows

    def update(self, prior_precision: float, noise: float = 1.0) -> None:
        precision = self._curvature / noise**2
        precision.diagonal().add_(prior_precision)
        self._factor = torch.linalg.cholesky(precision)

    def sample(self, count: int, generator: Generator) -> Tensor:
        """L⁻ᵀz with LLᵀ = Σ⁻¹ and z ~ N(0, I)."""
        draws = _normal(self._factor, len(self._factor), count, generator)
        return torch.linalg.solve_triangular(self._factor.mT, draws, upper=True).mT.contiguous()

    def at(self, inputs: Tensor) -> Prepared:
        return _ParameterSpacePrepared(self, inputs)


class _ParameterSpacePrepared(Prepared):
    def __init__(self, owner: ParameterSpaceCovariance, inputs: Tensor) -> None:
        self._owner = owner
        self._chunks = inputs.split(rows_per_chunk(owner.network, inputs))

    def covariance(self) -> Tensor:
        parts = []
        for chunk in self._chunks:
            jacobian = linearise(self._owner.network, chunk)
            dense = jacobian.dense()
            solved = torch.linalg.solve_triangular(self._owner._factor, dense.mT, upper=False)
            solved = solved.mT.reshape(*jacobian.outputs.shape, -1)
            parts.append(solved @ solved.mT)
        return torch.cat(parts)


class DiagonalCovariance(FunctionalCovariance):
    """The diagonal of the precision matrix alone: vectors of size p."""

    def __init__(self, network: nn.Module, split: Split, task: Task) -> None:
        super().__init__(network, split, task)
        self._curvature = 0
        for inputs in split.inputs.split(rows_per_chunk(network, split.inputs)):
            for rows in _weighted_rows(linearise(network, inputs), task):
                self._curvature = self._curvature + rows.square().sum(0)

    def update(self, prior_precision: float, noise: float = 1.0) -> None:
        self._variance = 1 / (self._curvature / noise**2 + prior_precision)

    def sample(self, count: int, generator: Generator) -> Tensor:
        draws = _normal(self._variance, count, len(self._variance), generator)
        return draws.mul_(self._variance.sqrt())

    def at(self, inputs: Tensor) -> Prepared:
        return _DiagonalPrepared(self, inputs)


class _DiagonalPrepared(Prepared):
    def __init__(self, owner: DiagonalCovariance, inputs: Tensor) -> None:
        self._owner = owner
        self._chunks = inputs.split(rows_per_chunk(owner.network, inputs))

    def covariance(self) -> Tensor:
        return torch.cat([self._chunk(linearise(self._owner.network, c)) for c in self._chunks])

    def _chunk(self, jacobian: Jacobian) -> Tensor:
        variance = self._owner._variance
        n, classes = jacobian.outputs.shape
        outputs = _outputs_per_chunk(jacobian)
        if n > 1 or outputs == classes:
            dense = jacobian.dense().view(n, classes, -1)
            return (dense * variance) @ dense.mT
        # one input with a Jacobian too large to hold: columns of J diag(v) Jᵀ, a few at a time
        identity = torch.eye(classes, dtype=jacobian.outputs.dtype, device=variance.device)
        columns = [
            jacobian.matvec(jacobian.rmatvec(rows.unsqueeze(1)) * variance).squeeze(1)
            for rows in identity.split(outputs)
        ]
        return torch.cat(columns).unsqueeze(0)


def _normal(like: Tensor, rows: int, columns: int, generator: Generator) -> Tensor:
    """Standard normal draws (rows, columns) in the dtype and on the device of ``like``."""
    return torch.randn(rows, columns, generator=generator, device=like.device, dtype=like.dtype)


def _outputs_per_chunk(jacobian: Jacobian) -> int:
    """How many outputs' gradients of one input fit into a chunk."""
    row = jacobian.num_parameters * jacobian.outputs.element_size()
    return max(min(CHUNK_BYTES // row, jacobian.outputs.shape[1]), 1)


def _weighted_rows(jacobian: Jacobian, task: Task) -> Iterator[Tensor]:
    """Yield the rows of J̃ at the operator's inputs (R, p); a few at a time for one input."""
    root = hessian_root(task, jacobian.outputs)
    n, classes = jacobian.outputs.shape
    outputs = _outputs_per_chunk(jacobian)
    if n > 1 or outputs == classes:
        yield (root.mT @ jacobian.dense().view(n, classes, -1)).flatten(0, 1)
        return
    for rows in root[0].mT.split(outputs):
        yield jacobian.rmatvec(rows.unsqueeze(1))
