from dataclasses import dataclass

from uqbench.methods.map import MAP, MAPPosterior


@dataclass(frozen=True)
class DependsOnTheBatch(MAP):
    """Centres the inputs of predict on the mean of their own batch."""

    def fit(self, problem, data, network, context):
        return CentredPosterior(network, data.task)


class CentredPosterior(MAPPosterior):
    def predict(self, inputs):
        return super().predict(inputs - inputs.mean(0))
