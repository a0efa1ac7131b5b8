"""Images as a network takes them: normalised float32, held in memory or read when asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from uqbench.datasets.arrays import Images
from uqbench.datasets.threads import number_of_threads, reading_threads

_ROWS_AT_A_TIME = 64
_COUNTED_AT_A_TIME = 4_000_000


@dataclass(frozen=True, eq=False)
class ImageInputs:
    """Images of which each channel is (pixel / 255 - mean) / std, read when they are asked for.

    mean, std: (C,), or (1,) for all channels.
    """

    images: Images
    mean: np.ndarray
    std: np.ndarray

    def __len__(self) -> int:
        return len(self.images)

    @property
    def shape(self) -> tuple[int, ...]:
        """(n, C, H, W)."""
        return (len(self), *self.images.shape)

    @property
    def nbytes(self) -> int:
        """What all of them take once they are read."""
        return int(np.prod(self.shape)) * np.dtype(np.float32).itemsize

    def begin(self, rows: np.ndarray) -> Callable[[], np.ndarray]:
        """Start to read these rows in other threads.

        Returns a function that waits for them and returns (len(rows), C, H, W), float32, or raises
        the DataError of an image that cannot be read.
        """
        values = np.empty((len(rows), *self.images.shape), np.float32)
        scale = (1 / (255 * self.std)).astype(np.float32)[:, None, None]
        shift = (self.mean / self.std).astype(np.float32)[:, None, None]

        def fill(first: int, last: int) -> None:
            chosen = values[first:last]
            np.multiply(self.images.read(rows[first:last]), scale, out=chosen)
            np.subtract(chosen, shift, out=chosen)

        step = min(-(-len(rows) // number_of_threads()), _ROWS_AT_A_TIME) or 1
        starts = range(0, len(rows), step)
        parts = [reading_threads().submit(fill, first, first + step) for first in starts]

        def finished() -> np.ndarray:
            try:
                for part in parts:
                    part.result()
            finally:
                for part in parts:
                    part.cancel()
            return values

        return finished

    def held(self) -> np.ndarray:
        """All of them in memory."""
        return self.begin(np.arange(len(self)))()


def channel_statistics(images: Images) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and population standard deviation of each channel, (C,), in one pass.

    On the scale in which 255 is 1; the standard deviation of a constant channel is given as 1.
    """

    def count(first: int) -> np.ndarray:
        pixels = images.read(np.arange(first, min(first + step, len(images))))
        return np.stack([np.bincount(c.ravel(), minlength=256) for c in pixels.swapaxes(0, 1)])

    step = max(1, _COUNTED_AT_A_TIME // int(np.prod(images.shape)))
    counts = sum(reading_threads().map(count, range(0, len(images), step)))
    weights = counts / counts.sum(1, keepdims=True)
    levels = np.arange(256) / 255
    mean = weights @ levels
    std = np.sqrt((weights * (levels - mean[:, None]) ** 2).sum(1))
    return mean, np.where((counts > 0).sum(1) == 1, 1.0, std)
