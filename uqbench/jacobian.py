"""The Jacobian of a network's outputs in its parameters, as an operator.

J(x) = ∂f(x)/∂θ at the trained parameters. Rows are ordered by input, then output (i·C + c); columns
as ``parameters_to_vector`` of the trainable parameters.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.func import jacrev, jvp, vjp, vmap

from uqbench.errors import UnsupportedError
from uqbench.networks import (
    aliases,
    as_matrix,
    call_with,
    described,
    require_no_recurrence,
    trainable,
)
from uqbench.stacked import convolves_on_cpu

CHUNK_BYTES = 2**28
"""Size of the pieces, dense or factored, in which Jacobians of many inputs are worked on."""


def num_parameters(network: nn.Module) -> int:
    """p, the length of θ."""
    return sum(parameter.numel() for parameter in trainable(network).values())


class Jacobian(ABC):
    """J at a batch of inputs: an (N·C, p) matrix that need not be stored.

    outputs: f(θ̂, x), (N, C).
    num_parameters: p.
    """

    outputs: Tensor
    num_parameters: int

    @property
    def rows(self) -> int:
        """N·C."""
        return self.outputs.numel()

    @abstractmethod
    def matvec(self, tangents: Tensor) -> Tensor:
        """J V for tangents V (S, p) -> (S, N, C)."""

    @abstractmethod
    def rmatvec(self, cotangents: Tensor) -> Tensor:
        """Jᵀ u for cotangents u (S, N, C) -> (S, p)."""

    @abstractmethod
    def dense(self) -> Tensor:
        """J itself, (N·C, p)."""

    @property
    @abstractmethod
    def gram_operations(self) -> int:
        """Floating-point operations that :meth:`gram` takes, to leading order."""

    @abstractmethod
    def gram(self, other: Jacobian | None = None) -> Tensor:
        """J J'ᵀ, (N·C, N'·C), with J' the Jacobian at other inputs (default: the same)."""

    @abstractmethod
    def gram_blocks(self) -> Tensor:
        """The diagonal blocks K(x_i, x_i) of the Gram matrix, (N, C, C)."""


class AutogradJacobian(Jacobian):
    """The Jacobian of any network, by automatic differentiation.

    Raises UnsupportedError for recurrent layers, and for what torch cannot differentiate: a PReLU's
    dense Jacobian, and the products of a layer without forward differentiation.
    """

    def __init__(self, network: nn.Module, inputs: Tensor, outputs: Tensor | None = None) -> None:
        """outputs: the network's, where they are known."""
        require_no_recurrence(network)
        self._tied = aliases(network)
        self._network = network
        self._inputs = inputs
        self._parameters = trainable(network)
        self._sizes = [parameter.numel() for parameter in self._parameters.values()]
        self.num_parameters = sum(self._sizes)
        with torch.no_grad():
            self.outputs = as_matrix(network(inputs)) if outputs is None else outputs

    def _forward(self, inputs: Tensor) -> Callable[[dict[str, Tensor]], Tensor]:
        return lambda theta: call_with(self._network, theta, self._tied, inputs)

    def _unflatten(self, vector: Tensor) -> dict[str, Tensor]:
        parts = vector.split(self._sizes)
        named = zip(self._parameters.items(), parts, strict=True)
        return {name: part.view_as(parameter) for (name, parameter), part in named}

    def matvec(self, tangents: Tensor) -> Tensor:
        forward = self._forward(self._inputs)

        def push(tangent: Tensor) -> Tensor:
            return jvp(forward, (self._parameters,), (self._unflatten(tangent),))[1]

        try:
            return vmap(push)(tangents)
        except NotImplementedError as error:
            reason = str(error).partition("\n")[0]
            raise UnsupportedError(
                f"{described('', self._network)} cannot be linearised by torch: {reason}"
            ) from error

    def rmatvec(self, cotangents: Tensor) -> Tensor:
        if convolves_on_cpu(self._network):
            return self._one_by_one(cotangents)
        _, pull = vjp(self._forward(self._inputs), self._parameters)

        def flat(cotangent: Tensor) -> Tensor:
            (gradient,) = pull(cotangent)
            return torch.cat([part.reshape(-1) for part in gradient.values()])

        return vmap(flat)(cotangents)

    def _one_by_one(self, cotangents: Tensor) -> Tensor:
        """Jᵀ u by a backward pass for each u, in less memory and, with convolutions, time."""
        parameters = [p for p in self._network.parameters() if p.requires_grad]
        with torch.enable_grad():
            outputs = as_matrix(self._network(self._inputs))
        result = cotangents.new_empty(len(cotangents), self.num_parameters)
        for member, cotangent in enumerate(cotangents):
            parts = torch.autograd.grad(
                outputs,
                parameters,
                cotangent,
                retain_graph=member + 1 < len(cotangents),
                materialize_grads=True,
            )
            torch.cat([part.flatten() for part in parts], out=result[member])
        return result

    def dense(self) -> Tensor:
        return torch.cat(list(self._chunks())).flatten(0, 1)

    def _chunks(self) -> Iterator[Tensor]:
        """Yield J for consecutive inputs, (n, C, p), at most CHUNK_BYTES each."""
        for name, module in self._network.named_modules():
            if isinstance(module, nn.PReLU):
                raise UnsupportedError(
                    f"{described(name, module)}: torch cannot form its Jacobian; use another "
                    "activation, or a method and solver that need Jacobian products alone"
                )

        def single(theta: dict[str, Tensor], row: Tensor) -> Tensor:
            return self._forward(row.unsqueeze(0))(theta).squeeze(0)

        row_bytes = self.outputs.shape[1] * self.num_parameters * self.outputs.element_size()
        for inputs in self._inputs.split(max(CHUNK_BYTES // row_bytes, 1)):
            parts = vmap(jacrev(single), (None, 0))(self._parameters, inputs)
            yield torch.cat([part.reshape(*part.shape[:2], -1) for part in parts.values()], -1)

    @property
    def gram_operations(self) -> int:
        return 2 * self.rows**2 * self.num_parameters

    def gram(self, other: Jacobian | None = None) -> Tensor:
        other = self if other is None else other
        rows = []
        for left in self._chunks():
            left = left.flatten(0, 1)
            rows.append(torch.cat([left @ right.flatten(0, 1).mT for right in other._chunks()], 1))
        return torch.cat(rows)

    def gram_blocks(self) -> Tensor:
        return torch.cat([chunk @ chunk.mT for chunk in self._chunks()])
