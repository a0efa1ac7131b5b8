import copy
from dataclasses import dataclass

import torch

from uqbench.methods.map import MAP


@dataclass(frozen=True)
class DrawsFromTheGlobalGenerator(MAP):
    """Perturbs a copy's weights with torch.randn, without context.generator."""

    deterministic = frozenset()

    @torch.no_grad()
    def fit(self, problem, data, network, context):
        member = copy.deepcopy(network)
        for weight in member.parameters():
            weight.mul_(1 + 0.1 * torch.randn(weight.shape))
        return super().fit(problem, data, member, context)
