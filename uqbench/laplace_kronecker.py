"""The Kronecker-factored covariance, by laplace-torch."""

from __future__ import annotations

import copy
import warnings

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from uqbench.data import Split
from uqbench.laplace_covariance import FunctionalCovariance, Prepared, rows_per_chunk
from uqbench.linearised import trainable
from uqbench.method import Task

with warnings.catch_warnings():
    # laplace-torch imports back-ends that we do not use and that warn of their own age
    warnings.simplefilter("ignore")
    from laplace import KronLaplace

BATCH = 1000


class KroneckerCovariance(FunctionalCovariance):
    """J(x)ΣJ(x)ᵀ with Kronecker-factored curvature of each layer (Martens & Grosse 2015).

    Of laplace-torch's regression predictive only the functional variance is used: it leaves out
    the noise σ², which the method adds. Parameters that need no gradient are left out of Σ.
    """

    def __init__(self, network: nn.Module, split: Split, task: Task) -> None:
        super().__init__(network, split, task)
        targets = split.targets.view(-1, 1) if task is Task.REGRESSION else split.targets
        trainable(network)  # refuses a network with nothing to be uncertain about
        self.laplace = KronLaplace(copy.deepcopy(network), task.value)
        # without a generator of its own a DataLoader draws from the global one
        loader = DataLoader(
            TensorDataset(split.inputs, targets), batch_size=BATCH, generator=torch.Generator()
        )
        self.laplace.fit(loader)

    def update(self, prior_precision: float, noise: float = 1.0) -> None:
        self.laplace.prior_precision = prior_precision
        self.laplace.sigma_noise = noise

    def at(self, inputs: Tensor) -> Prepared:
        return _KroneckerPrepared(self, inputs)


class _KroneckerPrepared(Prepared):
    def __init__(self, owner: KroneckerCovariance, inputs: Tensor) -> None:
        self._laplace = owner.laplace
        self._chunks = inputs.split(rows_per_chunk(owner.network, inputs))

    def covariance(self) -> Tensor:
        chunks = (self._laplace._glm_predictive_distribution(chunk)[1] for chunk in self._chunks)
        return torch.cat(list(chunks))
