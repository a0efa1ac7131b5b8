"""Training of linearised networks from many starts: the solvers behind NUQLS.

A member s of the ensemble is the linearised network f̃(θ, x) = f(θ̂, x) + J(x)(θ − θ̂) with
θ_s = θ̂ + Δ_s, started at Δ_s = z_s. Every solver maps the starts z (S, p) to the displacements
Δ (S, p) that minimise (1/n) Σ ℓ(f̃(θ, x_i), y_i), whose gradient is J^T ρ / n with the residual
ρ = f̃ − y (regression, ℓ = ½ squared error) or softmax(f̃) − onehot(y) (classification). Gradient
descent with momentum μ (heavy ball): b ← μ b + gradient, θ ← θ − lr b.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from uqbench.context import ignore_progress
from uqbench.data import Split
from uqbench.errors import DivergenceError
from uqbench.linearised import Chunks, Jacobian, linearise
from uqbench.memory import available_bytes
from uqbench.method import Task
from uqbench.streamed import gathered
from uqbench.threads import threads_for
from uqbench.training import batch_bounds

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Descent:
    """Gradient descent with momentum: step size, passes over the data, momentum."""

    lr: float
    epochs: int
    momentum: float = 0.9


def target_matrix(task: Task, targets: Tensor, outputs: Tensor) -> Tensor:
    """Targets (n,) as (n, C) in the dtype of the network's outputs; classes as one-hot rows."""
    if task is Task.REGRESSION:
        return targets.to(outputs.dtype).view(-1, 1)
    return one_hot(targets, outputs.shape[1]).to(outputs.dtype)


def residual(task: Task, predictions: Tensor, targets: Tensor) -> Tensor:
    """∂ℓ/∂f̃ at predictions (S, n, C) for targets (n, C)."""
    return (predictions if task is Task.REGRESSION else predictions.softmax(-1)) - targets


def descend_in_function_space(
    jacobian: Jacobian,
    targets: Tensor,
    task: Task,
    starts: Tensor,
    descent: Descent,
    progress: Progress = ignore_progress,
) -> Tensor:
    """Full-batch descent with K = JJᵀ in the loop and no p: f̃ = f̃₀ − Kα, Δ = z − Jᵀα.

    The iterates are those of :func:`descend_with_jacobian`. An epoch costs 2(nC)²S operations;
    K takes (nC)² entries.
    """
    gram = jacobian.gram()
    start = (jacobian.outputs + jacobian.matvec(starts)).flatten(1)  # (S, n·C)
    shape = (len(starts), *jacobian.outputs.shape)
    weights = torch.zeros_like(start)
    velocity = torch.zeros_like(start)
    guard = _DivergenceGuard(descent)
    with threads_for(gram.numel()):
        for epoch in range(descent.epochs):
            predictions = start - weights @ gram if epoch else start
            slope = residual(task, predictions.view(shape), targets)
            guard.check(slope)
            velocity.mul_(descent.momentum).add_(slope.flatten(1), alpha=1 / shape[1])
            weights.add_(velocity, alpha=descent.lr)
            progress("descending", epoch + 1, descent.epochs)
    guard.check(weights, final=True)
    return starts - jacobian.rmatvec(weights.view(shape))


def descend_with_jacobian(
    jacobian: Jacobian,
    targets: Tensor,
    task: Task,
    starts: Tensor,
    descent: Descent,
    progress: Progress = ignore_progress,
) -> Tensor:
    """Full-batch descent with the dense Jacobian in memory: n·C·p entries, 4nCpS per epoch."""
    dense = jacobian.dense()
    shape = (len(starts), *jacobian.outputs.shape)
    displacements = starts.clone()
    velocity = torch.zeros_like(starts)
    guard = _DivergenceGuard(descent)
    with threads_for(dense.numel()):
        for epoch in range(descent.epochs):
            predictions = jacobian.outputs + (displacements @ dense.mT).view(shape)
            slope = residual(task, predictions, targets)
            guard.check(slope)
            velocity.mul_(descent.momentum).add_(slope.flatten(1) @ dense, alpha=1 / shape[1])
            displacements.sub_(velocity, alpha=descent.lr)
            progress("descending", epoch + 1, descent.epochs)
    guard.check(displacements, final=True)
    return displacements


def descend_in_batches(
    network: nn.Module,
    split: Split,
    task: Task,
    starts: Tensor,
    descent: Descent,
    batch_size: int,
    generator: torch.Generator,
    progress: Progress = ignore_progress,
    chunks: Chunks | None = None,
) -> Tensor:
    """(Stochastic) descent with Jacobian products of a batch at a time; all members share batches.

    ``batch_size`` 0 is full-batch descent: the iterates of :func:`descend_with_jacobian`. Memory
    is O(S·p) for the iterates plus the activations of one of the ``chunks`` (default: whole batches
    of all members), which the iterates do not depend on but for rounding.
    """
    displacements = starts.clone()
    velocity = torch.zeros_like(starts)
    bounds = batch_bounds(len(split), batch_size)
    chunks = chunks or Chunks(len(split), len(starts))
    guard = _DivergenceGuard(descent)
    order = torch.arange(len(split), device=split.inputs.device)
    # where one operator holds all rows, it is the same in every epoch
    whole = chunks.rows >= bounds[0][1] == len(split) and isinstance(split.inputs, Tensor)
    fixed = linearise(network, split.inputs) if whole else None
    for epoch in range(descent.epochs):
        if len(bounds) > 1:
            order = torch.randperm(len(split), generator=generator, device=generator.device)
            order = order.to(split.inputs.device)
        pieces = [order[start:stop].split(chunks.rows) for start, stop in bounds]
        inputs = gathered(split.inputs, chain.from_iterable(pieces))
        for (start, stop), parts in zip(bounds, pieces, strict=True):
            gradient = torch.zeros_like(velocity)
            for rows in parts:
                jacobian = fixed or linearise(network, next(inputs))
                targets = target_matrix(task, split.targets[rows], jacobian.outputs)
                for members in chunks.members_of(len(starts)):
                    predictions = jacobian.outputs + jacobian.matvec(displacements[members])
                    slope = residual(task, predictions, targets)
                    guard.check(slope)
                    gradient[members] += jacobian.rmatvec(slope)
            velocity.mul_(descent.momentum).add_(gradient, alpha=1 / (stop - start))
            displacements.sub_(velocity, alpha=descent.lr)
        progress("descending", epoch + 1, descent.epochs)
    guard.check(displacements, final=True)
    return displacements


def cheapest_full_batch_solver(jacobian: Jacobian, starts: Tensor, epochs: int) -> str:
    """``kernel``, ``jacobian`` or ``minibatch``: fewest operations within a quarter of the memory.

    They reach the same members to rounding, so the choice does not change a result.
    """
    rows, (members, parameters) = jacobian.rows, starts.shape
    operations = {
        "kernel": jacobian.gram_operations + 2 * epochs * rows**2 * members,
        "jacobian": rows * parameters * (1 + 4 * epochs * members),
        # activations are pushed through again each epoch, layer by layer
        "minibatch": 6 * epochs * rows * parameters * members,
    }
    entries = {"kernel": 2 * rows**2, "jacobian": 2 * rows * parameters, "minibatch": 0}
    budget = available_bytes(starts.device) / 4 / starts.element_size()
    fitting = [solver for solver in operations if entries[solver] <= budget]
    return min(fitting, key=operations.__getitem__)


def solve_exactly(
    jacobian: Jacobian, targets: Tensor, task: Task, starts: Tensor
) -> tuple[Tensor, float]:
    """The limit of descent: Δ = z + Jᵀ K⁻¹ (g − f̃(z)), the projection of z onto the solutions.

    g is what an interpolating network predicts: y in regression. The cross-entropy has no finite
    minimiser on separable data; there g = f(θ̂, X), so that every member keeps the training
    predictions of the network (the paper's Remark 3.4).

    Returns the displacements and the jitter, relative to K's mean diagonal, that K needed.
    """
    fitted = targets if task is Task.REGRESSION else jacobian.outputs
    gap = (fitted - jacobian.outputs - jacobian.matvec(starts)).flatten(1)  # (S, n·C)
    factor, jitter = cholesky_with_jitter(jacobian.gram())
    weights = torch.cholesky_solve(gap.mT, factor).mT
    shape = (len(starts), *jacobian.outputs.shape)
    return starts + jacobian.rmatvec(weights.reshape(shape)), jitter


def cholesky_with_jitter(gram: Tensor) -> tuple[Tensor, float]:
    """Cholesky factor of K + j·mean(diag K)·I with the smallest j of 0, ε, 10ε, … that works.

    ε is the dtype's rounding error. Empirical NTK Gram matrices are often singular to working
    precision (condition numbers of 1e17 on UCI tables).
    """
    scale = gram.diagonal().mean()
    jitter = 0.0
    while True:
        jittered = gram.clone()
        jittered.diagonal().add_(jitter * scale)
        factor, failed = torch.linalg.cholesky_ex(jittered)
        if not failed:
            return factor, jitter
        if jitter > 1e-2 or not torch.isfinite(scale):
            raise DivergenceError("the NTK Gram matrix is not positive semi-definite (NaN in it?)")
        jitter = 10 * jitter if jitter else torch.finfo(gram.dtype).eps


class _DivergenceGuard:
    """Stops a descent whose residual grows a thousandfold or is not finite."""

    def __init__(self, descent: Descent) -> None:
        self._descent = descent
        self._limit: float | None = None

    def check(self, values: Tensor, *, final: bool = False) -> None:
        size = values.norm().item()
        if self._limit is None:
            self._limit = 1e3 * size + 1e-6
        if not (size <= self._limit or (final and size < float("inf"))):
            raise DivergenceError(
                f"gradient descent of the linearised networks diverges at lr {self._descent.lr:g} "
                f"(momentum {self._descent.momentum:g}); set a smaller lr, or leave it out to have "
                "it chosen from the largest NTK eigenvalue"
            )
