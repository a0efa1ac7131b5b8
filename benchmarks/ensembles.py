"""Networks trained as one batched program against the same trainings one after another.

    UQBENCH_DATA=... python benchmarks/ensembles.py energy kin8nm

``de``: ten members of a deep ensemble (two heads, Gaussian NLL) with the data set's own recipe.
``bde``: ten members of a Bayesian deep ensemble with the data set's own recipe: added functions and
penalties of their own.
``swag``: SGD from the MAP network with the three weight decays of SWAG's grid, its iterates
collected. All run ``--epochs`` epochs, in both orders alternately in one process, after a warm-up.
"""

import argparse
import copy
import math
import statistics
import time
from dataclasses import replace

import torch
from machine import describe
from nuqls_uci import prepare
from rich.console import Console
from rich.table import Table

from uqbench.context import Context
from uqbench.methods.bde import DistanceToStart
from uqbench.methods.de import gaussian_nll
from uqbench.networks import initialise, prior_variances, with_outputs
from uqbench.registry import build_method
from uqbench.stacked import jacobian_products, stacked_parameters, unflattened
from uqbench.training import Extras, overridden, squared_error, train_ensemble

MEMBERS = 10


def deep_ensemble(problem, data, network, epochs):
    """Return the training of some of the members, of which it returns the parameters (m, p)."""
    method = build_method("de", problem.methods["de"])
    recipe = overridden(
        problem.training, lr=method.lr, optimizer=method.optimizer, schedule=method.schedule
    )
    recipe = replace(recipe, epochs=epochs)
    starts = [
        initialise(with_outputs(network, 2, data.train.inputs), problem.network, seed)
        for seed in range(MEMBERS)
    ]

    def train(members):
        some = [starts[member] for member in members]
        return stacked_parameters(train_ensemble(some, data.train, recipe, gaussian_nll, members))

    return train, range(MEMBERS)


def bayesian_deep_ensemble(problem, data, network, epochs):
    """Likewise, with δ_m added to member m and its distance to its start penalised."""
    starts = [initialise(copy.deepcopy(network), problem.network, s) for s in range(2 * MEMBERS)]
    points, tangents = stacked_parameters(starts).chunk(2)
    offsets = jacobian_products(network, points, tangents, data.train.inputs)
    precisions = {n: 1 / v for n, v in prior_variances(network, problem.network).items() if v}
    factors = points.new_full((MEMBERS,), 0.01 / len(data.train))
    recipe = replace(problem.training, weight_decay=0.0, epochs=epochs)

    def train(members):
        some = list(members)
        penalty = DistanceToStart(unflattened(network, points[some]), precisions, factors[some])
        extras = Extras(offsets=offsets[some], penalty=penalty)
        networks = [starts[member] for member in some]
        trained = train_ensemble(networks, data.train, recipe, squared_error, some, extras=extras)
        return stacked_parameters(trained)

    return train, range(MEMBERS)


def swag_grid(problem, data, network, epochs):
    """Likewise of some weight decays of the grid: the means of their iterates."""
    method = build_method("swag", problem.methods.get("swag", {}))
    recipe = replace(problem.training, optimizer="sgd", schedule="none", weight_decay=0.0)
    recipe = replace(recipe, epochs=epochs)
    context = Context(torch.device("cpu"), data.train.inputs.dtype, 0)

    def train(decays):
        some = replace(method, weight_decay_grid=tuple(decays))
        return some._train(network, data, recipe, 0, context).mean

    return train, method.weight_decay_grid


CASES = {"de": deep_ensemble, "bde": bayesian_deep_ensemble, "swag": swag_grid}


def compare(train, members, repeats):
    """Return the median seconds together and one by one, and how far the results are apart."""

    def together():
        return train(members)

    def one_by_one():
        return torch.cat([train([member]) for member in members])

    seconds, found = {together: [], one_by_one: []}, {}
    for repeat in range(repeats + 1):
        for run in seconds:
            start = time.perf_counter()
            found[run] = run()
            if repeat:
                seconds[run].append(time.perf_counter() - start)
    difference = (found[together] - found[one_by_one]).abs().max().item()
    return *(statistics.median(values) for values in seconds.values()), difference


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=["energy", "concrete", "kin8nm", "wine"])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    table = Table(title=describe(), title_justify="left")
    columns = ("method", "data set", "dtype", "together (s)", "one by one (s)", "ratio")
    for column in (*columns, "difference"):
        table.add_column(column, justify="right" if column in columns[3:] else "left")
    for dtype in (torch.float64, torch.float32):
        kind = str(dtype).removeprefix("torch.")
        prepared = {name: prepare(name, dtype) for name in arguments.names}
        for method, case in CASES.items():
            ratios = []
            for name, (problem, data, _, network) in prepared.items():
                train, members = case(problem, data, network, arguments.epochs)
                together, one_by_one, difference = compare(train, members, arguments.repeats)
                ratios.append(together / one_by_one)
                numbers = (f"{together:.3f}", f"{one_by_one:.3f}", f"{ratios[-1]:.2f}")
                table.add_row(
                    f"{method}, {len(members)}", name, kind, *numbers, f"{difference:.0e}"
                )
            mean = math.exp(statistics.fmean(map(math.log, ratios)))
            name = "geometric mean"
            table.add_row(method, name, kind, "", "", f"{mean:.2f}", "", end_section=True)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
