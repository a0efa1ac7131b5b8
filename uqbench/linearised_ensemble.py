"""The posterior of linearised ensembles: members f̃(θ̂ + Δ_s, ·) around one network."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from uqbench.linearised import chunks_in_memory, linearise
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
        return torch.cat(list(self.sampled_outputs(inputs)))

    def sampled_outputs(self, inputs: Tensor) -> Iterator[Tensor]:
        count = len(self.displacements)
        jacobian = linearise(self.network, inputs)
        chunks = chunks_in_memory(self.network, inputs, len(inputs), count)
        for members in chunks.members_of(count):
            yield jacobian.outputs + jacobian.matvec(self.displacements[members])
