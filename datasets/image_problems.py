"""The images of a problem: its parts and OoD sets for one seed, and their normalised inputs."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from uqbench.datasets import image_folders, images
from uqbench.datasets.arrays import Arrays, Images, PreparedData, Shape
from uqbench.datasets.image_inputs import ImageInputs, channel_statistics
from uqbench.datasets.image_transforms import ROTATIONS, fitted, rotated
from uqbench.errors import DataError, UsageError
from uqbench.formatting import printable
from uqbench.method import Task
from uqbench.suggestions import did_you_mean

if TYPE_CHECKING:
    from uqbench.problems import Normalisation, Subset

FOLDER_PREFIX = "images:"
ROTATED_PREFIX = "rotated:"
NAMES = (*images.SETS, *image_folders.BY_HAND)
MEMORY_VARIABLE = "UQBENCH_IMAGE_MEMORY"

Validation = float | str
"""A fraction, or a part: ``val`` or ``test``."""


@dataclass(frozen=True, eq=False)
class ImageParts:
    """A problem's images for one seed, before their pixels are read.

    ood: name -> images in the problem's shape. conversions: name -> what was done to make them fit;
    absent where nothing was. fingerprint: of all data sets as they are stored.
    """

    train: Images
    validation: Images
    test: Images
    ood: Mapping[str, Images]
    conversions: Mapping[str, str]
    fingerprint: str


def is_image_set(dataset: str) -> bool:
    """Whether a problem's data set is one of images."""
    return dataset in NAMES or dataset.startswith(FOLDER_PREFIX)


def is_ood_name(name: str) -> bool:
    """Whether it names an OoD set, and is no path."""
    return name in NAMES or name.startswith((FOLDER_PREFIX, ROTATED_PREFIX))


def image_parts(
    dataset: str,
    *,
    validation: Validation,
    seed: int,
    root: Path,
    ood: Sequence[str] = (),
    subset: Subset | None = None,
    image_size: int | None = None,
) -> ImageParts:
    """Choose the images of each part.

    dataset: a name of ``NAMES`` or ``images:PATH``. validation: the fraction of its training part
    that is drawn for validation and not trained on; ``val``: its own validation part; ``test``:
    its test part.
    ood: data sets of which the test part, or ``images:PATH`` of which all images below the folder
    are taken; ``rotated:NAME:DEGREES`` for a turned one, and ``rotated:NAME`` for ``ROTATIONS``.
    A name that is given twice counts once.
    subset: the most images of each part; those that are kept are drawn.
    image_size: of ``images:PATH``, see :func:`uqbench.datasets.image_folders.load_folder`.

    Raises UsageError for a name or a validation part that does not exist and for an OoD set of the
    data set's own images, DataError for images that are missing, damaged or too few.
    """
    official = _official_parts(dataset, root, image_size)
    random = np.random.Generator(np.random.PCG64(seed))
    train, chosen = _split(dataset, official, validation, random)
    parts = {"train": train, "validation": chosen, "test": official["test"]}
    outside, conversions = {}, {}
    for name in dict.fromkeys(_expanded(ood)):
        _require_other(name, dataset)
        short = printable(_folder(name).name) if name.startswith(FOLDER_PREFIX) else name
        key = name if short in outside else short
        outside[key], done = _ood_set(name, root, train.shape)
        if done:
            conversions[key] = done
    digest = hashlib.sha256()
    for name, one in {**parts, **{f"ood:{name}": one for name, one in outside.items()}}.items():
        digest.update(f"{name}\0{one.fingerprint}\0".encode())
    if subset is not None:
        parts = {name: _at_most(getattr(subset, name), one, random) for name, one in parts.items()}
        outside = {name: _at_most(subset.ood, one, random) for name, one in outside.items()}
    return ImageParts(**parts, ood=outside, conversions=conversions, fingerprint=digest.hexdigest())


def prepare_images(
    parts: ImageParts,
    standardise: bool = True,
    normalisation: Normalisation | None = None,
    memory: int | None = None,
) -> PreparedData:
    """Return all inputs as float32, (n, C, H, W): in [0, 1] unless they are standardised.

    standardise: each channel, of the OoD sets as well, becomes (value - mean) / std with the mean
    and population standard deviation of that channel in the training part, or with those of
    ``normalisation``.
    memory: bytes that may be held besides the limit of :func:`image_memory` (of a device). Parts
    and OoD sets are held in memory while they fit together, the smallest first; the others are
    :class:`~uqbench.datasets.image_inputs.ImageInputs`, whose images are read when they are asked
    for.

    Raises DataError for an image that cannot be read, and UsageError if ``normalisation`` has not
    the images' number of channels.
    """
    mean, std = _normalisation(parts.train, standardise, normalisation)
    chosen = (parts.train, parts.validation, parts.test, *parts.ood.values())
    # one part may serve as two
    inputs = {id(one): ImageInputs(one, mean, std) for one in chosen}
    left = min(image_memory(), math.inf if memory is None else memory)
    for key, one in sorted(inputs.items(), key=lambda item: item[1].nbytes):
        left -= one.nbytes
        if left >= 0:
            inputs[key] = one.held()

    def arrays(part: Images) -> Arrays:
        return Arrays(inputs[id(part)], part.targets)

    return PreparedData(
        task=Task.CLASSIFICATION,
        train=arrays(parts.train),
        validation=arrays(parts.validation),
        test=arrays(parts.test),
        ood={name: inputs[id(one)] for name, one in parts.ood.items()},
        ood_conversions=parts.conversions,
        class_names=parts.train.class_names,
        num_classes=len(parts.train.class_names),
        fingerprint=parts.fingerprint,
    )


def image_memory() -> int:
    """How many bytes of images may be held: $UQBENCH_IMAGE_MEMORY, else half of the free memory.

    Raises UsageError if the variable is no number of bytes, 0 or more.
    """
    if stated := os.environ.get(MEMORY_VARIABLE):
        try:
            stated_bytes = int(float(stated))
        except (ValueError, OverflowError):
            stated_bytes = -1
        if stated_bytes < 0:
            raise UsageError(
                f"${MEMORY_VARIABLE} must be a number of bytes, like 8e9, got '{stated}'"
            )
        return stated_bytes
    import psutil

    return psutil.virtual_memory().available // 2


def _normalisation(
    train: Images, standardise: bool, given: Normalisation | None
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of each channel, (C,), or (1,) for all."""
    if not standardise:
        return np.zeros(1), np.ones(1)
    if given is None:
        return channel_statistics(train)
    if len(given.mean) != train.shape[0]:
        raise UsageError(
            f"normalisation is of {len(given.mean)} channels, but the images of {train.name} have "
            f"{train.shape[0]}"
        )
    return np.array(given.mean), np.array(given.std)


def _official_parts(dataset: str, root: Path, image_size: int | None) -> Mapping[str, Images]:
    """The parts that a data set comes in: ``train``, ``test``, and perhaps ``val``."""
    if dataset.startswith(FOLDER_PREFIX):
        return image_folders.load_folder(_folder(dataset), image_size)
    if image_size is not None:
        raise UsageError(
            f"{dataset}: its images have their own size; image_size is for images:PATH"
        )
    if dataset in images.SETS:
        return {part: images.load(dataset, part, root) for part in images.PARTS}
    if dataset == "imagenet":
        return {part: image_folders.load_imagenet(part, root) for part in images.PARTS}
    if dataset in NAMES:
        raise UsageError(f"{dataset}: has no training part; it is for ood alone")
    raise UsageError(f"no images named '{dataset}'.{did_you_mean(dataset, NAMES)}")


def _split(
    dataset: str,
    official: Mapping[str, Images],
    validation: Validation,
    random: np.random.Generator,
) -> tuple[Images, Images]:
    """The training and the validation part."""
    train = official["train"]
    if isinstance(validation, str):
        if validation not in official:
            raise UsageError(f"{dataset}: has no validation part; give validation a fraction")
        return train, official[validation]
    order = random.permutation(len(train))
    drawn = round(validation * len(order))
    if not 0 < drawn < len(order):
        raise DataError(
            f"{train.place}: {len(order)} images are too few to take {validation:g} of them for "
            "validation; add images"
        )
    chosen, rest = train.take(np.sort(order[:drawn])), train.take(np.sort(order[drawn:]))
    counts = np.bincount(train.targets, minlength=len(train.class_names))
    left = np.bincount(rest.targets, minlength=len(train.class_names))
    if not left.all():
        absent = int(np.argmin(left))
        raise DataError(
            f"{train.place}: class '{train.class_names[absent]}' has only {counts[absent]} images, "
            "and all of them fell into the validation part; add images, or drop the class"
        )
    return rest, chosen


def _expanded(ood: Sequence[str]) -> Iterator[str]:
    for name in ood:
        if name.startswith(ROTATED_PREFIX) and name.count(":") == 1:
            yield from (f"{name}:{degrees}" for degrees in ROTATIONS)
        else:
            yield name


def _require_other(name: str, dataset: str) -> None:
    """Raise UsageError if an OoD set holds images of the problem's own data set."""
    same = name == dataset
    if name.startswith(FOLDER_PREFIX) and dataset.startswith(FOLDER_PREFIX):
        own, other = (_folder(one).resolve() for one in (dataset, name))
        parts = ((own / part).resolve() for names in image_folders.PARTS.values() for part in names)
        same = own.is_relative_to(other) or any(other.is_relative_to(part) for part in parts)
    if same:
        raise UsageError(
            f"ood: {name.removeprefix(FOLDER_PREFIX)}: holds images of the data set itself, which "
            "are in distribution; give others"
        )


def _ood_set(name: str, root: Path, shape: Shape) -> tuple[Images, str]:
    """An OoD set in the problem's shape, and what was done to make it fit."""
    if name.startswith(FOLDER_PREFIX):
        return image_folders.load_ood_folder(_folder(name), shape)
    if name.startswith(ROTATED_PREFIX):
        _, base, degrees = name.split(":", 2)
        return fitted(rotated(_test_part(base, name, root), _degrees(degrees, name)), shape)
    return fitted(_test_part(name, name, root), shape)


def _test_part(dataset: str, name: str, root: Path) -> Images:
    if dataset in images.SETS:
        return images.load(dataset, "test", root)
    if dataset == "imagenet":
        return image_folders.load_imagenet("test", root)
    if dataset == "imagenet-o":
        return image_folders.load_imagenet_o(root)
    raise UsageError(f"ood: no images named '{name}'.{did_you_mean(dataset, NAMES)}")


def _degrees(text: str, name: str) -> float:
    try:
        degrees = float(text)
    except ValueError:
        degrees = 0.0
    if not 0 < degrees < 360:
        raise UsageError(f"ood: '{name}': the angle must be between 0 and 360 degrees")
    return degrees


def _folder(dataset: str) -> Path:
    return Path(dataset.removeprefix(FOLDER_PREFIX)).expanduser()


def _at_most(limit: int, chosen: Images, random: np.random.Generator) -> Images:
    rows = random.permutation(len(chosen))[:limit]
    return chosen if len(rows) == len(chosen) else chosen.take(np.sort(rows))
