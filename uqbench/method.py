"""The contract between the benchmark and a method.

A method is a frozen dataclass whose fields are its hyper-parameters, with defaults; ``fit``
returns a :class:`Posterior`, which predicts moments. Nothing here imports torch at run time, so
that names and settings can be listed at once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from importlib import import_module
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from torch import Tensor, nn

    from uqbench.context import Context
    from uqbench.data import TrainingData
    from uqbench.prediction import Prediction
    from uqbench.problems import Problem


class Task(StrEnum):
    """What a problem asks for."""

    REGRESSION = "regression"
    CLASSIFICATION = "classification"


@dataclass(frozen=True)
class Method(ABC):
    """Base class of all methods. Subclass it as a frozen dataclass; the fields are the settings.

    A method must leave alone: the network it is given, the global random state, the default dtype,
    grad mode, and the train/eval mode of every module. All randomness comes from
    ``context.generator``.
    """

    tasks: ClassVar[frozenset[Task]] = frozenset(Task)
    """Tasks that the method's definition covers; cells of other tasks are skipped."""
    post_hoc: ClassVar[bool] = True
    """Whether ``fit`` starts from the shared MAP network (else: from an untrained one)."""
    deterministic: ClassVar[frozenset[Task]] = frozenset()
    """Tasks in which the posterior does not depend on the seed."""
    unbounded: ClassVar[frozenset[str]] = frozenset()
    """Names of the settings that may be infinite."""
    libraries: ClassVar[tuple[str, ...]] = ()
    """Modules that ``fit`` uses and that take long to import: no clock runs while they are."""

    def import_libraries(self) -> None:
        """Import ``libraries``; called before ``fit``."""
        for library in self.libraries:
            import_module(library)

    def check_task(self, task: Task) -> None:  # noqa: B027
        """Raise UsageError if these settings make no sense for ``task``; called before any work."""

    @abstractmethod
    def fit(
        self, problem: Problem, data: TrainingData, network: nn.Module, context: Context
    ) -> Posterior:
        """Return the posterior given the training data.

        ``network`` is the MAP network in eval mode if ``post_hoc``, else an untrained network of
        the problem's architecture, to be copied and initialised. Whatever is tuned is tuned on
        ``data.validation``, inside ``with context.tuning(grid_size)``.
        """


class Posterior(ABC):
    """What ``fit`` returns: it predicts, and reports what was tuned."""

    tuned: Mapping[str, float] = {}
    """Values chosen on the validation split, or found while fitting, for the record."""
    classes: int | None = None
    """Number of classes that it predicts where that is not the problem's (as BASE may)."""
    forward_passes: int = 1
    """Network evaluations that one prediction costs (the cost model of the record)."""

    @abstractmethod
    def predict(self, inputs: Tensor) -> Prediction:
        """Return the predictive moments for a batch of inputs (N, ...).

        Predicting in one batch or in many must give the same answer.
        """
