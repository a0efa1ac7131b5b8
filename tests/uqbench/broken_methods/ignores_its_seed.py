import copy
from dataclasses import dataclass

import torch

from uqbench.methods.map import MAP


@dataclass(frozen=True)
class IgnoresItsSeed(MAP):
    """Perturbs a copy's weights with a generator of its own, whose seed is always 0."""

    deterministic = frozenset()

    @torch.no_grad()
    def fit(self, problem, data, network, context):
        generator = torch.Generator().manual_seed(0)
        member = copy.deepcopy(network)
        for weight in member.parameters():
            weight.mul_(1 + 0.1 * torch.randn(weight.shape, generator=generator))
        return super().fit(problem, data, member, context)
