"""The tensors that a method is fitted to."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from uqbench.method import Task
from uqbench.streamed import Inputs


@dataclass(frozen=True)
class Split:
    """inputs: (n, ...) in the problem's dtype; targets: (n,), standardised or class indices.

    Images that do not fit in memory are :class:`uqbench.streamed.StreamedInputs`, with those
    operations of a tensor that batches need.
    """

    inputs: Inputs
    targets: Tensor

    def __len__(self) -> int:
        return len(self.inputs)


@dataclass(frozen=True)
class TrainingData:
    """The training and validation splits. A method never sees the test split."""

    task: Task
    train: Split
    validation: Split
    num_classes: int | None = None

    @property
    def num_outputs(self) -> int:
        """Outputs of the network: one for regression, the number of classes otherwise."""
        return 1 if self.task is Task.REGRESSION else self.num_classes
