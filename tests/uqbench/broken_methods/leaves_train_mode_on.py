from dataclasses import dataclass

from uqbench.methods.map import MAP


@dataclass(frozen=True)
class LeavesTrainModeOn(MAP):
    """Puts the given network into train mode, and never back."""

    def fit(self, problem, data, network, context):
        return super().fit(problem, data, network.train(), context)
