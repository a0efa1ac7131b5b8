"""Mean-field Gaussians over a network's weights, drawn in bayesian-torch's layers."""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from uqbench.errors import UnsupportedError
from uqbench.networks import described, is_tied, trainable


def divergence(
    means: Tensor, deviations: Tensor, prior_mean: float, prior_deviation: float
) -> Tensor:
    """KL(N(μ, diag s²) ‖ N(prior_mean, prior_deviation² I)) in nats; μ and s are (..., p).

    Σ_j log(s_p/s_j) + (s_j² + (μ_j − μ_p)²)/2s_p² − ½.
    """
    squares = deviations.square() + (means - prior_mean).square()
    terms = squares / (2 * prior_deviation**2) - deviations.log()
    return terms.sum(-1) + means.shape[-1] * (math.log(prior_deviation) - 0.5)


class MeanFieldNetwork(nn.Module):
    """A copy of a network, with bayesian-torch's layers in place of its trainable ones.

    It draws its weights from the global generator at each forward pass. Frozen layers stay.
    """

    def __init__(self, network: nn.Module, layer_settings: Mapping[str, Any]) -> None:
        from bayesian_torch.models.dnn_to_bnn import bnn_conv_layer, bnn_linear_layer

        super().__init__()
        self.network = copy.deepcopy(network)
        convert = {nn.Linear: bnn_linear_layer, nn.Conv2d: bnn_conv_layer}
        for name, layer in list(self.named_modules()):
            if type(layer) in convert and layer.weight.requires_grad:
                replacement = convert[type(layer)](layer_settings, layer).to(layer.weight)
                parent, _, child = name.rpartition(".")
                setattr(self.get_submodule(parent), child, replacement)
        # of the mean and the ρ of each parameter of the original network
        self._names: list[tuple[str, str]] = []
        for name in trainable(network):
            layer, _, kind = f"network.{name}".rpartition(".")
            if hasattr(self.get_submodule(layer), f"mu_{kind}"):
                self._names.append((f"{layer}.mu_{kind}", f"{layer}.rho_{kind}"))
            else:
                self._names.append((f"{layer}.mu_kernel", f"{layer}.rho_kernel"))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.network(inputs)

    def moments(self, parameters: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """μ and s, (m, p), from stacks (m, ...) of this network's parameters by name."""
        means = torch.cat([parameters[mean].flatten(1) for mean, _ in self._names], 1)
        rhos = torch.cat([parameters[rho].flatten(1) for _, rho in self._names], 1)
        return means, softplus(rhos)

    @torch.no_grad()
    def sampled(self, draws: Tensor) -> Tensor:
        """Weight vectors (S, p) of the original network, for standard normal ``draws`` (S, p)."""
        means, deviations = self.moments({n: p.unsqueeze(0) for n, p in self.named_parameters()})
        return means + deviations * draws


def require_supported(network: nn.Module, inputs: Tensor) -> None:
    """Raise UnsupportedError, which names the module, unless the network can be converted.

    Its trainable parameters must be those of whole linear and two-dimensional convolution layers,
    each used once per forward pass, and no statistics may depend on the weights drawn.
    """
    if is_tied(network):
        raise UnsupportedError("vi: the network has tied parameters; give each layer its own")
    used: Counter[str] = Counter()
    handles = []
    for name, module in network.named_modules():
        layer = f"vi: {described(name, module)}"
        own = [parameter.requires_grad for parameter in module.parameters(recurse=False)]
        if getattr(module, "track_running_stats", False):
            raise UnsupportedError(
                f"{layer} keeps statistics of layers whose weights are random; remove it"
            )
        if not any(own):
            continue
        if type(module) not in {nn.Linear, nn.Conv2d}:
            raise UnsupportedError(
                f"{layer} has no variational counterpart: use Linear and Conv2d, or freeze it"
            )
        if not all(own):
            raise UnsupportedError(f"{layer} is frozen in part; freeze all of it or nothing")
        if getattr(module, "padding_mode", "zeros") != "zeros":
            raise UnsupportedError(f"{layer} has padding_mode '{module.padding_mode}', not zeros")
        handles.append(module.register_forward_hook(lambda *_, layer=layer: used.update([layer])))
    try:
        with torch.no_grad():
            network(inputs[:1])
    finally:
        for handle in handles:
            handle.remove()
    for layer, count in used.items():
        if count > 1:
            raise UnsupportedError(f"{layer} is used {count} times in a forward pass, not once")
