from dataclasses import dataclass, replace

from uqbench import Task
from uqbench.methods.map import MAP, MAPPosterior


@dataclass(frozen=True)
class WrongShape(MAP):
    """Predicts means of shape (N, 1), as the network returns them."""

    tasks = deterministic = frozenset({Task.REGRESSION})

    def fit(self, problem, data, network, context):
        return ColumnPosterior(network, data.task)


class ColumnPosterior(MAPPosterior):
    def predict(self, inputs):
        prediction = super().predict(inputs)
        return replace(prediction, mean=prediction.mean.unsqueeze(-1))
