import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from uqbench import stacked
from uqbench.method import Task
from uqbench.networks import as_matrix
from uqbench.sampled_posterior import SampledNetworks
from uqbench.stacked import (
    StackedNetworks,
    flattened,
    is_multilayer_perceptron,
    stacked_buffers,
    stacked_parameters,
    unflattened,
)

MEMBERS = 4


class Residual(nn.Module):
    """No plain sequence, and it returns (N,)."""

    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(3, 3, bias=False), nn.Linear(3, 1)

    def forward(self, x):
        return self.outer(x + torch.tanh(self.inner(x))).squeeze(-1)


def tied():
    network = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3), nn.Linear(3, 2))
    network[2].weight = network[0].weight
    return network


def frozen():
    network = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2))
    network[0].weight.requires_grad_(False)
    return network


TEMPLATES = {
    "multilayer perceptron": lambda: nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)),
    "no biases": lambda: nn.Sequential(nn.Linear(3, 5, bias=False), nn.GELU(), nn.Linear(5, 2)),
    "in-place activation": lambda: nn.Sequential(
        nn.Linear(3, 5), nn.ReLU(inplace=True), nn.Linear(5, 2)
    ),
    "residual": Residual,
    "tied": tied,
    "frozen": frozen,
    "batch norm": lambda: nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 2)),
    "dropout": lambda: nn.Sequential(nn.Linear(3, 5), nn.Dropout(0.5), nn.Linear(5, 2)),
    "convolutions": lambda: nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(18, 2)
    ),
}


@pytest.fixture(params=TEMPLATES)
def networks(request):
    """Networks of one architecture in eval mode, with parameters and buffers of their own."""
    torch.manual_seed(0)
    template = TEMPLATES[request.param]().double().eval()
    members = []
    for _ in range(MEMBERS):
        member = copy.deepcopy(template)
        trained = [p for p in member.parameters() if p.requires_grad]
        statistics = [b for b in member.buffers() if b.is_floating_point()]
        for tensor in trained + statistics:
            tensor.data += 0.3 * torch.rand_like(tensor)
        members.append(member)
    return members


def inputs_for(network, *shape):
    images = any(isinstance(module, nn.Conv2d) for module in network.modules())
    size = (1, 5, 5) if images else (3,)
    return torch.randn(*shape, *size, generator=torch.Generator().manual_seed(1)).double()


def state_of(networks):
    state = unflattened(networks[0], stacked_parameters(networks))
    return state | stacked_buffers(networks)


def test_stacked_networks_are_the_networks_one_by_one(networks):
    template, state = networks[0], state_of(networks)
    shared = inputs_for(template, 6)
    expected = torch.stack([as_matrix(network(shared)) for network in networks])
    torch.testing.assert_close(StackedNetworks(template)(state, shared), expected)
    own = inputs_for(template, MEMBERS, 6)
    expected = torch.stack([as_matrix(n(rows)) for n, rows in zip(networks, own, strict=True)])
    torch.testing.assert_close(StackedNetworks(template)(state, own, shared=False), expected)


def test_gradients_of_stacked_networks_are_their_own(networks):
    template, inputs = networks[0], inputs_for(networks[0], 6)
    state = state_of(networks)
    trained = {name: state[name] for name in unflattened(template, stacked_parameters(networks))}
    for stack in trained.values():
        stack.requires_grad_()
    outputs = StackedNetworks(template)(state, inputs).sin().sum()
    found = torch.autograd.grad(outputs, list(trained.values()))
    for member, network in enumerate(networks):
        parameters = [p for p in network.parameters() if p.requires_grad]
        expected = torch.autograd.grad(network(inputs).sin().sum(), parameters)
        for stack, gradient in zip(found, expected, strict=True):
            torch.testing.assert_close(stack[member], gradient)


def test_vectors_are_ordered_as_torchs_own(networks):
    template = networks[0]
    size = stacked_parameters(networks).shape[1]
    vectors = torch.arange(2.0 * size, dtype=torch.float64).view(2, size)
    state = unflattened(template, vectors)
    assert torch.equal(flattened(state), vectors)
    for row, vector in enumerate(vectors):
        network = copy.deepcopy(template)
        trainable = [p for p in network.parameters() if p.requires_grad]
        vector_to_parameters(vector, trainable)
        named = dict(network.named_parameters())
        for name, stack in state.items():
            assert torch.equal(stack[row], named[name])
        assert torch.equal(parameters_to_vector(trainable), vector)
        assert torch.equal(stacked_parameters([network])[0], vector)


def test_only_plain_multilayer_perceptrons_run_as_matrix_products():
    plain = {name for name, build in TEMPLATES.items() if is_multilayer_perceptron(build())}
    assert plain == {"multilayer perceptron", "no biases", "in-place activation", "frozen"}


@pytest.mark.parametrize("chunk_bytes", [1, 2**11, 2**26])
def test_sampled_networks_predict_the_same_in_chunks_of_any_size(
    networks, monkeypatch, chunk_bytes
):
    monkeypatch.setattr(stacked, "CHUNK_BYTES", chunk_bytes)
    template, inputs = networks[0], inputs_for(networks[0], 6)
    posterior = SampledNetworks(
        template, stacked_parameters(networks), Task.CLASSIFICATION, stacked_buffers(networks)
    )
    chunks = list(posterior.sampled_outputs(inputs))
    assert len(chunks) == {1: MEMBERS, 2**26: 1}.get(chunk_bytes, len(chunks))
    expected = torch.stack([as_matrix(network(inputs)) for network in networks])
    torch.testing.assert_close(torch.cat(chunks), expected)
