"""Networks of one architecture with different parameters, run as one program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.func import jvp, vmap

from uqbench.architectures import ACTIVATIONS
from uqbench.errors import UnsupportedError
from uqbench.networks import aliases, call_with, is_tied, require_no_recurrence, trainable

CHUNK_BYTES = 2**26
"""Size of the activations of the networks that run at once."""

State = Mapping[str, Tensor]
"""Parameters and buffers by name, each with a leading axis of M networks."""


def is_multilayer_perceptron(network: nn.Module) -> bool:
    """Whether ``network`` is a sequence of distinct linear layers and elementwise activations.

    It may begin with flattening.
    """
    if type(network) is not nn.Sequential or is_tied(network):
        return False
    layers = list(network)
    if layers and type(layers[0]) is nn.Flatten:
        layers = layers[1:]
    return all(type(layer) in {nn.Linear, *ACTIVATIONS.values()} for layer in layers)


def convolves_on_cpu(network: nn.Module) -> bool:
    """Whether ``network`` has convolutions on a CPU.

    Those of several networks become one grouped convolution under ``vmap``, which is slow there:
    1.8 (LeNet5) to 3.5 (ResNet20) times the time of the networks one after another.
    """
    return any(
        isinstance(module, nn.modules.conv._ConvNd) and module.weight.device.type == "cpu"
        for module in network.modules()
    )


class StackedNetworks:
    """The forward passes of M networks that share ``template``'s architecture and mode.

    What the state leaves out (frozen parameters, buffers) is the template's own. Multilayer
    perceptrons run as batched matrix products, which cost less than the general ``vmap``; networks
    with convolutions run one after another on a CPU.

    Raises UnsupportedError for recurrent layers.
    """

    def __init__(self, template: nn.Module) -> None:
        self.template = template
        self._multilayer = is_multilayer_perceptron(template)
        self._one_by_one = convolves_on_cpu(template)
        require_no_recurrence(template)
        self._tied = aliases(template)

    def __call__(self, state: State, inputs: Tensor, shared: bool = True) -> Tensor:
        """Return the outputs (M, B, C).

        inputs: (B, ...), the same for all networks, or, if not ``shared``, (M, B, ...).
        Raises UnsupportedError if the networks are random in eval mode.
        """
        if self._multilayer:
            return self._products(state, inputs, shared)
        if self._one_by_one:
            return self._loop(state, inputs, shared)
        # functional dropout draws a mask for each network
        randomness = "different" if self.template.training else "error"
        stacked = vmap(self._single, (0, None if shared else 0), randomness=randomness)
        try:
            return stacked(dict(state), inputs)
        except RuntimeError as error:
            if "random operation" not in str(error):
                raise
            raise UnsupportedError(
                f"the network ({type(self.template).__name__}) draws random numbers in eval mode; "
                "give its functional dropout training=self.training, or use nn.Dropout"
            ) from None

    def _single(self, state: dict[str, Tensor], inputs: Tensor) -> Tensor:
        return call_with(self.template, state, self._tied, inputs)

    def _loop(self, state: State, inputs: Tensor, shared: bool) -> Tensor:
        outputs = []
        for member in range(len(next(iter(state.values())))):
            parameters = {name: stack[member] for name, stack in state.items()}
            outputs.append(self._single(parameters, inputs if shared else inputs[member]))
        return torch.stack(outputs)

    def _products(self, state: State, values: Tensor, shared: bool) -> Tensor:
        members = len(next(iter(state.values())))
        values = values.flatten(1).expand(members, -1, -1) if shared else values.flatten(2)
        for name, module in self.template.named_children():
            if isinstance(module, nn.Flatten):
                continue
            if not isinstance(module, nn.Linear):
                values = module(values)
                continue
            weight = state.get(f"{name}.weight", module.weight).expand(
                members, *module.weight.shape
            )
            if module.bias is None:
                values = torch.bmm(values, weight.mT)
            else:
                bias = state.get(f"{name}.bias", module.bias).expand(members, -1)
                values = torch.baddbmm(bias.unsqueeze(1), values, weight.mT)
        return values


def unflattened(network: nn.Module, vectors: Tensor) -> dict[str, Tensor]:
    """Split parameter vectors (M, p) into the trainable parameters' stacks, by name."""
    parameters = {n: p for n, p in network.named_parameters() if p.requires_grad}
    parts = vectors.split([p.numel() for p in parameters.values()], dim=1)
    named = zip(parameters.items(), parts, strict=True)
    return {name: part.view(len(vectors), *p.shape) for (name, p), part in named}


def flattened(state: Mapping[str, Tensor]) -> Tensor:
    """The inverse of :func:`unflattened`: stacks (M, ...) by name to vectors (M, p)."""
    return torch.cat([stack.reshape(len(stack), -1) for stack in state.values()], 1)


def stacked_parameters(networks: Sequence[nn.Module]) -> Tensor:
    """The trainable parameters of M networks as vectors (M, p)."""
    vectors = [
        torch.cat([parameter.flatten() for parameter in trainable(network).values()])
        for network in networks
    ]
    return torch.stack(vectors)


def stacked_buffers(networks: Sequence[nn.Module]) -> dict[str, Tensor]:
    """The buffers of M networks, (M, ...) by name."""
    return {
        name: torch.stack([dict(network.named_buffers())[name] for network in networks])
        for name, _ in networks[0].named_buffers()
    }


@torch.no_grad()
def jacobian_products(
    network: nn.Module, points: Tensor, tangents: Tensor, inputs: Tensor
) -> Tensor:
    """J(x, θ_m) v_m for each of M parameter vectors: points θ and tangents v (M, p), (M, N, C).

    J(x, θ) is the Jacobian of the outputs at x, inputs (N, ...), in the trainable parameters.
    """
    networks = StackedNetworks(network)
    size = members_at_a_time(network, inputs)
    parts = []
    for some_points, some_tangents in zip(points.split(size), tangents.split(size), strict=True):
        state = unflattened(network, some_points)
        direction = unflattened(network, some_tangents)
        parts.append(jvp(lambda at: networks(at, inputs), (state,), (direction,))[1])
    return torch.cat(parts)


def members_at_a_time(network: nn.Module, inputs: Tensor) -> int:
    """How many networks can run on ``inputs`` (B, ...) at once in CHUNK_BYTES of activations."""
    units = activations_per_row(network, inputs[:1])
    return max(CHUNK_BYTES // max(units * len(inputs) * inputs.element_size(), 1), 1)


@torch.no_grad()
def activations_per_row(network: nn.Module, row: Tensor) -> int:
    """How many numbers the modules of ``network`` put out for one input, row (1, ...)."""
    counts: list[int] = []

    def count(module: nn.Module, arguments: Sequence[Tensor], output: Tensor) -> None:
        counts.append(output.numel() if isinstance(output, Tensor) else 0)

    leaves = [module for module in network.modules() if not list(module.children())]
    handles = [module.register_forward_hook(count) for module in leaves]
    try:
        network(row)
    finally:
        for handle in handles:
            handle.remove()
    return sum(counts)
