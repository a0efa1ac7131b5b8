"""The Jacobian of networks of linear layers, convolutions and batch normalisations, layer by layer.

One forward pass records each layer's input a and output h; one backward pass for each of the C
outputs gives G = ∂f/∂h of all layers. All else is matrix products of these (see
:mod:`uqbench.layer_jacobian`): products with the Jacobian at many members, its Gram matrix, J.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from uqbench.jacobian import CHUNK_BYTES, AutogradJacobian, Jacobian, num_parameters
from uqbench.layer_jacobian import LAYERS, LayerJacobian, Patches, Place, layer_jacobian
from uqbench.memory import available_bytes
from uqbench.networks import as_matrix, described, is_tied, trainable
from uqbench.stacked import activations_per_row

GRAM_ROWS = 1024
"""Rows of a Gram matrix formed at a time: bounds the temporaries and keeps them in cache."""


class NotFactorableError(Exception):
    """The trainable parameters are not all in layers that are each applied once, row by row."""


def places_in(network: nn.Module) -> dict[nn.Module, Place]:
    """The layers that hold the trainable parameters.

    Raises NotFactorableError if other modules hold some, or if some are tied.
    """
    if is_tied(network):
        raise NotFactorableError("parameters are tied")
    start, slices = 0, {}
    for name, parameter in trainable(network).items():
        slices[name] = slice(start, start + parameter.numel())
        start += parameter.numel()
    places = {}
    for name, module in network.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is None:
            raise NotFactorableError(f"{described(name, module)} has no running statistics")
        own = [n for n, p in module.named_parameters(recurse=False) if p.requires_grad]
        if not own:
            continue
        if type(module) not in LAYERS or not set(own) <= {"weight", "bias"}:
            raise NotFactorableError(f"{described(name, module)} holds parameters")
        prefix = f"{name}." if name else ""
        weight, bias = slices.get(f"{prefix}weight"), slices.get(f"{prefix}bias")
        places[module] = Place(weight, bias, len(module.weight))
    return places


@dataclass
class _Captured:
    """A forward pass: the outputs (N, C), and each layer's input and output."""

    outputs: Tensor
    layers: Mapping[nn.Module, tuple[Tensor, Tensor]]


@torch.enable_grad()
def _capture(network: nn.Module, places: Mapping[nn.Module, Place], inputs: Tensor) -> _Captured:
    """Run the network once. Raises NotFactorableError."""
    seen: dict[nn.Module, tuple[Tensor, Tensor]] = {}

    def record(module: nn.Module, arguments: tuple[Tensor, ...], output: Tensor) -> Tensor:
        what = described("", module)
        if module in seen:
            raise NotFactorableError(f"{what} is used more than once in a forward pass")
        flat = isinstance(module, nn.Linear) and output.ndim != 2
        if len(arguments) != 1 or flat or len(output) != len(inputs):
            raise NotFactorableError(f"{what} gives outputs of shape {tuple(output.shape)}")
        if not output.requires_grad:
            raise NotFactorableError(f"{what} is used without a gradient")
        seen[module] = (arguments[0].detach(), output)
        # a copy goes on: an activation in place must not overwrite the recorded output
        return output.clone()

    if any(module._forward_hooks for module in places):
        raise NotFactorableError("a layer has a forward hook, which may change its output")
    handles = [module.register_forward_hook(record) for module in places]
    try:
        outputs = as_matrix(network(inputs))
    finally:
        for handle in handles:
            handle.remove()
    if any(module not in seen for module in places):
        raise NotFactorableError("a layer is not used in the forward pass")
    if not _is_used_by_layers_alone(outputs, seen):
        raise NotFactorableError("a parameter is used outside its layer")
    return _Captured(outputs, {module: seen[module] for module in places})


def _is_used_by_layers_alone(
    outputs: Tensor, layers: Mapping[nn.Module, tuple[Tensor, Tensor]]
) -> bool:
    """Whether each parameter enters the outputs once, through its layer's recorded output."""
    if outputs.grad_fn is None:
        return False
    pending, met, used = [outputs.grad_fn], {outputs.grad_fn}, []
    while pending:
        for node, _ in pending.pop().next_functions:
            variable = getattr(node, "variable", None)  # of a leaf
            if variable is not None:
                used.append(variable)
            elif node is not None and node not in met:
                met.add(node)
                pending.append(node)
    own = [
        parameter
        for module, (_, output) in layers.items()
        if output.grad_fn in met
        for parameter in module.parameters(recurse=False)
        if parameter.requires_grad
    ]
    return sorted(map(id, used)) == sorted(map(id, own))


class FactoredJacobian(Jacobian):
    """The Jacobian kept as each layer's factors.

    Raises NotFactorableError for networks of other layers than
    :data:`uqbench.layer_jacobian.LAYERS`, or that use one twice.
    """

    def __init__(self, network: nn.Module, inputs: Tensor) -> None:
        self.num_parameters = num_parameters(network)
        self._places = places_in(network)
        self._captured: _Captured | None = _capture(network, self._places, inputs)
        self.outputs = self._captured.outputs.detach()

    @cached_property
    def layers(self) -> list[LayerJacobian]:
        """The layers' Jacobians, after one backward pass for each output."""
        outputs, used = self._captured.outputs, self._captured.layers
        classes = outputs.shape[1]
        layers = self.unfilled_layers()
        recorded = [output for _, output in used.values()]
        for index in range(classes):
            which = torch.zeros_like(self.outputs)
            which[:, index] = 1
            gradients = torch.autograd.grad(
                outputs,
                recorded,
                which,
                retain_graph=index + 1 < classes,
                materialize_grads=True,
            )
            for layer, gradient in zip(layers, gradients, strict=True):
                layer.record(index, gradient)
        for layer in layers:
            layer.finish()
        self._captured = None
        return layers

    def unfilled_layers(self) -> list[LayerJacobian]:
        """Those of :attr:`layers`, to be had before them."""
        captured, classes = self._captured.layers, self.outputs.shape[1]
        return [
            layer_jacobian(Patches.of(module, *captured[module], place), place, classes)
            for module, place in self._places.items()
        ]

    def __getstate__(self) -> dict:
        self.layers  # noqa: B018 - a graph cannot be pickled
        return {**self.__dict__, "_places": None}

    def matvec(self, tangents: Tensor) -> Tensor:
        result = tangents.new_zeros(len(tangents), *self.outputs.shape)
        for layer in self.layers:
            result += layer.push(tangents)
        return result

    def rmatvec(self, cotangents: Tensor, onto: Tensor | None = None) -> Tensor:
        """Added to ``onto`` (S, p), where it is given."""
        if onto is None:
            onto = cotangents.new_zeros(len(cotangents), self.num_parameters)
        for layer in self.layers:
            layer.pull(cotangents, onto)
        return onto

    def dense(self) -> Tensor:
        result = self.outputs.new_zeros(self.rows, self.num_parameters)
        for layer in self.layers:
            layer.place.add(layer.columns(slice(0, len(self.outputs))), result)
        return result

    @property
    def gram_operations(self) -> int:
        layers = self.unfilled_layers() if self._captured else self.layers
        return len(self.outputs) ** 2 * sum(layer.gram_operations for layer in layers)

    def gram(self, other: Jacobian | None = None) -> Tensor:
        symmetric = other is None
        other = self if symmetric else other
        (count, classes), others = self.outputs.shape, len(other.outputs)
        result = self.outputs.new_zeros(self.rows, other.rows)
        for start in range(0, count, GRAM_ROWS):
            stop = min(start + GRAM_ROWS, count)
            first = start if symmetric else 0
            rows = slice(start * classes, stop * classes)
            block = result[rows, first * classes :]
            for a, b in zip(self.layers, other.layers, strict=True):
                own, its = slice(start, stop), slice(first, others)
                if type(a) is type(b):
                    a.add_gram(block, own, b, its)
                else:  # inputs of another size
                    block.addmm_(a.columns(own).flatten(1), b.columns(its).flatten(1).mT)
            if symmetric:
                result[stop * classes :, rows] = block[:, (stop - start) * classes :].mT
        return result

    def gram_blocks(self) -> Tensor:
        return sum(layer.gram_blocks() for layer in self.layers)


@dataclass(frozen=True)
class Sizes:
    """What one input takes, in numbers and about.

    row: while its layers are filled: the factors, what they are summed from, and the activations,
    with as much again in the backward pass.
    member: more for each member of a product with the factors.
    autograd: for each member of a product by automatic differentiation: the activations, their
    tangents or cotangents, and as much for the layer at work.
    gram_operations: operations of the Gram matrix, for a pair of inputs.
    """

    row: int
    member: int
    autograd: int
    gram_operations: int


def sizes_of(network: nn.Module, row: Tensor) -> Sizes:
    """Try one input (1, ...) out. Raises NotFactorableError."""
    layers = FactoredJacobian(network, row).unfilled_layers()
    activations = activations_per_row(network, row)
    return Sizes(
        row=2 * activations + sum(layer.entries + layer.working_entries for layer in layers),
        member=max(layer.working_entries_per_member for layer in layers),
        autograd=4 * activations,
        gram_operations=sum(layer.gram_operations for layer in layers),
    )


class BlockwiseJacobian(Jacobian):
    """Factored Jacobians of blocks of rows, of CHUNK_BYTES each.

    They are kept where that takes at most half of the free memory, else formed anew in each call.
    Before the products asked for make up for the backward passes of the C outputs, automatic
    differentiation gives them.

    sizes: of an input.

    Raises NotFactorableError as :class:`FactoredJacobian` does.
    """

    def __init__(self, network: nn.Module, inputs: Tensor) -> None:
        self.num_parameters = num_parameters(network)
        self.sizes = sizes_of(network, inputs[:1])
        self._network = network
        self._inputs = inputs
        row_bytes = self.sizes.row * inputs.element_size()
        self._batches = inputs.tensor_split(
            math.ceil(len(inputs) / max(CHUNK_BYTES // row_bytes, 1))
        )
        self._fits = row_bytes * len(inputs) <= available_bytes(inputs.device) / 2
        self._kept: list[FactoredJacobian] = []
        self._products = 0
        if self._fits:
            self._kept = [FactoredJacobian(network, batch) for batch in self._batches]
            parts = [block.outputs for block in self._kept]
        else:
            with torch.no_grad():
                parts = [as_matrix(network(batch)) for batch in self._batches]
        self.outputs = torch.cat(parts)

    def __getstate__(self) -> dict:
        return {**self.__dict__, "_kept": []}

    def _blocks(self, first: int = 0) -> Iterator[FactoredJacobian]:
        if self._fits and not self._kept:
            self._kept = [FactoredJacobian(self._network, batch) for batch in self._batches]
        if self._kept:
            yield from self._kept[first:]
        else:
            for batch in self._batches[first:]:
                yield FactoredJacobian(self._network, batch)

    def _is_worth_its_layers(self, members: int) -> bool:
        """Whether one more product with as many vectors makes up for the C backward passes.

        A product costs a propagation for each vector with the layers' factors, two without. As much
        again is expected of an operator that is used for the first time.
        """
        if self._fits:
            self._products += members
        return self.outputs.shape[1] <= (2 * self._products if self._fits else members)

    def _by_autograd(self, members: int) -> Iterator[AutogradJacobian]:
        """Operators of as many rows as ``members`` can be pushed through in the free memory."""
        row_bytes = members * self.sizes.autograd * self._inputs.element_size()
        rows = max(int(available_bytes(self._inputs.device) / 4 / row_bytes), 1)
        for inputs, outputs in zip(self._inputs.split(rows), self.outputs.split(rows), strict=True):
            yield AutogradJacobian(self._network, inputs, outputs)

    def matvec(self, tangents: Tensor) -> Tensor:
        by_layers = self._is_worth_its_layers(len(tangents))
        parts = self._blocks() if by_layers else self._by_autograd(len(tangents))
        return torch.cat([part.matvec(tangents) for part in parts], 1)

    def rmatvec(self, cotangents: Tensor) -> Tensor:
        result = cotangents.new_zeros(len(cotangents), self.num_parameters)
        row = 0
        if self._is_worth_its_layers(len(cotangents)):
            for block in self._blocks():
                block.rmatvec(cotangents[:, row : row + len(block.outputs)], result)
                row += len(block.outputs)
            return result
        for part in self._by_autograd(len(cotangents)):
            result += part.rmatvec(cotangents[:, row : row + len(part.outputs)])
            row += len(part.outputs)
        return result

    def dense(self) -> Tensor:
        return torch.cat([block.dense() for block in self._blocks()])

    @property
    def gram_operations(self) -> int:
        return len(self._inputs) ** 2 * self.sizes.gram_operations

    def gram(self, other: Jacobian | None = None) -> Tensor:
        symmetric = other is None
        other = self if symmetric else other
        if not isinstance(other, BlockwiseJacobian):
            return self.dense() @ other.dense().mT
        result = self.outputs.new_empty(self.rows, other.rows)
        row = 0
        for index, left in enumerate(self._blocks()):
            rows = slice(row, row + left.rows)
            if symmetric:
                result[rows, rows] = left.gram()
            column = rows.stop if symmetric else 0
            for right in other._blocks(index + 1 if symmetric else 0):
                columns = slice(column, column + right.rows)
                result[rows, columns] = left.gram(right)
                if symmetric:
                    result[columns, rows] = result[rows, columns].mT
                column = columns.stop
            row = rows.stop
        return result

    def gram_blocks(self) -> Tensor:
        return torch.cat([block.gram_blocks() for block in self._blocks()])
