"""The linearised network: Jacobian operators at fixed inputs.

With f the network, θ̂ its parameters and J(x) = ∂f(x)/∂θ at θ̂, the linearised network is
f̃(θ, x) = f(θ̂, x) + J(x)(θ − θ̂), and the empirical neural tangent kernel (NTK) is
K(x, x') = J(x)J(x')ᵀ (Jacot et al. 2018). :func:`linearise` returns the Jacobian at a batch of
inputs as an operator with products, Gram matrices and a dense form.

Rows of J are ordered by input, then output (i·C + c); columns as ``parameters_to_vector`` of the
trainable parameters. BatchNorm and dropout are linearised in eval mode: the caller passes a network
in eval mode.

Two implementations give the same numbers. :class:`FactoredJacobian` covers networks whose
parameters all sit in linear layers used once per input: there a layer's Jacobian is the outer
product of its input a and the backpropagated ∂f/∂h, so products are matrix products and n × p
entries are never formed. :class:`AutogradJacobian` covers every other network by forward- and
reverse-mode automatic differentiation.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import jacrev, jvp, vjp, vmap

from uqbench.errors import UnsupportedError
from uqbench.memory import available_bytes
from uqbench.networks import (
    aliases,
    as_matrix,
    call_with,
    described,
    dtype_of,
    is_tied,
    require_no_recurrence,
    trainable,
)
from uqbench.stacked import activations_per_row, is_multilayer_perceptron

GRAM_ROWS = 1024
"""Rows of a Gram matrix formed at a time: bounds the temporaries and keeps them in cache."""
CHUNK_BYTES = 2**28
"""Size of the dense Jacobian chunks that :class:`AutogradJacobian` works with."""


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


def linearise(network: nn.Module, inputs: Tensor) -> Jacobian:
    """Return the Jacobian operator of ``network`` (in eval mode) at ``inputs`` (N, ...)."""
    training = [name for name, module in network.named_modules() if module.training]
    if training:
        raise UnsupportedError(
            f"the network is in train mode (module '{training[0]}'); linearise it in eval mode"
        )
    inputs = inputs.to(dtype_of(network))
    if is_factorable(network, inputs):
        try:
            return FactoredJacobian(network, inputs)
        except NotFactorableError:
            pass
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

    A member needs, for each row, about four times the activations: those of the network, their
    tangents or cotangents, and as much for the layer at work. inputs: (N, ...), of which one is
    tried out.
    """
    row = inputs[:1].to(dtype_of(network))
    numbers = 4 * activations_per_row(network, row)
    budget = available_bytes(row.device) // 4 // max(numbers * row.element_size(), 1)
    at_a_time = min(max(budget, 1), rows)
    return Chunks(at_a_time, min(max(budget // at_a_time, 1), members))


def largest_ntk_eigenvalue(network: nn.Module, inputs: Tensor, chunk: int = 1000) -> float:
    """λ_max of J_Xᵀ J_X / n, by power iteration in parameter space to about 1%.

    Full-batch descent on the squared error is stable for lr < 2(1 + momentum)/λ_max; the
    cross-entropy's curvature is at most half of it.
    """
    operators = [linearise(network, batch) for batch in inputs.split(chunk)]
    first = operators[0]
    vector = first.rmatvec(torch.ones_like(first.outputs).unsqueeze(0))
    largest = 0.0
    for _ in range(50):
        norm = vector.norm()
        if norm == 0:
            return 0.0
        vector = sum(op.rmatvec(op.matvec(vector / norm)) for op in operators) / len(inputs)
        previous, largest = largest, vector.norm().item()
        if abs(largest - previous) < 1e-3 * largest:
            break
    return largest


@dataclass(frozen=True)
class _LayerFactors:
    """∂f_{nc}/∂W = backward_{nc} ⊗ inputs_n and ∂f_{nc}/∂b = backward_{nc}.

    inputs: (N, I), with a column of ones appended if the layer has a trainable bias.
    backward: (N, C, O).
    weight, bias: positions of the layer's parameters in θ (None: frozen or absent).
    """

    inputs: Tensor
    backward: Tensor
    weight: slice | None
    bias: slice | None

    def to_columns(self, tangents: Tensor) -> Tensor:
        """The layer's part of θ-space tangents (S, p) as (S, O, I)."""
        members, outputs = len(tangents), self.backward.shape[-1]
        parts = []
        if self.weight is not None:
            parts.append(tangents[:, self.weight].view(members, outputs, -1))
        if self.bias is not None:
            parts.append(tangents[:, self.bias].unsqueeze(-1))
        return torch.cat(parts, -1) if len(parts) > 1 else parts[0]

    def from_columns(self, columns: Tensor, tangents: Tensor) -> None:
        """Write the layer's (S, O, I) part into θ-space vectors (S, p)."""
        weights = columns
        if self.bias is not None:
            tangents[:, self.bias] = columns[..., -1]
            weights = columns[..., :-1]
        if self.weight is not None:
            tangents[:, self.weight] = weights.reshape(len(columns), -1)


class NotFactorableError(Exception):
    """A linear layer is not applied to one (N, I) matrix, once, in a forward pass."""


def is_factorable(network: nn.Module, inputs: Tensor) -> bool:
    """Whether all trainable parameters sit in linear layers, and the inputs are (N, I) matrices."""
    if inputs.ndim != 2 and not is_multilayer_perceptron(network):
        return False
    owners = [m for m in network.modules() if list(m.parameters(recurse=False))]
    plain = all(type(module) is nn.Linear for module in owners)
    simple = not any(True for _ in network.buffers())
    return plain and simple and not is_tied(network)


class FactoredJacobian(Jacobian):
    """The Jacobian of a multilayer perceptron, kept as each layer's two factors.

    Raises NotFactorableError for other networks.
    """

    @torch.enable_grad()
    def __init__(self, network: nn.Module, inputs: Tensor) -> None:
        self.num_parameters = num_parameters(network)
        layers, captured = _capture_linear_layers(network, inputs)
        outputs = self.outputs = captured.outputs.detach()
        per_output = [
            torch.autograd.grad(
                captured.outputs[:, c].sum(),
                captured.preactivations,
                retain_graph=c + 1 < outputs.shape[1],
            )
            for c in range(outputs.shape[1])
        ]
        self._layers = []
        for index, (weight, bias) in enumerate(layers.values()):
            if weight is None and bias is None:
                continue
            activations = captured.inputs[index]
            columns = [activations] if weight is not None else []
            if bias is not None:
                columns.append(torch.ones_like(activations[:, :1]))
            backward = torch.stack([gradients[index] for gradients in per_output], 1)
            self._layers.append(_LayerFactors(torch.cat(columns, 1), backward, weight, bias))

    def matvec(self, tangents: Tensor) -> Tensor:
        members, (rows, classes) = len(tangents), self.outputs.shape
        result = tangents.new_zeros(members, rows, classes)
        for layer in self._layers:
            columns = layer.to_columns(tangents)  # (S, O, I)
            pushed = layer.inputs @ columns.flatten(0, 1).mT  # (N, S·O)
            pushed = pushed.view(rows, members, -1)
            if classes == 1:
                result += (pushed * layer.backward).sum(-1).mT.unsqueeze(-1)
            else:
                result += (pushed @ layer.backward.mT).transpose(0, 1)  # (N, S, C)
        return result

    def rmatvec(self, cotangents: Tensor) -> Tensor:
        members, rows, classes = cotangents.shape
        result = cotangents.new_zeros(members, self.num_parameters)
        pulled_in = cotangents.transpose(0, 1)  # (N, S, C)
        for layer in self._layers:
            backward = layer.backward
            pulled = pulled_in * backward if classes == 1 else pulled_in @ backward  # (N, S, O)
            columns = pulled.reshape(rows, -1).mT @ layer.inputs  # (S·O, I)
            layer.from_columns(columns.view(members, -1, columns.shape[-1]), result)
        return result

    def dense(self) -> Tensor:
        rows, classes = self.outputs.shape
        result = self.outputs.new_zeros(rows * classes, self.num_parameters)
        for layer in self._layers:
            columns = layer.backward.flatten(0, 1).unsqueeze(-1) * (
                layer.inputs.repeat_interleave(classes, 0).unsqueeze(1)
            )
            layer.from_columns(columns, result)
        return result

    @property
    def gram_operations(self) -> int:
        widths = sum(layer.inputs.shape[1] + layer.backward.shape[2] for layer in self._layers)
        return 2 * self.rows**2 * widths

    def gram(self, other: Jacobian | None = None) -> Tensor:
        symmetric = other is None
        other = self if symmetric else other
        classes = self.outputs.shape[1]
        result = self.outputs.new_zeros(self.rows, other.rows)
        for start in range(0, len(self.outputs), GRAM_ROWS):
            stop = min(start + GRAM_ROWS, len(self.outputs))
            first = start if symmetric else 0
            rows, columns = slice(start * classes, stop * classes), slice(first * classes, None)
            block = result[rows, columns]
            for a, b in zip(self._layers, other._layers, strict=True):
                backward = (
                    a.backward[start:stop].flatten(0, 1) @ b.backward[first:].flatten(0, 1).mT
                )
                inner = a.inputs[start:stop] @ b.inputs[first:].mT
                if classes > 1:
                    inner = inner.repeat_interleave(classes, 0).repeat_interleave(classes, 1)
                block.addcmul_(backward, inner)
            if symmetric:
                below = slice(stop * classes, None)
                result[below, rows] = block[:, (stop - start) * classes :].mT
        return result

    def gram_blocks(self) -> Tensor:
        blocks = 0
        for layer in self._layers:
            scale = layer.inputs.square().sum(1).view(-1, 1, 1)
            blocks = blocks + scale * (layer.backward @ layer.backward.mT)
        return blocks


@dataclass
class _Captured:
    outputs: Tensor
    inputs: list[Tensor]
    preactivations: list[Tensor]


def _capture_linear_layers(
    network: nn.Module, inputs: Tensor
) -> tuple[dict[nn.Module, tuple[slice | None, slice | None]], _Captured]:
    """Run the network once; record each linear layer's input and output, and its place in θ.

    Raises NotFactorableError.
    """
    start, places = 0, {}
    for name, parameter in trainable(network).items():
        places[name] = slice(start, start + parameter.numel())
        start += parameter.numel()
    layers = {}
    for name, module in network.named_modules():
        if type(module) is nn.Linear:
            prefix = f"{name}." if name else ""
            layers[module] = (places.get(f"{prefix}weight"), places.get(f"{prefix}bias"))
    seen: dict[nn.Module, tuple[Tensor, Tensor]] = {}

    def record(module: nn.Module, arguments: tuple[Tensor, ...], output: Tensor) -> Tensor:
        if module in seen:
            raise NotFactorableError(f"{module} is used more than once in a forward pass")
        if output.ndim != 2 or len(output) != len(inputs):
            raise NotFactorableError(f"{module} gives outputs of shape {tuple(output.shape)}")
        output = output.detach().requires_grad_() if not output.requires_grad else output
        seen[module] = (arguments[0].detach(), output)
        # a copy goes on: an activation in place must not overwrite the recorded pre-activation
        return output.clone()

    handles = [module.register_forward_hook(record) for module in layers]
    try:
        outputs = as_matrix(network(inputs))
    finally:
        for handle in handles:
            handle.remove()
    unused = [module for module in layers if module not in seen]
    if unused:
        raise NotFactorableError(f"{unused[0]} is not used in the forward pass")
    ordered = [seen[module] for module in layers]
    return layers, _Captured(outputs, [a for a, _ in ordered], [h for _, h in ordered])


class AutogradJacobian(Jacobian):
    """The Jacobian of any network, by automatic differentiation.

    Raises UnsupportedError for recurrent layers, and for what torch cannot differentiate: a PReLU's
    dense Jacobian, and the products of a layer without forward differentiation.
    """

    def __init__(self, network: nn.Module, inputs: Tensor) -> None:
        require_no_recurrence(network)
        self._tied = aliases(network)
        self._network = network
        self._inputs = inputs
        self._parameters = trainable(network)
        self._sizes = [parameter.numel() for parameter in self._parameters.values()]
        self.num_parameters = sum(self._sizes)
        with torch.no_grad():
            self.outputs = as_matrix(network(inputs))

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
        _, pull = vjp(self._forward(self._inputs), self._parameters)

        def flat(cotangent: Tensor) -> Tensor:
            (gradient,) = pull(cotangent)
            return torch.cat([part.reshape(-1) for part in gradient.values()])

        return vmap(flat)(cotangents)

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
