import copy

import pytest
import torch
from torch import nn

from uqbench.errors import UnsupportedError
from uqbench.networks import initialise, prior_variances
from uqbench.problems import NetworkSpec


@pytest.mark.parametrize(
    "weights", ["default", "xavier_normal", "xavier_uniform", "kaiming_normal"]
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
    with pytest.raises(UnsupportedError, match=r"module '1' \(Scaled\).*reset_parameters"):
        initialise(network, None, 0)
