import pytest
import torch
from torch import nn

from uqbench.errors import UsageError
from uqbench.linearised import FactoredJacobian, linearise
from uqbench.networks import build_network, initialise
from uqbench.problems import NetworkSpec

GREY, COLOUR = (1, 28, 28), (3, 32, 32)


# Counts from the sources that the builders' docstrings name, or by hand from layer sizes.
@pytest.mark.parametrize(
    ("spec", "shape", "parameters"),
    [
        (NetworkSpec(hidden=(200, 200)), GREY, 199_210),
        (NetworkSpec(hidden=(20,)), GREY, 15_910),
        (NetworkSpec(kind="lenet5"), GREY, 61_706),
        (NetworkSpec(kind="lenet"), GREY, 44_426),
        (NetworkSpec(kind="resnet9"), COLOUR, 6_573_130),
        (NetworkSpec(kind="resnet20"), COLOUR, 269_722),
        (NetworkSpec(kind="resnet32"), COLOUR, 464_154),
        (NetworkSpec(kind="wrn"), GREY, 77_562),
        (NetworkSpec(kind="wrn", depth=28, widen=10), COLOUR, 36_479_194),
        (NetworkSpec(kind="resnet50"), COLOUR, 23_520_842),
    ],
)
def test_an_architecture_has_its_published_number_of_parameters(spec, shape, parameters):
    with torch.device("meta"):
        network = build_network(spec, shape, 10)
    assert sum(parameter.numel() for parameter in network.parameters()) == parameters


@pytest.mark.parametrize("kind", ["mlp", "lenet", "lenet5", "resnet9", "resnet20", "wrn"])
@pytest.mark.parametrize("shape", [GREY, COLOUR, (1, 16, 20)])
def test_an_architecture_maps_images_of_any_size_to_class_outputs(kind, shape):
    spec = NetworkSpec(kind=kind, weight_init="xavier_uniform")
    network = initialise(build_network(spec, shape, 7), spec, 0).eval()
    images = torch.randn(3, *shape, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        outputs = network(images)
    assert outputs.shape == (3, 7)
    assert outputs.std(0).min() > 0


@pytest.mark.parametrize(
    ("kind", "shape", "message"),
    [
        ("lenet5", (8,), "takes images"),
        ("lenet", (1, 12, 12), "at least 16 pixels a side"),
        ("resnet9", (3, 4, 4), "at least 8 pixels a side"),
    ],
)
def test_inputs_that_an_architecture_does_not_take_are_refused(kind, shape, message):
    with pytest.raises(UsageError, match=message):
        build_network(NetworkSpec(kind=kind), shape, 10)


def test_a_wide_resnets_depth_must_be_possible():
    with pytest.raises(UsageError, match="6n \\+ 4, got 12"):
        build_network(NetworkSpec(kind="wrn", depth=12), GREY, 10)


def test_a_subsampled_shortcut_takes_every_other_pixel_and_pads_channels_with_zeros():
    network = build_network(NetworkSpec(kind="resnet20"), COLOUR, 10)
    shortcut = next(
        m.shortcut
        for m in network
        if isinstance(getattr(m, "shortcut", 0), nn.Module)
        and not isinstance(m.shortcut, nn.Identity)
    )
    images = torch.randn(2, 16, 6, 6)
    found = shortcut(images)
    assert found.shape == (2, 32, 3, 3)
    assert torch.equal(found[:, 8:24], images[:, :, ::2, ::2])
    assert not found[:, :8].any()
    assert not found[:, 24:].any()


@pytest.mark.parametrize("parameterisation", ["ntk", "ntk_relu"])
@pytest.mark.parametrize("bias", [False, True])
def test_a_parameterisation_scales_what_enters_the_layers(truths, parameterisation, bias):
    spec = NetworkSpec(
        hidden=(6, 8),
        activation="relu",
        weight_init="standard_normal",
        bias_init="standard_normal",
        bias=bias,
        parameterisation=parameterisation,
    )
    network = initialise(build_network(spec, (4,), 1), spec, 0).double().eval()
    inputs = truths.rows(5, 4, 1)
    linear = [layer for layer in network if isinstance(layer, nn.Linear)]
    assert all((layer.bias is not None) is bias for layer in linear)
    factors = {"ntk": (1 / 2, 1 / 6**0.5, 1 / 8**0.5), "ntk_relu": (1, (1 / 3) ** 0.5, 1 / 2)}
    hidden = inputs
    for index, (layer, factor) in enumerate(zip(linear, factors[parameterisation], strict=True)):
        hidden = layer(factor * (hidden.relu() if index else hidden))
    torch.testing.assert_close(network(inputs), hidden, rtol=1e-12, atol=1e-14)
    jacobian = linearise(network, inputs)
    assert isinstance(jacobian, FactoredJacobian)
    expected = truths.naive_jacobian(network, inputs)
    torch.testing.assert_close(jacobian.dense(), expected, rtol=1e-10, atol=1e-12)


def test_a_perceptron_on_images_is_linearised_by_its_layers_factors(truths):
    spec = NetworkSpec(hidden=(5,))
    network = initialise(build_network(spec, (1, 4, 4), 3), spec, 0).double().eval()
    images = truths.rows(6, 16, 1).view(6, 1, 4, 4)
    jacobian = linearise(network, images)
    assert isinstance(jacobian, FactoredJacobian)
    expected = truths.naive_jacobian(network, images)
    torch.testing.assert_close(jacobian.dense(), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("kind", "option"),
    [
        ("lenet5", {"activation": "relu"}),
        ("resnet9", {"hidden": (20,)}),
        ("lenet", {"bias": False}),
        ("mlp", {"depth": 16}),
        ("wrn", {"parameterisation": "ntk"}),
    ],
)
def test_an_option_that_the_kind_does_not_have_is_refused(kind, option):
    (name,) = option
    with pytest.raises(ValueError, match=f"{name} is no option of kind '{kind}'"):
        NetworkSpec(kind=kind, **option)
