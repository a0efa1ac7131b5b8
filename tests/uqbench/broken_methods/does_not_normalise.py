from dataclasses import dataclass, replace

from uqbench import Task
from uqbench.methods.map import MAP, MAPPosterior


@dataclass(frozen=True)
class DoesNotNormalise(MAP):
    """Predicts probabilities that sum to 2."""

    tasks = deterministic = frozenset({Task.CLASSIFICATION})

    def fit(self, problem, data, network, context):
        return UnnormalisedPosterior(network, data.task)


class UnnormalisedPosterior(MAPPosterior):
    def predict(self, inputs):
        prediction = super().predict(inputs)
        return replace(prediction, probabilities=2 * prediction.probabilities)
