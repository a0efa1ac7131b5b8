import copy
import pickle
import sys
from dataclasses import replace

import pytest
import torch
from torch import nn

from uqbench import random_features, streamed
from uqbench.data import Split
from uqbench.errors import UnsupportedError, UsageError
from uqbench.method import Task
from uqbench.methods.sngp import SNGP
from uqbench.metrics import regression
from uqbench.networks import isolated_randomness
from uqbench.spectral_normalisation import bound_spectral_norms, keep_bounded_weights

SMALL = SNGP(random_features=40, samples=200, normalise=False, length_scale=1.0, ridge=0.7)


@pytest.fixture(scope="module", autouse=True)
def _library():
    SNGP().import_libraries()


def fit(method, truths, data, network=None, **recipe):
    network = network or truths.mlp(3, data.num_outputs)
    return method.fit(truths.problem(data.task, **recipe), data, network, truths.context())


def features(posterior, inputs):
    return posterior.network.features(inputs).detach()


def convolutional(outputs=2, **settings):
    layers = nn.Conv2d(1, 2, 3, **settings), nn.ReLU(inplace=True), nn.Flatten()
    return nn.Sequential(*layers, nn.LazyLinear(outputs)).double().eval()


def image_data(task, rows=12):
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(rows, 1, 6, 6, generator=generator, dtype=torch.float64)
    scores = inputs.sum((1, 2, 3))
    return Split(inputs, scores / 6 if task is Task.REGRESSION else (scores > 0).long())


def operator_norm(layer, size):
    """The spectral norm of a convolution, from its matrix."""
    unit = torch.eye(size.numel(), dtype=layer.weight.dtype).view(-1, *size)
    outputs = nn.functional.conv2d(unit, layer.weight, None, layer.stride, layer.padding)
    return torch.linalg.matrix_norm(outputs.flatten(1).detach(), 2).item()


@pytest.mark.parametrize("normalise", [False, True])
def test_the_prediction_is_bayesian_linear_regression_on_the_random_features(truths, normalise):
    data = truths.regression_data()
    posterior = fit(replace(SMALL, normalise=normalise), truths, data)
    noise = posterior.tuned["noise"]
    design = features(posterior, data.train.inputs)
    at = features(posterior, data.validation.inputs)
    covariance = (design.mT @ design / noise**2 + 0.7 * torch.eye(40).double()).inverse()
    prediction = posterior.predict(data.validation.inputs)
    mean = at @ covariance @ design.mT @ data.train.targets / noise**2
    torch.testing.assert_close(prediction.mean, mean, rtol=1e-8, atol=1e-8)
    variance = (at @ covariance * at).sum(1) + noise**2
    torch.testing.assert_close(prediction.variance, variance, rtol=1e-8, atol=1e-8)


def test_the_noise_has_the_lowest_validation_nll(truths):
    data = truths.regression_data()
    scores = {}
    for grid in ((0.02,), (0.2,), (2.0,), (0.02, 0.2, 2.0)):
        posterior = fit(replace(SMALL, noise_grid=grid), truths, data)
        prediction = posterior.predict(data.validation.inputs)
        arrays = data.validation.targets, prediction.mean, prediction.variance
        scores[grid] = regression.nll(*(array.numpy() for array in arrays))
    chosen = scores.pop((0.02, 0.2, 2.0))
    assert chosen == min(scores.values())
    assert chosen < max(scores.values())


@pytest.mark.parametrize("likelihood", ["gaussian", "softmax"])
def test_logits_have_the_covariance_of_a_loop_over_the_training_rows(truths, likelihood):
    data = truths.classification_data()
    posterior = fit(replace(SMALL, likelihood=likelihood), truths, data)
    at = features(posterior, data.validation.inputs)
    prediction = posterior.predict(data.validation.inputs)
    for k in range(3):
        precision = 0.7 * torch.eye(40, dtype=torch.float64)
        for row in data.train.inputs:
            phi = features(posterior, row.unsqueeze(0)).squeeze(0)
            p = posterior.network(row.unsqueeze(0)).detach().softmax(1)[0, k]
            precision += (p * (1 - p) if likelihood == "softmax" else 1) * phi.outer(phi)
        variance = (at @ precision.inverse() * at).sum(1)
        # every input has the same draws, so that their sample variance is a common factor
        expected = variance * posterior.draws[:, 0, k].var()
        torch.testing.assert_close(prediction.logit_variance[:, k], expected, rtol=1e-8, atol=0)


def test_logits_are_drawn_around_the_trained_networks(truths):
    data = truths.classification_data()
    posterior = fit(replace(SMALL, ridge=1e8), truths, data)  # no variance is left
    prediction = posterior.predict(data.validation.inputs)
    expected = posterior.network(data.validation.inputs).detach().softmax(1)
    torch.testing.assert_close(prediction.probabilities, expected, rtol=0, atol=1e-4)
    assert posterior.network.output.weight.abs().max() > 0.01
    assert prediction.samples == 200


@pytest.mark.parametrize("task", list(Task))
def test_the_precision_does_not_depend_on_the_rows_at_a_time(truths, task, monkeypatch):
    regression_task = task is Task.REGRESSION
    data = truths.regression_data() if regression_task else truths.classification_data()
    method = replace(SMALL, likelihood="softmax")
    whole = fit(method, truths, data).predict(data.validation.inputs)
    monkeypatch.setattr(streamed, "BATCH_ROWS", 7)
    parts = fit(method, truths, data).predict(data.validation.inputs)
    torch.testing.assert_close(parts.variance, whole.variance, rtol=1e-9, atol=0)


def test_inner_products_of_the_features_are_the_gaussian_kernel(truths):
    """Monte Carlo over 20,000 features: within 5 standard deviations, of 1/√D each at most."""
    network = truths.mlp(3, 1)
    x = truths.rows(6, 3, 0)
    with isolated_randomness(0):
        built = random_features.RandomFeatureNetwork(network, x, 20_000, 0.8, normalise=False)
    hidden = network[:-1](x).detach()
    kernel = (-torch.cdist(hidden, hidden).square() / (2 * 0.8**2)).exp()
    phi = built.features(x).detach()
    torch.testing.assert_close(phi @ phi.mT, kernel, rtol=0, atol=5 / 20_000**0.5)


def test_far_from_the_data_the_prior_is_left(truths):
    data = truths.regression_data()
    method = replace(SMALL, random_features=1000, length_scale=0.1)
    posterior = fit(method, truths, data, truths.mlp(3, 1, activation=nn.Softplus))
    near, far = (posterior.predict(scale * data.train.inputs) for scale in (1, 100))
    prior = 1 / 0.7 + posterior.tuned["noise"] ** 2
    torch.testing.assert_close(far.variance, torch.full((30,), prior).double(), rtol=0.1, atol=0)
    assert far.mean.abs().max() < 0.3
    assert near.variance.max() < prior


def test_spectral_norms_of_hidden_layers_are_at_the_bound_or_below_after_training(truths):
    """100 steps of the power iteration: within 1%."""
    data = truths.regression_data()
    network = truths.mlp(3, 1, (20, 20))
    posterior = fit(replace(SMALL, spectral_norm=0.5), truths, data, network, epochs=50, lr=0.1)
    layers = [layer for layer in posterior.network.body if isinstance(layer, nn.Linear)]
    norms = [torch.linalg.matrix_norm(layer.weight.detach(), 2).item() for layer in layers]
    assert len(norms) == 2
    assert max(norms) < 0.505
    assert min(norms) > 0.495  # without the bound they would be larger
    assert not any(module._forward_pre_hooks for module in posterior.network.modules())


@pytest.mark.parametrize("settings", [{}, {"padding": 1}, {"stride": 2}])
def test_a_convolutions_norm_is_that_of_its_linear_map_on_the_images(truths, settings):
    data = truths.classification_data(classes=2)
    split = image_data(data.task)
    data = replace(data, train=split, validation=split)
    network = convolutional(**settings)
    network(split.inputs)
    posterior = fit(replace(SMALL, spectral_norm=0.5), truths, data, network, epochs=50, lr=0.1)
    assert operator_norm(posterior.network.body[0], split.inputs.shape[1:]) < 0.505
    assert posterior.predict(split.inputs).variance.max() > 0


def test_weights_below_the_bound_are_kept_to_the_last_digit(truths):
    split = image_data(Task.REGRESSION)
    for network, inputs in (
        (truths.mlp(3, 4), truths.rows(5, 3, 0)),
        (convolutional(), split.inputs),
    ):
        network(inputs)
        bounded = copy.deepcopy(network)
        with isolated_randomness(0):
            bound_spectral_norms(bounded, 100.0, inputs)
        bounded.train()(inputs)
        keep_bounded_weights(bounded)
        assert bounded.state_dict().keys() == network.state_dict().keys()
        for name, value in network.state_dict().items():
            assert torch.equal(bounded.state_dict()[name], value)


def test_frozen_and_normalisation_layers_are_not_bounded(truths):
    network = nn.Sequential(
        nn.Linear(3, 6), nn.BatchNorm1d(6), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 1)
    ).double()
    network[0].requires_grad_(False).weight.mul_(10)
    posterior = fit(SMALL, truths, truths.regression_data(), network)
    assert torch.equal(posterior.network.body[0].weight, network[0].weight)
    assert torch.linalg.matrix_norm(posterior.network.body[2].weight, 2) < 0.96


def test_batches_and_pickling_do_not_change_what_is_predicted(truths):
    for data in (truths.regression_data(), truths.classification_data()):
        posterior = fit(SMALL, truths, data)
        whole = posterior.predict(data.validation.inputs)
        restored = pickle.loads(pickle.dumps(posterior))
        parts = [restored.predict(rows).variance for rows in data.validation.inputs.split(7)]
        torch.testing.assert_close(torch.cat(parts), whole.variance)


def test_no_library_is_imported_while_the_clock_runs(truths):
    before = {name for name in sys.modules if name.startswith("lightning")}
    fit(SMALL, truths, truths.regression_data())
    assert {name for name in sys.modules if name.startswith("lightning")} == before


def before_last(*layers):
    return nn.Sequential(nn.Linear(3, 4), *layers, nn.Linear(4, 3)).double().eval()


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.output = nn.Linear(3, 3)

    def forward(self, inputs):
        return self.output(inputs) + inputs


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: before_last().append(nn.Softmax(1)), "'1', must compute the network's output"),
        (lambda: Residual().double().eval(), "'output', must compute the network's output"),
        (
            lambda: before_last(nn.Unflatten(1, (4, 1)), nn.Conv1d(4, 4, 1), nn.Flatten()),
            r"layer '2' \(Conv1d\) cannot be normalised spectrally",
        ),
    ],
)
def test_networks_that_it_does_not_cover_are_refused_by_the_layers_name(truths, build, message):
    with pytest.raises(UnsupportedError, match=message):
        fit(SMALL, truths, truths.classification_data(), build())


@pytest.mark.parametrize(
    "settings",
    [
        {"stride": 3},
        {"dilation": 2},
        {"padding": 1, "padding_mode": "circular"},
        {"kernel_size": 2, "stride": 2},
    ],
)
def test_convolutions_that_the_library_cannot_normalise_are_refused(settings):
    network = nn.Sequential(nn.Conv2d(1, 2, **{"kernel_size": 3, **settings}))
    with pytest.raises(UnsupportedError, match=r"layer '0' \(Conv2d.*no groups and no dilation"):
        bound_spectral_norms(network, 0.95, torch.zeros(1, 1, 6, 6))


def test_a_single_hidden_unit_cannot_be_normalised(truths):
    with pytest.raises(UsageError, match=r"sngp.normalise: layer '2' has one input"):
        fit(SNGP(), truths, truths.regression_data(), truths.mlp(3, 1, (1,)))
