"""What the methods that train networks of their own have in common: the recipe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from pydantic import NonNegativeInt, PositiveFloat, PositiveInt

from uqbench.method import Method
from uqbench.problems import Problem, Recipe
from uqbench.training import overridden


@dataclass(frozen=True, kw_only=True)
class SelfTrained(Method):
    """Base of the methods that train networks of their own, with the problem's training recipe.

    lr, epochs, batch_size, optimizer, schedule: where given, in place of the recipe's.
    """

    post_hoc: ClassVar[bool] = False

    lr: PositiveFloat | None = None
    epochs: PositiveInt | None = None
    batch_size: NonNegativeInt | None = None
    optimizer: Literal["adam", "sgd"] | None = None
    schedule: Literal["none", "poly", "cosine"] | None = None

    def recipe(self, problem: Problem, **others: Any) -> Recipe:
        """Return the problem's recipe with these settings, and ``others``, in place of its own."""
        own = {
            name: getattr(self, name)
            for name in ("lr", "epochs", "batch_size", "optimizer", "schedule")
        }
        return overridden(problem.training, **(own | others))
