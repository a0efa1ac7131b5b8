"""What loaders return: a table or a set of images as read, and a problem's data once split."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from uqbench.method import Task

if TYPE_CHECKING:
    from uqbench.datasets.image_inputs import ImageInputs


def fingerprint(*arrays: np.ndarray, class_names: tuple[str, ...] = ()) -> str:
    """sha256 (64 hex digits) of the arrays' shapes, dtypes, little-endian bytes, and class names.

    It is of the parsed numbers: how a file writes them (``5``, ``5.0``, line ends) does not matter.
    """
    digest = hashlib.sha256()
    for array in arrays:
        little_endian = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
        digest.update(f"{array.shape}{little_endian.dtype.str}".encode())
        digest.update(little_endian.data)
    digest.update("\x00".join(class_names).encode())
    return digest.hexdigest()


def read_only(array: np.ndarray) -> np.ndarray:
    """Return the array, which can no longer be written to: tables are shared between cells."""
    array.setflags(write=False)
    return array


@dataclass(frozen=True, eq=False)
class Table:
    """A data set before it is split.

    inputs: (N, d) float64. targets: (N,), float64 values or int64 class indices 0..C-1.
    class_names: the labels behind the indices; empty for regression.
    source: the file or package that it comes from, for error messages.
    """

    name: str
    inputs: np.ndarray
    targets: np.ndarray
    feature_names: tuple[str, ...]
    target_name: str
    task: Task
    class_names: tuple[str, ...] = ()
    source: str = ""
    fingerprint: str = field(init=False)

    def __post_init__(self) -> None:
        read_only(self.inputs)
        read_only(self.targets)
        found = fingerprint(self.inputs, self.targets, class_names=self.class_names)
        object.__setattr__(self, "fingerprint", found)

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def place(self) -> str:
        """How an error message names the table: its file if it has one."""
        return self.source or self.name


Shape = tuple[int, int, int]
"""Channels (1: grey, 3: RGB), height and width of an image."""


@dataclass(frozen=True, eq=False)
class Images:
    """Labelled images of one shape, whose pixels are read when they are asked for.

    shape: (C, H, W). targets: (N,) int64 class indices 0..C-1 (zeros where there are no classes).
    read: row numbers (n,) -> pixels (n, C, H, W), uint8; several threads call it at once.
    source: the file or folder that they come from, for error messages.
    fingerprint: of all images as they are stored.
    """

    name: str
    shape: Shape
    targets: np.ndarray
    read: Callable[[np.ndarray], np.ndarray]
    fingerprint: str
    class_names: tuple[str, ...] = ()
    source: str = ""

    @classmethod
    def held(
        cls,
        name: str,
        pixels: np.ndarray,
        targets: np.ndarray,
        class_names: tuple[str, ...] = (),
        source: str = "",
    ) -> Images:
        """Images that are in memory: pixels (N, C, H, W), uint8."""
        read_only(pixels)
        read_only(targets)
        found = fingerprint(pixels, targets, class_names=class_names)
        shape = pixels.shape[1:]
        return cls(name, shape, targets, pixels.__getitem__, found, class_names, source)

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def place(self) -> str:
        """How an error message names them: their file or folder if they have one."""
        return self.source or self.name

    def pixels(self) -> np.ndarray:
        """All pixels, (N, C, H, W) uint8."""
        return self.read(np.arange(len(self)))

    def take(self, rows: np.ndarray) -> Images:
        """The images of these rows; the fingerprint remains that of all."""
        return replace(
            self, targets=self.targets[rows], read=lambda chosen: self.read(rows[chosen])
        )

    def mapped(self, name: str, shape: Shape, change: Callable[[np.ndarray], np.ndarray]) -> Images:
        """The images that ``change`` makes of these pixels, whenever they are read."""
        return replace(self, name=name, shape=shape, read=lambda rows: change(self.read(rows)))


@dataclass(frozen=True, eq=False)
class Arrays:
    """inputs: (n, ...) float64, of images float32; targets: (n,), standardised or class indices.

    Images that do not fit in memory are read when they are asked for.
    """

    inputs: np.ndarray | ImageInputs
    targets: np.ndarray

    def __len__(self) -> int:
        return len(self.targets)


@dataclass(frozen=True, eq=False)
class PreparedData:
    """A problem's data for one seed, standardised.

    ood: name -> inputs (n, ...) of an out-of-distribution set.
    ood_conversions: name -> what was done to make its images fit; absent where nothing was.
    num_classes: C, or None for regression.
    target_mean, target_std: y_raw = target_mean + target_std * y (0 and 1 where not standardised).
    fingerprint: of the data before splitting.
    """

    task: Task
    train: Arrays
    validation: Arrays
    test: Arrays
    ood: Mapping[str, np.ndarray | ImageInputs] = field(default_factory=dict)
    class_names: tuple[str, ...] = ()
    num_classes: int | None = None
    target_mean: float = 0.0
    target_std: float = 1.0
    feature_names: tuple[str, ...] = ()
    fingerprint: str = ""
    ood_conversions: Mapping[str, str] = field(default_factory=dict)
