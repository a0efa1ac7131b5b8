"""Inputs that do not fit in memory: decoded, normalised and moved to the device batch by batch."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from uqbench.datasets.image_inputs import ImageInputs
from uqbench.errors import UnsupportedError

BATCH_ROWS = 1000
BATCH_BYTES = 2**26
"""Limits of a batch where nothing else says how large it is: 111 images of 3 x 224 x 224."""


class StreamedInputs:
    """Stands for the tensor (n, ...) of inputs that are read when they are asked for.

    It has a tensor's length, shape, ndim, dtype, device and nbytes; ``inputs[rows]`` for a slice or
    an index tensor of any shape, and ``inputs.split(rows)``, give tensors that are held. Batches
    that are known in advance are read ahead: those of ``split``, and those of :func:`gathered`.

    Whatever else is done with it, as with a tensor, needs all inputs at once and raises
    UnsupportedError. An image that cannot be read is a DataError that names its file.
    """

    def __init__(self, source: ImageInputs, dtype: torch.dtype, device: torch.device) -> None:
        self.shape = torch.Size(source.shape)
        self.ndim = len(self.shape)
        self.dtype = dtype
        self.device = torch.device(device)
        self.nbytes = self.shape.numel() * dtype.itemsize
        self._source = source

    def __len__(self) -> int:
        return self.shape[0]

    def element_size(self) -> int:
        """Bytes of a number."""
        return self.dtype.itemsize

    def begin(self, rows: slice | Tensor) -> Callable[[], Tensor]:
        """Start to read ``inputs[rows]``; the function returned waits for it and returns it."""
        wanted = rows.cpu().numpy() if isinstance(rows, Tensor) else rows
        chosen = np.arange(len(self))[wanted]
        # members of an ensemble draw batches of their own, in which rows recur
        distinct, places = np.unique(chosen, return_inverse=True)
        reading = self._source.begin(distinct)

        def finished() -> Tensor:
            values = torch.from_numpy(reading()).to(self.device, self.dtype)
            if len(distinct) == chosen.size and np.array_equal(distinct, chosen):
                return values
            index = torch.from_numpy(places.reshape(chosen.shape)).to(self.device)
            return values[index]

        return finished

    def __getitem__(self, rows: slice | Tensor) -> Tensor:
        return self.begin(rows)()

    def split(self, rows: int) -> Batches:
        """Consecutive batches of ``rows``, (rows, ...), the last one perhaps smaller."""
        return Batches(self, rows)

    @classmethod
    def __torch_function__(
        cls, function: Callable[..., Any], types: Any, arguments: Any = (), settings: Any = None
    ) -> NoReturn:
        raise UnsupportedError(_at_once(getattr(function, "__name__", "torch")))

    def __getattr__(self, name: str) -> NoReturn:
        if not name.startswith("_") and hasattr(Tensor, name):
            raise UnsupportedError(_at_once(f"Tensor.{name}"))
        raise AttributeError(f"{type(self).__name__} has no attribute '{name}'")


def _at_once(operation: str) -> str:
    return (
        f"this needs all inputs at once ({operation}), which do not fit in memory: set a "
        "batch_size, use a method that works in batches, or fewer or smaller images"
    )


class Batches:
    """Consecutive batches of streamed inputs, as often as they are iterated over."""

    def __init__(self, inputs: StreamedInputs, rows: int) -> None:
        self._inputs = inputs
        self._slices = [slice(i, i + rows) for i in range(0, len(inputs), rows)]

    def __len__(self) -> int:
        return len(self._slices)

    def __iter__(self) -> Iterator[Tensor]:
        return gathered(self._inputs, self._slices)


Inputs = Tensor | StreamedInputs


def rows_per_batch(inputs: Inputs) -> int:
    """How many rows make a batch of at most BATCH_ROWS and BATCH_BYTES; one at least."""
    return max(min(BATCH_BYTES * len(inputs) // max(inputs.nbytes, 1), BATCH_ROWS), 1)


def in_batches(inputs: Inputs) -> Iterable[Tensor]:
    """Consecutive batches of :func:`rows_per_batch`."""
    return inputs.split(rows_per_batch(inputs))


def gathered(inputs: Inputs, batches: Iterable[slice | Tensor]) -> Iterator[Tensor]:
    """Yield ``inputs[rows]`` for the rows of each batch; streamed ones are read one batch ahead."""
    if isinstance(inputs, Tensor):
        yield from (inputs[rows] for rows in batches)
        return
    begun: deque[Callable[[], Tensor]] = deque()
    for rows in batches:
        begun.append(inputs.begin(rows))
        if len(begun) > 1:
            yield begun.popleft()()
    while begun:
        yield begun.popleft()()
