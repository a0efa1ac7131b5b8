"""NUQLS: ensembles of linearised networks (Wilson et al., arXiv 2502.02870, Algorithm 1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor, nn

from uqbench.calibration import calibrate
from uqbench.context import Context
from uqbench.data import TrainingData
from uqbench.descent import Descent
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
    solve_exactly,
    target_matrix,
)
from uqbench.method import Method, Posterior, Task
from uqbench.networks import dtype_of
from uqbench.problems import Problem


@dataclass(frozen=True)
class NUQLS(Method):
    """Neural uncertainty quantification by linearised sampling.

    Members start at θ̂ + z_s with z_s ~ N(0, γ²I) and minimise (1/n) Σ ℓ(f̃(θ, x_i), y_i) of the
    linearised network f̃(θ, x) = f(θ̂, x) + J(x)(θ − θ̂) by gradient descent with momentum. The
    prediction is the ensemble {f̃(θ*_s, ·)}: in regression its mean and ``scale``² × its variance,
    where ``scale`` minimises the validation ECE exactly (γ̂ of the paper's Appendix F.1, as a
    multiple of ``gamma``); in classification the moments of the members' softmax.

    members: S.
    gamma: γ, the standard deviation of the starts around θ̂.
    lr: step size; none given: 1/λ_max of the NTK Gram matrix over n (half of it for batches).
    epochs, momentum: of the descent.
    batch_size: rows per step; 0 is full-batch descent.
    calibrate: whether the variance is scaled on the validation split (regression).
    solver: ``kernel`` descends in function space with the Gram matrix, ``jacobian`` with the dense
    Jacobian, ``minibatch`` with Jacobian products; these three give the same members for
    batch_size 0. ``exact`` takes the limit of infinitely many steps. ``auto`` is ``minibatch`` if
    batch_size is set, else the cheapest full-batch solver whose memory fits. ``minibatch`` works
    on as many rows and members at a time as fit in memory, which are in the record.
    """

    members: Annotated[int, Field(ge=2)] = 10
    gamma: PositiveFloat = 0.01
    lr: PositiveFloat | None = None
    epochs: PositiveInt = 10
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    batch_size: NonNegativeInt = 0
    calibrate: bool = True
    solver: Literal["auto", "kernel", "jacobian", "minibatch", "exact"] = "auto"

    def __post_init__(self) -> None:
        if self.batch_size and self.solver in {"kernel", "jacobian", "exact"}:
            raise ValueError(f"solver '{self.solver}' is full-batch; batch_size must be 0")

    def fit(
        self, problem: Problem, data: TrainingData, network: nn.Module, context: Context
    ) -> Posterior:
        starts = self.gamma * torch.randn(
            self.members,
            num_parameters(network),
            generator=context.generator,
            device=context.device,
            dtype=dtype_of(network),
        )
        displacements, found = self.solve(data, network, starts, context)
        ensemble = LinearisedEnsemble(network, displacements, data.task, tuned=found)
        if self.calibrate and data.task is Task.REGRESSION:
            calibrate(ensemble, data, context)
        return ensemble

    def solve(
        self, data: TrainingData, network: nn.Module, starts: Tensor, context: Context
    ) -> tuple[Tensor, dict[str, float]]:
        """Return the displacements (S, p) reached from ``starts``, and the values found."""
        split, task, solver = data.train, data.task, self.solver
        jacobian = None if self.batch_size else linearise(network, split.inputs)
        if solver == "auto" and self.batch_size:
            solver = "minibatch"
        elif solver == "auto":
            solver = cheapest_full_batch_solver(jacobian, task, starts, self.epochs)
        if solver == "exact":
            targets = target_matrix(task, split.targets, jacobian.outputs)
            displacements, jitter = solve_exactly(jacobian, targets, task, starts)
            return displacements, {"jitter": jitter}
        lr = self.lr or self._stable_step(network, split.inputs)
        descent = Descent(lr, self.epochs, self.momentum)
        found = {"lr": lr}
        if solver == "minibatch":
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

    def _stable_step(self, network: nn.Module, inputs: Tensor) -> float:
        largest = largest_ntk_eigenvalue(network, inputs)
        return (0.5 if self.batch_size else 1.0) / largest if largest else 1.0
