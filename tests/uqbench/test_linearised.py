import pytest
import torch
from torch import nn

from uqbench import factored_jacobian
from uqbench.errors import UnsupportedError
from uqbench.linearised import (
    AutogradJacobian,
    FactoredJacobian,
    largest_ntk_eigenvalue,
    linearise,
    num_parameters,
)


def frozen_first_weight(network):
    network[0].weight.requires_grad_(False)
    return network


class TiedNetwork(nn.Module):
    """Two layers that share one weight."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.second = nn.Linear(3, 3)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.second(torch.tanh(self.first(x)))


@pytest.fixture(
    params=["one output", "three outputs", "deep", "no bias", "in place", "frozen", "linear"]
)
def multilayer(request, truths):
    return {
        "one output": lambda: truths.mlp(3, 1),
        "three outputs": lambda: truths.mlp(3, 3),
        "deep": lambda: truths.mlp(3, 2, (5, 4, 6)),
        "no bias": lambda: truths.mlp(3, 2, bias=False),
        "in place": lambda: truths.mlp(3, 2, activation=lambda: nn.ReLU(inplace=True)),
        "frozen": lambda: frozen_first_weight(truths.mlp(3, 2)),
        "linear": lambda: nn.Linear(3, 2).double().eval(),
    }[request.param]()


def test_a_factored_jacobian_equals_naive_differentiation(multilayer, truths):
    inputs = truths.rows(6, 3, 2)
    operator = linearise(multilayer, inputs)
    assert isinstance(operator, FactoredJacobian)
    expected = truths.naive_jacobian(multilayer, inputs)
    truths.assert_is_jacobian(operator, expected)
    torch.testing.assert_close(operator.outputs, multilayer(inputs).detach())


def test_an_autograd_jacobian_equals_naive_differentiation(multilayer, truths):
    inputs = truths.rows(6, 3, 2)
    operator = AutogradJacobian(multilayer, inputs)
    expected = truths.naive_jacobian(multilayer, inputs)
    truths.assert_is_jacobian(operator, expected)


def test_tied_parameters_count_once(truths):
    network = TiedNetwork().double().eval()
    inputs = truths.rows(5, 3, 2)
    operator = linearise(network, inputs)
    assert num_parameters(network) == 9 + 3 + 3
    expected = truths.naive_jacobian(network, inputs)
    truths.assert_is_jacobian(operator, expected)


def test_the_gram_matrix_between_two_sets_of_inputs_is_their_jacobians_product(
    multilayer, truths, monkeypatch
):
    monkeypatch.setattr(factored_jacobian, "GRAM_ROWS", 4)
    left, right = truths.rows(6, 3, 2), truths.rows(5, 3, 3)
    gram = linearise(multilayer, left).gram(linearise(multilayer, right))
    expected = truths.naive_jacobian(multilayer, left) @ truths.naive_jacobian(multilayer, right).mT
    torch.testing.assert_close(gram, expected, rtol=1e-10, atol=1e-10)


def test_the_largest_eigenvalue_is_that_of_the_gram_matrix(truths):
    network, inputs = truths.mlp(3, 2), truths.rows(50, 3, 4)
    gram = linearise(network, inputs).gram()
    expected = torch.linalg.eigvalsh(gram)[-1].item() / 50
    assert largest_ntk_eigenvalue(network, inputs, chunk=20) == pytest.approx(expected, rel=0.02)


def test_a_network_in_train_mode_is_refused(truths):
    with pytest.raises(UnsupportedError, match="train mode"):
        linearise(truths.mlp(3, 1).train(), truths.rows(4, 3, 0))


def test_a_network_without_trainable_parameters_is_refused(truths):
    with pytest.raises(UnsupportedError, match="no trainable parameters"):
        linearise(truths.mlp(3, 1).requires_grad_(False), truths.rows(4, 3, 0))


def test_linearising_leaves_the_network_and_the_grad_mode_alone(truths):
    network = truths.mlp(3, 2)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    with torch.no_grad():
        linearise(network, truths.rows(4, 3, 0)).dense()
        assert not torch.is_grad_enabled()
    for name, value in network.state_dict().items():
        assert torch.equal(value, before[name])
    assert not any(module._forward_hooks for module in network.modules())
    assert all(parameter.grad is None for parameter in network.parameters())


def test_the_jacobian_has_the_networks_dtype_and_casts_its_inputs(truths):
    single = truths.mlp(3, 2, dtype=torch.float32)
    double = truths.mlp(3, 2)
    inputs = truths.rows(4, 3, 0)
    for network, dtype in ((single, torch.float32), (double, torch.float64)):
        for given in (inputs, inputs.float()):
            assert linearise(network, given).dense().dtype == dtype


def test_a_gram_matrix_formed_in_blocks_is_symmetric_and_whole(multilayer, truths, monkeypatch):
    monkeypatch.setattr(factored_jacobian, "GRAM_ROWS", 3)
    inputs = truths.rows(8, 3, 2)
    expected = truths.naive_jacobian(multilayer, inputs)
    gram = linearise(multilayer, inputs).gram()
    torch.testing.assert_close(gram, expected @ expected.mT, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(gram, gram.mT, rtol=0, atol=1e-12)


class Reusing(nn.Module):
    """A layer used twice, one on a sequence, one never used, and a scalar parameter."""

    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(3, 3)
        self.each = nn.Linear(1, 2)
        self.output = nn.Linear(6, 2)
        self.unused = nn.Linear(2, 2)
        self.factor = nn.Parameter(torch.tensor(0.7))

    def forward(self, x):
        hidden = self.hidden(self.hidden(x).tanh()).tanh()
        return self.factor * self.output(self.each(hidden.unsqueeze(-1)).tanh().flatten(1))


@pytest.mark.parametrize("scalar", [True, False])
def test_networks_of_linear_layers_with_other_uses_of_them_are_linearised_all_the_same(
    scalar, truths
):
    torch.manual_seed(0)
    network = Reusing().double().eval()
    network.factor.requires_grad_(scalar)
    if not scalar:
        del network.factor
        network.factor = 0.7
    inputs = torch.randn(5, 3, dtype=torch.float64)
    operator = linearise(network, inputs)
    expected = truths.naive_jacobian(network, inputs)
    truths.assert_is_jacobian(operator, expected)


def test_what_torch_cannot_linearise_is_refused_by_the_layers_name():
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.recurrent = nn.GRU(3, 1)

        def forward(self, x):
            return self.recurrent(x)[0]

    inputs = torch.randn(4, 3)
    with pytest.raises(UnsupportedError, match=r"'recurrent' \(GRU\)"):
        linearise(Recurrent().eval(), inputs)
    prelu = nn.Sequential(nn.Linear(3, 2), nn.PReLU()).eval()
    with pytest.raises(UnsupportedError, match=r"'1' \(PReLU\)"):
        linearise(prelu, inputs).dense()


def test_a_frozen_recurrent_layer_does_not_stand_in_the_way_of_the_layers_after_it():
    class Encoded(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = nn.GRU(1, 2, batch_first=True).requires_grad_(False)
            self.output = nn.Linear(2, 1)

        def forward(self, x):
            return self.output(self.encoder(x.unsqueeze(-1))[0][:, -1])

    torch.manual_seed(0)
    network = Encoded().double().eval()
    inputs = torch.randn(4, 3, dtype=torch.float64)
    hidden = network.encoder(inputs.unsqueeze(-1))[0][:, -1]
    tangent = torch.randn(3, dtype=torch.float64)
    expected = hidden @ tangent[:2] + tangent[2]
    found = linearise(network, inputs).matvec(tangent.unsqueeze(0))
    torch.testing.assert_close(found.view(-1), expected)
