"""Figure 2 of the NUQLS paper: python docs/convergence.py docs/convergence.svg

For each network of the suite ``convergence``, NUQLS is compared with the Gaussian process of
``ntk_gp`` on the test points: SEV = ‖Var_NUQLS − Var_NTK-GP‖₂. It is drawn against the epochs of
NUQLS, with ``MEMBERS`` and with infinitely many members, and against the members, after ``EPOCHS``;
beside it the mean squared error of the linearised networks on the training points, a mean over
members that does not depend on how many there are. Lines are geometric means over ``SEEDS``
realisations of data and network, which differ by powers of ten, and bands their 95% intervals
(Student's t on logarithms); a network's number is the median condition number of its NTK Gram
matrix.

The numbers go to a CSV beside the picture. It takes some minutes, most of them to train networks.
"""

import copy
import csv
import math
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from torch import Tensor

from uqbench.context import Context
from uqbench.data import Split, TrainingData
from uqbench.datasets.arrays import Arrays
from uqbench.evaluator import train_map
from uqbench.linearised import linearise
from uqbench.methods.ntk_gp import NTKGP
from uqbench.methods.nuqls import NUQLS
from uqbench.networks import build_network
from uqbench.plots import write
from uqbench.plots.series import points
from uqbench.plots.style import BLUE, GREEN, ORANGE, VERMILLION
from uqbench.problems import Problem, load_suite, problem_data
from uqbench.seeds import derive_seed

SEEDS = 10
MEMBERS = 100
EPOCHS = 1_000_000
QUANTITIES = {"sev": "SEV", "train_loss": "Mean training loss of linearised networks"}
FLOOR = 1e-12
"""The least value that is drawn: rounding errors are below."""
EPOCHS_SHOWN = [round(epochs) for epochs in np.logspace(0, 6, 25)]
MEMBERS_SHOWN = [2**power for power in range(1, 13)]


class Experiment(NamedTuple):
    """A realisation: data, network, and the Gaussian process's variance at the test points."""

    problem: Problem
    data: TrainingData
    inputs: Tensor
    network: torch.nn.Module
    variance: Tensor
    condition: float
    seed: int


def prepare(problem: Problem, seed: int) -> Experiment:
    """Draw the data, train the network, and fit the Gaussian process."""
    arrays = problem_data(problem, seed)
    data = TrainingData(problem.task, _split(arrays.train), _split(arrays.validation), None)
    template = build_network(problem.network, arrays.train.inputs.shape[1:], 1).double()
    network = train_map(problem, template, data, derive_seed(problem.name, seed, "map"))
    inputs = _split(arrays.test).inputs
    method = NTKGP(**problem.methods["ntk_gp"])
    process = method.fit(problem, data, copy.deepcopy(network), _context(0))
    gram = linearise(network, data.train.inputs).gram()
    variance = process.predict(inputs).variance
    condition = torch.linalg.cond(gram).item()
    return Experiment(problem, data, inputs, network, variance, condition, seed)


def deviation(experiment: Experiment, members: float, epochs: int) -> tuple[float, float]:
    """SEV and the mean training loss of NUQLS with so many members (or inf) and epochs."""
    problem, data, inputs, network, expected, _, seed = experiment
    method = NUQLS(**{**problem.methods["nuqls"], "members": members, "epochs": epochs})
    context = _context(derive_seed(problem.name, seed, f"{members} members"))
    posterior = method.fit(problem, data, network, context)
    sev = (posterior.predict(inputs).variance - expected).norm().item()
    fitted = posterior.predict(data.train.inputs)
    # the mean of squares over members is the square of the mean and the biased variance
    biased = fitted.variance * (1 - 1 / members)
    return sev, ((fitted.mean - data.train.targets).square() + biased).mean().item()


def _split(part: Arrays) -> Split:
    return Split(torch.tensor(part.inputs), torch.tensor(part.targets))


def _context(seed: int) -> Context:
    return Context(torch.device("cpu"), torch.float64, seed)


def curves(problem: Problem, seeds: int) -> Iterator[dict[str, object]]:
    """One row for each point of the figure: means over seeds, and the ends of their intervals."""
    experiments = [prepare(problem, seed) for seed in range(seeds)]
    condition = float(np.median([experiment.condition for experiment in experiments]))
    shown = [("epochs", members, e) for members in (MEMBERS, math.inf) for e in EPOCHS_SHOWN]
    shown += [("members", members, EPOCHS) for members in MEMBERS_SHOWN]
    for axis, members, epochs in shown:
        deviations = zip(*(deviation(each, members, epochs) for each in experiments), strict=True)
        numbers = {}
        for quantity, values in zip(QUANTITIES, deviations, strict=True):
            [point] = points({epochs: values}, seeds, geometric=True)
            for end, value in ("_low", point.low), ("", point.mean), ("_high", point.high):
                numbers[quantity + end] = f"{value:.4g}"
        yield {
            "network": problem.name.split("/")[1],
            "condition": f"{condition:.2g}",
            "axis": axis,
            "members": members,
            "epochs": epochs,
            **numbers,
        }


def figure(rows: list[dict[str, object]]) -> Figure:
    """Draw SEV and training loss against epochs, and SEV against members."""
    picture = Figure(figsize=(11, 4), layout="constrained")
    panels = picture.subplots(1, 3)
    names = list(dict.fromkeys(row["network"] for row in rows))
    colours = dict(zip(names, (BLUE, VERMILLION, GREEN, ORANGE), strict=True))
    drawn = [("epochs", "sev"), ("epochs", "train_loss"), ("members", "sev")]
    for panel, (axis, quantity) in zip(panels, drawn, strict=True):
        for name, infinite in product(names, (False, True)):
            shown = [
                row
                for row in rows
                if (row["network"], row["axis"]) == (name, axis)
                and (row["members"] == math.inf) is infinite
            ]
            x = [row[axis] for row in shown]
            low, middle, high = (
                [float(row[quantity + end]) for row in shown] for end in ("_low", "", "_high")
            )
            panel.plot(x, middle, color=colours[name], linestyle=":" if infinite else "-")
            panel.fill_between(x, low, high, color=colours[name], alpha=0.15, linewidth=0)
        panel.set(xscale="log", yscale="log", title=QUANTITIES[quantity])
        panel.set_ylim(bottom=max(panel.get_ylim()[0], FLOOR))
        panel.grid(alpha=0.3)
        labels = {"epochs": f"epochs, with {MEMBERS} members"}
        panel.set_xlabel(labels.get(axis, f"members, after {EPOCHS:,} epochs"))
    conditions = {row["network"]: float(row["condition"]) for row in rows}
    entries = [
        Line2D([], [], color=colours[name], label=f"{name} ({conditions[name]:.0e})")
        for name in names
    ]
    entries.append(Line2D([], [], color="black", linestyle=":", label="infinitely many members"))
    picture.legend(handles=entries, loc="outside lower center", ncols=5, frameon=False)
    return picture


def main() -> None:
    path = Path(sys.argv[1])
    rows = []
    for problem in load_suite("convergence").problems:
        print(problem.name, flush=True)
        rows += curves(problem, SEEDS)
    with path.with_suffix(".csv").open("w", newline="") as file:
        table = csv.DictWriter(file, rows[0], lineterminator="\n")
        table.writeheader()
        table.writerows(rows)
    write(figure(rows), path)


if __name__ == "__main__":
    main()
