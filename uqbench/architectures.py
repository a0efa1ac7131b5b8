"""The architectures by the kinds of :class:`uqbench.problems.NetworkSpec`.

Each builder takes the specification, the shape of one input, (d,) or (C, H, W), and the number of
outputs. Parameter counts are those of 1 x 28 x 28 images (of 3 x 32 x 32 ones for
the residual networks of CIFAR) and 10 classes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING

from torch import Tensor, nn
from torch.nn import functional

from uqbench.errors import UsageError

if TYPE_CHECKING:
    from uqbench.problems import NetworkSpec

ACTIVATIONS: Mapping[str, type[nn.Module]] = {
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "silu": nn.SiLU,
    "gelu": nn.GELU,
    "sigmoid": nn.Sigmoid,
}

Shape = tuple[int, ...]


class Scaled(nn.Module):
    """x -> factor · x, a constant factor."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, inputs: Tensor) -> Tensor:
        return self.factor * inputs

    def extra_repr(self) -> str:
        return f"{self.factor:g}"


def mlp(spec: NetworkSpec, shape: Shape, outputs: int) -> nn.Sequential:
    """A multilayer perceptron with the specification's hidden layers; images are flattened.

    Its parameterisation is what the layers' inputs are multiplied by: ``standard``, nothing;
    ``ntk``, 1/√fan_in (Jacot et al. 2018); ``ntk_relu``, √(2/fan_in) in all layers but the first
    (Du et al. 2019). The last two are meant for weights from N(0, 1).
    """
    layers: list[nn.Module] = [nn.Flatten()] if len(shape) > 1 else []
    widths = [math.prod(shape), *spec.hidden, outputs]
    for index, (fan_in, fan_out) in enumerate(pairwise(widths)):
        if index:
            layers.append(ACTIVATIONS[spec.activation]())
        if spec.parameterisation == "ntk":
            layers.append(Scaled(fan_in**-0.5))
        elif spec.parameterisation == "ntk_relu" and index:
            layers.append(Scaled((2 / fan_in) ** 0.5))
        layers.append(nn.Linear(fan_in, fan_out, bias=spec.bias))
    return nn.Sequential(*layers)


def lenet5(spec: NetworkSpec, shape: Shape, outputs: int) -> nn.Sequential:
    """LeNet5 with sigmoids and average pooling (LeCun et al. 1998); 61,706 parameters."""
    return _lenet(shape, outputs, padding=2, activation=nn.Sigmoid, pooling=nn.AvgPool2d)


def lenet(spec: NetworkSpec, shape: Shape, outputs: int) -> nn.Sequential:
    """LeNet with maximum pooling and the first layer without padding; 44,426 parameters.

    Its activations are the specification's.
    """
    activation = ACTIVATIONS[spec.activation]
    return _lenet(shape, outputs, padding=0, activation=activation, pooling=nn.MaxPool2d)


def _lenet(
    shape: Shape,
    outputs: int,
    padding: int,
    activation: type[nn.Module],
    pooling: type[nn.Module],
) -> nn.Sequential:
    channels, *sides = shape
    # 5 x 5 convolution, halving, 5 x 5 convolution without padding, halving
    left = [((side - 4 + 2 * padding) // 2 - 4) // 2 for side in sides]
    return nn.Sequential(
        nn.Conv2d(channels, 6, 5, padding=padding),
        activation(),
        pooling(2),
        nn.Conv2d(6, 16, 5),
        activation(),
        pooling(2),
        nn.Flatten(),
        nn.Linear(16 * math.prod(left), 120),
        activation(),
        nn.Linear(120, 84),
        activation(),
        nn.Linear(84, outputs),
    )


class Residual(nn.Module):
    """x -> x + branch(x), or shortcut(x) + branch(x)."""

    def __init__(self, branch: nn.Module, shortcut: nn.Module | None = None) -> None:
        super().__init__()
        self.branch = branch
        self.shortcut = shortcut or nn.Identity()

    def forward(self, inputs: Tensor) -> Tensor:
        return self.shortcut(inputs) + self.branch(inputs)


def _convolution(fan_in: int, fan_out: int, stride: int = 1) -> list[nn.Module]:
    """A 3 x 3 convolution without bias, and batch normalisation."""
    convolution = nn.Conv2d(fan_in, fan_out, 3, stride, padding=1, bias=False)
    return [convolution, nn.BatchNorm2d(fan_out)]


def resnet9(spec: NetworkSpec, shape: Shape, outputs: int) -> nn.Sequential:
    """ResNet9, the fast network of the DAWNBench competition; 6,573,130 parameters."""

    def block(fan_in: int, fan_out: int, halve: bool = False) -> list[nn.Module]:
        pool = [nn.MaxPool2d(2)] if halve else []
        return [*_convolution(fan_in, fan_out), nn.ReLU(), *pool]

    def residual(width: int) -> Residual:
        return Residual(nn.Sequential(*block(width, width), *block(width, width)))

    return nn.Sequential(
        *block(shape[0], 64),
        *block(64, 128, halve=True),
        residual(128),
        *block(128, 256, halve=True),
        *block(256, 512, halve=True),
        residual(512),
        nn.AdaptiveMaxPool2d(1),
        nn.Flatten(),
        nn.Linear(512, outputs),
    )


class _Subsampled(nn.Module):
    """The shortcut without parameters: every other pixel, and channels of zeros beside the old."""

    def __init__(self, added_channels: int) -> None:
        super().__init__()
        self.added_channels = added_channels

    def forward(self, inputs: Tensor) -> Tensor:
        half = self.added_channels // 2
        return functional.pad(inputs[..., ::2, ::2], (0, 0, 0, 0, half, half))


def _cifar_resnet(depth: int) -> Callable[[NetworkSpec, Shape, int], nn.Sequential]:
    def build(spec: NetworkSpec, shape: Shape, outputs: int) -> nn.Sequential:
        layers: list[nn.Module] = [*_convolution(shape[0], 16), nn.ReLU()]
        before = 16
        for width in (16, 32, 64):
            for index in range((depth - 2) // 6):
                halve = index == 0 and width > 16
                branch = nn.Sequential(
                    *_convolution(before, width, 2 if halve else 1),
                    nn.ReLU(),
                    *_convolution(width, width),
                )
                layers += [Residual(branch, _Subsampled(width - before) if halve else None)]
                layers += [nn.ReLU()]
                before = width
        pool = [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        return nn.Sequential(*layers, *pool, nn.Linear(64, outputs))

    return build


def wide_resnet(spec: NetworkSpec, shape: Shape, outputs: int) -> nn.Sequential:
    """WideResNet (Zagoruyko & Komodakis 2016) of ``depth`` 6n + 4 and ``widen``.

    Depth 10 and width 1, as the paper has it: 77,562 parameters.
    """
    if spec.depth % 6 != 4:
        raise UsageError(f"network.depth of a wrn must be 6n + 4, got {spec.depth}")
    layers: list[nn.Module] = [nn.Conv2d(shape[0], 16, 3, padding=1, bias=False)]
    before = 16
    for stride, base in ((1, 16), (2, 32), (2, 64)):
        width = base * spec.widen
        for index in range((spec.depth - 4) // 6):
            step = stride if index == 0 else 1
            branch = nn.Sequential(
                nn.BatchNorm2d(before),
                nn.ReLU(),
                *_convolution(before, width, step),
                nn.ReLU(),
                nn.Conv2d(width, width, 3, padding=1, bias=False),
            )
            same = step == 1 and before == width
            shortcut = None if same else nn.Conv2d(before, width, 1, step, bias=False)
            layers.append(Residual(branch, shortcut))
            before = width
    head = [nn.BatchNorm2d(before), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, *head, nn.Linear(before, outputs))


def resnet50(spec: NetworkSpec, shape: Shape, outputs: int) -> nn.Module:
    """torchvision's ResNet50 with the stem for small images; 23,520,842 parameters.

    The stem is a 3 x 3 convolution of stride 1 without pooling (He et al. 2016).
    """
    network = resnet50_imagenet(spec, shape, outputs)
    network.conv1 = nn.Conv2d(shape[0], 64, 3, padding=1, bias=False)
    network.maxpool = nn.Identity()
    return network


def resnet50_imagenet(spec: NetworkSpec, shape: Shape, outputs: int) -> nn.Module:
    """torchvision's ResNet50 for images of 224 pixels; 25,557,032 parameters with 1,000 classes."""
    from torchvision.models import resnet50

    network = resnet50(num_classes=outputs)
    if shape[0] != 3:
        network.conv1 = nn.Conv2d(shape[0], 64, 7, stride=2, padding=3, bias=False)
    return network


BUILDERS: Mapping[str, Callable[[NetworkSpec, Shape, int], nn.Module]] = {
    "mlp": mlp,
    "lenet": lenet,
    "lenet5": lenet5,
    "resnet9": resnet9,
    "resnet20": _cifar_resnet(20),
    "resnet32": _cifar_resnet(32),
    "resnet50": resnet50,
    "resnet50_imagenet": resnet50_imagenet,
    "wrn": wide_resnet,
}
SMALLEST_SIDE = {"lenet": 16, "lenet5": 12, "resnet9": 8, "resnet20": 4, "resnet32": 4, "wrn": 4}
"""Sides, in pixels, below which nothing would be left of an image."""


def build(spec: NetworkSpec, shape: Shape, outputs: int) -> nn.Module:
    """Return an untrained network; its parameters are not drawn from any seed.

    Raises UsageError if the architecture does not take inputs of this shape.
    """
    if spec.kind != "mlp":
        if len(shape) != 3:
            raise UsageError(
                f"network.kind = '{spec.kind}' takes images (C, H, W), the inputs have shape "
                f"{shape}; use kind = 'mlp'"
            )
        smallest = SMALLEST_SIDE.get(spec.kind, 1)
        if min(shape[1:]) < smallest:
            raise UsageError(
                f"network.kind = '{spec.kind}' takes images of at least {smallest} pixels a side, "
                f"these have {shape[1]} x {shape[2]}"
            )
    return BUILDERS[spec.kind](spec, shape, outputs)
