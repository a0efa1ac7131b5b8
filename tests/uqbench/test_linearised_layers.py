"""Jacobians of networks with convolutions, layer by layer, against naive differentiation."""

import copy
import pickle
import random

import pytest
import torch
from torch import nn
from torch.nn import functional

from uqbench import architectures, factored_jacobian, layer_jacobian, linearised
from uqbench.linearised import AutogradJacobian, BlockwiseJacobian, linearise
from uqbench.problems import NetworkSpec


class Residual(nn.Module):
    """x + branch(x), added in place, or the functional form of the same."""

    def __init__(self, branch, in_place):
        super().__init__()
        self.branch = branch
        self.in_place = in_place

    def forward(self, x):
        found = self.branch(x)
        if self.in_place:
            found += x
            return found
        return functional.relu(found + x)


def drawn_network(seed):
    """A convolutional network with settings drawn at random, in eval mode, and inputs to it."""
    draw = random.Random(seed)
    torch.manual_seed(seed)
    channels = draw.choice([1, 2, 4])
    size = (9, draw.choice([9, 11]))
    inputs = torch.randn(3, channels, *size, dtype=torch.float64)
    layers = []
    for _ in range(draw.choice([1, 2, 3])):
        groups = draw.choice([1, 1, 2, channels])
        groups = groups if channels % groups == 0 else 1
        width = groups * draw.choice([1, 2, 3])
        settings = draw.choice(
            [
                {"padding": 1},
                {"padding": (2, 1), "stride": (1, 2)},
                {"padding": "same", "dilation": (1, 2)},
                {"padding": "same", "padding_mode": "circular"},
                {"padding": 1, "padding_mode": "reflect"},
                {"padding": "valid", "stride": 2},
            ]
        )
        kernel = draw.choice([(2, 2), (3, 1), (2, 3)])
        bias = draw.random() < 0.6
        layers.append(nn.Conv2d(channels, width, kernel, groups=groups, bias=bias, **settings))
        channels = width
        if draw.random() < 0.5:
            layers.append(nn.BatchNorm2d(channels))
        layers.append(draw.choice([nn.ReLU(inplace=True), nn.Tanh(), nn.SiLU(inplace=True)]))
        if draw.random() < 0.4:
            branch = nn.Sequential(nn.Conv2d(channels, channels, 1), nn.BatchNorm2d(channels))
            layers.append(Residual(branch, draw.random() < 0.5))
    layers.append(
        draw.choice(
            [nn.MaxPool2d(2, padding=1), nn.AvgPool2d(1), nn.AdaptiveAvgPool2d(2), nn.Identity()]
        )
    )
    layers.append(nn.Flatten())
    network = nn.Sequential(*layers).double()
    features = network(inputs).shape[1]
    network.append(nn.Linear(features, 3).double())
    if draw.random() < 0.5:
        network.extend([nn.BatchNorm1d(3).double(), nn.Tanh(), nn.Linear(3, 2).double()])
    if draw.random() < 0.3:
        network.extend([nn.Linear(network[-1].out_features, 1), nn.Flatten(0)]).double()
    network(torch.randn(20, *inputs.shape[1:], dtype=torch.float64))  # running statistics
    for module in network.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            nn.init.normal_(module.weight)
            nn.init.normal_(module.bias)
    for parameter in network.parameters():
        parameter.requires_grad_(draw.random() < 0.8)
    network[0].weight.requires_grad_(True)
    return network.eval(), inputs


@pytest.mark.filterwarnings("ignore:Using padding=.same. with even kernel:UserWarning")
@pytest.mark.parametrize("seed", range(24))
@pytest.mark.parametrize("summed_at_most", [0, 2, 1000])
def test_drawn_networks_are_differentiated_layer_by_layer(
    seed, summed_at_most, truths, monkeypatch
):
    """Summed over positions or not; the Gram matrix pair by pair or from chunks of the Jacobian."""
    monkeypatch.setattr(layer_jacobian, "SUMMED_AT_MOST", summed_at_most)
    network, inputs = drawn_network(seed)
    operator = linearise(network, inputs)
    assert isinstance(operator, BlockwiseJacobian)
    truths.assert_is_jacobian(operator, truths.naive_jacobian(network, inputs))
    torch.testing.assert_close(operator.outputs.squeeze(), network(inputs).detach().squeeze())


@pytest.mark.parametrize("memory", ["plenty", "scarce"])
@pytest.mark.parametrize("summed_at_most", [0, 1000])
@pytest.mark.parametrize("rows", [1, 2])
def test_blocks_of_rows_change_nothing(rows, summed_at_most, memory, truths, monkeypatch):
    monkeypatch.setattr(layer_jacobian, "SUMMED_AT_MOST", summed_at_most)
    monkeypatch.setattr(layer_jacobian, "CHUNK_BYTES", 1000)
    if memory == "scarce":
        monkeypatch.setattr(factored_jacobian, "available_bytes", lambda device: 0)
    network, _ = drawn_network(3)
    inputs = torch.randn(5, *drawn_network(3)[1].shape[1:], dtype=torch.float64)
    row = factored_jacobian.sizes_of(network, inputs[:1]).row * 8
    monkeypatch.setattr(factored_jacobian, "CHUNK_BYTES", row * rows)
    operator = linearise(network, inputs)
    expected = truths.naive_jacobian(network, inputs)
    truths.assert_is_jacobian(operator, expected)
    other = linearise(network, inputs[1:4])
    gram = expected @ expected.view(5, -1, expected.shape[1])[1:4].flatten(0, 1).mT
    torch.testing.assert_close(operator.gram(other), gram, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kind", ["lenet", "lenet5", "resnet9", "resnet20", "wrn"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_architectures_for_images_are_differentiated_layer_by_layer(kind, dtype, truths):
    torch.manual_seed(0)
    side = 16 if kind.startswith("lenet") else 8
    spec = NetworkSpec(kind=kind, depth=10)
    network = architectures.build(spec, (2, side, side), 3).eval().to(dtype)
    inputs = torch.randn(2, 2, side, side, dtype=dtype)
    operator = linearise(network, inputs)
    assert isinstance(operator, BlockwiseJacobian)
    tangents = torch.randn(2, operator.num_parameters, dtype=dtype)
    cotangents = torch.randn(2, 2, 3, dtype=dtype)
    exact = AutogradJacobian(copy.deepcopy(network).double(), inputs.double())
    tolerance = 1e-10 if dtype == torch.float64 else 2e-4
    for found, expected in (
        (operator.matvec(tangents), exact.matvec(tangents.double())),
        (operator.rmatvec(cotangents), exact.rmatvec(cotangents.double())),
    ):
        assert found.dtype == dtype
        scale = expected.abs().max()
        torch.testing.assert_close(found.double(), expected, rtol=0, atol=tolerance * scale)


@pytest.mark.parametrize("outputs", [1, 2, 30])
def test_products_do_not_change_when_the_layers_become_worth_their_backward_passes(outputs, truths):
    torch.manual_seed(outputs)
    layers = [nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(inplace=True), nn.Flatten()]
    network = nn.Sequential(*layers, nn.Linear(8, outputs)).double().eval()
    inputs = torch.randn(4, 1, 4, 4, dtype=torch.float64)
    operator = linearise(network, inputs)
    assert isinstance(operator, BlockwiseJacobian)
    expected = truths.naive_jacobian(network, inputs)
    for _ in range(3):
        truths.assert_is_jacobian(operator, expected)


class Convolutional(nn.Module):
    """Conv, activation, linear; subclasses use their parameters in other ways as well."""

    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv2d(1, 1, 3, padding=1)
        self.output = nn.Linear(16, 2)

    def forward(self, x):
        return self.output(self.features(x).tanh().flatten(1))

    def features(self, x):
        return self.convolution(x)


class Twice(Convolutional):
    def features(self, x):
        return self.convolution(self.convolution(x).tanh())


class Functionally(Convolutional):
    def features(self, x):
        return self.convolution(x) + 0.5 * functional.conv2d(x, self.convolution.weight, padding=1)


class Discarded(Convolutional):
    def features(self, x):
        self.convolution(x)
        return functional.conv2d(x, self.convolution.weight, padding=1)


class Penalised(Convolutional):
    def forward(self, x):
        return super().forward(x) + self.convolution.weight.square().sum()


class WithoutGradient(Convolutional):
    def features(self, x):
        with torch.no_grad():
            return self.convolution(x)


class Keyword(Convolutional):
    def features(self, x):
        return self.convolution(input=x)


class Scaled(Convolutional):
    def __init__(self):
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(0.7))

    def features(self, x):
        return self.factor * self.convolution(x)


class Reshaped(Convolutional):
    """The layer sees each input's rows as if they were inputs."""

    def features(self, x):
        return self.convolution(x.view(-1, 1, 2, 4)).view(-1, 1, 4, 4)


class Normalised(Convolutional):
    def __init__(self):
        super().__init__()
        self.normalisation = nn.GroupNorm(1, 1)

    def features(self, x):
        return self.normalisation(self.convolution(x))


class Hooked(Convolutional):
    def __init__(self):
        super().__init__()
        self.convolution.register_forward_hook(lambda module, arguments, output: 3 * output)


class WeightNormed(Convolutional):
    def __init__(self):
        super().__init__()
        nn.utils.parametrizations.weight_norm(self.convolution)


class OldWeightNormed(Convolutional):
    def __init__(self):
        super().__init__()
        nn.utils.weight_norm(self.convolution)


class Tied(Convolutional):
    def __init__(self):
        super().__init__()
        self.again = nn.Conv2d(1, 1, 3, padding=1)
        self.again.weight = self.convolution.weight

    def features(self, x):
        return self.again(self.convolution(x).tanh())


OTHER_USES = [
    Twice,
    Functionally,
    Discarded,
    Penalised,
    WithoutGradient,
    Keyword,
    Scaled,
    Reshaped,
    Normalised,
    Hooked,
    WeightNormed,
    OldWeightNormed,
    Tied,
]


@pytest.mark.filterwarnings("ignore:.*weight_norm.*is deprecated:FutureWarning")
@pytest.mark.parametrize("kind", OTHER_USES)
def test_other_uses_of_the_parameters_are_left_to_automatic_differentiation(kind, truths):
    torch.manual_seed(0)
    network = kind().double().eval()
    inputs = torch.randn(3, 1, 4, 4, dtype=torch.float64)
    operator = linearise(network, inputs)
    assert isinstance(operator, AutogradJacobian)
    expected = truths.naive_jacobian(network, inputs)
    cotangents = torch.randn(2, 3, 2, dtype=torch.float64)
    pulled = cotangents.flatten(1) @ expected
    torch.testing.assert_close(operator.rmatvec(cotangents), pulled, rtol=1e-10, atol=1e-10)


class Detached(Convolutional):
    def forward(self, x):
        return super().forward(x).detach()


def test_networks_that_mix_inputs_or_cut_the_gradient_are_not_taken_apart():
    inputs = torch.randn(3, 1, 4, 4)
    free = nn.BatchNorm2d(1, affine=False, track_running_stats=False)
    for network in (nn.Sequential(free, nn.Flatten(), nn.Linear(16, 2)), Detached()):
        assert isinstance(linearise(network.eval(), inputs), AutogradJacobian)


def test_the_gram_matrix_of_images_of_two_sizes_is_their_jacobians_product(truths):
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 2, 3), nn.Tanh(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    network = nn.Sequential(*layers, nn.Linear(2, 2)).double().eval()
    batches = [torch.randn(2, 1, side, side, dtype=torch.float64) for side in (3, 4, 9)]
    for left in batches:
        for right in batches:
            gram = linearise(network, left).gram(linearise(network, right))
            expected = (
                truths.naive_jacobian(network, left) @ truths.naive_jacobian(network, right).mT
            )
            torch.testing.assert_close(gram, expected, rtol=1e-10, atol=1e-10)


class PartlyFrozen(Convolutional):
    """A detached branch: its layer counts for nothing."""

    def __init__(self):
        super().__init__()
        self.detached = nn.Conv2d(1, 1, 3, padding=1)

    def features(self, x):
        return self.convolution(x) + self.detached(x).detach()


def test_a_layer_without_effect_on_the_gradient_has_a_jacobian_of_zeros(truths):
    torch.manual_seed(0)
    network = PartlyFrozen().double().eval()
    inputs = torch.randn(3, 1, 4, 4, dtype=torch.float64)
    operator = linearise(network, inputs)
    truths.assert_is_jacobian(operator, truths.naive_jacobian(network, inputs))


def test_the_operations_of_a_gram_matrix_are_those_of_the_cheaper_way(monkeypatch):
    # 2 x 2 positions, 3 x 3 x 8 weights for each of 8 outputs, 2 network outputs, 3 inputs
    network = nn.Sequential(nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(32, 2)).eval()
    linear = 2 * 6**2 * (33 + 2)
    pairwise = 2 * 3**2 * (4**2 * (73 + 2 * 8) + 2**2 * 8 * 4)
    operator = linearise(network, torch.randn(3, 8, 4, 4))
    assert operator.gram_operations == linear + pairwise
    monkeypatch.setattr(layer_jacobian, "SUMMED_AT_MOST", 1000)
    operator = linearise(network, torch.randn(3, 8, 4, 4))
    assert operator.gram_operations == linear + 2 * 6**2 * 8 * 73


def test_linearising_leaves_a_convolutional_network_and_the_grad_mode_alone():
    network, inputs = drawn_network(1)
    before = copy.deepcopy(network.state_dict())
    with torch.no_grad():
        operator = linearise(network, inputs)
        operator.rmatvec(operator.outputs.unsqueeze(0))
        assert not torch.is_grad_enabled()
    for name, value in network.state_dict().items():
        assert torch.equal(value, before[name])
    assert not any(module._forward_hooks for module in network.modules())
    assert all(parameter.grad is None for parameter in network.parameters())
    assert not operator.outputs.requires_grad


@pytest.mark.parametrize("used", [False, True])
def test_a_jacobian_survives_pickling(used, truths):
    network, inputs = drawn_network(2)
    multilayer = truths.mlp(3, 2)
    for operator in (linearise(network, inputs), linearise(multilayer, truths.rows(4, 3, 0))):
        if used:
            operator.gram()
        again = pickle.loads(pickle.dumps(operator))
        torch.testing.assert_close(again.dense(), operator.dense())


@pytest.mark.parametrize("outputs", [2, 30])
def test_members_and_rows_are_run_in_chunks_that_fit_the_memory(outputs, monkeypatch):
    layers = [nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten()]
    network = nn.Sequential(*layers, nn.Linear(4 * 36, outputs)).eval()
    inputs = torch.randn(50, 1, 8, 8)
    found = []
    for memory in (2**40, 2**21, 2**18, 1):
        monkeypatch.setattr(linearised, "available_bytes", lambda device, m=memory: m)
        chunks = linearised.chunks_in_memory(network, inputs, 50, 10)
        found.append((chunks.rows, chunks.members))
    assert found[0] == (50, 10)
    assert found[-1] == (1, 1)
    assert found == sorted(found, reverse=True)
