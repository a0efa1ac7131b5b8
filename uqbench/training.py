"""Training of one network or of many as one batched program.

The parameters of M networks of one architecture are stacked (M, ...) and run as one program
(:mod:`uqbench.stacked`), so that a step costs one program instead of M; the loss is the sum of the
members' mean losses, hence every member's gradient is its own. Adam and SGD act elementwise, so a
member's trajectory is that of the network trained alone with the same seed, to rounding.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.optim.adam import adam
from torch.optim.sgd import sgd

from uqbench.augmentation import augmented
from uqbench.context import ignore_progress
from uqbench.data import Split
from uqbench.errors import DivergenceError, UnsupportedError
from uqbench.method import Task
from uqbench.networks import as_matrix, isolated_randomness, trainable
from uqbench.problems import Recipe
from uqbench.stacked import StackedNetworks, convolves_on_cpu
from uqbench.streamed import StreamedInputs, gathered
from uqbench.threads import threads_for

GATHERED_BYTES = 2**26
"""Size up to which all members' rows are put in order at once."""

Loss = Callable[[Tensor, Tensor], Tensor]
"""Maps outputs (M, B, C) and targets (M, B) to the members' mean losses (M,)."""

Batch = tuple[Tensor, Tensor, Tensor | None]
"""Inputs (M, B, ...), targets (M, B), and offsets (M, B, C) or None."""


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean squared error of the single output."""
    return (outputs.squeeze(-1) - targets).square().mean(-1)


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy of the logits against class indices, in nats."""
    log_probabilities = outputs.log_softmax(-1)
    return -log_probabilities.gather(-1, targets.unsqueeze(-1)).squeeze(-1).mean(-1)


def mean_loss(task: Task) -> Loss:
    """The loss that networks are trained with unless a method has its own."""
    return squared_error if task is Task.REGRESSION else cross_entropy


def train(
    network: nn.Module,
    split: Split,
    recipe: Recipe,
    loss: Loss,
    seed: int,
    progress: Callable[[str, int, int], None] = ignore_progress,
) -> nn.Module:
    """Train a copy of ``network`` from its current parameters and return it in eval mode."""
    return train_ensemble([network], split, recipe, loss, [seed], progress)[0]


@dataclass(frozen=True)
class Extras:
    """What the training of an ensemble may have besides the recipe. m: some of the M members.

    offsets: (M, n, C), added to the members' outputs on the training rows.
    scales: (M,), which multiply the members' outputs thereafter.
    penalty: called with the members' trainable parameters, stacks (m, ...) by name, and the slice
    of the M members that they are; returns what is added to their losses, (m,).
    after_epoch: called likewise at the end of each epoch, under no_grad.
    shuffle: whether the rows get a new order in each epoch.
    may_diverge: whether members whose loss is no longer finite are left to the caller, who finds
    it out from their parameters, instead of being an error for all.
    """

    offsets: Tensor | None = None
    scales: Tensor | None = None
    penalty: Callable[[Mapping[str, Tensor], slice], Tensor] | None = None
    after_epoch: Callable[[Mapping[str, Tensor], slice], None] | None = None
    shuffle: bool = True
    may_diverge: bool = False


def train_ensemble(
    networks: Sequence[nn.Module],
    split: Split,
    recipe: Recipe,
    loss: Loss,
    seeds: Sequence[int],
    progress: Callable[[str, int, int], None] = ignore_progress,
    extras: Extras | None = None,
) -> list[nn.Module]:
    """Train copies of ``networks`` from their current parameters; return them in eval mode.

    ``seeds`` fix each member's batch order (and its dropout, where there is some). Networks of one
    architecture without buffers or dropout are trained as one batched program, others one after
    another.

    Raises DivergenceError when a member's loss is no longer finite (but see ``may_diverge``), and
    UnsupportedError for a network without trainable parameters or with BatchNorm and one row.
    """
    copies = [copy.deepcopy(network).train() for network in networks]
    programs: list[_Single | _Stacked]
    trainable(copies[0])  # refuses a network with nothing to train
    if len(copies) > 1 and can_be_batched(copies[0]):
        programs, parts = [_Stacked(copies)], [slice(0, len(copies))]
    else:
        programs = [_Single(network) for network in copies]
        parts = [slice(m, m + 1) for m in range(len(copies))]
    total = recipe.epochs * len(programs)
    for index, (program, part) in enumerate(zip(programs, parts, strict=True)):
        done = index * recipe.epochs
        _run(
            program,
            part,
            split,
            recipe,
            loss,
            seeds[part],
            lambda epoch, done=done: progress("training", done + epoch, total),
            extras or Extras(),
        )
    return [network.eval() for network in copies]


def can_be_batched(network: nn.Module) -> bool:
    """Whether copies of ``network`` can be trained under vmap, and gain from it.

    Not with buffers or dropout: running statistics are updated in place and dropout draws from the
    global generator; neither keeps its meaning under vmap. Not with recurrent layers, which torch
    cannot run under vmap, and not with convolutions on a CPU, which are slow under it.
    """
    if any(isinstance(module, nn.RNNBase) for module in network.modules()):
        return False
    dropout = any(isinstance(module, nn.modules.dropout._DropoutNd) for module in network.modules())
    buffers = any(True for _ in network.buffers())
    return not dropout and not buffers and not convolves_on_cpu(network)


def learning_rate(recipe: Recipe, epoch: int) -> float:
    """The step size in the given epoch, counted from 0."""
    if recipe.schedule == "poly":
        total = recipe.poly_total * recipe.epochs
        return recipe.lr * math.sqrt(max(1 - epoch / total, 0.0))
    if recipe.schedule == "cosine":
        return recipe.lr * (1 + math.cos(math.pi * epoch / recipe.epochs)) / 2
    return recipe.lr


def batch_bounds(rows: int, batch_size: int) -> list[tuple[int, int]]:
    """Start and end of each batch; a last batch of one row joins the one before it.

    BatchNorm cannot normalise a single row, and no row may be lost.
    """
    size = min(batch_size or rows, rows)
    starts = list(range(0, rows, size))
    if len(starts) > 1 and rows - starts[-1] == 1:
        starts.pop()
    return list(zip(starts, [*starts[1:], rows], strict=True))


def overridden(recipe: Recipe, **settings: object) -> Recipe:
    """The recipe with those of ``settings`` that are not None in place of its own."""
    return replace(recipe, **{name: v for name, v in settings.items() if v is not None})


class _Single:
    """One network as the program (M = 1)."""

    def __init__(self, network: nn.Module) -> None:
        self.network = network
        self._named = {n: p for n, p in network.named_parameters() if p.requires_grad}
        self.parameters = list(self._named.values())

    @property
    def stacks(self) -> dict[str, Tensor]:
        """The trainable parameters by name, (1, ...)."""
        return {name: parameter.unsqueeze(0) for name, parameter in self._named.items()}

    def __call__(self, inputs: Tensor) -> Tensor:
        try:
            return as_matrix(self.network(inputs[0])).unsqueeze(0)
        except ValueError as error:
            if "more than 1 value per channel" not in str(error):
                raise
            raise UnsupportedError(
                "BatchNorm cannot be trained on a batch of one row: give it a batch_size of at "
                "least 2, and more than one training row"
            ) from None

    def finish(self) -> None:
        """The network's own parameters were trained; nothing to copy back."""


class _Stacked:
    """M networks of one architecture as one program."""

    def __init__(self, networks: Sequence[nn.Module]) -> None:
        self.networks = networks
        self._forward = StackedNetworks(networks[0])
        by_network = [dict(network.named_parameters()) for network in networks]
        self.stacks: dict[str, Tensor] = {}
        self._frozen: dict[str, Tensor] = {}
        for name, parameter in by_network[0].items():
            stack = torch.stack([named[name].detach() for named in by_network])
            if parameter.requires_grad:
                self.stacks[name] = stack.requires_grad_()
            else:
                self._frozen[name] = stack
        self.parameters = list(self.stacks.values())

    def __call__(self, inputs: Tensor) -> Tensor:
        return self._forward(self.stacks | self._frozen, inputs, shared=False)

    @torch.no_grad()
    def finish(self) -> None:
        for m, network in enumerate(self.networks):
            for name, parameter in network.named_parameters():
                if name in self.stacks:
                    parameter.copy_(self.stacks[name][m])


class _Optimizer:
    """torch's fused Adam or SGD, called without the bookkeeping of ``Optimizer.step``.

    On small networks that bookkeeping takes longer than the step itself.
    """

    def __init__(self, parameters: list[Tensor], recipe: Recipe) -> None:
        self.parameters = parameters
        self._recipe = recipe
        if recipe.optimizer == "adam":
            self._means = [torch.zeros_like(p) for p in parameters]
            self._squares = [torch.zeros_like(p) for p in parameters]
            self._steps = [torch.zeros((), device=p.device) for p in parameters]
        else:
            self._velocities: list[Tensor | None] = [None] * len(parameters)

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor], lr: float) -> None:
        # fused kernels walk memory and assume that a gradient has its parameter's own layout
        gradients = [gradient.contiguous() for gradient in gradients]
        common = {"weight_decay": self._recipe.weight_decay, "maximize": False, "fused": True}
        if self._recipe.optimizer == "adam":
            adam(
                self.parameters,
                gradients,
                self._means,
                self._squares,
                [],
                self._steps,
                amsgrad=False,
                beta1=0.9,
                beta2=0.999,
                lr=lr,
                eps=1e-8,
                **common,
            )
        else:
            sgd(
                self.parameters,
                gradients,
                self._velocities,
                momentum=self._recipe.momentum,
                dampening=0,
                nesterov=self._recipe.nesterov,
                lr=lr,
                **common,
            )


def _epochs(
    split: Split, recipe: Recipe, seeds: Sequence[int], offsets: Tensor | None, shuffle: bool
) -> Iterator[Iterator[Batch]]:
    """Yield each epoch's batches; offsets: (M, n, C) or None."""
    bounds = batch_bounds(len(split), recipe.batch_size)
    # a batch_size of 0 asks for all rows at once, which streamed inputs refuse
    batched = recipe.batch_size and isinstance(split.inputs, StreamedInputs)
    generators = [torch.Generator().manual_seed(seed % 2**63) for seed in seeds]
    orders = torch.arange(len(split)).expand(len(seeds), -1)
    for _ in range(recipe.epochs):
        if len(bounds) == 1 and not batched:
            batches = _whole(split, offsets, len(seeds))
        else:
            if shuffle and len(bounds) > 1:
                orders = torch.stack([torch.randperm(len(split), generator=g) for g in generators])
            batches = _ordered(split, offsets, orders.to(split.inputs.device), bounds)
        yield _augmented(batches, recipe.augment, generators) if recipe.augment else batches


def _augmented(
    batches: Iterator[Batch], kinds: Sequence[str], generators: Sequence[torch.Generator]
) -> Iterator[Batch]:
    for inputs, targets, added in batches:
        members = zip(inputs, generators, strict=True)
        yield torch.stack([augmented(images, kinds, g) for images, g in members]), targets, added


def _whole(split: Split, offsets: Tensor | None, members: int) -> Iterator[Batch]:
    """Yield the split as the one batch of all members."""
    inputs = split.inputs.expand(members, *split.inputs.shape)
    yield inputs, split.targets.expand(members, -1), offsets


def _ordered(
    split: Split, offsets: Tensor | None, orders: Tensor, bounds: Sequence[tuple[int, int]]
) -> Iterator[Batch]:
    """Yield batches of each member's own order of the rows, (M, n).

    Small splits are put in order once per epoch, of which batches are then views: that costs less
    than a gather per step. Streamed batches are read one ahead.
    """
    each = torch.arange(len(orders), device=orders.device).unsqueeze(1)
    if isinstance(split.inputs, Tensor) and split.inputs.nbytes * len(orders) <= GATHERED_BYTES:
        inputs, targets = split.inputs[orders], split.targets[orders]
        added = None if offsets is None else offsets[each, orders]
        for start, stop in bounds:
            part = None if added is None else added[:, start:stop]
            yield inputs[:, start:stop], targets[:, start:stop], part
        return
    batches = [orders[:, start:stop] for start, stop in bounds]
    for rows, inputs in zip(batches, gathered(split.inputs, batches), strict=True):
        part = None if offsets is None else offsets[each, rows]
        yield inputs, split.targets[rows], part


def _activations(rows: int, parameters: Sequence[Tensor]) -> int:
    """Roughly how many activations a step computes: units of every layer, for every row."""
    return rows * sum(math.prod(parameter.shape[:-1]) for parameter in parameters)


@torch.enable_grad()
def _run(
    program: _Single | _Stacked,
    members: slice,
    split: Split,
    recipe: Recipe,
    loss: Loss,
    seeds: Sequence[int],
    progress: Callable[[int], None],
    extras: Extras,
) -> None:
    """Train the program that holds ``members`` of the ensemble."""
    optimizer = _Optimizer(program.parameters, recipe)
    rows = min(recipe.batch_size or len(split), len(split))
    offsets = None if extras.offsets is None else extras.offsets[members]
    scales = None if extras.scales is None else extras.scales[members].view(-1, 1, 1)
    with (
        isolated_randomness(seeds[0] % 2**63),
        threads_for(_activations(rows, program.parameters)),
    ):
        for epoch, batches in enumerate(_epochs(split, recipe, seeds, offsets, extras.shuffle)):
            lr = learning_rate(recipe, epoch)
            for inputs, targets, added in batches:
                outputs = program(inputs)
                if added is not None:
                    outputs = outputs + added
                if scales is not None:
                    outputs = outputs * scales
                losses = loss(outputs, targets)
                if extras.penalty is not None:
                    losses = losses + extras.penalty(program.stacks, members)
                # of parameters that the network does not use they are zeros
                gradients = torch.autograd.grad(
                    losses.sum(), program.parameters, materialize_grads=True
                )
                optimizer.step(gradients, lr)
            if not extras.may_diverge and not math.isfinite(losses.sum().item()):
                raise DivergenceError(
                    f"the training loss is not finite after epoch {epoch + 1} "
                    f"({recipe.optimizer}, lr {recipe.lr:g}); a smaller lr may help"
                )
            if extras.after_epoch is not None:
                with torch.no_grad():
                    extras.after_epoch(program.stacks, members)
            progress(epoch + 1)
    program.finish()
