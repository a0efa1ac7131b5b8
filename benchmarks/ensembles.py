"""Ten networks trained as one batched program against ten trainings one after another.

    UQBENCH_DATA=... python benchmarks/ensembles.py energy kin8nm

Members are deep-ensemble members (two heads, Gaussian NLL) with the data set's own recipe and
``--epochs`` epochs; both orders run in one process, alternating, after a warm-up.
"""

import argparse
import math
import statistics
import time
from dataclasses import replace

import torch
from machine import describe
from nuqls_uci import prepare
from rich.console import Console
from rich.table import Table

from uqbench.methods.de import gaussian_nll
from uqbench.networks import initialise, with_outputs
from uqbench.registry import build_method
from uqbench.training import overridden, train_ensemble

MEMBERS = 10


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=["energy", "concrete", "kin8nm", "wine"])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    table = Table(title=describe(), title_justify="left")
    for column in ("data set", "dtype", "together (s)", "one by one (s)", "ratio", "difference"):
        table.add_column(column, justify="right")
    for dtype in (torch.float64, torch.float32):
        ratios = []
        for name in arguments.names:
            problem, data, _, network = prepare(name, dtype)
            method = build_method("de", problem.methods["de"])
            recipe = overridden(
                problem.training, lr=method.lr, optimizer=method.optimizer, schedule=method.schedule
            )
            recipe = replace(recipe, epochs=arguments.epochs)
            starts = [
                initialise(with_outputs(network, 2), problem.network, seed)
                for seed in range(MEMBERS)
            ]
            seeds = list(range(MEMBERS))

            def together():
                return train_ensemble(starts, data.train, recipe, gaussian_nll, seeds)  # noqa: B023

            def one_by_one():
                return [
                    train_ensemble([start], data.train, recipe, gaussian_nll, [seed])[0]  # noqa: B023
                    for start, seed in zip(starts, seeds, strict=True)  # noqa: B023
                ]

            seconds = {together: [], one_by_one: []}
            trained = {}
            for repeat in range(arguments.repeats + 1):
                for run in seconds:
                    start = time.perf_counter()
                    trained[run] = run()
                    if repeat:
                        seconds[run].append(time.perf_counter() - start)
            difference = max(
                (a - b).abs().max().item()
                for left, right in zip(trained[together], trained[one_by_one], strict=True)
                for a, b in zip(left.parameters(), right.parameters(), strict=True)
            )
            times = [statistics.median(values) for values in seconds.values()]
            ratios.append(times[0] / times[1])
            kind = str(dtype).removeprefix("torch.")
            cells = [f"{times[0]:.3f}", f"{times[1]:.3f}", f"{ratios[-1]:.2f}", f"{difference:.0e}"]
            table.add_row(name, kind, *cells)
        mean = math.exp(statistics.fmean(map(math.log, ratios)))
        table.add_row("geometric mean", kind, "", "", f"{mean:.2f}", "", end_section=True)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
