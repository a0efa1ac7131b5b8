"""The Kronecker-factored covariance, by laplace-torch."""

from __future__ import annotations

import copy
import math
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import reduce

import torch
from torch import Tensor, nn

from uqbench.data import Split
from uqbench.errors import UnsupportedError
from uqbench.laplace_covariance import DiagonalisedCovariance, require_finite
from uqbench.method import Task
from uqbench.networks import as_matrix, trainable
from uqbench.streamed import rows_per_batch

with warnings.catch_warnings():
    # laplace-torch imports back-ends that we do not use and that warn of their own age
    warnings.simplefilter("ignore")
    from laplace import KronLaplace


class KroneckerCovariance(DiagonalisedCovariance):
    """J(x)ΣJ(x)ᵀ with Kronecker-factored curvature of each layer (Martens & Grosse 2015).

    The factors and their eigenvectors are laplace-torch's: a weight's block of Q is Q₁ ⊗ Q₂.
    Parameters that need no gradient are left out of Σ.

    Raises UnsupportedError for trainable parameters outside of Linear and Conv2d layers, for tied
    ones, and for layers that a forward pass does not use exactly once.
    """

    def __init__(self, network: nn.Module, split: Split, task: Task) -> None:
        super().__init__(network, split, task)
        trainable(network)  # refuses a network with nothing to be uncertain about
        _require_factors(network, split.inputs[:1])
        self.laplace = KronLaplace(_MatrixOutputs(copy.deepcopy(network)), task.value)
        self.laplace.fit(_Loader(split, task))
        blocks = [reduce(torch.outer, values).flatten() for values in self.laplace.H.eigenvalues]
        self.eigenvalues = torch.cat(blocks)
        require_finite(self.eigenvalues)

    def rotated(self, rows: Tensor) -> Tensor:
        return self._multiplied(rows, [[q.mT for q in qs] for qs in self.laplace.H.eigenvectors])

    def rotated_back(self, rows: Tensor) -> Tensor:
        return self._multiplied(rows, self.laplace.H.eigenvectors)

    def _multiplied(self, rows: Tensor, factors: Sequence[Sequence[Tensor]]) -> Tensor:
        """X (⊕ F₁ ⊗ F₂)ᵀ for rows X (R, p) and each block's factors."""
        parts, start = [], 0
        for first, *others in factors:
            shape = [len(first), *(len(other) for other in others)]
            part = rows[:, start : start + math.prod(shape)]
            start += part.shape[1]
            if others:
                part = (first @ part.view(-1, *shape) @ others[0].mT).flatten(1)
            else:
                part = part @ first.mT
            parts.append(part)
        return torch.cat(parts, 1)


class _Loader:
    """The training split in consecutive batches, with what laplace-torch asks of a DataLoader."""

    def __init__(self, split: Split, task: Task) -> None:
        self.dataset = split
        self._rows = rows_per_batch(split.inputs)
        self._targets = split.targets
        if task is Task.REGRESSION:
            self._targets = split.targets.view(-1, 1)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return zip(
            self.dataset.inputs.split(self._rows), self._targets.split(self._rows), strict=True
        )

    def __len__(self) -> int:
        return len(self._targets.split(self._rows))


class _MatrixOutputs(nn.Module):
    """The network with outputs (N, C), where it returns (N,)."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, inputs: Tensor) -> Tensor:
        return as_matrix(self.network(inputs))


@torch.no_grad()
def _require_factors(network: nn.Module, inputs: Tensor) -> None:
    """Raise UnsupportedError for a layer whose parameters have no Kronecker factors of its own."""
    instead = "use structure = 'full' or 'diag', or subset = 'last_layer'"
    uses: Counter[nn.Module] = Counter()
    handles = [m.register_forward_hook(lambda m, *_: uses.update([m])) for m in network.modules()]
    try:
        network(inputs)
    finally:
        for handle in handles:
            handle.remove()
    seen: set[nn.Parameter] = set()
    for name, module in network.named_modules():
        own = list(module.parameters(recurse=False))
        if not any(parameter.requires_grad for parameter in own):
            continue
        kind = f"layer '{name}' ({type(module).__name__})"
        if type(module) not in {nn.Linear, nn.Conv2d}:
            raise UnsupportedError(f"structure 'kron' does not cover {kind}; {instead}")
        if not all(parameter.requires_grad for parameter in own):
            raise UnsupportedError(f"structure 'kron' needs all of {kind} trainable; {instead}")
        if uses[module] != 1:
            raise UnsupportedError(
                f"structure 'kron' needs {kind} used once in a forward pass, it is used "
                f"{uses[module]} times; {instead}"
            )
        if not seen.isdisjoint(own):
            raise UnsupportedError(f"structure 'kron': {kind} has tied parameters; {instead}")
        seen.update(own)
