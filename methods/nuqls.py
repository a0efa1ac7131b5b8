"""NUQLS: ensembles of linearised networks (Wilson et al., arXiv 2502.02870, Algorithm 1)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import AfterValidator, Field, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor, nn

from uqbench.calibration import calibrate
from uqbench.chunked_jacobian import ChunkedJacobian
from uqbench.context import Context
from uqbench.data import TrainingData
from uqbench.descent import Descent
from uqbench.errors import UnsupportedError
from uqbench.infinite_ensemble import InfiniteEnsemble, require_room
from uqbench.linearised import (
    chunks_in_memory,
    largest_ntk_eigenvalue,
    linearise,
    num_parameters,
)
from uqbench.linearised_ensemble import LinearisedEnsemble
from uqbench.linearised_training import (
    cheapest_full_batch_solver,
    descend_in_batches,
    descend_in_function_space,
    descend_with_jacobian,
    gram_fits,
    solve_exactly,
    solve_iteratively,
    target_matrix,
)
from uqbench.method import Method, Posterior, Task
from uqbench.methods.ntk_gp import NTKGPPosterior
from uqbench.networks import dtype_of
from uqbench.problems import Problem


def _member_count(value: float) -> float:
    if value == math.inf:
        return value
    if value != value // 1 or value < 2:
        raise ValueError("must be a whole number, 2 or more, or inf")
    return int(value)


@dataclass(frozen=True)
class NUQLS(Method):
    """Neural uncertainty quantification by linearised sampling.

    Members start at θ̂ + z_s with z_s ~ N(0, γ²I) and minimise (1/n) Σ ℓ(f̃(θ, x_i), y_i) of the
    linearised network f̃(θ, x) = f(θ̂, x) + J(x)(θ − θ̂) by gradient descent with momentum. The
    prediction is the ensemble {f̃(θ*_s, ·)}: in regression its mean and ``scale``² × its variance,
    where ``scale`` minimises the validation ECE exactly (γ̂ of the paper's Appendix F.1, as a
    multiple of ``gamma``); in classification the moments of the members' softmax.

    members: S; ``inf`` (regression, full-batch) is the limit of infinitely many members, which has
    a closed form for any number of epochs: no sampling error, at the cost of an eigendecomposition
    of the n × n NTK Gram matrix. With the solver ``exact`` that is ``ntk_gp``.
    gamma: γ, the standard deviation of the starts around θ̂.
    lr: step size; none given: 1/λ_max of the NTK Gram matrix over n (half of it for batches).
    epochs, momentum: of the descent.
    batch_size: rows per step; 0 is full-batch descent.
    calibrate: whether the variance is scaled on the validation split (regression).
    inflation: factor on the predictive standard deviation after that (regression); the paper's
    confidence intervals have 1.5 (Appendix I.5; its code multiplies the standard deviation).
    tolerance: the share of the training residual that the solver ``exact`` may leave where the
    Gram matrix does not fit in memory, and conjugate gradients take the place of Cholesky's factor.
    solver: ``kernel`` descends in function space with the Gram matrix, ``jacobian`` with the dense
    Jacobian, ``minibatch`` with Jacobian products; these three give the same members for
    batch_size 0, in regression in closed form: time hardly depends on the epochs. ``exact`` takes
    the limit of infinitely many steps. ``auto`` is ``minibatch`` if batch_size is set, else the
    cheapest full-batch solver whose memory fits. ``minibatch`` works on as many rows and members at
    a time as fit in memory, which are in the record.
    """

    unbounded: ClassVar[frozenset[str]] = frozenset({"members"})

    members: Annotated[int | float, AfterValidator(_member_count)] = 10
    gamma: PositiveFloat = 0.01
    lr: PositiveFloat | None = None
    epochs: PositiveInt = 10
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    batch_size: NonNegativeInt = 0
    calibrate: bool = True
    inflation: PositiveFloat = 1.0
    tolerance: PositiveFloat = 1e-4
    solver: Literal["auto", "kernel", "jacobian", "minibatch", "exact"] = "auto"

    def __post_init__(self) -> None:
        if self.batch_size and self.solver in {"kernel", "jacobian", "exact"}:
            raise ValueError(f"solver '{self.solver}' is full-batch; batch_size must be 0")
        if self.members == math.inf and (self.batch_size or self.solver == "minibatch"):
            raise ValueError(
                "members = inf is the limit of full-batch descent: leave out batch_size and the "
                "solver 'minibatch', or set a finite number of members"
            )

    @property
    def deterministic(self) -> frozenset[Task]:
        return frozenset({Task.REGRESSION}) if self.members == math.inf else frozenset()

    def fit(
        self, problem: Problem, data: TrainingData, network: nn.Module, context: Context
    ) -> Posterior:
        fit = self._limit if self.members == math.inf else self._ensemble
        posterior = fit(data, network, context)
        if data.task is Task.REGRESSION:
            if self.calibrate:
                calibrate(posterior, data, context)
            posterior.scale *= self.inflation
        return posterior

    def _ensemble(
        self, data: TrainingData, network: nn.Module, context: Context
    ) -> LinearisedEnsemble:
        starts = self.gamma * torch.randn(
            self.members,
            num_parameters(network),
            generator=context.generator,
            device=context.device,
            dtype=dtype_of(network),
        )
        displacements, found = self.solve(data, network, starts, context)
        return LinearisedEnsemble(network, displacements, data.task, tuned=found)

    def _limit(
        self, data: TrainingData, network: nn.Module, context: Context
    ) -> InfiniteEnsemble | NTKGPPosterior:
        if data.task is Task.CLASSIFICATION:
            raise UnsupportedError(
                "members = inf covers regression: descent on the cross-entropy has no closed form; "
                "set a finite number of members"
            )
        if self.solver == "exact":
            require_room(len(data.train), context.device)
            return NTKGPPosterior(network, data.train, self.gamma)
        lr = self.lr or self._stable_step(network, data.train.inputs)
        descent = Descent(lr, self.epochs, self.momentum)
        return InfiniteEnsemble(network, data.train, self.gamma, descent)

    def solve(
        self, data: TrainingData, network: nn.Module, starts: Tensor, context: Context
    ) -> tuple[Tensor, dict[str, float]]:
        """Return the displacements (S, p) reached from ``starts``, and the values found."""
        split, task, solver = data.train, data.task, self.solver
        if solver == "exact":
            return self._interpolate(data, network, starts, context)
        if solver == "auto" and self.batch_size:
            solver = "minibatch"
        jacobian = None if solver == "minibatch" else linearise(network, split.inputs)
        if solver == "auto":
            solver = cheapest_full_batch_solver(jacobian, task, starts, self.epochs)
        lr = self.lr or self._stable_step(network, split.inputs)
        descent = Descent(lr, self.epochs, self.momentum)
        found = {"lr": lr}
        if solver == "minibatch":
            jacobian = None  # it would hold the factors of all rows
            rows = min(self.batch_size or len(split), len(split))
            chunks = chunks_in_memory(network, split.inputs, rows, len(starts))
            found |= {"rows_at_a_time": chunks.rows, "members_at_a_time": chunks.members}
            displacements = descend_in_batches(
                network,
                split,
                task,
                starts,
                descent,
                self.batch_size,
                context.generator,
                context.progress,
                chunks,
            )
        else:
            descend = descend_in_function_space if solver == "kernel" else descend_with_jacobian
            targets = target_matrix(task, split.targets, jacobian.outputs)
            displacements = descend(jacobian, targets, task, starts, descent, context.progress)
        return displacements, found

    def _interpolate(
        self, data: TrainingData, network: nn.Module, starts: Tensor, context: Context
    ) -> tuple[Tensor, dict[str, float]]:
        split, task = data.train, data.task
        jacobian = linearise(network, split.inputs)
        targets = target_matrix(task, split.targets, jacobian.outputs)
        if gram_fits(jacobian.rows, 3, starts):
            displacements, jitter = solve_exactly(jacobian, targets, task, starts)
            return displacements, {"jitter": jitter}
        chunks = chunks_in_memory(network, split.inputs, len(split), len(starts))
        chunked = ChunkedJacobian(network, split.inputs, chunks)
        return solve_iteratively(
            chunked, targets, task, starts, self.tolerance, context.generator, context.progress
        )

    def _stable_step(self, network: nn.Module, inputs: Tensor) -> float:
        largest = largest_ntk_eigenvalue(network, inputs)
        return (0.5 if self.batch_size else 1.0) / largest if largest else 1.0
