"""Honest clocks: the device is synchronised before each reading of a monotonic clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import torch


def synchronise(device: torch.device) -> None:
    """Wait until all work queued on the device is done (nothing to wait for on the CPU)."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


class Stopwatch:
    """``with Stopwatch(device) as s: ...`` leaves the elapsed wall-clock time in ``s.seconds``."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.seconds = float("nan")

    def __enter__(self) -> Stopwatch:
        synchronise(self.device)
        self._start = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        synchronise(self.device)
        self.seconds = time.perf_counter() - self._start


def median_seconds(
    work: Callable[[], object], device: torch.device, repeats: int = 3, budget: float = 60.0
) -> tuple[float, int]:
    """Return the median time of at least three repeats of ``work``, and the number of repeats.

    The caller has warmed ``work`` up. Repeats stop early, though never before the third, once
    ``budget`` seconds are spent.
    """
    seconds = []
    while len(seconds) < 3 or (len(seconds) < repeats and sum(seconds) < budget):
        with Stopwatch(device) as stopwatch:
            work()
        seconds.append(stopwatch.seconds)
    return median(seconds), len(seconds)
