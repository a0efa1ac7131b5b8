"""The posterior of linearised ensembles: members f̃(θ̂ + Δ_s, ·) around one network."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import Tensor, nn

from uqbench.linearised import linearise
from uqbench.method import Task
from uqbench.sampled_posterior import SampledPosterior


class LinearisedEnsemble(SampledPosterior):
    """Members f̃(θ̂ + Δ_s, x) = f(θ̂, x) + J(x)Δ_s with displacements Δ (S, p)."""

    def __init__(
        self,
        network: nn.Module,
        displacements: Tensor,
        task: Task,
        scale: float = 1.0,
        tuned: Mapping[str, float] | None = None,
    ) -> None:
        # a forward pass, and a Jacobian product of about two forward passes for each member
        super().__init__(task, 1 + 2 * len(displacements), tuned)
        self.network = network
        self.displacements = displacements
        self.scale = scale

    def members(self, inputs: Tensor) -> Tensor:
        """The members' outputs, (S, N, C)."""
        jacobian = linearise(self.network, inputs)
        return jacobian.outputs + jacobian.matvec(self.displacements)

    def sampled_outputs(self, inputs: Tensor) -> Iterator[Tensor]:
        yield self.members(inputs)
