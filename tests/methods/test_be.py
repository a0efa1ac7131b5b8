import copy
import pickle

import pytest
import torch
from torch import nn
from torch.func import functional_call

from uqbench.batch_ensemble import BatchEnsembleNetwork
from uqbench.errors import UnsupportedError, UsageError
from uqbench.method import Task
from uqbench.methods.be import BatchEnsemble, l2_penalty

MEMBERS = 3


def convolutional():
    """Strides, padding, dilation, groups and a missing bias, on images (N, 3, 9, 8)."""
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, stride=2, padding=1, padding_mode="reflect"),
        nn.ReLU(inplace=True),
        nn.Conv2d(4, 6, (2, 3), padding=(1, 0), dilation=(2, 1), groups=2, bias=False),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(6 * 5 * 2, 2),
    ).double()


@pytest.fixture(params=["linear", "convolutional"])
def network(request, truths):
    torch.manual_seed(0)
    return truths.mlp(4, 2, (5, 6)) if request.param == "linear" else convolutional().eval()


def inputs_for(network, rows, seed=1):
    shape = (4,) if isinstance(network[0], nn.Linear) else (3, 9, 8)
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, *shape, generator=generator, dtype=torch.float64)


def drawn(network, scheme="normal"):
    """A BatchEnsemble whose factors and biases differ between members."""
    ensemble = BatchEnsembleNetwork(network, MEMBERS)
    generator = torch.Generator().manual_seed(2)
    ensemble.draw_factors(scheme, 0.5, generator)
    with torch.no_grad():
        for layer in ensemble.layers.values():
            if layer.bias is not None:
                layer.bias.normal_(generator=generator)
    return ensemble


def naive_state(network, ensemble, m):
    """Member m's own weights W ∘ s rᵀ and biases, differentiable in the ensemble's parameters."""
    state = {}
    for name, layer in ensemble.layers.items():
        name = name.removeprefix("network.")
        weight = layer.shared.weight
        groups = getattr(layer.shared, "groups", 1)
        r, s = layer.input_factors[m], layer.output_factors[m]
        # a group's outputs see the group's inputs alone
        per_output = r.view(groups, -1).repeat_interleave(len(weight) // groups, 0)
        rank_one = s.unsqueeze(1) * per_output
        state[f"{name}.weight"] = weight * rank_one.view(
            *weight.shape[:2], *[1] * (weight.ndim - 2)
        )
        if layer.bias is not None:
            state[f"{name}.bias"] = layer.bias[m]
    return state


def test_with_unit_factors_every_member_is_the_base_network(network):
    ensemble = BatchEnsembleNetwork(network, MEMBERS).eval()
    inputs = inputs_for(network, 7)
    outputs = ensemble.by_member(ensemble(inputs))
    expected = network(inputs).expand(MEMBERS, 7, 2)
    torch.testing.assert_close(outputs, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("rows", [1, 7])  # of one row the weights have more entries than it has
@pytest.mark.parametrize("scheme", ["signs", "normal"])
def test_outputs_and_gradients_are_those_of_separate_networks(network, scheme, rows):
    ensemble = drawn(network, scheme)
    inputs = inputs_for(network, rows)
    found = ensemble.by_member(ensemble(inputs))
    expected = torch.stack(
        [
            functional_call(network, naive_state(network, ensemble, m), (inputs,))
            for m in range(MEMBERS)
        ]
    )
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
    parameters = list(ensemble.parameters())
    cotangents = torch.randn(found.shape, generator=torch.Generator().manual_seed(3)).double()
    for a, b in zip(
        torch.autograd.grad((found * cotangents).sum(), parameters),
        torch.autograd.grad((expected * cotangents).sum(), parameters),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_every_member_sees_every_row_of_a_batch_of_any_size(network, rows):
    ensemble = drawn(network).eval()
    inputs = inputs_for(network, 5)
    whole = ensemble.by_member(ensemble(inputs))
    part = ensemble.by_member(ensemble(inputs[:rows]))
    torch.testing.assert_close(part, whole[:, :rows], rtol=1e-10, atol=1e-12)
    assert (whole[0] - whole[1]).abs().min() > 1e-6


def test_a_step_of_the_training_descends_the_mean_of_the_members_regularised_losses(truths):
    data = truths.regression_data(n=11)
    recipe = {"optimizer": "sgd", "batch_size": 0, "momentum": 0.0, "weight_decay": 0.3}

    def trained(lr):
        method = BatchEnsemble(members=MEMBERS, epochs=1, lr=lr, factors="normal")
        problem = truths.problem(**recipe)
        return method.fit(problem, data, truths.mlp(3, 1), truths.context()).ensemble

    start, found = trained(1e-300), trained(0.1)
    network = truths.mlp(3, 1)
    objective = 0
    for m in range(MEMBERS):
        outputs = functional_call(network, naive_state(network, start, m), (data.train.inputs,))
        objective = objective + (outputs.squeeze(1) - data.train.targets).square().mean()
        for layer in start.layers.values():
            squares = layer.shared.weight.square().sum() + layer.bias[m].square().sum()
            objective = objective + 0.15 * squares
    gradients = torch.autograd.grad(objective / MEMBERS, list(start.parameters()))
    for a, b, gradient in zip(found.parameters(), start.parameters(), gradients, strict=True):
        torch.testing.assert_close(a, b - 0.1 * gradient, rtol=1e-10, atol=1e-12)


def test_an_ensemble_of_one_member_is_that_network(truths):
    data = truths.regression_data()
    posterior = BatchEnsemble(members=1).fit(
        truths.problem(), data, truths.mlp(3, 1), truths.context()
    )
    inputs, network = data.validation.inputs, truths.mlp(3, 1)
    state = naive_state(network, posterior.ensemble, 0)
    prediction = posterior.predict(inputs)
    torch.testing.assert_close(prediction.mean, functional_call(network, state, (inputs,))[:, 0])
    assert (prediction.variance == posterior.tuned["noise"] ** 2).all()


@pytest.mark.parametrize("task", list(Task))
def test_the_moments_are_those_of_the_members(truths, task):
    regression = task is Task.REGRESSION
    data = truths.regression_data() if regression else truths.classification_data()
    context = truths.context()
    posterior = BatchEnsemble(members=4).fit(
        truths.problem(task), data, truths.mlp(3, data.num_outputs), context
    )
    inputs = data.validation.inputs
    outputs = torch.stack(
        [
            functional_call(truths.mlp(3, data.num_outputs), state, (inputs,))
            for state in (naive_state(None, posterior.ensemble, m) for m in range(4))
        ]
    ).detach()
    prediction = posterior.predict(inputs)
    assert posterior.forward_passes == 4
    if regression:
        noise = posterior.tuned["noise"]
        assert context.grid_size == len(BatchEnsemble().noise_grid)
        torch.testing.assert_close(prediction.mean, outputs.mean(0).squeeze(1))
        torch.testing.assert_close(prediction.variance, outputs.var(0).squeeze(1) + noise**2)
    else:
        torch.testing.assert_close(prediction.probabilities, outputs.softmax(2).mean(0))
        torch.testing.assert_close(prediction.variance, outputs.softmax(2).var(0))
        assert prediction.samples == 4


def test_the_training_takes_half_as_many_epochs_again_as_the_networks(truths):
    totals = set()
    context = truths.context()
    context.progress = lambda description, done, total: totals.add(total)
    data = truths.regression_data()
    BatchEnsemble().fit(truths.problem(epochs=5), data, truths.mlp(3, 1), context)
    assert totals == {8}


def test_the_statistics_of_batch_normalisation_are_those_of_all_members_rows(truths):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 2)).double()
    ensemble = drawn(network).train()
    inputs = inputs_for(network, 6)
    ensemble(inputs)
    before = ensemble.layers["network.0"](inputs.repeat(MEMBERS, 1))
    normalisation = ensemble.network[1]
    torch.testing.assert_close(normalisation.running_mean, 0.1 * before.mean(0))
    torch.testing.assert_close(normalisation.running_var, 0.9 + 0.1 * before.var(0))


class Regressor(nn.Module):
    """A network that returns (N,), with dropout as a function, in-place and tied layers."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 8)
        self.normalisation = nn.BatchNorm1d(8)
        self.second = self.again = nn.Linear(8, 8)
        self.last = nn.Linear(8, 1)

    def forward(self, inputs):
        hidden = nn.functional.relu(self.normalisation(self.first(inputs)), inplace=True)
        hidden = nn.functional.dropout(hidden, 0.1, self.training)
        return self.last(self.again(self.second(hidden).tanh_())).squeeze(-1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_networks_with_state_are_fitted_and_left_alone(truths, dtype):
    torch.manual_seed(0)
    template = Regressor().to(dtype).eval()
    before = copy.deepcopy(template.state_dict())
    data = truths.regression_data()
    splits = [
        type(s)(s.inputs.to(dtype), s.targets.to(dtype)) for s in (data.train, data.validation)
    ]
    data = type(data)(data.task, *splits)
    problem = truths.problem(batch_size=8)
    state = torch.get_rng_state()
    posterior = BatchEnsemble().fit(problem, data, template, truths.context(dtype=dtype))
    posterior = pickle.loads(pickle.dumps(posterior))
    whole = posterior.predict(data.validation.inputs)
    rows = [posterior.predict(row).mean for row in data.validation.inputs.split(1)]
    torch.testing.assert_close(torch.cat(rows), whole.mean)
    assert posterior.ensemble.network.second is posterior.ensemble.network.again
    assert torch.equal(torch.get_rng_state(), state)
    for name, value in template.state_dict().items():
        assert torch.equal(value, before[name])


def test_a_layer_with_a_frozen_weight_stays_as_it_is(truths):
    network = truths.mlp(4, 2)
    network[0].weight.requires_grad_(False)
    network[2].bias.requires_grad_(False)
    ensemble = BatchEnsembleNetwork(network, MEMBERS)
    assert list(ensemble.layers) == ["network.2"]
    assert not ensemble.layers["network.2"].bias.requires_grad
    assert torch.equal(ensemble.network[0].weight, network[0].weight)
    assert ensemble.decay_shares() == {
        "network.0.bias": 1.0,
        "network.2.shared.weight": 1.0,
    }


@pytest.mark.parametrize("layer", [nn.LayerNorm(5), nn.Conv1d(4, 5, 1), nn.LSTM(5, 5)])
def test_other_layers_with_parameters_are_refused_by_name(layer):
    network = nn.Sequential(nn.Linear(4, 5), layer, nn.Linear(5, 1))
    with pytest.raises(UnsupportedError, match=rf"layer '1' \({type(layer).__name__}\)"):
        BatchEnsembleNetwork(network, MEMBERS)


def test_random_signs_are_balanced_and_normal_factors_have_the_deviation_asked_for():
    network = nn.Linear(20_000, 1)
    for scheme, mean, deviation in (("signs", 0, 1), ("normal", 1, 0.3)):
        ensemble = BatchEnsembleNetwork(network, 2)
        ensemble.draw_factors(scheme, 0.3, torch.Generator().manual_seed(0))
        factors = ensemble.network.input_factors.detach()
        # five standard errors of 40,000 draws
        assert factors.mean().item() == pytest.approx(mean, abs=5 * deviation / 200)
        assert factors.std().item() == pytest.approx(deviation, rel=5 / 280)
    assert not torch.equal(factors[0], factors[1])


def test_no_penalty_is_computed_without_weight_decay():
    assert l2_penalty({"weight": 1.0}, 0.0) is None


def test_one_member_is_refused_where_a_variance_over_members_is_asked_for():
    with pytest.raises(UsageError, match="members must be at least 2"):
        BatchEnsemble(members=1).check_task(Task.CLASSIFICATION)
    BatchEnsemble(members=1).check_task(Task.REGRESSION)
