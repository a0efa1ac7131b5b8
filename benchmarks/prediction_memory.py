"""Peak memory of predicting many samples of many class probabilities, beside that of their moments.

    python benchmarks/prediction_memory.py [--samples 1000] [--rows 50000] [--classes 1000]

Each line is a process of its own: a linear network's sampled parameters predict ``rows`` inputs
in batches of 1,000. The samples' probabilities as a whole would take S x N x C numbers.
"""

import argparse
import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor

import torch
from machine import describe
from rich.console import Console
from rich.table import Table
from torch import nn

from uqbench.memory import peak_host_bytes, reset_peak_host_bytes
from uqbench.method import Task
from uqbench.prediction import concatenate
from uqbench.sampled_posterior import SampledNetworks

FEATURES, BATCH = 8, 1000


def measure(samples, rows, classes):
    network = nn.Linear(FEATURES, classes).requires_grad_().eval()
    parameters = torch.randn(samples, classes * (FEATURES + 1))
    posterior = SampledNetworks(network, parameters, Task.CLASSIFICATION)
    inputs = torch.randn(rows, FEATURES)
    posterior.predict(inputs[:1])
    reset_peak_host_bytes()
    before, start = peak_host_bytes(), time.perf_counter()
    prediction = concatenate(map(posterior.predict, inputs.split(BATCH)), rows)
    moments = (prediction.probabilities, prediction.variance, prediction.logit_variance)
    held = sum(values.nbytes for values in moments)
    return peak_host_bytes() - before, held, time.perf_counter() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--classes", type=int, default=1000)
    arguments = parser.parse_args()
    samples, rows, classes = arguments.samples, arguments.rows, arguments.classes
    table = Table("samples", "rows", "classes", "all samples GB", "moments GB", "peak GB", "s")
    context = multiprocessing.get_context("spawn")
    for s, n in dict.fromkeys(
        [(10, rows // 10), (samples, rows // 10), (10, rows), (samples, rows)]
    ):
        with ProcessPoolExecutor(1, mp_context=context) as pool:
            peak, held, seconds = pool.submit(measure, s, n, classes).result()
        sizes = [f"{size / 1e9:.3f}" for size in (4 * s * n * classes, held, peak)]
        table.add_row(str(s), str(n), str(classes), *sizes, f"{seconds:.1f}")
    console = Console()
    console.print(describe())
    console.print(table)


if __name__ == "__main__":
    main()
