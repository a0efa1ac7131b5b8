"""The problem for a table of one's own: a network and a recipe that suit its size."""

from __future__ import annotations

from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING

from uqbench.formatting import printable, shortened
from uqbench.problems import NetworkSpec, Problem, Recipe

if TYPE_CHECKING:
    from uqbench.datasets.arrays import Table

HIDDEN = (50, 50)
STEPS = 2000
BATCH_SIZE = 200
MIN_EPOCHS = 5
MAX_FLOAT64_CELLS = 5_000_000
"""Above this many numbers in the table the problem is in float32, to halve memory and time."""


def default_recipe(rows: int) -> Recipe:
    """Return the recipe for a training split of ``rows`` rows of which nothing else is known.

    Adam (step size 1e-2 with cosine annealing, weight decay 1e-4) for about 2,000 steps of 200
    rows, and for 5 epochs at least.
    """
    steps_per_epoch = ceil(max(rows, 1) / BATCH_SIZE)
    return Recipe(
        optimizer="adam",
        lr=1e-2,
        epochs=max(round(STEPS / steps_per_epoch), MIN_EPOCHS),
        batch_size=BATCH_SIZE,
        weight_decay=1e-4,
        schedule="cosine",
    )


def own_table_problem(path: str | Path, target: str, table: Table) -> Problem:
    """Return the problem ``file:PATH`` for a table that :func:`read_table` returned.

    The network has two hidden layers of 50 tanh units and is trained by :func:`default_recipe`.
    """
    path = Path(path).expanduser().resolve()
    large = table.inputs.size > MAX_FLOAT64_CELLS
    rows, features = table.inputs.shape
    names = shortened(", ".join(table.class_names), 60)
    classes = f" (classes {names})" if names else ""
    recipe = default_recipe(int(rows * Problem.split[0]))
    dtype = "float32" if large else "float64"
    return Problem(
        name=printable(path.stem) or "table",
        dataset=f"file:{path}",
        target=target,
        task=table.task,
        network=NetworkSpec(kind="mlp", hidden=HIDDEN, activation="tanh"),
        training=recipe,
        dtype=dtype,
        description=printable(
            f"{table.task} of '{target}'{classes} from {features} features "
            f"({shortened(', '.join(table.feature_names), 120)}), {rows:,} rows of {path.name}; "
            f"MLP with {' and '.join(map(str, HIDDEN))} tanh units, trained in {dtype} by "
            f"{recipe.optimizer} (lr {recipe.lr:g}, {recipe.schedule} schedule, weight decay "
            f"{recipe.weight_decay:g}) for {recipe.epochs} epochs in batches of {recipe.batch_size}"
        ),
    )
