"""What NUQLS costs against n, p, C and S, with exponents fitted to the measured times.

    python benchmarks/scaling.py [--repeats 3]

A multilayer perceptron of two hidden layers on random data; each size is varied alone, the others
stay as the head of the table says. Times are the least of ``--repeats`` of fitting 20 epochs, on
one thread of CPU time; the exponent is the slope of log time against log size over the upper half
of the sizes, where fixed costs no longer matter.
"""

import argparse
import math
import statistics

import torch
from machine import clock, describe
from rich.console import Console
from rich.table import Table
from torch import nn

from uqbench.context import Context
from uqbench.data import Split, TrainingData
from uqbench.linearised import num_parameters
from uqbench.method import Task
from uqbench.registry import build_method

FEATURES, EPOCHS = 8, 20
BASE = {"n": 1000, "width": 60, "C": 4, "S": 10}
SIZES = {
    "n": [250, 500, 1000, 2000, 4000],
    "width": [30, 60, 120, 240, 480],
    "C": [2, 4, 8, 16],
    "S": [5, 10, 20, 40, 80],
}
SOLVERS = {
    "kernel": {"solver": "kernel"},
    "jacobian": {"solver": "jacobian"},
    "minibatch": {"batch_size": 100},
}
LARGEST = 2 * 10**8
"""Entries of the Gram matrix or the Jacobian above which a solver is left out."""


def setting(n, width, C, S):
    layers = [nn.Linear(FEATURES, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh()]
    network = nn.Sequential(*layers, nn.Linear(width, C)).eval()
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(n, FEATURES, generator=generator)
    targets = torch.randint(C, (n,), generator=generator)
    split = Split(inputs, targets)
    return network, TrainingData(Task.CLASSIFICATION, split, split, C), S


def seconds(solver, network, data, members, repeats):
    method = build_method(
        "nuqls", {**SOLVERS[solver], "members": members, "epochs": EPOCHS, "lr": 1e-3}
    )
    times = []
    for _ in range(repeats + 1):
        context = Context(torch.device("cpu"), torch.float32, 0)
        start = clock()
        method.fit(None, data, network, context)
        times.append(clock() - start)
    return min(times[1:])


def fits_in_memory(solver, network, data, outputs):
    rows = len(data.train) * outputs
    entries = {"kernel": rows**2, "jacobian": rows * num_parameters(network), "minibatch": 0}
    return entries[solver] <= LARGEST


def exponent(sizes, times):
    upper = len(sizes) // 2
    if len(sizes) - upper < 2:
        return math.nan
    x = [math.log(size) for size in sizes[upper:]]
    y = [math.log(value) for value in times[upper:]]
    return statistics.linear_regression(x, y).slope


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    table = Table("solver", "varied", "sizes", "seconds", "exponent")
    for solver in SOLVERS:
        for name, sizes in SIZES.items():
            measured, times = [], []
            for size in sizes:
                chosen = {**BASE, name: size}
                network, data, members = setting(**chosen)
                if not fits_in_memory(solver, network, data, chosen["C"]):
                    continue
                measured.append(num_parameters(network) if name == "width" else size)
                times.append(seconds(solver, network, data, members, arguments.repeats))
            table.add_row(
                solver,
                "p" if name == "width" else name,
                " ".join(map(str, measured)),
                " ".join(f"{value:.3f}" for value in times),
                f"{exponent(measured, times):.2f}",
            )
    network, *_ = setting(**BASE)
    console = Console(width=120)
    console.print(describe())
    console.print(
        f"n = {BASE['n']}, p = {num_parameters(network):,}, C = {BASE['C']}, S = {BASE['S']}, "
        f"{EPOCHS} epochs, float32"
    )
    console.print(table)


if __name__ == "__main__":
    main()
