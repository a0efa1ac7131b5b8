"""Statistics of BatchNorm layers under other parameters than those they were trained with."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from uqbench.data import Split
from uqbench.stacked import unflattened
from uqbench.streamed import gathered
from uqbench.training import batch_bounds


@torch.no_grad()
def refreshed_statistics(
    network: nn.Module, samples: Tensor, split: Split, batch_size: int
) -> dict[str, Tensor]:
    """The running statistics for each parameter vector of ``samples`` (S, p): (S, ...) by name.

    They are the averages of the statistics of all batches of ``split``, in its order. All other
    modules are in the mode that they have in ``network``. Empty without BatchNorm layers.
    """
    network = copy.deepcopy(network)
    layers = {
        name: module
        for name, module in network.named_modules()
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.track_running_stats
    }
    stacks: dict[str, list[Tensor]] = {
        f"{name}.{buffer}" if name else buffer: []
        for name, layer in layers.items()
        for buffer, _ in layer.named_buffers()
    }
    if not stacks:
        return {}
    for layer in layers.values():
        layer.train()
        layer.momentum = None  # the average of all batches, not one that forgets the first
    batches = [slice(*bounds) for bounds in batch_bounds(len(split), batch_size)]
    parameters, buffers = dict(network.named_parameters()), dict(network.named_buffers())
    for sample in samples:
        for name, value in unflattened(network, sample.unsqueeze(0)).items():
            parameters[name].copy_(value[0])
        for layer in layers.values():
            layer.reset_running_stats()
        for inputs in gathered(split.inputs, batches):
            network(inputs)
        for name, stack in stacks.items():
            stack.append(buffers[name].clone())
    return {name: torch.stack(stack) for name, stack in stacks.items()}
