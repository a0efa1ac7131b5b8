"""The problem for a folder of images of one's own: a network and a recipe that suit them."""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil
from pathlib import Path

from uqbench.datasets.arrays import Images, Shape
from uqbench.datasets.image_folders import load_folder
from uqbench.datasets.image_problems import FOLDER_PREFIX, NAMES, is_ood_name
from uqbench.errors import UsageError
from uqbench.formatting import printable, shortened
from uqbench.method import Task
from uqbench.problems import NetworkSpec, Problem, Recipe
from uqbench.suggestions import did_you_mean

VALIDATION = 1 / 6
"""Fraction of the training images that is drawn for validation if there is no folder of them."""
STEPS = 300
EPOCHS = (10, 50)
BATCH_SIZE = 100
MANY_IMAGES = 10_000
SMALL_SIDE = 16
LARGE_SIDE = 64
NUQLS_SETTINGS = {"gamma": 0.03, "epochs": 10, "batch_size": BATCH_SIZE}
"""Of γ = 0.01, 0.03, 0.1, 0.3 the one with the lowest NLL on 2,000 images of CIFAR-10."""
_BATCH_OF_LARGE = 100


def network_for(shape: Shape, images: int) -> NetworkSpec:
    """Return the network for so many training images of a shape (C, H, W).

    Up to 64 pixels: LeNet with ReLUs for grey images and for fewer than 10,000 in RGB, ResNet9 for
    more. Larger images: torchvision's ResNet50. Below 16 pixels: an MLP with two hidden layers of
    50 tanh units.
    """
    channels, *sides = shape
    if min(sides) < SMALL_SIDE:
        return NetworkSpec(kind="mlp", hidden=(50, 50), weight_init="xavier_uniform")
    if max(sides) > LARGE_SIDE:
        return NetworkSpec(kind="resnet50_imagenet", weight_init="xavier_uniform")
    if channels == 1 or images < MANY_IMAGES:
        return NetworkSpec(kind="lenet", activation="relu", weight_init="xavier_uniform")
    return NetworkSpec(kind="resnet9", weight_init="xavier_uniform")


def image_recipe(images: int) -> Recipe:
    """Return the recipe for so many training images of which nothing else is known.

    Adam (step size 1e-3 with cosine annealing, weight decay 1e-4) for about 300 steps of 100
    images, but for 10 epochs at least and 50 at most. For 50,000 images it is the recipe of ResNet9
    in the NUQLS paper's Table 13.
    """
    steps_per_epoch = ceil(max(images, 1) / BATCH_SIZE)
    least, most = EPOCHS
    return Recipe(
        optimizer="adam",
        lr=1e-3,
        epochs=min(max(round(STEPS / steps_per_epoch), least), most),
        batch_size=BATCH_SIZE,
        weight_decay=1e-4,
        schedule="cosine",
    )


def ood_name(given: str) -> str:
    """Return the name of the OoD set that ``--ood`` gives: a data set's own, or a folder's.

    A folder that is called like a data set needs a path: ``./mnist``.
    """
    if is_ood_name(given):
        return given
    path = Path(given).expanduser().resolve()
    if not path.is_dir():
        hint = did_you_mean(given, NAMES)
        raise UsageError(f"--ood {given}: no such folder, and no data set of that name.{hint}")
    return f"{FOLDER_PREFIX}{path}"


def own_images_problem(
    path: str | Path, ood: Iterable[str] = (), image_size: int | None = None
) -> Problem:
    """Return the problem ``images:PATH`` for a folder of one's own, whose images are read.

    ood: folders, or names of data sets. image_size: see :class:`uqbench.problems.Problem`.
    Raises DataError for what is wrong with the folder, UsageError for an unknown OoD set.
    """
    path = Path(path).expanduser().resolve()
    outside = tuple(map(ood_name, ood))
    parts = load_folder(path, image_size)
    train = parts["train"]
    trained_on = len(train) if "val" in parts else round((1 - VALIDATION) * len(train))
    network = network_for(train.shape, trained_on)
    recipe = image_recipe(trained_on)
    large = max(train.shape[1:]) > LARGE_SIDE
    return Problem(
        name=printable(path.name) or "images",
        dataset=f"{FOLDER_PREFIX}{path}",
        task=Task.CLASSIFICATION,
        network=network,
        training=recipe,
        validation="val" if "val" in parts else VALIDATION,
        ood=outside,
        image_size=image_size,
        dtype="float32",
        methods={"nuqls": NUQLS_SETTINGS, "enuqls": NUQLS_SETTINGS},
        predict_batch=_BATCH_OF_LARGE if large else Problem.predict_batch,
        description=_description(path, parts, network, recipe),
    )


def _description(path: Path, parts: dict[str, Images], network: NetworkSpec, recipe: Recipe) -> str:
    train = parts["train"]
    classes = shortened(", ".join(train.class_names), 60)
    counts = ", ".join(f"{len(images):,} {part}" for part, images in parts.items())
    channels, height, width = train.shape
    return printable(
        f"classification of {len(train.class_names)} classes ({classes}), {path.name}: {counts} "
        f"images of {height} x {width} pixels in {'grey' if channels == 1 else 'RGB'}; "
        f"{network.kind}, trained in float32 by {recipe.optimizer} (lr {recipe.lr:g}, "
        f"{recipe.schedule} schedule, weight decay {recipe.weight_decay:g}) for {recipe.epochs} "
        f"epochs in batches of {recipe.batch_size}"
    )
