"""Training of linearised networks from many starts: the solvers behind NUQLS.

A member s of the ensemble is the linearised network f̃(θ, x) = f(θ̂, x) + J(x)(θ − θ̂) with
θ_s = θ̂ + Δ_s, started at Δ_s = z_s. Every solver maps the starts z (S, p) to the displacements
Δ (S, p) that minimise (1/n) Σ ℓ(f̃(θ, x_i), y_i), whose gradient is J^T ρ / n with the residual
ρ = f̃ − y (regression, ℓ = ½ squared error) or softmax(f̃) − onehot(y) (classification). Gradient
descent with momentum μ (heavy ball): b ← μ b + gradient, θ ← θ − lr b.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from uqbench.chunked_jacobian import ChunkedJacobian
from uqbench.conjugate_gradients import conjugate_gradients
from uqbench.context import ignore_progress
from uqbench.data import Split
from uqbench.descent import Descent, DivergenceGuard, Progress, descend_in_closed_form
from uqbench.errors import DivergenceError
from uqbench.linearised import Chunks, Jacobian, linearise
from uqbench.memory import available_bytes
from uqbench.method import Task
from uqbench.streamed import gathered
from uqbench.threads import threads_for
from uqbench.training import batch_bounds

CLOSED_FORM_PRODUCTS = 8
"""Products with K that the closed form of a descent takes on UCI tables: 4 to 10."""


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
    """Full-batch descent with K = JJᵀ in memory and no p in the loop: f̃ = f̃₀ − Kα, Δ = z − Jᵀα.

    The iterates are those of :func:`descend_with_jacobian`. K takes (nC)² entries, a product with
    it 2(nC)²S operations: one an epoch, but few at all in regression, whose iterates have a closed
    form.
    """
    gram = jacobian.gram()
    with threads_for(gram.numel()):
        if task is Task.REGRESSION:
            return _closed_form(jacobian, gram.matmul, targets, starts, descent, progress)
        start = (jacobian.outputs + jacobian.matvec(starts)).flatten(1).mT  # (n·C, S)
        shape = (len(starts), *jacobian.outputs.shape)
        guard = DivergenceGuard(descent)

        def slope(weights: Tensor) -> Tensor:
            predictions = (start - gram @ weights).mT.view(shape)
            return guard.checked(residual(task, predictions, targets)).flatten(1).mT

        weights = torch.zeros_like(start, memory_format=torch.contiguous_format)
        velocity = torch.zeros_like(weights)
        for epoch in range(descent.epochs):
            velocity.mul_(descent.momentum).add_(slope(weights), alpha=1 / shape[1])
            weights.add_(velocity, alpha=descent.lr)
            progress("descending", epoch + 1, descent.epochs)
        slope(weights)  # checks what the last step led to
    return starts - jacobian.rmatvec(weights.mT.reshape(shape))


def descend_with_jacobian(
    jacobian: Jacobian,
    targets: Tensor,
    task: Task,
    starts: Tensor,
    descent: Descent,
    progress: Progress = ignore_progress,
) -> Tensor:
    """Full-batch descent with the dense Jacobian in memory: n·C·p entries, 4nCpS for a product."""
    dense = jacobian.dense()
    with threads_for(dense.numel()):
        if task is Task.REGRESSION:

            def product(vectors: Tensor) -> Tensor:
                return dense @ (dense.mT @ vectors)

            return _closed_form(jacobian, product, targets, starts, descent, progress)
        shape = (len(starts), *jacobian.outputs.shape)
        guard = DivergenceGuard(descent)

        def slope(displacements: Tensor) -> Tensor:
            predictions = jacobian.outputs + (displacements @ dense.mT).view(shape)
            return guard.checked(residual(task, predictions, targets)).flatten(1)

        displacements = starts.clone()
        velocity = torch.zeros_like(starts)
        for epoch in range(descent.epochs):
            gradient = slope(displacements) @ dense
            velocity.mul_(descent.momentum).add_(gradient, alpha=1 / shape[1])
            displacements.sub_(velocity, alpha=descent.lr)
            progress("descending", epoch + 1, descent.epochs)
        slope(displacements)  # checks what the last step led to
    return displacements


def _closed_form(
    jacobian: Jacobian | ChunkedJacobian,
    product: Callable[[Tensor], Tensor],
    targets: Tensor,
    starts: Tensor,
    descent: Descent,
    progress: Progress,
) -> Tensor:
    """Δ = z − Jᵀ q_t(K) (f̃₀ − y) in regression; ``product`` multiplies (n, k) by K."""
    residuals = (jacobian.outputs + jacobian.matvec(starts) - targets).squeeze(-1)  # (S, n)
    weights = descend_in_closed_form(product, residuals.mT, descent, progress)
    return starts - jacobian.rmatvec(weights.mT.unsqueeze(-1))


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

    ``batch_size`` 0 is full-batch descent: the iterates of :func:`descend_with_jacobian`, which in
    regression are found in closed form. Memory is O(S·p) for the iterates (and a dozen times S·n
    numbers for the closed form) plus the activations of one of the ``chunks`` (default: whole
    batches of all members), which the iterates do not depend on but for rounding.
    """
    bounds = batch_bounds(len(split), batch_size)
    chunks = chunks or Chunks(len(split), len(starts))
    if task is Task.REGRESSION and len(bounds) == 1:
        everything = ChunkedJacobian(network, split.inputs, chunks)
        targets = target_matrix(task, split.targets, everything.outputs)
        product = everything.gram_product
        return _closed_form(everything, product, targets, starts, descent, progress)
    displacements = starts.clone()
    velocity = torch.zeros_like(starts)
    guard = DivergenceGuard(descent)
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
                    slope = guard.checked(residual(task, predictions, targets))
                    gradient[members] += jacobian.rmatvec(slope)
            velocity.mul_(descent.momentum).add_(gradient, alpha=1 / (stop - start))
            displacements.sub_(velocity, alpha=descent.lr)
        progress("descending", epoch + 1, descent.epochs)
    for members in chunks.members_of(len(starts)):  # what the last step led to
        predictions = jacobian.outputs + jacobian.matvec(displacements[members])
        guard.checked(residual(task, predictions, targets))
    return displacements


def cheapest_full_batch_solver(jacobian: Jacobian, task: Task, starts: Tensor, epochs: int) -> str:
    """``kernel``, ``jacobian`` or ``minibatch``: the fastest within a quarter of the memory.

    They reach the same members to rounding, so the choice does not change a result.
    """
    rows, (members, parameters) = jacobian.rows, starts.shape
    products = min(epochs, CLOSED_FORM_PRODUCTS) if task is Task.REGRESSION else epochs
    columns = products * members
    # in operations of the Gram matrix: 0.03 ns each (one thread, float64). Products read their
    # matrix from memory; those with a network's factors push activations through, layer by layer
    operations = {
        "kernel": jacobian.gram_operations + 2 * rows**2 * columns,
        "jacobian": rows * parameters * (100 + 8 * columns),
        "minibatch": rows * parameters * 16 * columns,
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
    gap = _gap(jacobian, targets, task, starts)
    factor, jitter = cholesky_with_jitter(jacobian.gram())
    weights = torch.cholesky_solve(gap.mT, factor).mT
    return starts + jacobian.rmatvec(weights.reshape(-1, *jacobian.outputs.shape)), jitter


def solve_iteratively(
    jacobian: ChunkedJacobian,
    targets: Tensor,
    task: Task,
    starts: Tensor,
    tolerance: float,
    generator: torch.Generator,
    progress: Progress = ignore_progress,
) -> tuple[Tensor, dict[str, float]]:
    """:func:`solve_exactly` by conjugate gradients, without K: memory is O(S·p + 200·nC).

    ``tolerance`` is the share ‖g − f̃(Δ)‖/‖g − f̃(z)‖ of the training residual that a member may
    keep. Off the training points members may be further from the limit: directions of small
    eigenvalues of K hardly matter for the residual.

    Returns the displacements, and the largest share left and the iterations that it took.

    Raises DivergenceError if the tolerance is not reached, as on most tables: their Gram matrices
    have condition numbers of up to 1e17.
    """
    gap = _gap(jacobian, targets, task, starts)
    product = jacobian.gram_product
    weights, left, taken = conjugate_gradients(product, gap.mT, tolerance, generator, progress)
    if not left <= max(tolerance, torch.finfo(gap.dtype).eps):
        raise DivergenceError(
            f"conjugate gradients leave {left:.2g} of the training residual after {taken} "
            f"iterations (tolerance {tolerance:g}), as the NTK Gram matrix is ill-conditioned: "
            "set a larger tolerance, or descend for a number of epochs with another solver"
        )
    shape = (-1, *jacobian.outputs.shape)
    displacements = starts + jacobian.rmatvec(weights.mT.reshape(shape))
    return displacements, {"residual": left, "iterations": taken}


def _gap(
    jacobian: Jacobian | ChunkedJacobian, targets: Tensor, task: Task, starts: Tensor
) -> Tensor:
    fitted = targets if task is Task.REGRESSION else jacobian.outputs
    return (fitted - jacobian.outputs - jacobian.matvec(starts)).flatten(1)  # (S, n·C)


def gram_fits(rows: int, matrices: int, like: Tensor) -> bool:
    """Whether ``matrices`` (rows, rows) like ``like`` take at most a quarter of the free memory."""
    return matrices * rows**2 * like.element_size() <= available_bytes(like.device) / 4


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
