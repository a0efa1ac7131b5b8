"""BatchEnsemble (Wen, Tran & Ba 2020): M networks that share all weights but rank-1 factors.

Member m's weight is W ∘ s_m r_mᵀ with W shared. Since (W ∘ s_m r_mᵀ)x = s_m ∘ W(r_m ∘ x), all
members run as one network on rows (M·B, ...): the batch, once for each member.
"""

from __future__ import annotations

import copy
from typing import Literal

import torch
from torch import Generator, Tensor, nn

from uqbench.errors import UnsupportedError
from uqbench.networks import as_matrix, described


class BatchEnsembleLayer(nn.Module):
    """y = s_m ∘ W(r_m ∘ x) + b_m, with W a linear or convolution layer's weight.

    Rows (M·B, ...) come and go member by member. In a convolution, of any stride, padding,
    dilation and groups, r_m and s_m act on channels.

    The layer is taken over: it keeps its weight, and its bias becomes the members'.

    input_factors: r (M, I); output_factors: s (M, O); both are 1 at first.
    bias: b (M, O), or None.
    """

    def __init__(self, layer: nn.Linear | nn.Conv2d, members: int) -> None:
        super().__init__()
        self.members = members
        if isinstance(layer, nn.Linear):
            inputs, outputs = layer.in_features, layer.out_features
        else:
            inputs, outputs = layer.in_channels, layer.out_channels
        self.input_factors = nn.Parameter(layer.weight.new_ones(members, inputs))
        self.output_factors = nn.Parameter(layer.weight.new_ones(members, outputs))
        self.bias = None
        if layer.bias is not None:
            copies = layer.bias.detach().repeat(members, 1)
            self.bias = nn.Parameter(copies, requires_grad=layer.bias.requires_grad)
        self.shared = layer
        self.shared.bias = None

    def forward(self, inputs: Tensor) -> Tensor:
        grouped = inputs.unflatten(0, (self.members, -1))
        if grouped.ndim == 3 and self._weights_are_cheaper(rows=grouped.shape[1]):
            return self._with_weights(grouped).flatten(0, 1)
        scaled = grouped * self._aligned(self.input_factors, grouped)
        outputs = self.shared(scaled.flatten(0, 1)).unflatten(0, (self.members, -1))
        factors = self._aligned(self.output_factors, outputs)
        if self.bias is None:
            return (outputs * factors).flatten(0, 1)
        bias = self._aligned(self.bias, outputs)
        return torch.addcmul(bias, outputs, factors).flatten(0, 1)

    def _weights_are_cheaper(self, rows: int) -> bool:
        """Whether the members' weights have fewer entries than their inputs and outputs."""
        inputs, outputs = self.input_factors.shape[1], self.output_factors.shape[1]
        return inputs * outputs < rows * (inputs + outputs)

    def _with_weights(self, grouped: Tensor) -> Tensor:
        """The outputs of a linear layer, (M, B, O), with the members' weights formed."""
        rank_one = self.output_factors.unsqueeze(2) * self.input_factors.unsqueeze(1)
        weights = self.shared.weight * rank_one  # (M, O, I)
        if self.bias is None:
            return torch.bmm(grouped, weights.mT)
        return torch.baddbmm(self.bias.unsqueeze(1), grouped, weights.mT)

    def _aligned(self, values: Tensor, grouped: Tensor) -> Tensor:
        """Give (M, K) the axes of ``grouped``: (M, B, ..., K), or (M, B, K, H, W)."""
        if isinstance(self.shared, nn.Linear):
            return values.view(self.members, *[1] * (grouped.ndim - 2), -1)
        return values.view(self.members, 1, -1, 1, 1)


class BatchEnsembleNetwork(nn.Module):
    """A copy of ``network`` as a BatchEnsemble; with factors of 1 each member is that network.

    Maps inputs (B, ...) to the members' outputs side by side, (B, M·C); every member sees every
    input. All linear layers and two-dimensional convolutions get factors and biases of their own
    for each member. BatchNorm is shared: its statistics are those of all members' rows. Layers
    with a frozen weight stay as they are.

    Raises UnsupportedError for any other module with trainable parameters.
    """

    def __init__(self, network: nn.Module, members: int) -> None:
        super().__init__()
        self.members = members
        self.network = copy.deepcopy(network)
        converted: dict[nn.Module, BatchEnsembleLayer] = {}
        for name, module in list(self.network.named_modules(remove_duplicate=False)):
            if not any(p.requires_grad for p in module.parameters(recurse=False)):
                continue
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                continue
            if type(module) not in {nn.Linear, nn.Conv2d}:
                raise UnsupportedError(
                    f"{described(name, module)} has parameters and no BatchEnsemble form; it "
                    "covers Linear and Conv2d, and shares BatchNorm: replace or freeze it"
                )
            if not module.weight.requires_grad:
                continue
            if module not in converted:
                converted[module] = BatchEnsembleLayer(module, members)
            parent, _, child = f"network.{name}".rstrip(".").rpartition(".")
            setattr(self.get_submodule(parent), child, converted[module])

    def forward(self, inputs: Tensor) -> Tensor:
        copies = inputs.repeat(self.members, *[1] * (inputs.ndim - 1))
        outputs = as_matrix(self.network(copies)).unflatten(0, (self.members, -1))
        return outputs.movedim(0, 1).flatten(1)

    def by_member(self, outputs: Tensor) -> Tensor:
        """Outputs (..., B, M·C) of :meth:`forward` as (..., M, B, C)."""
        return outputs.unflatten(-1, (self.members, -1)).movedim(-2, -3)

    @property
    def layers(self) -> dict[str, BatchEnsembleLayer]:
        """The converted layers, by name."""
        modules = self.named_modules()
        return {name: m for name, m in modules if isinstance(m, BatchEnsembleLayer)}

    @torch.no_grad()
    def draw_factors(
        self, scheme: Literal["signs", "normal"], deviation: float, generator: Generator
    ) -> None:
        """Draw all r and s: random signs, or N(1, deviation²)."""
        for layer in self.layers.values():
            for factors in (layer.input_factors, layer.output_factors):
                if scheme == "signs":
                    factors.bernoulli_(0.5, generator=generator).mul_(2).sub_(1)
                else:
                    factors.normal_(1, deviation, generator=generator)

    def decay_shares(self) -> dict[str, float]:
        """The weight of each parameter's square in the mean over members of their L2 penalties.

        By name: 1 for what is shared, 1/M for a member's bias. The factors are not penalised, as
        in Wen et al.'s code: they would be drawn from 1 towards 0.
        """
        shares = {name: 1.0 for name, p in self.named_parameters() if p.requires_grad}
        for name, layer in self.layers.items():
            del shares[f"{name}.input_factors"], shares[f"{name}.output_factors"]
            if f"{name}.bias" in shares:
                shares[f"{name}.bias"] = 1 / layer.members
        return shares
