"""The Kronecker-factored covariance, by laplace-torch."""

from __future__ import annotations

import copy
import math
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import reduce
from itertools import accumulate

import torch
from torch import Tensor, nn

from uqbench.data import Split
from uqbench.errors import DivergenceError, UnsupportedError
from uqbench.factored_jacobian import FactoredJacobian
from uqbench.jacobian import Jacobian
from uqbench.laplace_covariance import NOT_FINITE, DiagonalisedCovariance, require_finite
from uqbench.layer_jacobian import OuterProducts
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
        try:
            self.laplace.fit(_Loader(split, task))
        except SystemExit as error:  # what laplace-torch makes of an eigh that does not converge
            raise DivergenceError(NOT_FINITE) from error
        blocks = [reduce(torch.outer, values).flatten() for values in self.laplace.H.eigenvalues]
        self.eigenvalues = torch.cat(blocks)
        require_finite(self.eigenvalues)

    def _forms(
        self, jacobian: Jacobian, priors: Sequence[float], noise: float, *, diagonal: bool
    ) -> Tensor:
        """With a layer's Jacobian b ⊗ a, its part is b̃ᵀ diag(Vã²) b̃, with b̃ = Q₁ᵀb and ã = Q₂ᵀa."""
        if not _is_of_outer_products(jacobian):
            return super()._forms(jacobian, priors, noise, diagonal=diagonal)
        variances = self._variances(priors, noise)
        starts = accumulate(map(_size, self.laplace.H.eigenvalues), initial=0)
        factors = dict(zip(starts, self.laplace.H.eigenvectors, strict=False))
        total = 0
        for layer in jacobian.layers:
            for part in (layer.place.weight, layer.place.bias):
                if part is None:
                    continue
                first, *others = factors[part.start]
                variance = variances[:, part].view(len(priors), len(first), -1)
                weights = variance.mT  # (G, 1, O), of a bias
                for second in others:
                    weights = (layer.inputs[:, : len(second)] @ second).square() @ variance.mT
                backward = layer.backward @ first  # (N, C, O)
                weights = weights.expand(-1, len(backward), -1).unsqueeze(2)
                if diagonal:
                    total = total + (weights @ backward.square().mT).squeeze(2)
                else:
                    total = total + (backward * weights) @ backward.mT
        return total

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


def _size(values: Sequence[Tensor]) -> int:
    """How many parameters a block with these eigenvalues has."""
    return math.prod(map(len, values))


def _is_of_outer_products(jacobian: Jacobian) -> bool:
    factored = isinstance(jacobian, FactoredJacobian)
    return factored and all(isinstance(layer, OuterProducts) for layer in jacobian.layers)


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
