"""NUQLS on UCI tables (fit, tune, predict): every full-batch solver beside a naive implementation.

    UQBENCH_DATA=... python benchmarks/nuqls_uci.py energy wine kin8nm

The naive implementation stores the Jacobian from torch.func.jacrev, descends in parameter space
and tunes γ by ternary search over a Python loop of levels. Times are the median of ``--repeats``
warm runs (of the naive implementation: of one), alternating, in one process. What needs the
Gram matrix or the dense Jacobian is left out where that does not fit in memory.
"""

import argparse
import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context

import torch
from machine import describe
from rich.console import Console
from rich.table import Table
from scipy.stats import norm
from torch.func import functional_call, jacrev, vmap

from uqbench.context import Context
from uqbench.data import Split, TrainingData
from uqbench.evaluator import train_map
from uqbench.linearised import num_parameters
from uqbench.memory import available_bytes, peak_host_bytes, reset_peak_host_bytes
from uqbench.method import Task
from uqbench.metrics import regression
from uqbench.networks import build_network
from uqbench.problems import all_problems, problem_data
from uqbench.registry import build_method
from uqbench.seeds import derive_seed

SOLVERS = ("auto", "kernel", "jacobian")


def prepare(name, dtype):
    problem = all_problems()[f"uci/{name}"]
    arrays = problem_data(problem, 0)

    def split(part):
        return Split(
            torch.tensor(part.inputs, dtype=dtype), torch.tensor(part.targets, dtype=dtype)
        )

    data = TrainingData(Task.REGRESSION, split(arrays.train), split(arrays.validation))
    template = build_network(problem.network, arrays.train.inputs.shape[1:], 1).to(dtype)
    # solvers cost the same around any network; a tenth of the training keeps the numbers realistic
    network = train_map(problem.quick(), template, data, derive_seed(problem.name, 0, "map"))
    return problem, data, split(arrays.test), network


def ours(problem, data, test, network, solver):
    settings = {**problem.methods["nuqls"], "solver": solver}
    context = Context(torch.device("cpu"), data.train.inputs.dtype, 0)
    posterior = build_method("nuqls", settings).fit(problem, data, network, context)
    prediction = posterior.predict(test.inputs)
    return prediction.mean, prediction.variance


def naive(problem, data, test, network):
    settings = build_method("nuqls", problem.methods["nuqls"])
    parameters = {k: v.detach() for k, v in network.named_parameters()}

    def jacobian(inputs):
        def single(theta, row):
            return functional_call(network, theta, (row.unsqueeze(0),)).squeeze(0)

        parts = vmap(jacrev(single), (None, 0))(parameters, inputs)
        return torch.cat([part.flatten(1) for part in parts.values()], 1)

    x, y = data.train.inputs, data.train.targets.view(-1, 1)
    j_train = jacobian(x)
    with torch.no_grad():
        f_train = network(x)
    generator = torch.Generator().manual_seed(0)
    theta = settings.gamma * torch.randn(
        settings.members, j_train.shape[1], generator=generator, dtype=x.dtype
    )
    theta = theta.T.contiguous()
    velocity = torch.zeros_like(theta)
    for _ in range(settings.epochs):
        residual = f_train + j_train @ theta - y
        velocity = settings.momentum * velocity + j_train.T @ residual / len(x)
        theta = theta - settings.lr * velocity

    def predict(inputs):
        with torch.no_grad():
            members = network(inputs) + jacobian(inputs) @ theta
        return members.mean(1), members.var(1)

    mean, variance = predict(data.validation.inputs)

    def ece(scale):
        total = 0.0
        for level in torch.linspace(0, 1, 11):
            half = norm.ppf((1 + level) / 2) * scale * variance.sqrt()
            inside = (data.validation.targets - mean).abs() < half
            total += (inside.double().mean() - level) ** 2
        return total / 11

    low, high = 0.0, 1e3
    for _ in range(60):
        a, b = low + (high - low) / 3, high - (high - low) / 3
        if ece(a) < ece(b):
            high = b
        else:
            low = a
    mean, variance = predict(test.inputs)
    return mean, ((low + high) / 2) ** 2 * variance


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=["energy", "wine", "kin8nm"])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--dtype", choices=["float32", "float64"], default="float64")
    arguments = parser.parse_args()
    table = Table(title=describe(), title_justify="left")
    for column in ("data set", "implementation"):
        table.add_column(column)
    for column in ("seconds", "ratio", "peak MB", "RMSE", "NLL", "ECE"):
        table.add_column(column, justify="right")
    for name in arguments.names:
        prepared = prepare(name, getattr(torch, arguments.dtype))
        runs = {solver: partial(ours, *prepared, solver) for solver in SOLVERS}
        runs["naive"] = partial(naive, *prepared)
        runs = {key: run for key, run in runs.items() if _fits(key, *prepared)}
        rows = {key: _measured(run, prepared[2].targets) for key, run in runs.items()}
        for run in runs.values():
            run()  # warms up
        seconds = {key: [] for key in runs}
        for repeat in range(arguments.repeats):
            for key, run in runs.items():
                if key != "naive" or repeat == 0:
                    start = time.perf_counter()
                    run()
                    seconds[key].append(time.perf_counter() - start)
        medians = {key: statistics.median(values) for key, values in seconds.items()}
        for key, median in medians.items():
            ratio = f"{median / medians['naive']:.2f}" if "naive" in medians else "-"
            table.add_row(name, key, f"{median:.3f}", ratio, *rows[key])
    Console(width=120).print(table)


def _fits(implementation, problem, data, test, network):
    """Whether a handful of matrices of the size that it needs fit in memory."""
    n, p = len(data.train), num_parameters(network)
    entries = {"auto": 0, "kernel": n * n}.get(implementation, n * p)
    return 4 * entries * data.train.inputs.element_size() < available_bytes(torch.device("cpu"))


def _measured(run, targets):
    """Run once in a process of its own: peak memory beyond what was there, and the metrics."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        peak, mean, variance = pool.submit(_peak, run).result()
    arrays = targets.numpy(), mean, variance
    metrics = regression.rmse(*arrays[:2]), regression.nll(*arrays), regression.ece(*arrays)
    return f"{peak / 1e6:,.0f}", *(f"{value:.4f}" for value in metrics)


def _peak(run):
    reset_peak_host_bytes()
    before = peak_host_bytes()
    mean, variance = run()
    return peak_host_bytes() - before, mean.numpy(), variance.numpy()


if __name__ == "__main__":
    main()
