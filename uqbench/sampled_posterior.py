"""Posteriors that are known by samples of the network's outputs."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from uqbench.method import Posterior, Task
from uqbench.prediction import (
    ClassificationMoments,
    Moments,
    Prediction,
    RegressionPrediction,
)
from uqbench.stacked import StackedNetworks, State, members_at_a_time, unflattened


class SampledPosterior(Posterior):
    """S functions f_s drawn from a posterior.

    Regression: the samples' mean, and ``scale``² × their unbiased variance + ``noise_variance``.
    Classification: the moments of the samples' softmax.
    """

    def __init__(
        self, task: Task, forward_passes: int, tuned: Mapping[str, float] | None = None
    ) -> None:
        self.task = task
        self.forward_passes = forward_passes
        self.tuned = dict(tuned or {})
        self.scale = 1.0
        self.noise_variance = 0.0

    @abstractmethod
    def sampled_outputs(self, inputs: Tensor) -> Iterator[Tensor]:
        """Yield the samples' outputs at ``inputs`` (N, ...) in chunks, (s, N, C)."""

    @torch.no_grad()
    def predict(self, inputs: Tensor) -> Prediction:
        regression = self.task is Task.REGRESSION
        moments = Moments() if regression else ClassificationMoments()
        for outputs in self.sampled_outputs(inputs):
            moments.update(outputs.squeeze(-1) if regression else outputs)
        if not regression:
            return moments.prediction()
        variance = self.scale**2 * moments.variance + self.noise_variance
        return RegressionPrediction(moments.mean, variance)


class SampledNetworks(SampledPosterior):
    """f_s = f(θ_s, ·) with the network's trainable parameters θ_s the rows of ``samples`` (S, p).

    buffers: stacks (S, ...) of those buffers, by name, in which the samples differ, as in the
    running statistics of BatchNorm.
    """

    def __init__(
        self,
        network: nn.Module,
        samples: Tensor,
        task: Task,
        buffers: State | None = None,
        tuned: Mapping[str, float] | None = None,
    ) -> None:
        super().__init__(task, len(samples), tuned)
        self.network = network
        self.samples = samples
        self.buffers = dict(buffers or {})

    def sampled_outputs(self, inputs: Tensor) -> Iterator[Tensor]:
        inputs = inputs.to(self.samples.dtype)
        networks = StackedNetworks(self.network)
        size = members_at_a_time(self.network, inputs)
        for start in range(0, len(self.samples), size):
            chunk = slice(start, start + size)
            state = unflattened(self.network, self.samples[chunk])
            state |= {name: stack[chunk] for name, stack in self.buffers.items()}
            yield networks(state, inputs)
