"""The machine that a benchmark ran on, for the head of its table, and its clock."""

import os
import time

import torch

from uqbench.provenance import environment


def describe() -> str:
    """One line: processor, cores, threads, memory-bound libraries."""
    found = environment(torch.device("cpu"))
    threads, cores = torch.get_num_threads(), os.cpu_count()
    return f"{found['cpu']}, {cores} cores, {threads} threads, torch {torch.__version__}"


def clock() -> float:
    """Seconds; on one thread of CPU time, which other work on the machine hardly changes."""
    return time.process_time() if torch.get_num_threads() == 1 else time.perf_counter()
