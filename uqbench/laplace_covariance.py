"""Functional covariances of the linearised Laplace approximation.

The posterior of the linearised network is N(θ̂, Σ) with Σ = (J̃ᵀJ̃ + λI)⁻¹, where the rows of J̃
are those of J_X weighted by a square root of the likelihood's Hessian: 1/σ for Gaussian noise,
Lᵢᵀ with LᵢLᵢᵀ = diag(pᵢ) − pᵢpᵢᵀ for a softmax (generalised Gauss-Newton). What is needed is
J(x) Σ J(x)ᵀ, a C × C block for each input.

Three classes compute it: in function space (nC × nC), by Woodbury's identity
Σ = λ⁻¹(I − J̃ᵀ(J̃J̃ᵀ + λI)⁻¹J̃), the same posterior far cheaper when nC < p; in parameter space
(p × p); and with Σ's inverse replaced by its diagonal. They also draw θ − θ̂ ~ N(0, Σ).

A grid of λ and σ reuses one reduction of the curvature G (of J̃J̃ᵀ or J̃ᵀJ̃ for σ = 1), as it needs
G + λσ²I alone: uqbench.block_tridiagonal, in float64 whatever the network's dtype. No class holds
more of a dense Jacobian than a chunk of ``linearised.CHUNK_BYTES``, and each chunk of it is formed
once for a whole grid.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property

import torch
from torch import Generator, Tensor, nn

from uqbench.block_tridiagonal import BlockTridiagonal
from uqbench.data import Split
from uqbench.errors import DivergenceError
from uqbench.linearised import CHUNK_BYTES, Jacobian, linearise, num_parameters
from uqbench.method import Task
from uqbench.networks import dtype_of, trainable
from uqbench.stacked import activations_per_row, members_at_a_time

Draws = Callable[[float, float], Tensor]
"""Draws of θ − θ̂ ~ N(0, Σ), (S, p), for prior precision λ and noise σ: the same for each call."""

NOT_FINITE = (
    "the curvature is not finite, as the network's outputs or their Jacobian at the training "
    "inputs are not; train the network at a lower learning rate"
)


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
    """J(x) Σ J(x)ᵀ for prior precisions λ and (in regression; else 1) noise σ.

    Where the precision matrix has no Cholesky factor, numbers are NaN. Raises DivergenceError if
    the curvature is not finite.
    """

    def __init__(self, network: nn.Module, split: Split, task: Task) -> None:
        self.network = network
        self.task = task

    @torch.no_grad()
    def at(self, inputs: Tensor, prior_precision: float, noise: float = 1.0) -> Tensor:
        """J(x)ΣJ(x)ᵀ at inputs (N, ...), (N, C, C)."""
        chunks = self._chunks(inputs, [prior_precision], noise, diagonal=False)
        return torch.cat([blocks[0] for blocks in chunks])

    @torch.no_grad()
    def variances(self, inputs: Tensor, priors: Sequence[float], noise: float = 1.0) -> Tensor:
        """The diagonals of J(x)ΣJ(x)ᵀ at inputs (N, ...) for each λ of a grid, (G, N, C)."""
        return torch.cat(list(self._chunks(inputs, priors, noise, diagonal=True)), 1)

    @abstractmethod
    def draws(self, count: int, generator: Generator) -> Draws:
        """Draw what does not depend on λ and σ of ``count`` samples."""

    @abstractmethod
    def _forms(
        self, jacobian: Jacobian, priors: Sequence[float], noise: float, *, diagonal: bool
    ) -> Tensor:
        """J(x)ΣJ(x)ᵀ for each λ, (G, n, C, C); with ``diagonal`` their diagonals, (G, n, C)."""

    def _chunks(
        self, inputs: Tensor, priors: Sequence[float], noise: float, *, diagonal: bool
    ) -> Iterator[Tensor]:
        for chunk in inputs.split(self._rows_per_chunk(inputs)):
            jacobian = linearise(self.network, chunk)
            yield self._forms(jacobian, priors, noise, diagonal=diagonal)

    def _rows_per_chunk(self, inputs: Tensor) -> int:
        return rows_per_chunk(self.network, inputs)


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


def rows_per_chunk(network: nn.Module, inputs: Tensor, columns: int | None = None) -> int:
    """How many inputs' matrices of C × ``columns`` (p), and the activations, fit into a chunk.

    At least one. Every output has its own backward pass, so that a last layer with few parameters
    has small Jacobians but not small activations.
    """
    outputs = linearise(network, inputs[:1]).outputs
    columns = num_parameters(network) if columns is None else columns
    numbers = columns + activations_per_row(network, inputs[:1].to(outputs.dtype))
    return max(CHUNK_BYTES // (outputs.numel() * numbers * outputs.element_size()), 1)


class FunctionSpaceCovariance(FunctionalCovariance):
    """The full structure in function space: matrices of size nC."""

    def __init__(self, network: nn.Module, split: Split, task: Task) -> None:
        super().__init__(_in_float64(network, split.inputs[:1]), split, task)
        self._dtype = dtype_of(network)
        self._jacobian = linearise(self.network, split.inputs)
        self._inputs = split.inputs.to(self._jacobian.outputs.dtype)
        self._root = hessian_root(task, self._jacobian.outputs)
        gram = self._jacobian.gram().double()
        if task is Task.CLASSIFICATION:
            self._weight_both_sides(gram)
        self._curvature = _reduced(gram)

    def _weight(self, matrix: Tensor, transposed: bool = False) -> Tensor:
        """Multiply the columns' blocks of (R, n·C) by L, or by Lᵀ."""
        n, classes, _ = self._root.shape
        if self.task is Task.REGRESSION:
            return matrix
        root = (self._root.mT if transposed else self._root).to(matrix.dtype)
        # a batch of the inputs' products: broadcasting over the rows would copy the roots R times
        blocks = matrix.view(-1, n, classes).transpose(0, 1) @ root  # (n, R, C)
        return blocks.transpose(0, 1).reshape(len(matrix), n * classes)

    def _weight_both_sides(self, gram: Tensor) -> None:
        """Replace K (nC, nC) by LᵀKL, some rows at a time."""
        classes = self._root.shape[1]
        roots = self._root.to(gram.dtype)
        size = max(CHUNK_BYTES // (classes * gram[0].nbytes), 1)
        for rows, root in zip(gram.split(size * classes), roots.split(size), strict=True):
            weighted = root.mT @ rows.view(len(root), classes, -1)
            rows.copy_(self._weight(weighted.view(len(rows), -1)))

    def _rows_per_chunk(self, inputs: Tensor) -> int:
        return rows_per_chunk(self.network, inputs, columns=self._jacobian.rows)

    def draws(self, count: int, generator: Generator) -> Draws:
        """Matheron's rule: z − J̃ᵀ(J̃J̃ᵀ + λI)⁻¹(J̃z + ε) with z ~ N(0, I/λ), ε ~ N(0, I)."""
        outputs = self._jacobian.outputs
        like = outputs.to(self._dtype)
        prior = _normal(like, count, self._jacobian.num_parameters, generator).to(outputs.dtype)
        noise = _normal(like, count, outputs.numel(), generator).to(outputs.dtype)
        size = members_at_a_time(self.network, self._inputs)
        pushed = torch.cat([self._matvec(some) for some in prior.split(size)])

        def draws(prior_precision: float, sigma: float) -> Tensor:
            errors = pushed / prior_precision**0.5 + sigma * noise
            weights = self._curvature.solve(errors.double(), prior_precision * sigma**2)
            pulled = [self._rmatvec(some) for some in weights.to(outputs.dtype).split(size)]
            return (prior / prior_precision**0.5 - torch.cat(pulled)).to(self._dtype)

        return draws

    def _matvec(self, tangents: Tensor) -> Tensor:
        """LᵀJ V for tangents V (S, p) -> (S, nC)."""
        if self._rows is not None:
            return tangents @ self._rows.mT
        return self._weight(self._jacobian.matvec(tangents).flatten(1))

    def _rmatvec(self, weights: Tensor) -> Tensor:
        """JᵀL u for weights u (S, nC) -> (S, p)."""
        if self._rows is not None:
            return weights @ self._rows
        weights = self._weight(weights, transposed=True)
        return self._jacobian.rmatvec(weights.view(-1, *self._jacobian.outputs.shape))

    @cached_property
    def _rows(self) -> Tensor | None:
        """LᵀJ, (nC, p), where it fits into a chunk: faster than the operator's products."""
        jacobian = self._jacobian
        if jacobian.rows * jacobian.num_parameters * self._root.element_size() > CHUNK_BYTES:
            return None
        return torch.cat(list(_weighted_rows(jacobian, self.task)))

    def _forms(
        self, jacobian: Jacobian, priors: Sequence[float], noise: float, *, diagonal: bool
    ) -> Tensor:
        cross = self._weight(jacobian.gram(self._jacobian).double())
        cross = cross.view(*jacobian.outputs.shape, -1)
        blocks = jacobian.gram_blocks().double()
        priors = blocks.new_tensor(priors)
        explained = self._curvature.quadratic_forms(cross, priors * noise**2, diagonal=diagonal)
        if diagonal:
            variances = (blocks.diagonal(dim1=1, dim2=2) - explained) / priors.view(-1, 1, 1)
            # rounding must not leave a negative variance at training inputs
            return variances.clamp_(min=0).to(self._dtype)
        covariance = (blocks - explained) / priors.view(-1, 1, 1, 1)
        covariance.diagonal(dim1=2, dim2=3).clamp_(min=0)
        return covariance.to(self._dtype)


class ParameterSpaceCovariance(FunctionalCovariance):
    """The full structure in parameter space: matrices of size p."""

    def __init__(self, network: nn.Module, split: Split, task: Task) -> None:
        super().__init__(network, split, task)
        size = num_parameters(network)
        curvature = torch.zeros(size, size, dtype=torch.float64, device=split.targets.device)
        for inputs in split.inputs.split(rows_per_chunk(network, split.inputs)):
            for rows in _weighted_rows(linearise(network, inputs), task):
                rows = rows.double()
                curvature.addmm_(rows.mT, rows)
        self._curvature = _reduced(curvature)

    def draws(self, count: int, generator: Generator) -> Draws:
        """zR with RᵀR = Σ and z ~ N(0, I)."""
        weights = next(iter(trainable(self.network).values()))
        normal = _normal(weights, count, num_parameters(self.network), generator).double()

        def draws(prior_precision: float, sigma: float) -> Tensor:
            found = sigma * self._curvature.root_solve(normal, prior_precision * sigma**2)
            return found.to(weights.dtype)

        return draws

    def _forms(
        self, jacobian: Jacobian, priors: Sequence[float], noise: float, *, diagonal: bool
    ) -> Tensor:
        # Σ = σ²(J̃ᵀJ̃ + λσ²I)⁻¹ with J̃ for σ = 1
        rows = jacobian.dense().double().view(*jacobian.outputs.shape, -1)
        shifts = rows.new_tensor(priors) * noise**2
        forms = self._curvature.quadratic_forms(rows, shifts, diagonal=diagonal)
        return (noise**2 * forms).to(jacobian.outputs.dtype)


class DiagonalisedCovariance(FunctionalCovariance):
    """Σ = Q diag(1/(s/σ² + λ)) Qᵀ with an orthogonal Q that is cheap to apply.

    Subclasses set ``eigenvalues``: s for σ = 1, (p,).
    """

    eigenvalues: Tensor

    @abstractmethod
    def rotated(self, rows: Tensor) -> Tensor:
        """X Q for rows X (R, p)."""

    @abstractmethod
    def rotated_back(self, rows: Tensor) -> Tensor:
        """X Qᵀ for rows X (R, p)."""

    def _variances(self, priors: Sequence[float], noise: float) -> Tensor:
        """1/(s/σ² + λ) for each λ, (G, p)."""
        return 1 / (self.eigenvalues / noise**2 + self.eigenvalues.new_tensor(priors).unsqueeze(1))

    def draws(self, count: int, generator: Generator) -> Draws:
        """Q diag(1/(s/σ² + λ))^½ Qᵀz with z ~ N(0, I)."""
        rotated = self.rotated(_normal(self.eigenvalues, count, len(self.eigenvalues), generator))
        return lambda prior, noise: self.rotated_back(
            rotated * self._variances([prior], noise).sqrt()
        )

    def _forms(
        self, jacobian: Jacobian, priors: Sequence[float], noise: float, *, diagonal: bool
    ) -> Tensor:
        variances = self._variances(priors, noise)
        n, classes = jacobian.outputs.shape
        if diagonal:
            parts = [variances @ self.rotated(rows).square().mT for rows in _rows(jacobian)]
            return torch.cat(parts, 1).view(len(priors), n, classes)
        if n > 1 or _outputs_per_chunk(jacobian) == classes:
            rows = self.rotated(jacobian.dense()).view(n, classes, -1)
            return torch.stack([(rows * variance) @ rows.mT for variance in variances])
        # one input with a Jacobian too large to hold: columns of J Σ Jᵀ, a few at a time
        columns = [
            jacobian.matvec(self.rotated_back(self.rotated(rows) * variance)).squeeze(1)
            for variance in variances
            for rows in _rows(jacobian)
        ]
        return torch.cat(columns).view(len(priors), n, classes, classes)


class DiagonalCovariance(DiagonalisedCovariance):
    """The diagonal of the precision matrix alone: vectors of size p."""

    def __init__(self, network: nn.Module, split: Split, task: Task) -> None:
        super().__init__(network, split, task)
        self.eigenvalues = 0
        for inputs in split.inputs.split(rows_per_chunk(network, split.inputs)):
            for rows in _weighted_rows(linearise(network, inputs), task):
                self.eigenvalues = self.eigenvalues + rows.square().sum(0)
        require_finite(self.eigenvalues)

    def rotated(self, rows: Tensor) -> Tensor:
        return rows

    def rotated_back(self, rows: Tensor) -> Tensor:
        return rows


def _in_float64(network: nn.Module, inputs: Tensor) -> nn.Module:
    """A copy of ``network`` in float64, or itself if it cannot run so at ``inputs``.

    A Gram matrix of float32 is off by 1e-7 of its largest eigenvalue: more than λσ² often is.
    """
    if dtype_of(network) == torch.float64:
        return network
    precise = copy.deepcopy(network).double()
    try:
        with torch.no_grad():
            precise(inputs.double())
    except RuntimeError:  # it holds float32 numbers that are no parameters or buffers
        return network
    return precise


def require_finite(curvature: Tensor) -> None:
    """Raise DivergenceError unless all entries are finite."""
    if not curvature.isfinite().all():
        raise DivergenceError(NOT_FINITE)


def _reduced(curvature: Tensor) -> BlockTridiagonal:
    require_finite(curvature)
    return BlockTridiagonal(curvature)


def _normal(like: Tensor, rows: int, columns: int, generator: Generator) -> Tensor:
    """Standard normal draws (rows, columns) in the dtype and on the device of ``like``."""
    return torch.randn(rows, columns, generator=generator, device=like.device, dtype=like.dtype)


def _outputs_per_chunk(jacobian: Jacobian) -> int:
    """How many outputs' gradients of one input fit into a chunk."""
    row = jacobian.num_parameters * jacobian.outputs.element_size()
    return max(min(CHUNK_BYTES // row, jacobian.outputs.shape[1]), 1)


def _rows(jacobian: Jacobian, root: Tensor | None = None) -> Iterator[Tensor]:
    """Yield the rows of J (R, p), or of LᵀJ for L (n, C, C); a few at a time for one input."""
    n, classes = jacobian.outputs.shape
    outputs = _outputs_per_chunk(jacobian)
    if n > 1 or outputs == classes:
        dense = jacobian.dense()
        yield dense if root is None else (root.mT @ dense.view(n, classes, -1)).flatten(0, 1)
        return
    if root is None:
        root = torch.eye(classes, dtype=jacobian.outputs.dtype, device=jacobian.outputs.device)
        root = root.unsqueeze(0)
    for weights in root[0].mT.split(outputs):
        yield jacobian.rmatvec(weights.unsqueeze(1))


def _weighted_rows(jacobian: Jacobian, task: Task) -> Iterator[Tensor]:
    """Yield the rows of J̃ for σ = 1, likewise."""
    return _rows(jacobian, hessian_root(task, jacobian.outputs))
