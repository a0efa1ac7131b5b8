"""Dropout layers whose masks can be held, so that a sub-network is the same for all inputs."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence

import torch
from torch import Generator, Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from uqbench.errors import UnsupportedError
from uqbench.networks import described, isolated_randomness

CHANNELWISE = {nn.Dropout1d, nn.Dropout2d, nn.Dropout3d}


class MaskedDropout(nn.Module):
    """A dropout layer that takes its masks from ``masks``, one for each call, where there are any.

    A mask (S, ...) turns rows (N, ...), or rows (S·N, ...) sample by sample, into (S·N, ...).
    """

    def __init__(self, dropout: _DropoutNd) -> None:
        super().__init__()
        self.dropout = dropout
        self.masks: Iterator[Tensor] | None = None
        self.rows = 0

    def forward(self, inputs: Tensor) -> Tensor:
        if self.masks is None:
            return self.dropout(inputs)
        grouped = inputs.unflatten(0, (-1, self.rows))  # (1, N, ...) or (S, N, ...)
        return (grouped * next(self.masks).unsqueeze(1)).flatten(0, 1)


def with_dropout(network: nn.Module, p: float, inputs: Tensor) -> nn.Module:
    """Return a copy, in eval mode, whose dropout layers are masked.

    A network without dropout (of p > 0) gets a layer before its last linear layer, the last one
    that the forward pass of ``inputs`` uses. Raises UnsupportedError if there is none or if it is
    used twice, for dropout that does not multiply by a mask, and for randomness outside of dropout
    layers.
    """
    used = linear_layers_in_use(network, inputs)
    copied = copy.deepcopy(network)
    modules = dict(copied.named_modules())
    dropout = {n: m for n, m in modules.items() if isinstance(m, _DropoutNd) and m.p > 0}
    for name, module in dropout.items():
        if type(module) not in {nn.Dropout, *CHANNELWISE}:
            raise UnsupportedError(
                f"{described(name, module)} does not multiply by a mask, as nn.Dropout does; "
                "it cannot be kept on: replace it"
            )
    if dropout:
        replacements = {module: MaskedDropout(module) for module in dropout.values()}
    elif not used:
        raise UnsupportedError(
            f"{described('', network)} has neither dropout nor a linear layer to put it before"
        )
    else:
        last = modules[used[-1]]
        if used.count(used[-1]) > 1:
            raise UnsupportedError(
                f"{described(used[-1], last)} is used more than once in a forward pass; the last "
                "linear layer, before which dropout goes, must be used once"
            )
        replacements = {last: nn.Sequential(MaskedDropout(nn.Dropout(p)), last)}
    if copied in replacements:
        return replacements[copied].eval()
    for name, module in list(copied.named_modules(remove_duplicate=False)):
        if module in replacements:
            parent, _, child = name.rpartition(".")
            setattr(copied.get_submodule(parent), child, replacements[module])
    return copied.eval()


def linear_layers_in_use(network: nn.Module, inputs: Tensor) -> list[str]:
    """Names of the linear layers in the order in which a forward pass in train mode uses them.

    Raises UnsupportedError if a module other than a dropout layer draws random numbers.
    """
    probe = copy.deepcopy(network).train()
    names: list[str] = []
    states: list[Tensor] = []

    def before(module: nn.Module, arguments: Sequence[Tensor]) -> None:
        states.append(_random_state(inputs.device))

    def after(name: str, module: nn.Module) -> None:
        if not torch.equal(states.pop(), _random_state(inputs.device)):
            raise UnsupportedError(
                f"{described(name, module)} draws random numbers in its forward pass, as "
                "functional dropout does; only layers like nn.Dropout can be kept on: use these"
            )
        if isinstance(module, nn.Linear):
            names.append(name)

    for name, module in probe.named_modules():
        if isinstance(module, _DropoutNd | nn.modules.batchnorm._BatchNorm):
            module.eval()  # BatchNorm takes no single row in train mode
        module.register_forward_pre_hook(before)
        module.register_forward_hook(lambda module, _, __, name=name: after(name, module))
    with torch.no_grad(), isolated_randomness(0):
        probe(inputs)
    return names


def _random_state(device: torch.device) -> Tensor:
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


@torch.no_grad()
def draw_masks(
    network: nn.Module, inputs: Tensor, samples: int, generator: Generator
) -> list[tuple[str, Tensor]]:
    """Draw masks (S, ...) for each call of a masked layer in a forward pass of ``inputs``.

    network: as :func:`with_dropout` returns it, in eval mode. Returns the name of the layer and the
    masks of each call, in order.
    Raises UnsupportedError if there is no such call, or one whose first axis is not the rows'.
    """
    calls: list[tuple[str, Tensor]] = []

    def draw(layer: MaskedDropout, arguments: tuple[Tensor]) -> None:
        (values,) = arguments
        if len(values) != len(inputs):
            raise UnsupportedError(
                f"{described(names[layer], layer.dropout)} is called with shape "
                f"{tuple(values.shape)} for {len(inputs)} inputs; masks need one row for each input"
            )
        shape = values.shape[1:]
        if type(layer.dropout) in CHANNELWISE:
            shape = (shape[0], *[1] * (len(shape) - 1))
        draws = torch.rand(
            samples, *shape, generator=generator, device=values.device, dtype=values.dtype
        )
        p = layer.dropout.p
        calls.append((names[layer], (draws >= p).to(values.dtype) / (1 - p)))

    names = {m: name for name, m in network.named_modules() if isinstance(m, MaskedDropout)}
    handles = [layer.register_forward_pre_hook(draw) for layer in names]
    try:
        network(inputs)
    finally:
        for handle in handles:
            handle.remove()
    if not calls:
        raise UnsupportedError(f"{described('', network)} does not use its dropout layers")
    return calls
