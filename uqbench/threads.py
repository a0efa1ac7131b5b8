"""How many threads a computation is worth."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

SERIAL_ENTRIES = 100_000
"""Entries per step (activations, matrix entries) below which a second thread costs more than it
brings: threads that wait for each other on short kernels lose the time they save, and far more
when something else uses the cores."""


@contextmanager
def threads_for(entries: int) -> Iterator[None]:
    """Compute on one thread inside if a step touches few ``entries``, else on as many as before."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1 if entries < SERIAL_ENTRIES else threads)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
