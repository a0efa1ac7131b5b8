"""The Jacobian of a network's outputs in the parameters of one layer, at N inputs.

A linear layer, a convolution and the affine map of a batch normalisation all compute
h_{oℓ} = Σ_k W_{ok} u_{g(o)kℓ} at positions ℓ = 1..L: u is the layer's input, a convolution's cut
into K-long patches, W its weights, with the bias as a column against a row of ones; output o sees
the patches of its group g(o). With the backpropagated G = ∂f/∂h,

    ∂f_{nc}/∂W_{ok} = Σ_ℓ G_{ncoℓ} u_{n g(o) k ℓ}.

Three classes keep it: :class:`OuterProducts` for one position, where it is an outer product;
:class:`SummedProducts` sums over many positions once and keeps the result; :class:`Factors` keeps
both factors where the sum has far more entries than they have.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from uqbench.jacobian import CHUNK_BYTES

LAYERS = (nn.Linear, nn.Conv2d, nn.BatchNorm1d, nn.BatchNorm2d)
"""The layers covered; a batch normalisation in eval mode and with running statistics."""
SUMMED_AT_MOST = 2
"""How many times the entries of G the sum over positions may have to be kept in its place."""
SUMMED_ROWS = 64
"""Backpropagated outputs that are summed together, for matrix products worth the name."""


@dataclass(frozen=True)
class Place:
    """Where a layer's parameters are in θ (None: frozen or absent), as columns (O, K).

    The bias is the last of the K columns.
    """

    weight: slice | None
    bias: slice | None
    outputs: int

    def columns(self, tangents: Tensor) -> Tensor:
        """The layer's part of tangents (S, p) as (S, O, K)."""
        members, parts = len(tangents), []
        if self.weight is not None:
            parts.append(tangents[:, self.weight].view(members, self.outputs, -1))
        if self.bias is not None:
            parts.append(tangents[:, self.bias].unsqueeze(-1))
        return torch.cat(parts, -1) if len(parts) > 1 else parts[0]

    def add(self, columns: Tensor, vectors: Tensor) -> None:
        """Add the layer's part (S, O, K) to vectors (S, p)."""
        weights = columns
        if self.bias is not None:
            vectors[:, self.bias] += columns[..., -1]
            weights = columns[..., :-1]
        if self.weight is not None:
            vectors[:, self.weight].view(len(columns), self.outputs, -1).add_(weights)


@dataclass(frozen=True)
class Patches:
    """What a layer multiplies its parameters with: u, (N, g, K, L), made from its input on demand.

    inputs: (N, ...).
    shape: (N, g, K, L).
    """

    module: nn.Module
    inputs: Tensor
    with_weight: bool
    with_bias: bool
    shape: tuple[int, int, int, int]

    @classmethod
    def of(cls, module: nn.Module, inputs: Tensor, output: Tensor, place: Place) -> Patches:
        """output: the module's at ``inputs``."""
        if isinstance(module, nn.Conv2d):
            groups, size = module.groups, module.weight[0].numel()
        elif isinstance(module, nn.Linear):
            groups, size = 1, module.in_features
        else:
            groups, size = module.num_features, 1
        weight, bias = place.weight is not None, place.bias is not None
        positions = output[0, 0].numel()
        shape = (len(inputs), groups, size * weight + bias, positions)
        return cls(module, inputs.detach(), weight, bias, shape)

    def at(self, rows: slice) -> Patches:
        """Those of some of the inputs."""
        some = self.inputs[rows]
        return replace(self, inputs=some, shape=(len(some), *self.shape[1:]))

    def by_row(self) -> Tensor:
        """u, (N, g, K, L)."""
        result = self.inputs.new_empty(self.shape)
        self._fill(result)
        return result

    def by_group(self) -> Tensor:
        """u with the positions of all rows beside each other, (g, K, N·L)."""
        rows, groups, size, positions = self.shape
        result = self.inputs.new_empty(groups, size, rows, positions)
        self._fill(result.permute(2, 0, 1, 3))
        return result.flatten(2)

    def _fill(self, result: Tensor) -> None:
        rows, groups = self.shape[:2]
        if self.with_bias:
            result[:, :, -1] = 1
            result = result[:, :, :-1]
        if not self.with_weight:
            return
        if isinstance(self.module, nn.Conv2d):
            windows = _windows(self.module, self.inputs)  # (N, I, k, k, h, w)
            kernel, positions = windows.shape[2:4], windows.shape[4:]
            into = result.unflatten(-1, positions).unflatten(2, (-1, *kernel))
            into.copy_(windows.unflatten(1, (groups, -1)))
        elif isinstance(self.module, nn.Linear):
            result.copy_(self.inputs.view(rows, 1, -1, 1))
        else:
            result.copy_(_normalised(self.module, self.inputs).view(rows, groups, 1, -1))


def _windows(module: nn.Conv2d, inputs: Tensor) -> Tensor:
    """What the kernel meets at each position: a view (N, I, k, k', h, w) of the padded inputs."""
    margins = _margins(module)
    if any(margins):
        mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
        inputs = functional.pad(inputs, margins, mode=mode)
    kernel, stride, dilation = module.kernel_size, module.stride, module.dilation
    reach = [d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True)]
    sides = [(n - r) // s + 1 for n, r, s in zip(inputs.shape[2:], reach, stride, strict=True)]
    row, channel, *pixels = inputs.stride()
    steps = [
        *(pixel * d for pixel, d in zip(pixels, dilation, strict=True)),
        *(pixel * s for pixel, s in zip(pixels, stride, strict=True)),
    ]
    size = (*inputs.shape[:2], *kernel, *sides)
    return inputs.as_strided(size, (row, channel, *steps), inputs.storage_offset())


def _margins(module: nn.Conv2d) -> list[int]:
    """The padding as left, right, top, bottom."""
    if module.padding == "valid":
        return [0, 0, 0, 0]
    margins = []
    for axis in (1, 0):
        if module.padding == "same":
            total = module.dilation[axis] * (module.kernel_size[axis] - 1)
            margins += [total // 2, total - total // 2]
        else:
            margins += 2 * [module.padding[axis]]
    return margins


def _normalised(module: nn.BatchNorm1d | nn.BatchNorm2d, inputs: Tensor) -> Tensor:
    """(x − μ)/√(σ² + ε) with the running mean and variance."""
    shape = (1, -1, *(1 for _ in inputs.shape[2:]))
    scale = (module.running_var + module.eps).rsqrt()
    return (inputs - module.running_mean.view(shape)) * scale.view(shape)


def layer_jacobian(patches: Patches, place: Place, classes: int) -> LayerJacobian:
    """The class that keeps fewest entries, still to be filled."""
    _, groups, size, positions = patches.shape
    if positions == 1 and groups == 1:
        return OuterProducts(patches, place, classes)
    if size <= SUMMED_AT_MOST * positions:
        return SummedProducts(patches, place, classes)
    return Factors(patches, place, classes)


class LayerJacobian(ABC):
    """∂f/∂W, (N, C, O, K), filled by :meth:`record` for each of the C outputs."""

    def __init__(self, patches: Patches, place: Place, classes: int) -> None:
        self.patches = patches
        self.place = place
        self.classes = classes
        self.shape = patches.shape

    @property
    @abstractmethod
    def entries(self) -> int:
        """How many numbers a row keeps."""

    @property
    def working_entries(self) -> int:
        """How many more a row takes until :meth:`finish`."""
        return 0

    @property
    def working_entries_per_member(self) -> int:
        """How many a row takes for each member of a product."""
        return 3 * self.place.outputs * self.shape[3]

    @abstractmethod
    def record(self, output: int, gradient: Tensor) -> None:
        """Take in ∂f_{·c}/∂h, (N, O, ...), of output c."""

    @abstractmethod
    def finish(self) -> None:
        """Drop what is of no use once all outputs are recorded."""

    @abstractmethod
    def push(self, tangents: Tensor) -> Tensor:
        """J V for tangents V (S, p) -> (S, N, C)."""

    @abstractmethod
    def pull(self, cotangents: Tensor, onto: Tensor) -> None:
        """Add Jᵀ u for cotangents u (S, N, C) to vectors (S, p)."""

    @abstractmethod
    def columns(self, rows: slice) -> Tensor:
        """J at some of the N inputs as columns (n·C, O, K)."""

    @property
    @abstractmethod
    def gram_operations(self) -> int:
        """Operations of the Gram matrix, for a pair of inputs."""

    @abstractmethod
    def add_gram(self, block: Tensor, rows: slice, other: LayerJacobian, columns: slice) -> None:
        """Add J J'ᵀ of some of the inputs (n) and of the other's (n'), to block (n·C, n'·C)."""

    @abstractmethod
    def gram_blocks(self) -> Tensor:
        """J_n J_nᵀ for each input, (N, C, C)."""


class OuterProducts(LayerJacobian):
    """One position and group: ∂f_{nc}/∂W = backward_{nc} ⊗ inputs_n.

    inputs: (N, K). backward: (N, C, O).
    """

    def __init__(self, patches: Patches, place: Place, classes: int) -> None:
        super().__init__(patches, place, classes)
        self._backward: list[Tensor] = []

    @property
    def entries(self) -> int:
        return self.shape[2] + self.classes * self.place.outputs

    def record(self, output: int, gradient: Tensor) -> None:
        self._backward.append(gradient.flatten(1))

    def finish(self) -> None:
        self.inputs = self.patches.by_row().flatten(1)
        self.backward = torch.stack(self._backward, 1)
        del self._backward, self.patches

    def push(self, tangents: Tensor) -> Tensor:
        columns = self.place.columns(tangents)
        pushed = self.inputs @ columns.flatten(0, 1).mT  # (N, S·O)
        pushed = pushed.view(len(pushed), len(tangents), -1)
        if self.classes == 1:
            return (pushed * self.backward).sum(-1).mT.unsqueeze(-1)
        return (pushed @ self.backward.mT).transpose(0, 1)

    def pull(self, cotangents: Tensor, onto: Tensor) -> None:
        cotangents = cotangents.transpose(0, 1)  # (N, S, C)
        single = self.classes == 1
        pulled = cotangents * self.backward if single else cotangents @ self.backward  # (N, S, O)
        columns = pulled.flatten(1).mT @ self.inputs  # (S·O, K)
        self.place.add(columns.view(*pulled.shape[1:], -1), onto)

    def columns(self, rows: slice) -> Tensor:
        inputs = self.inputs[rows].repeat_interleave(self.classes, 0).unsqueeze(1)
        return self.backward[rows].flatten(0, 1).unsqueeze(-1) * inputs

    @property
    def gram_operations(self) -> int:
        return 2 * self.classes**2 * (self.shape[2] + self.place.outputs)

    def add_gram(self, block: Tensor, rows: slice, other: OuterProducts, columns: slice) -> None:
        backward = self.backward[rows].flatten(0, 1) @ other.backward[columns].flatten(0, 1).mT
        inner = self.inputs[rows] @ other.inputs[columns].mT
        if self.classes > 1:
            inner = inner.repeat_interleave(self.classes, 0).repeat_interleave(self.classes, 1)
        block.addcmul_(backward, inner)

    def gram_blocks(self) -> Tensor:
        return self.inputs.square().sum(1).view(-1, 1, 1) * (self.backward @ self.backward.mT)


class SummedProducts(LayerJacobian):
    """∂f/∂W itself, (N, C, O·K)."""

    def __init__(self, patches: Patches, place: Place, classes: int) -> None:
        super().__init__(patches, place, classes)
        self._pending: list[Tensor] = []

    @property
    def entries(self) -> int:
        return self.classes * self.place.outputs * self.shape[2]

    @property
    def working_entries(self) -> int:
        pending = max(SUMMED_ROWS, self.place.outputs) * self.shape[3]
        return math.prod(self.shape[1:]) + 2 * pending

    @property
    def working_entries_per_member(self) -> int:
        return self.classes

    def record(self, output: int, gradient: Tensor) -> None:
        rows, groups, size, positions = self.shape
        if output == 0:
            self._factor = self.patches.by_row()
            shape = (rows, self.classes, groups, self.place.outputs // groups, size)
            self._sums = gradient.new_empty(shape)
        self._pending.append(gradient.reshape(rows, groups, -1, positions))
        last = output + 1 == self.classes
        if last or len(self._pending) * self.place.outputs >= SUMMED_ROWS:
            # in this order of the factors it is the faster product
            sums = self._factor @ torch.cat(self._pending, 2).mT  # (N, g, K, c·O/g)
            sums = sums.unflatten(3, (len(self._pending), -1)).permute(0, 3, 1, 4, 2)
            self._sums[:, output + 1 - len(self._pending) : output + 1] = sums
            self._pending.clear()

    def finish(self) -> None:
        self._sums = self._sums.flatten(2)
        del self._factor, self.patches

    def push(self, tangents: Tensor) -> Tensor:
        columns = self.place.columns(tangents).flatten(1)
        return (columns @ self._sums.flatten(0, 1).mT).view(len(columns), -1, self.classes)

    def pull(self, cotangents: Tensor, onto: Tensor) -> None:
        pulled = cotangents.flatten(1) @ self._sums.flatten(0, 1)
        self.place.add(pulled.view(len(pulled), self.place.outputs, -1), onto)

    def columns(self, rows: slice) -> Tensor:
        return self._sums[rows].flatten(0, 1).unflatten(1, (self.place.outputs, -1))

    @property
    def gram_operations(self) -> int:
        return 2 * self.classes**2 * self.place.outputs * self.shape[2]

    def add_gram(self, block: Tensor, rows: slice, other: SummedProducts, columns: slice) -> None:
        block.addmm_(self._sums[rows].flatten(0, 1), other._sums[columns].flatten(0, 1).mT)

    def gram_blocks(self) -> Tensor:
        return self._sums @ self._sums.mT


class Factors(LayerJacobian):
    """Both factors: the layer's input, and G, (N, C, O, L)."""

    @property
    def entries(self) -> int:
        # its input is in the graph as well, which is counted apart
        return self.classes * self.place.outputs * self.shape[3]

    def record(self, output: int, gradient: Tensor) -> None:
        rows, _, _, positions = self.shape
        if output == 0:
            shape = (rows, self.classes, self.place.outputs, positions)
            self._backward = gradient.new_empty(shape)
        self._backward[:, output] = gradient.reshape(rows, -1, positions)

    def finish(self) -> None:
        pass

    def push(self, tangents: Tensor) -> Tensor:
        rows, _, _, positions = self.shape
        shape = (len(tangents), self.place.outputs, rows, positions)
        pushed = 0
        if self.place.weight is not None:
            pushed = (self._weights(tangents) @ self._patches_of_weights).view(shape)
        if self.place.bias is not None:
            pushed = pushed + tangents[:, self.place.bias].view(*shape[:2], 1, 1).expand(shape)
        pushed = pushed.permute(2, 0, 1, 3).flatten(2)  # (N, S, O·L)
        return (pushed @ self._backward.flatten(2).mT).transpose(0, 1)

    def pull(self, cotangents: Tensor, onto: Tensor) -> None:
        positions = self.shape[3]
        pulled = cotangents.transpose(0, 1) @ self._backward.flatten(2)  # (N, S, O·L)
        pulled = pulled.unflatten(2, (-1, positions)).permute(1, 2, 0, 3).flatten(2)  # (S, O, N·L)
        if self.place.bias is not None:
            onto[:, self.place.bias] += pulled.sum(2)
        if self.place.weight is None:
            return
        weights, patches = self._weights(onto), self._patches_of_weights.mT
        if len(patches) == 1:
            weights[:, 0].baddbmm_(pulled, patches.expand(len(pulled), -1, -1))
        else:
            weights += pulled.unflatten(1, (len(patches), -1)) @ patches

    def _weights(self, vectors: Tensor) -> Tensor:
        """The weights' part of vectors (S, p): a view (S, g, O/g, K), K without the bias."""
        groups, size = self.shape[1], self.shape[2] - self.patches.with_bias
        shape = (len(vectors), groups, self.place.outputs // groups, size)
        return vectors[:, self.place.weight].view(shape)

    @property
    def _patches_of_weights(self) -> Tensor:
        """u without the row of ones, (g, K, N·L)."""
        rows, groups, size, positions = self.shape
        shape = (rows, groups, size - self.patches.with_bias, positions)
        return replace(self.patches, with_bias=False, shape=shape).by_group()

    def columns(self, rows: slice) -> Tensor:
        patches = self.patches.at(rows).by_row().unsqueeze(1)  # (n, 1, g, K, L)
        backward = self._backward[rows].unflatten(2, (patches.shape[2], -1))
        return (patches @ backward.mT).mT.flatten(2, 3).flatten(0, 1)

    @property
    def gram_operations(self) -> int:
        return 2 * min(self._dense_operations, self._pairwise_operations)

    @property
    def _dense_operations(self) -> int:
        """Of one pair of inputs, with the Jacobian formed for a chunk of rows at a time."""
        return self.classes**2 * self.place.outputs * self.shape[2]

    @property
    def _pairwise_operations(self) -> int:
        """Of one pair of inputs, by :meth:`_pairwise`."""
        _, groups, size, positions = self.shape
        products = positions**2 * (groups * size + self.classes * self.place.outputs)
        return products + self.classes**2 * self.place.outputs * positions

    def add_gram(self, block: Tensor, rows: slice, other: Factors, columns: slice) -> None:
        pairwise = self._pairwise_operations < self._dense_operations
        step, other_step = self._step(pairwise), other._step(pairwise)
        for start in range(rows.start, rows.stop, step):
            some = slice(start, min(start + step, rows.stop))
            left = None if pairwise else self.columns(some).flatten(1)
            for first in range(columns.start, columns.stop, other_step):
                others = slice(first, min(first + other_step, columns.stop))
                part = block[self._within(some, rows), self._within(others, columns)]
                if pairwise:
                    part += self._pairwise(some, other, others)
                else:
                    part.addmm_(left, other.columns(others).flatten(1).mT)

    def _within(self, some: slice, rows: slice) -> slice:
        start, stop = some.start - rows.start, some.stop - rows.start
        return slice(start * self.classes, stop * self.classes)

    def _step(self, pairwise: bool) -> int:
        """How many inputs' Jacobians, or pairs of inputs' patch products, fit in a chunk."""
        _, groups, size, positions = self.shape
        numbers = self.classes * self.place.outputs * size
        if pairwise:
            numbers = positions * (self.classes * self.place.outputs + groups * positions)
        step = CHUNK_BYTES // (numbers * self._backward.element_size())
        return max(int(step**0.5) if pairwise else step, 1)

    def _pairwise(self, rows: slice, other: Factors, columns: slice) -> Tensor:
        """Σ_{oℓℓ'} G_{icoℓ} ⟨u_{iℓ}, u_{jℓ'}⟩ G_{jdoℓ'}, (n·C, n'·C)."""
        left, right = self.patches.at(rows), other.patches.at(columns)
        (n, groups, _, positions), others = left.shape, right.shape[0]
        inner = left.by_group().mT @ right.by_group()
        inner = inner.view(groups, n, positions, -1)  # (g, n, L, n'·L')
        backward = self._backward[rows].unflatten(2, (groups, -1)).permute(2, 0, 1, 3, 4)
        product = backward.flatten(2, 3) @ inner  # (g, n, C·O/g, n'·L')
        product = product.view(groups, n, self.classes, -1, others, right.shape[3])
        product = product.permute(4, 1, 2, 0, 3, 5).reshape(others, n * self.classes, -1)
        product = product @ other._backward[columns].flatten(2).mT  # (n', n·C, C)
        return product.transpose(0, 1).flatten(1)

    def gram_blocks(self) -> Tensor:
        rows = self.shape[0]
        if self._pairwise_operations < self._dense_operations:
            single = (slice(row, row + 1) for row in range(rows))
            return torch.stack([self._pairwise(row, self, row) for row in single])
        blocks = []
        step = self._step(pairwise=False)
        for start in range(0, rows, step):
            columns = self.columns(slice(start, start + step)).flatten(1)
            columns = columns.unflatten(0, (-1, self.classes))
            blocks.append(columns @ columns.mT)
        return torch.cat(blocks)
