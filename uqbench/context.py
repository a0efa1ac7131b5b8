"""What a method may use besides its arguments: device, dtype, randomness, clock, progress."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from uqbench.timing import Stopwatch


def ignore_progress(description: str, done: int, total: int) -> None:
    """The progress reporter that reports to nobody."""


@dataclass
class Context:
    """Carries what a run knows into ``Method.fit``; nothing in it is global.

    device, dtype: where and in what precision to compute.
    seed: the method's seed; ``generator`` is seeded with it.
    generator: the only source of randomness, on ``device``.
    progress: called as ``progress(description, done, total)``.
    """

    device: torch.device
    dtype: torch.dtype
    seed: int
    progress: Callable[[str, int, int], None] = ignore_progress
    generator: torch.Generator = field(init=False)
    tune_seconds: float = field(default=0.0, init=False)
    grid_size: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.device = torch.device(self.device)
        # torch keeps 64-bit seeds as signed on some devices
        self.generator = torch.Generator(self.device).manual_seed(self.seed % 2**63)

    def seeds(self, *shape: int) -> list:
        """Draw seeds for what takes a seed of its own: a list of them, nested as ``shape`` says."""
        return torch.randint(2**62, shape, generator=self.generator, device=self.device).tolist()

    @contextmanager
    def tuning(self, grid_size: int, share: float = 1.0) -> Iterator[None]:
        """Count the time inside as tuning, and the number of candidate settings tried.

        share: the part of the time that is tuning, where the fit of the chosen candidate is inside
        as well: (G - 1)/G if G candidates are fitted together.
        """
        with Stopwatch(self.device) as stopwatch:
            yield
        self.tune_seconds += share * stopwatch.seconds
        self.grid_size += grid_size
