"""The linearised network: Jacobian operators at fixed inputs.

With f the network, θ̂ its parameters and J(x) = ∂f(x)/∂θ at θ̂, the linearised network is
f̃(θ, x) = f(θ̂, x) + J(x)(θ − θ̂), and the empirical neural tangent kernel (NTK) is
K(x, x') = J(x)J(x')ᵀ (Jacot et al. 2018). :func:`linearise` returns the Jacobian at a batch of
inputs as an operator with products, Gram matrices and a dense form.

Rows of J are ordered by input, then output (i·C + c); columns as ``parameters_to_vector`` of the
trainable parameters. BatchNorm and dropout are linearised in eval mode: the caller passes a network
in eval mode.

The implementations give the same numbers. Networks whose trainable parameters all sit in linear
layers, convolutions and batch normalisations that are each used once are differentiated layer by
layer: multilayer perceptrons at all rows at once (:class:`FactoredJacobian`), others in blocks of
rows (:class:`BlockwiseJacobian`). :class:`AutogradJacobian` covers every other network by forward-
and reverse-mode automatic differentiation.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from uqbench.errors import UnsupportedError
from uqbench.factored_jacobian import (
    BlockwiseJacobian,
    FactoredJacobian,
    NotFactorableError,
    sizes_of,
)
from uqbench.jacobian import CHUNK_BYTES, AutogradJacobian, Jacobian, num_parameters
from uqbench.memory import available_bytes
from uqbench.networks import dtype_of
from uqbench.stacked import activations_per_row
from uqbench.streamed import Inputs, in_batches

__all__ = [
    "CHUNK_BYTES",
    "AutogradJacobian",
    "BlockwiseJacobian",
    "Chunks",
    "FactoredJacobian",
    "Jacobian",
    "chunks_in_memory",
    "largest_ntk_eigenvalue",
    "linearise",
    "num_parameters",
]


def linearise(network: nn.Module, inputs: Tensor) -> Jacobian:
    """Return the Jacobian operator of ``network`` (in eval mode) at ``inputs`` (N, ...)."""
    training = [name for name, module in network.named_modules() if module.training]
    if training:
        raise UnsupportedError(
            f"the network is in train mode (module '{training[0]}'); linearise it in eval mode"
        )
    inputs = inputs.to(dtype_of(network))
    layers = [m for m in network.modules() if list(m.parameters(recurse=False))]
    linear = all(isinstance(layer, nn.Linear) for layer in layers)
    try:
        return (FactoredJacobian if linear else BlockwiseJacobian)(network, inputs)
    except NotFactorableError:
        return AutogradJacobian(network, inputs)


@dataclass(frozen=True)
class Chunks:
    """How much of a batch of Jacobian products is computed at a time: rows, and members (S)."""

    rows: int
    members: int

    def members_of(self, count: int) -> list[slice]:
        """The members 0..count-1, a chunk at a time."""
        return [slice(start, start + self.members) for start in range(0, count, self.members)]


def chunks_in_memory(network: nn.Module, inputs: Tensor, rows: int, members: int) -> Chunks:
    """The largest chunks of a batch of ``rows`` whose products fit in a quarter of the free memory.

    Where the layers' factors are formed, all members share them. Else a member needs, for each row,
    about four times the activations: those of the network, their tangents or cotangents, and as
    much for the layer at work. inputs: (N, ...), of which one is tried out.
    """
    row = inputs[:1].to(dtype_of(network))
    jacobian = linearise(network, row)
    budget = available_bytes(row.device) // 4 // row.element_size()
    if isinstance(jacobian, AutogradJacobian):
        shared, own = 0, 4 * activations_per_row(network, row)
    else:
        sizes, outputs = sizes_of(network, row), jacobian.outputs.shape[1]
        by_layers = isinstance(jacobian, FactoredJacobian) or outputs <= 2 * members
        shared, own = (sizes.row, sizes.member) if by_layers else (0, sizes.autograd)
    at_a_time = min(max(budget // (shared + own * members), 1), rows)
    left = budget - at_a_time * shared
    return Chunks(at_a_time, min(max(left // (at_a_time * own), 1), members))


def largest_ntk_eigenvalue(network: nn.Module, inputs: Inputs, chunk: int = 1000) -> float:
    """λ_max of J_Xᵀ J_X / n, by power iteration in parameter space to about 1%.

    Full-batch descent on the squared error is stable for lr < 2(1 + momentum)/λ_max; the
    cross-entropy's curvature is at most half of it.
    """
    # an operator keeps its inputs: those at streamed ones are made anew in each iteration
    batches = inputs.split(chunk) if isinstance(inputs, Tensor) else in_batches(inputs)
    kept = [linearise(network, inputs)] if isinstance(inputs, Tensor) else None
    if kept and isinstance(kept[0], AutogradJacobian):
        kept = [linearise(network, batch) for batch in batches]

    def operators() -> Iterable[Jacobian]:
        return kept or (linearise(network, batch) for batch in batches)

    first = next(iter(operators()))
    vector = first.rmatvec(torch.ones_like(first.outputs).unsqueeze(0))
    largest = 0.0
    for _ in range(50):
        norm = vector.norm()
        if norm == 0:
            return 0.0
        vector = sum(op.rmatvec(op.matvec(vector / norm)) for op in operators()) / len(inputs)
        previous, largest = largest, vector.norm().item()
        if abs(largest - previous) < 1e-3 * largest:
            break
    return largest
