from dataclasses import dataclass

import torch

from uqbench.methods.map import MAP


@dataclass(frozen=True)
class ChangesTheNetwork(MAP):
    """Shrinks the weights of the network that it was given, instead of a copy's."""

    @torch.no_grad()
    def fit(self, problem, data, network, context):
        for weight in network.parameters():
            weight.mul_(0.9)
        return super().fit(problem, data, network, context)
