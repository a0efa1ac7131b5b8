"""What a step of NUQLS on images costs, in training steps of one network on the same batch.

    python benchmarks/nuqls_step.py lenet5 resnet9

A training step is a forward and a backward pass and SGD with momentum; a step of NUQLS linearises
the network at the batch, takes J V of all members, their residuals, Jᵀ of these and the step with
momentum. Where the layers' factors pay, their backward passes are in the column J V. Times are the
least of ``--repeats`` runs, the two alternating in one process; on one thread they are CPU time.
Growth is the slope of a straight line through the logarithms.
"""

import argparse
import copy
import math
import statistics
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from multiprocessing import get_context

import torch
from machine import clock, describe
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot

from uqbench import architectures
from uqbench.linearised import AutogradJacobian, linearise
from uqbench.memory import peak_host_bytes, reset_peak_host_bytes
from uqbench.problems import NetworkSpec

CASES = {
    "lenet5": ((1, 28, 28), 152),
    "resnet9": ((3, 32, 32), 50),
    "resnet20": ((3, 32, 32), 50),
    "wrn": ((1, 28, 28), 50),
}


@dataclass
class Case:
    """A network, a batch and members on their way."""

    network: nn.Module
    inputs: Tensor
    classes: Tensor
    displacements: Tensor
    velocity: Tensor

    def step(self, make=linearise) -> list[float]:
        """One step of NUQLS; returns when its parts began and ended."""
        times = [clock()]
        jacobian = make(self.network, self.inputs)
        times.append(clock())
        predictions = jacobian.outputs + jacobian.matvec(self.displacements)
        times.append(clock())
        targets = one_hot(self.classes, predictions.shape[2]).to(predictions.dtype)
        gradient = jacobian.rmatvec(predictions.softmax(-1) - targets)
        times.append(clock())
        self.velocity.mul_(0.9).add_(gradient, alpha=1 / len(self.inputs))
        self.displacements.sub_(self.velocity, alpha=1e-6)
        return [*times, clock()]


def prepare(name, outputs, members, rows, dtype=torch.float32):
    shape, batch = CASES[name]
    rows = rows or batch
    torch.manual_seed(0)
    network = architectures.build(NetworkSpec(kind=name, depth=10), shape, outputs).to(dtype)
    inputs = torch.randn(rows, *shape, dtype=dtype)
    network(inputs)  # running statistics
    parameters = sum(parameter.numel() for parameter in network.parameters())
    displacements = 0.01 * torch.randn(members, parameters, dtype=dtype)
    classes = torch.randint(0, outputs, (rows,))
    velocity = torch.zeros_like(displacements)
    return Case(network.eval(), inputs, classes, displacements, velocity)


def training_step(case):
    """Return one step of training of a copy of the network, as a function."""
    network = copy.deepcopy(case.network).train()
    optimiser = torch.optim.SGD(network.parameters(), lr=1e-6, momentum=0.9)

    def step():
        start = clock()
        optimiser.zero_grad()
        cross_entropy(network(case.inputs), case.classes).backward()
        optimiser.step()
        return [start, clock()]

    return step


def least(runs, repeats):
    """For each of the ``runs``, the least time of each of its parts, and of the whole."""
    found = {name: [] for name in runs}
    for repeat in range(repeats + 1):
        for name, run in runs.items():
            times = run()
            if repeat:  # the first round warms up
                parts = [stop - start for start, stop in pairwise(times)]
                found[name].append([*parts, sum(parts)])
    return {name: [min(part) for part in zip(*times, strict=True)] for name, times in found.items()}


def growth(sizes, seconds):
    """The exponent b of seconds ∝ sizes^b."""
    x, y = [math.log(v) for v in sizes], [math.log(v) for v in seconds]
    return statistics.linear_regression(x, y).slope


def peak_bytes(name, outputs, members, training):
    """What one step takes at most, in a process of its own, beside the members and the network."""
    case = prepare(name, outputs, members, 0)
    run = training_step(case) if training else case.step
    reset_peak_host_bytes()
    before = peak_host_bytes()
    run()
    return peak_host_bytes() - before


def largest_error(name, outputs):
    """Of J V and Jᵀ u in float32 against float64, relative to their largest entries."""
    single = prepare(name, outputs, 2, 4)
    jacobian = linearise(single.network, single.inputs)
    exact = AutogradJacobian(copy.deepcopy(single.network).double(), single.inputs.double())
    cotangents = torch.randn(2, *exact.outputs.shape)
    errors = []
    for product, vectors in (("matvec", single.displacements), ("rmatvec", cotangents)):
        expected = getattr(exact, product)(vectors.double())
        found = getattr(jacobian, product)(vectors).double()
        errors.append(((found - expected).abs().max() / expected.abs().max()).item())
    return max(errors)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=["lenet5", "resnet9"], choices=[*CASES])
    parser.add_argument("--members", type=int, default=10)
    parser.add_argument("--outputs", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--growth", action="store_true", help="also time other S and n")
    parser.add_argument("--autograd", action="store_true", help="also time AutogradJacobian")
    arguments = parser.parse_args()
    title = f"{describe()}, S = {arguments.members}, C = {arguments.outputs}"
    table = Table(title=title, title_justify="left")
    columns = ("network", "n", "training (ms)", "NUQLS (ms)", "ratio", "linearise", "J V", "Jᵀ u")
    for column in (*columns, "update", "peak (MB)", "training (MB)", "error"):
        table.add_column(column, justify="left" if column == "network" else "right")
    grown = Table(title="growth of a step", title_justify="left")
    for column in ("network", "with", "sizes", "steps (ms)", "exponent"):
        grown.add_column(column)
    for name in arguments.names:
        case = prepare(name, arguments.outputs, arguments.members, 0)
        runs = {"training": training_step(case), "NUQLS": case.step}
        if arguments.autograd:
            runs["autograd"] = lambda case=case: case.step(AutogradJacobian)
        seconds = least(runs, arguments.repeats)
        training = seconds["training"][-1]
        with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as fresh:
            sizes = (arguments.outputs, arguments.members)
            futures = [fresh.submit(peak_bytes, name, *sizes, kind) for kind in (False, True)]
            memory = [future.result() / 1e6 for future in futures]
        error = largest_error(name, arguments.outputs)
        for run, (*parts, total) in seconds.items():
            if run == "training":
                continue
            numbers = [f"{1e3 * v:.0f}" for v in (training, total)]
            ratios = [f"{v / training:.2f}" for v in (total, *parts)]
            rest = [f"{v:.0f}" for v in memory] + [f"{error:.0e}"]
            label = name if run == "NUQLS" else f"{name}, {run}"
            own = rest if run == "NUQLS" else ["", rest[1], ""]
            table.add_row(label, str(len(case.inputs)), *numbers, *ratios, *own)
        if arguments.growth:
            rows = len(case.inputs)
            for what, sizes in (("S", (1, 2, 5, 10, 20)), ("n", (rows // 4, rows // 2, rows))):
                cases = {
                    size: prepare(
                        name, arguments.outputs, *((size, 0) if what == "S" else (10, size))
                    )
                    for size in sizes
                }
                runs = {size: one.step for size, one in cases.items()}
                totals = [parts[-1] for parts in least(runs, arguments.repeats).values()]
                shown = " ".join(f"{1e3 * total:.0f}" for total in totals)
                exponent = f"{growth(sizes, totals):.2f}"
                grown.add_row(name, what, " ".join(map(str, sizes)), shown, exponent)
    console = Console(width=140)
    console.print(table)
    if arguments.growth:
        console.print(grown)


if __name__ == "__main__":
    main()
