"""MNIST, FashionMNIST, KMNIST, CIFAR-10, CIFAR-100 and SVHN, in torchvision's own layout.

torchvision reads them, and checks the files of the last three against their known MD5 sums. torch
is imported when a set is read.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from uqbench.datasets.arrays import Images, Shape
from uqbench.datasets.downloads import failed_download
from uqbench.datasets.root import fetch_command
from uqbench.errors import DataError

if TYPE_CHECKING:
    from torch.utils.data import Dataset

Part = Literal["train", "test"]
PARTS: tuple[Part, ...] = get_args(Part)

_DIGITS = tuple("0123456789")


@dataclass(frozen=True)
class ImageSet:
    """One data set.

    reader: its class in ``torchvision.datasets``. rows: number of images in each part.
    files: below the data root. class_names: empty where torchvision knows them.
    fingerprints: of each part's parsed arrays; empty where no trusted copy was at hand.
    """

    reader: str
    shape: Shape
    rows: Mapping[Part, int]
    classes: int
    files: tuple[str, ...]
    class_names: tuple[str, ...] = ()
    fingerprints: Mapping[Part, str] = field(default_factory=dict)


def _idx_files(folder: str) -> tuple[str, ...]:
    return tuple(
        f"{folder}/raw/{part}-{content}-ubyte"
        for part in ("train", "t10k")
        for content in ("images-idx3", "labels-idx1")
    )


def _mnist_like(reader: str, **known: Any) -> ImageSet:
    rows = {"train": 60_000, "test": 10_000}
    return ImageSet(reader, (1, 28, 28), rows, 10, _idx_files(reader), **known)


SETS: dict[str, ImageSet] = {
    "mnist": _mnist_like(
        "MNIST",
        class_names=_DIGITS,
        fingerprints={
            "train": "8e7b90a78f004958ac0e7158d851d5dd33ea5c919c175ba5afc526512910ef9e",
            "test": "ca5d6f8b77088c73bb4a08d2057a9904e92d81680cc338cd1d63a44a5f8346ca",
        },
    ),
    "fashion-mnist": _mnist_like(
        "FashionMNIST",
        fingerprints={
            "train": "6e0f2859d7286d49e3ba6f7e5dccccfee76b445eda182c5ab7b5106f029ef613",
            "test": "cf0e9d85d752b536801e27c571ce250347ffcb39b02b30e3c4215880a49c5e29",
        },
    ),
    "kmnist": _mnist_like("KMNIST"),
    "cifar-10": ImageSet(
        "CIFAR10",
        (3, 32, 32),
        {"train": 50_000, "test": 10_000},
        10,
        tuple(
            f"cifar-10-batches-py/{name}"
            for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch", "batches.meta")
        ),
    ),
    "cifar-100": ImageSet(
        "CIFAR100",
        (3, 32, 32),
        {"train": 50_000, "test": 10_000},
        100,
        tuple(f"cifar-100-python/{name}" for name in ("train", "test", "meta")),
    ),
    "svhn": ImageSet(
        "SVHN",
        (3, 32, 32),
        {"train": 73_257, "test": 26_032},
        10,
        ("train_32x32.mat", "test_32x32.mat"),
        class_names=_DIGITS,
    ),
}


def path_of(name: str, root: Path) -> Path:
    """The folder of a set, or its first file if it has none."""
    first = SETS[name].files[0]
    return root / first.split("/")[0]


def missing_file(name: str, root: Path) -> Path | None:
    """The first of a set's files that is not there, packed (.gz) or not."""
    paths = (root / file for file in SETS[name].files)
    return next((path for path in paths if not (path.exists() or _packed(path).exists())), None)


def load(name: str, part: Part, root: Path) -> Images:
    """Return the official training or test part, checked; it is read once while it is unchanged.

    A missing or different file is a DataError with the command to run. Sets without known
    fingerprints are checked for their numbers, shapes and labels alone.
    """
    missing = missing_file(name, root)
    if missing is not None:
        raise DataError(f"{missing}: no such file; get it with `{fetch_command(name, root)}`")
    return _load(name, part, root, _stamps(name, root))


@lru_cache(maxsize=8)
def _load(name: str, part: Part, root: Path, stamps: tuple[Any, ...]) -> Images:
    expected = SETS[name]
    place = path_of(name, root)
    remedy = f"move it away and get the right one with `{fetch_command(name, root)}`"
    try:
        with _unpacked(expected, root) as folder:
            images = _parsed(name, _open(expected, part, folder, download=False), str(place))
    except Exception as error:  # whatever readers make of a damaged file
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise DataError(f"{place}: cannot be read ({reason}); {remedy}") from None
    if difference := _difference(images, expected, part):
        raise DataError(f"{place}: {difference}; {remedy}")
    return images


def fetch(name: str, root: Path, download: Callable[[ImageSet, Path], None] | None = None) -> bool:
    """Download a set from its public source to the data root, unless a good one is there.

    Returns whether anything was downloaded. A file appears whole or not at all, and after all of
    them were checked; data that is not the known data is refused with a DataError.
    """
    expected = SETS[name]
    if missing_file(name, root) is None:
        for part in PARTS:
            load(name, part, root)
        return False
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=root, prefix=f".{name}-") as temporary:
            folder = Path(temporary)
            (download or _download)(expected, folder)
            for part in PARTS:
                source = _open(expected, part, folder, download=False)
                if difference := _difference(_parsed(name, source), expected, part):
                    raise DataError(f"{name}: {difference}; nothing was written")
            for file in expected.files:
                (root / file).parent.mkdir(parents=True, exist_ok=True)
                os.replace(folder / file, root / file)
    except OSError as error:
        raise DataError(f"{root}: cannot write {name} ({error.strerror or error})") from None
    return True


def _download(expected: ImageSet, folder: Path) -> None:
    for part in PARTS:
        try:
            with contextlib.redirect_stdout(sys.stderr):
                _open(expected, part, folder, download=True)
        except Exception as error:  # of urllib, of the archives, of torchvision's checks
            raise failed_download(expected.reader, error) from None


def _open(expected: ImageSet, part: Part, folder: Path, download: bool) -> Dataset:
    """torchvision's data set."""
    import torchvision.datasets

    reader = getattr(torchvision.datasets, expected.reader)
    chosen = {"split": part} if expected.reader == "SVHN" else {"train": part == "train"}
    return reader(folder, **chosen, download=download)


def _parsed(name: str, source: Any, place: str = "") -> Images:
    pixels = np.asarray(source.data)
    if pixels.ndim == 3:  # (N, H, W)
        pixels = pixels[:, None]
    elif pixels.shape[-1] == 3:  # (N, H, W, C)
        pixels = pixels.transpose(0, 3, 1, 2)
    targets = source.labels if hasattr(source, "labels") else source.targets
    if len(targets) != len(pixels):  # torchvision lets it pass
        raise ValueError(f"{len(pixels)} images, but {len(targets)} labels")
    return Images.held(
        name,
        np.ascontiguousarray(pixels),
        np.asarray(targets).astype(np.int64),
        SETS[name].class_names or tuple(source.classes),
        place,
    )


def _difference(images: Images, expected: ImageSet, part: Part) -> str:
    """How a part differs from the known one; empty if it does not."""
    found, wanted = (len(images), *images.shape), (expected.rows[part], *expected.shape)
    if found != wanted:
        shapes = [" x ".join(map(str, shape)) for shape in (found, wanted)]
        return f"its {part} part has shape {shapes[0]}, not the known {shapes[1]}"
    low, high = images.targets.min(), images.targets.max()
    if low < 0 or high >= expected.classes:
        label = low if low < 0 else high
        return f"its {part} part has the label {label}, which is outside 0..{expected.classes - 1}"
    known = expected.fingerprints.get(part, images.fingerprint)
    if images.fingerprint != known:
        return (
            f"the numbers of its {part} part are not the known ones (fingerprint "
            f"{images.fingerprint[:12]}, expected {known[:12]})"
        )
    return ""


def _packed(path: Path) -> Path:
    return path.with_name(f"{path.name}.gz")


@contextlib.contextmanager
def _unpacked(expected: ImageSet, root: Path) -> Iterator[Path]:
    """A folder that holds all files unpacked: the root itself if it does."""
    if all((root / file).exists() for file in expected.files):
        yield root
        return
    with tempfile.TemporaryDirectory() as temporary:
        for file in expected.files:
            copy = Path(temporary, file)
            copy.parent.mkdir(parents=True, exist_ok=True)
            if (root / file).exists():
                shutil.copyfile(root / file, copy)
                continue
            with gzip.open(_packed(root / file)) as packed, copy.open("wb") as unpacked:
                shutil.copyfileobj(packed, unpacked)
        yield Path(temporary)


def _stamps(name: str, root: Path) -> tuple[Any, ...]:
    """What changes when a file is rewritten: part of the key under which the images are kept."""
    stamps = []
    for file in SETS[name].files:
        path = root / file
        status = (path if path.exists() else _packed(path)).stat()
        stamps.append((status.st_mtime_ns, status.st_size))
    return tuple(stamps)
