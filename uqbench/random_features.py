"""Networks with a Gaussian process as the last layer, by lightning-uq-box's random features."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm

from uqbench.data import Split
from uqbench.errors import UnsupportedError, UsageError
from uqbench.networks import as_matrix, last_linear
from uqbench.streamed import rows_per_batch


class RandomFeatureNetwork(nn.Module):
    """``network`` with its last linear layer replaced by random features and a linear layer.

    φ(x) = √(2/D) cos(Wh(x)/l + b) has the expected inner products exp(−‖h − h′‖²/2l²), h(x) the
    input of the replaced layer (Rahimi & Recht 2007, orthogonal W: Yu et al. 2016). The outputs are
    βᵀφ, with β = 0 at first. W and b are drawn from the global generator.

    features: D. normalise: whether h is shifted to mean 0 and scaled to length 1.
    inputs: a few, to try out; ``network`` is in eval mode.

    Raises UnsupportedError, which names the layer, if the last linear layer's output is not the
    network's, and UsageError if there is nothing to normalise.
    """

    def __init__(
        self,
        network: nn.Module,
        inputs: Tensor,
        features: int,
        length_scale: float,
        normalise: bool,
    ) -> None:
        from lightning_uq_box.uq_methods.sngp import RandomFourierFeatures

        super().__init__()
        name, head = last_linear(network, inputs)
        if normalise and head.in_features == 1:
            raise UsageError(
                f"sngp.normalise: layer '{name}' has one input, of which nothing would be left; "
                "set it to false"
            )
        self.body = _without(network, name)
        _require_output_layer(network, self.body, name, head, inputs)
        self.length_scale = length_scale
        self.normalise = normalise
        # its default scale is the one that makes the kernel's variance 1
        self.random = RandomFourierFeatures(head.in_features, features).to(head.weight)
        self.output = nn.Linear(features, head.out_features, bias=False).to(head.weight)
        nn.init.zeros_(self.output.weight)

    def features(self, inputs: Tensor) -> Tensor:
        """φ at ``inputs`` (N, ...), (N, D)."""
        hidden = self.body(inputs)
        if self.normalise:
            width = hidden.shape[1]
            hidden = layer_norm(hidden, (width,)) / width**0.5
        return self.random(hidden / self.length_scale)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.output(self.features(inputs))


@torch.no_grad()
def features_in_batches(
    network: RandomFeatureNetwork, split: Split
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the features (B, D) of batches of ``split``, in double precision, and the targets."""
    rows = rows_per_batch(split.inputs)
    for inputs, targets in zip(split.inputs.split(rows), split.targets.split(rows), strict=True):
        yield network.features(inputs).double(), targets


def _without(network: nn.Module, name: str) -> nn.Module:
    """A copy of ``network`` with the module ``name`` replaced by the identity."""
    if not name:
        return nn.Identity()
    copied = copy.deepcopy(network)
    parent, _, child = name.rpartition(".")
    setattr(copied.get_submodule(parent), child, nn.Identity())
    return copied


@torch.no_grad()
def _require_output_layer(
    network: nn.Module, body: nn.Module, name: str, head: nn.Linear, inputs: Tensor
) -> None:
    some = inputs[:3]
    try:
        same = torch.allclose(as_matrix(network(some)), head(body(some)), rtol=1e-3, atol=1e-5)
    except RuntimeError:  # the shapes do not fit
        same = False
    if not same:
        raise UnsupportedError(
            f"sngp: the last linear layer, '{name}', must compute the network's output (N, C) from "
            "an input (N, width), and nothing may come after it"
        )
