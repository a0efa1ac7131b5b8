"""Jacobian products at many inputs, with the activations of a chunk of them in memory."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from uqbench.linearised import Chunks, Jacobian, linearise
from uqbench.streamed import Inputs


class ChunkedJacobian:
    """J at inputs (n, ...), linearised anew for every product unless one chunk has all rows.

    outputs: f(θ̂, x), (n, C).
    """

    def __init__(self, network: nn.Module, inputs: Inputs, chunks: Chunks) -> None:
        self._network = network
        self._inputs = inputs
        self._chunks = chunks
        self._fixed = linearise(network, inputs[:]) if chunks.rows >= len(inputs) else None
        self.outputs = torch.cat([jacobian.outputs for _, jacobian in self._pieces()])

    def matvec(self, tangents: Tensor) -> Tensor:
        """J V for tangents V (S, p) -> (S, n, C)."""
        result = self.outputs.new_empty(len(tangents), *self.outputs.shape)
        for rows, jacobian in self._pieces():
            for members in self._chunks.members_of(len(tangents)):
                result[members, rows] = jacobian.matvec(tangents[members])
        return result

    def rmatvec(self, cotangents: Tensor) -> Tensor:
        """Jᵀ u for cotangents u (S, n, C) -> (S, p)."""
        result = None
        for rows, jacobian in self._pieces():
            if result is None:
                result = cotangents.new_zeros(len(cotangents), jacobian.num_parameters)
            for members in self._chunks.members_of(len(cotangents)):
                result[members] += jacobian.rmatvec(cotangents[members, rows])
        return result

    def gram_product(self, vectors: Tensor) -> Tensor:
        """KV for V (n·C, k), with K = JJᵀ."""
        cotangents = vectors.mT.reshape(-1, *self.outputs.shape)
        return self.matvec(self.rmatvec(cotangents)).flatten(1).mT

    def _pieces(self) -> Iterator[tuple[slice, Jacobian]]:
        if self._fixed:
            yield slice(None), self._fixed
            return
        start = 0
        for inputs in self._inputs.split(self._chunks.rows):
            yield slice(start, start + len(inputs)), linearise(self._network, inputs)
            start += len(inputs)
