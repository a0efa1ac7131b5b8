"""Networks in training with bounded spectral norms, by lightning-uq-box's layers.

A weight W counts as W · min(1, c/‖W‖) with ‖W‖ its spectral norm, of a convolution that of the
linear map on inputs of the size seen, estimated by one step of the power iteration for each forward
pass (Miyato et al. 2018, Gouk et al. 2021).
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn.utils import remove_spectral_norm
from torch.nn.utils.spectral_norm import SpectralNorm

from uqbench.errors import UnsupportedError

POWER_ITERATIONS = 100
"""Steps from the estimate that training leaves to the one that counts after it."""


def bound_spectral_norms(network: nn.Module, coefficient: float, inputs: Tensor) -> None:
    """Bound the trainable layers' spectral norms by ``coefficient`` = c from now on, in place.

    Frozen layers, normalisation layers and biases stay as they are. The power iterations start from
    the global generator. inputs: (N, ...) of the size that the network will be used on; network: in
    eval mode.

    Raises UnsupportedError, which names the module, for other layers than Linear and Conv2d, and
    for convolutions that lightning-uq-box does not normalise.
    """
    from lightning_uq_box.uq_methods.spectral_normalized_layers import spectral_norm_fc

    sizes = _input_sizes(network, inputs)
    for name, layer in list(network.named_modules()):
        own = layer.named_parameters(recurse=False)
        if all(p.ndim < 2 or not p.requires_grad for _, p in own):
            continue
        if type(layer) is nn.Linear:
            spectral_norm_fc(layer, coefficient)
            layer.to(layer.weight)
        elif type(layer) is nn.Conv2d and name in sizes:
            _bound_convolution(name, layer, coefficient, sizes[name])
        else:
            raise UnsupportedError(
                f"sngp: layer '{name}' ({type(layer).__name__}) cannot be normalised spectrally: "
                "use Linear and Conv2d, or freeze it"
            )


def keep_bounded_weights(network: nn.Module) -> None:
    """Undo :func:`bound_spectral_norms`, in place: what is left are plain, bounded weights."""
    for module in network.modules():
        for hook in list(module._forward_pre_hooks.values()):
            if isinstance(hook, SpectralNorm):
                hook.n_power_iterations = POWER_ITERATIONS
                hook.compute_weight(module, do_power_iteration=True)
                remove_spectral_norm(module)
                del module.weight_sigma


def _bound_convolution(name: str, layer: nn.Conv2d, coefficient: float, size: torch.Size) -> None:
    from lightning_uq_box.uq_methods.spectral_normalized_layers import spectral_norm_conv

    original = copy.deepcopy(layer)
    # where these do not hold, the library computes another convolution's norm and says nothing
    supported = set(layer.dilation) == {1} and layer.padding_mode == "zeros"
    supported = supported and all(side % 2 for side in layer.kernel_size)
    try:
        if supported:
            # the library's power iteration starts in single precision on the CPU
            spectral_norm_conv(layer.float().cpu(), coefficient, size)
            (hook,) = layer._forward_pre_hooks.values()
            hook.compute_weight(layer, do_power_iteration=True)
    except RuntimeError:  # the shapes of the map and its transpose do not fit
        supported = False
    if not supported:
        raise UnsupportedError(
            f"sngp: layer '{name}' ({original}): lightning-uq-box normalises convolutions of "
            "stride 1 or 2 with odd kernels, zeros as padding, no groups and no dilation"
        )
    layer.to(original.weight)
    with torch.no_grad():
        layer.weight_orig.copy_(original.weight)
        if original.bias is not None:
            layer.bias.copy_(original.bias)


@torch.no_grad()
def _input_sizes(network: nn.Module, inputs: Tensor) -> dict[str, torch.Size]:
    """The sizes (C, H, W) of the inputs of two-dimensional convolutions, by name."""
    sizes: dict[str, torch.Size] = {}
    convolutions = {m: n for n, m in network.named_modules() if isinstance(m, nn.Conv2d)}

    def record(module: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        sizes[convolutions[module]] = arguments[0].shape[1:]

    handles = [module.register_forward_pre_hook(record) for module in convolutions]
    try:
        network(inputs[:1])
    finally:
        for handle in handles:
            handle.remove()
    return sizes
