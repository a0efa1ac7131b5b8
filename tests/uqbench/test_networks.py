import copy

import pytest
import torch
from torch import nn

from uqbench.errors import UnsupportedError
from uqbench.networks import aliases, call_with, initialise, prior_variances, with_outputs
from uqbench.problems import NetworkSpec


@pytest.mark.parametrize(
    "weights",
    ["default", "xavier_normal", "xavier_uniform", "kaiming_normal", "standard_normal"],
)
@pytest.mark.parametrize("biases", ["default", "zeros", "standard_normal"])
def test_prior_variances_are_those_of_the_initial_draws(weights, biases):
    """At least 60,000 draws of each: a relative standard error of at most √(2/60000) = 0.6%."""
    spec = NetworkSpec(weight_init=weights, bias_init=biases)
    network = nn.Sequential(nn.Linear(3, 60_000), nn.Conv2d(40, 300, 5))
    variances = prior_variances(network, spec)
    for name, parameter in initialise(network, spec, 0).named_parameters():
        if parameter.numel() >= 60_000:
            expected = pytest.approx(variances[name], rel=4 * (2 / 60_000) ** 0.5)
            assert parameter.square().mean().item() == expected


def test_frozen_layers_keep_their_parameters_and_statistics_when_a_network_is_redrawn():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    network[1].running_mean.fill_(7)
    network[:2].requires_grad_(False)
    network[2].bias.requires_grad_(False)
    before = copy.deepcopy(network)
    initialise(network, NetworkSpec(bias_init="standard_normal"), 1)
    changed = {
        name
        for name, value in network.state_dict().items()
        if not torch.equal(value, before.state_dict()[name])
    }
    assert changed == {"2.weight"}


def test_parameters_that_nothing_would_draw_are_refused_by_the_modules_name():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.factor = nn.Parameter(torch.ones(1))

    network = nn.Sequential(nn.Linear(3, 4), Scaled(), nn.Linear(4, 1))
    with pytest.raises(UnsupportedError, match=r"layer '1' \(Scaled\).*reset_parameters"):
        initialise(network, None, 0)


class DefinedBackwards(nn.Module):
    """The output layer is defined first."""

    def __init__(self):
        super().__init__()
        self.output = nn.Linear(4, 1)
        self.hidden = nn.Linear(3, 4)

    def forward(self, inputs):
        return self.output(self.hidden(inputs).tanh())


class Skipping(DefinedBackwards):
    """A connection goes past the output layer."""

    def __init__(self):
        super().__init__()
        self.skip = nn.Linear(3, 1)

    def forward(self, inputs):
        return super().forward(inputs) + self.skip(inputs)


def test_the_layer_that_gets_other_outputs_is_the_one_used_last():
    network = with_outputs(DefinedBackwards(), 2, torch.ones(1, 3))
    assert network.output.out_features == 2
    assert network.hidden.out_features == 4


@pytest.mark.parametrize(
    ("network", "layer"),
    [
        (Skipping(), "skip"),
        (nn.Sequential(nn.Linear(3, 1), nn.BatchNorm1d(1)), "0"),
    ],
    ids=["a skip connection", "a layer of the old width"],
)
def test_other_outputs_are_refused_where_another_layer_has_a_say(network, layer):
    with pytest.raises(UnsupportedError, match=rf"layer '{layer}' \(Linear\).* 2 outputs"):
        with_outputs(network, 2, torch.randn(3, 3))


class Twice(nn.Module):
    """One module under two names, and a third layer that shares its weight."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(2, 2)
        self.again = self.first
        self.third = nn.Linear(2, 2)
        self.third.weight = self.first.weight

    def forward(self, inputs):
        return self.third(self.again(self.first(inputs)))


def test_a_call_with_other_parameters_reaches_every_use_of_them_and_leaves_no_trace():
    network = Twice()
    before = dict(network.named_parameters())
    assert aliases(network) == {"third.weight": "first.weight"}
    state = {"first.weight": 2 * torch.eye(2)}
    state |= {name: torch.zeros(2) for name in ("first.bias", "third.bias")}
    inputs = torch.randn(3, 2)
    torch.testing.assert_close(call_with(network, state, aliases(network), inputs), 8 * inputs)
    assert all(value is before[name] for name, value in network.named_parameters())
    assert network.third.weight is network.first.weight is network.again.weight
