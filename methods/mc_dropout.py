"""Monte Carlo dropout (Gal & Ghahramani 2016)."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn

from uqbench.calibration import NOISE_GRID, tune_noise
from uqbench.context import Context
from uqbench.data import TrainingData
from uqbench.masked_dropout import draw_masks, with_dropout
from uqbench.method import Posterior, Task
from uqbench.networks import as_matrix, initialise
from uqbench.problems import Problem
from uqbench.sampled_posterior import SampledPosterior
from uqbench.self_trained import SelfTrained
from uqbench.stacked import CHUNK_BYTES, members_at_a_time
from uqbench.training import mean_loss, train
from uqbench.tuning import Grid

PROBE_ROWS = 3


@dataclass(frozen=True)
class MCDropout(SelfTrained):
    """A network trained with dropout before its last linear layer, which prediction keeps on.

    The posterior samples are sub-networks: S masks, each unit kept with probability 1 − p and then
    divided by 1 − p, drawn once and shared by all inputs. All else (BatchNorm) is in eval mode.
    Classification: the moments of the samples' softmax. Regression: squared error; the samples'
    mean, and their unbiased variance + σ², σ of ``noise_grid`` with the lowest validation NLL.
    (Gal & Ghahramani's noise precision σ⁻² = (1 − p)l²/2nλ, of weight decay λ and a prior length
    scale l, leaves l to be tuned in σ's place.)

    A network that has dropout layers keeps these, with their own p, in training and in prediction,
    and gets no further one. Dropout that is no layer of its own (``nn.functional.dropout``, or that
    inside a recurrent or attention module) cannot be kept on and is refused.

    p: of the dropout before the last linear layer. samples: S. The other settings, where given,
    replace the problem's training recipe.
    """

    p: Annotated[float, Field(gt=0, lt=1)] = 0.1
    samples: Annotated[int, Field(ge=2)] = 100
    noise_grid: Grid = NOISE_GRID

    def fit(
        self, problem: Problem, data: TrainingData, network: nn.Module, context: Context
    ) -> Posterior:
        regression = data.task is Task.REGRESSION
        seeds = context.seeds(2)
        some = data.train.inputs[:PROBE_ROWS]
        start = initialise(copy.deepcopy(network), problem.network, seeds[0])
        start = with_dropout(start, self.p, some)
        masks = draw_masks(start, some, self.samples, context.generator)
        loss = mean_loss(data.task)
        trained = train(start, data.train, self.recipe(problem), loss, seeds[1], context.progress)
        posterior = MCDropoutPosterior(trained, masks, data.task, some)
        if regression:
            tune_noise(posterior, data, context, "mc_dropout.noise_grid", self.noise_grid)
        return posterior


class MCDropoutPosterior(SampledPosterior):
    """S sub-networks of one network, given by the masks of its calls of dropout.

    What comes before the first dropout is computed once for all samples, unless the network
    combines it with what comes after, as a residual connection around the dropout does; whether
    it does is tried out on ``some`` inputs.
    """

    def __init__(
        self,
        network: nn.Module,
        masks: Sequence[tuple[str, Tensor]],
        task: Task,
        some: Tensor,
    ) -> None:
        self.network = network
        self.masks = masks
        self.samples = len(masks[0][1])
        self.splits = self._can_split(some)
        super().__init__(task, forward_passes=1 if self.splits else self.samples)

    def sampled_outputs(self, inputs: Tensor) -> Iterator[Tensor]:
        if self.splits:
            units = sum(mask[0].numel() for _, mask in self.masks)
            size = max(CHUNK_BYTES // (units * len(inputs) * inputs.element_size()), 1)
        else:
            size = members_at_a_time(self.network, inputs)
        for start in range(0, self.samples, size):
            yield self._outputs(inputs, slice(start, start + size), self.splits)

    def _outputs(self, inputs: Tensor, chunk: slice, split: bool) -> Tensor:
        samples = len(self.masks[0][1][chunk])
        held: dict[str, list[Tensor]] = {}
        for name, mask in self.masks:
            held.setdefault(name, []).append(mask[chunk])
        layers = {name: self.network.get_submodule(name) for name in held}
        for name, layer in layers.items():
            layer.masks, layer.rows = iter(held[name]), len(inputs)
        copies = 1 if split else samples
        try:
            outputs = self.network(inputs.repeat(copies, *[1] * (inputs.ndim - 1)))
            return as_matrix(outputs).unflatten(0, (samples, len(inputs)))
        finally:
            for layer in layers.values():
                layer.masks = None

    @torch.no_grad()
    def _can_split(self, some: Tensor) -> bool:
        two = slice(0, 2)
        try:
            split = self._outputs(some, two, True)
        except RuntimeError:  # the shapes of the two parts do not fit
            return False
        return torch.allclose(split, self._outputs(some, two, False), rtol=1e-3, atol=1e-4)
