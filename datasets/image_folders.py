"""Folders of image files: one's own, folders of OoD images, ImageNet and ImageNet-O.

An own data set is a folder with ``train/`` and ``test/``, and perhaps ``val/``, which hold a folder
of images for each class. Files of any format that Pillow reads count as images, by their suffix;
hidden files and all others are ignored.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from uqbench.datasets.arrays import Images, Shape
from uqbench.datasets.image_transforms import conversion
from uqbench.datasets.threads import reading_threads
from uqbench.errors import DataError, UsageError

if TYPE_CHECKING:
    from PIL.Image import Image

PARTS = {"train": ("train",), "test": ("test",), "val": ("val", "valid", "validation")}
"""Part -> the names that its folder may have."""
IMAGENET_SHAPE: Shape = (3, 224, 224)
LARGEST_SIDE = 4096
"""Pixels that may be asked for: a channel of one such image is 64 MB once it is normalised."""
HELD_BYTES = 2**30
"""Size of the pixels of a folder's images, one byte each, up to which they are held in memory."""


class ByHand(NamedTuple):
    """A data set that has to be downloaded by hand. images: how many there are."""

    images: int
    source: str


BY_HAND = {
    "imagenet": ByHand(1_281_167 + 50_000, "image-net.org"),
    "imagenet-o": ByHand(2_000, "github.com/hendrycks/natural-adv-examples"),
}
"""In ROOT/NAME."""


class _File(NamedTuple):
    """An image file, with what changes when it is rewritten."""

    path: Path
    modified: int
    bytes: int


class _Class(NamedTuple):
    name: str
    files: tuple[_File, ...]


class _Part(NamedTuple):
    name: str
    folder: Path
    classes: tuple[_Class, ...]

    @property
    def files(self) -> tuple[_File, ...]:
        return tuple(file for one in self.classes for file in one.files)

    def targets(self, class_names: Sequence[str]) -> np.ndarray:
        number = {name: index for index, name in enumerate(class_names)}
        return np.array([number[one.name] for one in self.classes for _ in one.files], np.int64)


def load_folder(path: Path, side: int | None = None) -> dict[str, Images]:
    """Return the parts ``train``, ``test`` and, if there is one, ``val`` of one's own folder.

    The images are grey if all of them are, else RGB. Their size is the most common one among those
    for training, or ``side`` x ``side`` pixels; others are scaled (bilinear, antialiased) until
    they cover it, and cropped around the centre. Transparency is ignored.

    Up to ``HELD_BYTES`` of pixels are read once while the files are unchanged, and the fingerprint
    is of the pixels. Of more images, each file's header is read here (minutes for a million files),
    the pixels whenever they are asked for, and the fingerprint is of the files' names and sizes:
    damage behind a header is found when that image is read.

    Raises DataError, which names the folder or the file, if a part or a class has no images, there
    are fewer than two classes, a part has a class that training lacks, or an image cannot be read;
    UsageError if ``side`` is above ``LARGEST_SIDE``.
    """
    if side is not None and side > LARGEST_SIDE:
        raise UsageError(f"image_size must be at most {LARGEST_SIDE} pixels, got {side}")
    return dict(_read_parts(path, side, _parts(path)))


def load_ood_folder(path: Path, shape: Shape) -> tuple[Images, str]:
    """Return all images below a folder in this shape, and what was done to any ("" if nothing).

    They are read and held, and a DataError is raised, as by :func:`load_folder`.
    """
    _require_folder(path)
    files = _image_files(path)
    if not files:
        raise DataError(f"{path}: holds no images (files like .png or .jpg)")
    return _read_ood(path, files, shape)


def load_imagenet(part: Literal["train", "test"], root: Path) -> Images:
    """ImageNet's training images, or its validation images as the test part.

    They lie in ROOT/imagenet/train/CLASS and ROOT/imagenet/val/CLASS. Classes are numbered in the
    order of their folders' names, the WordNet ids, which is the order of torchvision's networks.
    The shorter side is scaled to 256 pixels, and the centre of 224 x 224 is kept. The fingerprint
    is of the files' names and sizes: there are too many to be read at once.
    """
    train, test = root / "imagenet" / "train", root / "imagenet" / "val"
    for folder in (train, test):
        _require_by_hand("imagenet", folder)
    return _imagenet("imagenet", train if part == "train" else test, train, _modified(train, test))


def load_imagenet_o(root: Path) -> Images:
    """ImageNet-O (Hendrycks et al. 2021) in ROOT/imagenet-o/CLASS, cropped as ImageNet is.

    Its labels are no classes of a network's; nothing uses them.
    """
    folder = root / "imagenet-o"
    _require_by_hand("imagenet-o", folder)
    return _imagenet("imagenet-o", folder, folder, _modified(folder))


def check_by_hand(name: str, root: Path) -> bool:
    """Raise DataError unless a set of ``BY_HAND`` is there; False, as nothing is ever fetched."""
    if name == "imagenet":
        load_imagenet("train", root)
        load_imagenet("test", root)
    else:
        load_imagenet_o(root)
    return False


def _require_by_hand(name: str, folder: Path) -> None:
    if not folder.is_dir():
        raise DataError(
            f"{folder}: no such folder; {name} has to be downloaded by hand from "
            f"{BY_HAND[name].source}"
        )


def _parts(path: Path) -> tuple[_Part, ...]:
    """The files of an own folder, whose layout is checked."""
    _require_folder(path)
    found = []
    for part, names in PARTS.items():
        folder = next((path / name for name in names if (path / name).is_dir()), None)
        if folder is not None:
            found.append(_Part(part, folder, _classes(folder)))
        elif part != "val":
            raise DataError(
                f"{path}: has no folder '{part}'; it needs train/ and test/, each with a folder "
                "of images for every class"
            )
    train, *others = found
    known = [one.name for one in train.classes]
    if len(known) < 2:
        raise DataError(
            f"{train.folder}: has a single class, '{known[0]}'; there is nothing to tell apart"
        )
    for part in others:
        for one in part.classes:
            if one.name not in known:
                raise DataError(
                    f"{part.folder / one.name}: training has no class '{one.name}' (no such folder "
                    f"in {train.folder})"
                )
    return tuple(found)


def _require_folder(path: Path) -> None:
    if not path.is_dir():
        fault = "is a file; give a folder" if path.exists() else "no such folder"
        raise DataError(f"{path}: {fault}")


def _classes(folder: Path) -> tuple[_Class, ...]:
    """The classes of a part in the order of their names; each has an image at least."""
    entries = sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    stray = next((entry for entry in entries if _is_image(entry.name) and entry.is_file()), None)
    if stray is not None:
        raise DataError(f"{stray}: lies outside of the folders of the classes in {folder}")
    folders = [entry for entry in entries if entry.is_dir()]
    for one in folders:
        if not _is_utf8(one.name):
            raise DataError(
                f"{folder}: the name of the folder {one.name!r} is not UTF-8; rename it"
            )
    classes = [_Class(one.name, _image_files(one)) for one in folders]
    if not classes:
        raise DataError(f"{folder}: holds no folders; each class needs one with its images")
    for one in classes:
        if not one.files:
            raise DataError(
                f"{folder / one.name}: holds no images (files like .png or .jpg); add some, or "
                "remove the folder"
            )
    return tuple(classes)


def _image_files(folder: Path) -> tuple[_File, ...]:
    """All images in a folder and the folders inside it, in the order of their paths.

    Links are followed; a folder to which several lead counts once.
    """
    files, known = [], set()
    try:
        for place, folders, names in os.walk(folder, onerror=_raise, followlinks=True):
            target = os.path.realpath(place)
            if target in known:
                folders.clear()
                continue
            known.add(target)
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            for name in sorted(filter(_is_image, names)):
                path = Path(place, name)
                status = path.stat()
                files.append(_File(path, status.st_mtime_ns, status.st_size))
    except OSError as error:  # of a link to what is gone, of a folder that may not be read
        raise DataError(f"{error.filename}: cannot be read ({error.strerror})") from None
    return tuple(files)


def _raise(error: OSError) -> None:
    raise error


def _is_image(name: str) -> bool:
    return not name.startswith(".") and os.path.splitext(name)[1].lower() in _suffixes()


def _is_utf8(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


@cache
def _suffixes() -> frozenset[str]:
    """Suffixes of the formats that Pillow reads."""
    from PIL import Image

    known = Image.registered_extensions().items()
    return frozenset(suffix for suffix, kind in known if kind in Image.OPEN)


@lru_cache(maxsize=2)
def _read_parts(
    path: Path, side: int | None, parts: tuple[_Part, ...]
) -> tuple[tuple[str, Images], ...]:
    headers = {part.name: _headers(part.files) for part in parts}
    grey = all(header.grey for found in headers.values() for header in found)
    sizes = Counter(header.size for header in headers["train"])
    size = (side, side) if side else sizes.most_common(1)[0][0]
    shape = (1 if grey else 3, *size)
    class_names = tuple(one.name for one in parts[0].classes)
    hold = _pixel_bytes(sum(map(len, headers.values())), shape) <= HELD_BYTES
    read = []
    for part in parts:
        targets = part.targets(class_names)
        images = _images(path.name, part.folder, part.files, shape, targets, class_names, hold)
        read.append((part.name, images))
    return tuple(read)


@lru_cache(maxsize=4)
def _read_ood(path: Path, files: tuple[_File, ...], shape: Shape) -> tuple[Images, str]:
    headers = _headers(files)
    hold = _pixel_bytes(len(files), shape) <= HELD_BYTES
    images = _images(path.name, path, files, shape, np.zeros(len(files), np.int64), (), hold)
    done = conversion(
        shape,
        any(header.size != shape[1:] for header in headers),
        any(header.grey != (shape[0] == 1) for header in headers),
    )
    return images, done


def _headers(files: Sequence[_File]) -> list[_Header]:
    return list(reading_threads().map(_header, [file.path for file in files]))


def _pixel_bytes(images: int, shape: Shape) -> int:
    return images * math.prod(shape)


def _images(
    name: str,
    folder: Path,
    files: Sequence[_File],
    shape: Shape,
    targets: np.ndarray,
    class_names: tuple[str, ...],
    hold: bool,
) -> Images:
    """The files' images in this shape, read now if ``hold``."""

    def decode(path: str) -> np.ndarray:
        return _decoded(Path(path), shape)

    paths = _paths(files)
    if hold:
        pixels = np.stack(list(reading_threads().map(decode, paths)))
        return Images.held(name, pixels, targets, class_names, str(folder))
    return Images(
        name=name,
        shape=shape,
        targets=targets,
        read=lambda rows: np.stack([decode(path) for path in paths[rows]]),
        fingerprint=_fingerprint(folder, files, shape, class_names),
        class_names=class_names,
        source=str(folder),
    )


def _paths(files: Sequence[_File]) -> np.ndarray:
    """As an array of strings: of a million files, Path objects would take a gigabyte."""
    return np.array([str(file.path) for file in files], dtype=object)


def _fingerprint(
    folder: Path, files: Sequence[_File], shape: Shape, class_names: tuple[str, ...]
) -> str:
    """sha256 of the files' names and sizes; of a million, the contents would take too long."""
    digest = hashlib.sha256(f"{shape}\0{class_names}\0".encode())
    for file in files:
        digest.update(os.fsencode(file.path.relative_to(folder)) + f"\0{file.bytes}\0".encode())
    return digest.hexdigest()


def _modified(*folders: Path) -> tuple[int, ...]:
    return tuple(folder.stat().st_mtime_ns for folder in folders)


@lru_cache(maxsize=4)
def _imagenet(name: str, folder: Path, train: Path, modified: tuple[int, ...]) -> Images:
    part = _Part(name, folder, _classes(folder))
    folders = [one for one in train.iterdir() if one.is_dir() and not one.name.startswith(".")]
    class_names = tuple(sorted(one.name for one in folders))
    if unknown := {one.name for one in part.classes} - set(class_names):
        raise DataError(f"{folder / min(unknown)}: no such folder in {train}")
    paths = _paths(part.files)
    return Images(
        name=name,
        shape=IMAGENET_SHAPE,
        targets=part.targets(class_names),
        read=lambda rows: np.stack([_cropped(Path(path)) for path in paths[rows]]),
        fingerprint=_fingerprint(folder, part.files, IMAGENET_SHAPE, class_names),
        class_names=class_names,
        source=str(folder),
    )


def _cropped(path: Path) -> np.ndarray:
    """(3, 224, 224) uint8."""
    from torchvision.transforms import CenterCrop, Compose, Resize

    crop = Compose([Resize(256), CenterCrop(IMAGENET_SHAPE[1])])
    with _opened(path) as image:
        return _array(crop(image.convert("RGB")))


class _Header(NamedTuple):
    size: tuple[int, int]
    """Height and width."""
    grey: bool


def _header(path: Path) -> _Header:
    from PIL.ExifTags import Base

    with _opened(path) as image:
        size = image.height, image.width
        lies_on_its_side = image.getexif().get(Base.Orientation) in (5, 6, 7, 8)
        return _Header(size[::-1] if lies_on_its_side else size, _is_grey(image))


def _decoded(path: Path, shape: Shape) -> np.ndarray:
    """The image in this shape, uint8."""
    from PIL import ImageOps
    from PIL.Image import Resampling

    with _opened(path) as image:
        ImageOps.exif_transpose(image, in_place=True)
        if image.mode in ("I", "F"):
            raise DataError(f"{path}: has pixels of 32 bits; save it with 8 bits per channel")
        size = shape[2], shape[1]
        turned = _with_channels(image, shape[0])
        if turned.size != size:
            turned = ImageOps.fit(turned, size, Resampling.BILINEAR)
        return _array(turned)


@contextmanager
def _opened(path: Path) -> Iterator[Image]:
    """An image file; whatever goes wrong inside the block is a DataError that names it."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path) as image:
            yield image
    except DataError:
        raise
    except FileNotFoundError:  # it was there when the folder was listed
        raise DataError(f"{path}: no such file any more; restore it, or run again") from None
    except Exception as error:  # whatever the readers of forty formats make of a damaged file
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        if isinstance(error, UnidentifiedImageError):
            reason = "its format is unknown"
        elif isinstance(error, OSError) and error.strerror:  # the system's, not Pillow's
            reason = error.strerror
        raise DataError(
            f"{path}: cannot be read as an image ({reason}); repair or remove it"
        ) from None


def _is_grey(image: Image) -> bool:
    return image.mode in ("1", "L", "LA") or image.mode.startswith("I;16")


def _with_channels(image: Image, channels: int) -> Image:
    from PIL import Image as PIL

    if image.mode.startswith("I;16"):  # Pillow would clip at 255
        image = PIL.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    return image.convert("L" if channels == 1 else "RGB")


def _array(image: Image) -> np.ndarray:
    """(C, H, W) uint8."""
    pixels = np.asarray(image)
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
