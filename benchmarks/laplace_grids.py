"""LLA's whole noise and prior grid on UCI tables, against one fit and against naive grids.

    UQBENCH_DATA=... python benchmarks/laplace_grids.py energy wine kin8nm

``fit``: the curvature, one factorisation, the validation variances and ECE of one λ, written out
naively. ``grid``: the method's own fit with its whole grids, as a multiple of ``fit``. ``naive``:
the same λ with a factorisation (or laplace-torch's predictive, or a dense Jacobian) for each;
``eigh``: with one eigendecomposition for all. Seconds are the least of ``--repeats`` runs in
turn, in one process. ``error``: the largest relative deviation of the method's validation variances
from the naive ones, over all λ; float64. ``--eigh`` takes minutes on kin8nm.
"""

import argparse
import time

import torch
from laplace import Laplace
from machine import describe
from nuqls_uci import prepare
from rich.console import Console
from rich.table import Table
from torch.utils.data import DataLoader, TensorDataset

from uqbench.context import Context
from uqbench.laplace import with_last_layer_trainable
from uqbench.laplace_covariance import functional_covariance
from uqbench.laplace_kronecker import KroneckerCovariance
from uqbench.linearised import linearise, num_parameters
from uqbench.method import Task
from uqbench.methods.lla import LAST_LAYER_GRID, LinearisedLaplace
from uqbench.metrics import regression

STRUCTURES = {
    "full": {"structure": "full"},
    "kron": {"structure": "kron"},
    "last layer": {"structure": "kron", "subset": "last_layer", "prior_grid": LAST_LAYER_GRID},
    "diag": {"structure": "diag"},
}


def ours(method, data, network):
    context = Context(torch.device("cpu"), data.train.inputs.dtype, 0)
    return method.fit(None, data, network, context).tuned["noise"]


def naive_full(data, network, priors, noise):
    """A Cholesky factorisation for each λ, in the cheaper space."""
    if len(data.train) < num_parameters(network):
        gram, cross, blocks = function_space(data, network)
        for prior in priors:
            shifted = gram + prior * noise**2 * torch.eye(len(gram), dtype=gram.dtype)
            factor = torch.linalg.cholesky(shifted)
            solved = torch.linalg.solve_triangular(factor, cross.mT, upper=False)
            yield (blocks - solved.square().sum(0)) / prior
        return
    rows = linearise(network, data.train.inputs).dense()
    curvature = rows.mT @ rows / noise**2
    for prior in priors:
        shifted = curvature + prior * torch.eye(len(curvature), dtype=curvature.dtype)
        factor = torch.linalg.cholesky(shifted)
        at = linearise(network, data.validation.inputs).dense()
        yield torch.linalg.solve_triangular(factor, at.mT, upper=False).square().sum(0)


def eigh_full(data, network, priors, noise):
    """One eigendecomposition for all λ, in the cheaper space."""
    if len(data.train) < num_parameters(network):
        gram, cross, blocks = function_space(data, network)
        values, vectors = torch.linalg.eigh(gram)
        squares = (cross @ vectors).square()
        for prior in priors:
            yield (blocks - squares @ (1 / (values + prior * noise**2))) / prior
        return
    rows = linearise(network, data.train.inputs).dense()
    values, vectors = torch.linalg.eigh(rows.mT @ rows)
    squares = (linearise(network, data.validation.inputs).dense() @ vectors).square()
    for prior in priors:
        yield squares @ (1 / (values / noise**2 + prior))


def function_space(data, network):
    jacobian = linearise(network, data.train.inputs)
    at = linearise(network, data.validation.inputs)
    return jacobian.gram(), at.gram(jacobian), at.gram_blocks().view(-1)


def naive_kron(data, network, priors, noise):
    """laplace-torch's predictive for each λ."""
    laplace = Laplace(network, "regression", subset_of_weights="all", hessian_structure="kron")
    targets = data.train.targets.view(-1, 1)
    laplace.fit(DataLoader(TensorDataset(data.train.inputs, targets), batch_size=1000))
    laplace.sigma_noise = noise
    for prior in priors:
        laplace.prior_precision = prior
        batches = data.validation.inputs.split(500)
        parts = [laplace._glm_predictive_distribution(batch)[1] for batch in batches]
        yield torch.cat(parts).view(-1)


def naive_diag(data, network, priors, noise):
    """The dense Jacobian of the validation inputs for each λ."""
    batches = data.train.inputs.split(500)
    curvature = sum(linearise(network, batch).dense().square().sum(0) for batch in batches)
    for prior in priors:
        variance = 1 / (curvature / noise**2 + prior)
        batches = data.validation.inputs.split(500)
        yield torch.cat([linearise(network, b).dense().square() @ variance for b in batches])


def scored(variances, data, network, noise):
    """Return all variances (G, N), once the ECE of each is known."""
    targets = data.validation.targets.numpy()
    mean = network(data.validation.inputs).detach().squeeze(-1).numpy()
    kept = []
    for variance in variances:
        kept.append(variance.detach())
        regression.ece(targets, mean, kept[-1].numpy() + noise**2)
    return torch.stack(kept)


def measure(name, structure, arguments):
    """One row of the table."""
    _, data, _, network = prepare(name, torch.float64)
    method = LinearisedLaplace(**STRUCTURES[structure])
    noise, priors = ours(method, data, network), method.prior_grid
    if method.subset == "last_layer":
        network = with_last_layer_trainable(network, data.train.inputs)
    naive = {"full": naive_full, "kron": naive_kron, "diag": naive_diag}[method.structure]
    runs = {
        "fit": lambda: scored(naive(data, network, priors[:1], noise), data, network, noise),
        "grid": lambda: ours(method, data, network),
        "naive": lambda: scored(naive(data, network, priors, noise), data, network, noise),
    }
    if arguments.eigh and structure == "full":
        found = lambda: scored(eigh_full(data, network, priors, noise), data, network, noise)  # noqa: E731
        runs["eigh"] = found
    seconds = dict.fromkeys(runs, float("inf"))
    for _ in range(arguments.repeats):
        for key, run in runs.items():
            start = time.perf_counter()
            result = run()
            seconds[key] = min(seconds[key], time.perf_counter() - start)
            if key == "naive":
                expected = result
    if method.structure == "kron":
        covariance = KroneckerCovariance(network, data.train, Task.REGRESSION)
    else:
        covariance = functional_covariance(structure, network, data.train, Task.REGRESSION)
    found = covariance.variances(data.validation.inputs, priors, noise).squeeze(-1)
    error = ((found - expected) / expected).abs().max().item()
    ratios = (
        f"{seconds[key] / seconds['fit']:.1f}" if key in seconds else "–"
        for key in ("grid", "naive", "eigh")
    )
    sizes = (f"{len(data.train):,}", f"{num_parameters(network):,}", str(len(priors)))
    return (name, structure, *sizes, f"{seconds['fit']:.3f}", *ratios, f"{error:.0e}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=["energy", "wine", "kin8nm"])
    parser.add_argument("--structures", nargs="+", choices=STRUCTURES, default=list(STRUCTURES))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--eigh", action="store_true", help="measure an eigendecomposition, too")
    arguments = parser.parse_args()
    table = Table(title=describe(), title_justify="left")
    for column in ("data set", "structure"):
        table.add_column(column)
    for column in ("n", "p", "values", "fit, s", "grid", "naive", "eigh", "error"):
        table.add_column(column, justify="right")
    for name in arguments.names:
        for structure in arguments.structures:
            table.add_row(*measure(name, structure, arguments))
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
