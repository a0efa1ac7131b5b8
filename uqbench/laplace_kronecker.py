"""The Kronecker-factored covariance, by laplace-torch."""

from __future__ import annotations

import copy
import warnings
from collections import Counter

import torch
from torch import Generator, Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from uqbench.data import Split
from uqbench.errors import UnsupportedError
from uqbench.laplace_covariance import FunctionalCovariance, Prepared, rows_per_chunk
from uqbench.method import Task
from uqbench.networks import as_matrix, trainable

with warnings.catch_warnings():
    # laplace-torch imports back-ends that we do not use and that warn of their own age
    warnings.simplefilter("ignore")
    from laplace import KronLaplace

BATCH = 1000


class KroneckerCovariance(FunctionalCovariance):
    """J(x)ΣJ(x)ᵀ with Kronecker-factored curvature of each layer (Martens & Grosse 2015).

    Of laplace-torch's regression predictive only the functional variance is used: it leaves out
    the noise σ², which the method adds. Parameters that need no gradient are left out of Σ.

    Raises UnsupportedError for trainable parameters outside of Linear and Conv2d layers, for tied
    ones, and for layers that a forward pass does not use exactly once.
    """

    def __init__(self, network: nn.Module, split: Split, task: Task) -> None:
        super().__init__(network, split, task)
        targets = split.targets.view(-1, 1) if task is Task.REGRESSION else split.targets
        trainable(network)  # refuses a network with nothing to be uncertain about
        _require_factors(network, split.inputs[:1])
        self.laplace = KronLaplace(_MatrixOutputs(copy.deepcopy(network)), task.value)
        # without a generator of its own a DataLoader draws from the global one
        loader = DataLoader(
            TensorDataset(split.inputs, targets), batch_size=BATCH, generator=torch.Generator()
        )
        self.laplace.fit(loader)

    def update(self, prior_precision: float, noise: float = 1.0) -> None:
        self.laplace.prior_precision = prior_precision
        self.laplace.sigma_noise = noise

    def sample(self, count: int, generator: Generator) -> Tensor:
        return self.laplace.sample(count, generator) - self.laplace.mean

    def at(self, inputs: Tensor) -> Prepared:
        return _KroneckerPrepared(self, inputs)


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


class _KroneckerPrepared(Prepared):
    def __init__(self, owner: KroneckerCovariance, inputs: Tensor) -> None:
        self._laplace = owner.laplace
        self._chunks = inputs.split(rows_per_chunk(owner.network, inputs))

    def covariance(self) -> Tensor:
        chunks = (self._laplace._glm_predictive_distribution(chunk)[1] for chunk in self._chunks)
        return torch.cat(list(chunks))
