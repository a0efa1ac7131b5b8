"""The machine that a benchmark ran on, for the head of its table."""

import os

import torch

from uqbench.provenance import environment


def describe() -> str:
    """One line: processor, cores, threads, memory-bound libraries."""
    found = environment(torch.device("cpu"))
    threads, cores = torch.get_num_threads(), os.cpu_count()
    return f"{found['cpu']}, {cores} cores, {threads} threads, torch {torch.__version__}"
