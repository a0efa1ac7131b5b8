"""BASE: a predictor that knows nothing, to compare VMSP values with (the paper's Section 4.4)."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import Annotated, ClassVar

import numpy as np
import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from uqbench.context import Context
from uqbench.data import TrainingData
from uqbench.errors import UnsupportedError
from uqbench.method import Method, Posterior, Task
from uqbench.prediction import ClassificationMoments, ClassificationPrediction
from uqbench.problems import Problem


@dataclass(frozen=True)
class RandomBaseline(Method):
    """Softmax of random logits: ``members`` draws of C standard normals for each input.

    members: S.
    classes: C; by default the problem's class count. The paper used 10 for every data set.
    """

    tasks: ClassVar[frozenset[Task]] = frozenset({Task.CLASSIFICATION})
    post_hoc: ClassVar[bool] = False

    members: Annotated[int, Field(ge=2)] = 10
    classes: PositiveInt | None = None

    def fit(
        self, problem: Problem, data: TrainingData, network: nn.Module, context: Context
    ) -> Posterior:
        classes = self.classes or data.num_classes
        if classes < data.num_classes:
            raise UnsupportedError(
                f"base.classes = {classes} is fewer than the problem's {data.num_classes} classes"
            )
        return RandomBaselinePosterior(self.members, classes, context.seed)


class RandomBaselinePosterior(Posterior):
    """The draws depend on the input's bytes and the seed alone, so batches do not matter."""

    forward_passes = 0

    def __init__(self, members: int, classes: int, seed: int) -> None:
        self.members = members
        self.classes = classes
        self.seed = seed

    def predict(self, inputs: Tensor) -> ClassificationPrediction:
        rows = np.ascontiguousarray(inputs.cpu().numpy())
        logits = np.stack([self._logits(row) for row in rows], axis=1)
        moments = ClassificationMoments()
        moments.update(torch.from_numpy(logits).to(inputs.device))
        return moments.prediction()

    def _logits(self, row: np.ndarray) -> np.ndarray:
        key = blake2b(row.tobytes(), digest_size=8, key=self.seed.to_bytes(8, "big")).digest()
        generator = np.random.Generator(np.random.PCG64(int.from_bytes(key, "big")))
        return generator.standard_normal((self.members, self.classes))
