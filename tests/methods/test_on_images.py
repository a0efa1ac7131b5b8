"""Methods on the convolutional networks of the image problems, on a handful of small images."""

import copy

import pytest
import torch

from uqbench.data import Split, TrainingData
from uqbench.evaluator import train_map
from uqbench.method import Task
from uqbench.networks import build_network
from uqbench.prediction import require_valid
from uqbench.problems import NetworkSpec
from uqbench.registry import build_method

CLASSES = 3
SMALL = {
    "nuqls": {"members": 2, "epochs": 1, "batch_size": 8, "lr": 1e-3},
    "lla_last": {"samples": 10},
    "mc_dropout": {"samples": 5},
    "swag": {"epochs": 2, "samples": 2, "lr": 1e-4},
    "sgld": {"epochs": 2, "samples": 2, "batch_size": 8},
    "de": {"members": 2},
    "be": {"members": 2},
    "bde": {"members": 2, "scale_grid": [1.0]},
    "sngp": {"random_features": 16, "samples": 10},
}


def images(count, seed, side):
    generator = torch.Generator().manual_seed(seed)
    targets = torch.arange(count) % CLASSES
    noise = torch.randn(count, 1, side, side, generator=generator)
    return Split(noise + targets.view(-1, 1, 1, 1), targets)


@pytest.fixture(scope="module", params=["resnet9", "lenet5", "wrn"])
def trained(request, truths):
    """A problem, its data, and its MAP network: BatchNorm in two of them, none in LeNet5."""
    side = 12
    data = TrainingData(
        Task.CLASSIFICATION, images(16, 0, side), images(8, 1, side), num_classes=CLASSES
    )
    base = truths.problem(Task.CLASSIFICATION, epochs=1, batch_size=8, lr=1e-3)
    spec = NetworkSpec(kind=request.param, weight_init="xavier_uniform")
    problem = type(base)(**{**vars(base), "network": spec})
    network = train_map(problem, build_network(spec, (1, side, side), CLASSES), data, 0)
    return problem, data, network


@pytest.mark.parametrize("name", SMALL)
def test_a_method_runs_on_a_convolutional_network_and_leaves_it_alone(trained, truths, name):
    problem, data, network = trained
    before = copy.deepcopy(network.state_dict())
    method = build_method(name, SMALL[name])
    context = truths.context(dtype=torch.float32)
    posterior = method.fit(problem, data, network, context)
    inputs = images(5, 2, 12).inputs
    together = posterior.predict(inputs)
    require_valid(together, 5, CLASSES)
    assert (together.variance > 0).any()
    one_by_one = torch.cat([posterior.predict(row.unsqueeze(0)).probabilities for row in inputs])
    torch.testing.assert_close(one_by_one, together.probabilities, rtol=1e-4, atol=1e-5)
    assert not any(module.training for module in network.modules())
    for key, value in network.state_dict().items():
        assert torch.equal(value, before[key])
