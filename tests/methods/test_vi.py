import copy
import pickle
from dataclasses import replace

import pytest
import torch
from bayesian_torch.models.dnn_to_bnn import get_kl_loss
from torch import nn
from torch.distributions import Normal, kl_divergence

from uqbench.data import Split
from uqbench.errors import UnsupportedError
from uqbench.method import Task
from uqbench.methods.vi import VariationalInference
from uqbench.metrics import regression
from uqbench.networks import isolated_randomness, trainable
from uqbench.stacked import flattened
from uqbench.training import squared_error
from uqbench.variational import MeanFieldNetwork, divergence, require_supported

SHORT = VariationalInference(noise_grid=(0.3,), samples=20)


def mean_field(network, method=SHORT, seed=0):
    with isolated_randomness(seed):
        return MeanFieldNetwork(network, method._layer_settings())


def moments(converted):
    return converted.moments({n: p.detach().unsqueeze(0) for n, p in converted.named_parameters()})


def images(task, rows=12):
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(rows, 1, 6, 6, generator=generator, dtype=torch.float64)
    scores = inputs.sum((1, 2, 3))
    return inputs, scores / 6 if task is Task.REGRESSION else (scores > 0).long()


def convolutional(outputs):
    layers = nn.Conv2d(1, 2, 3, stride=2), nn.ReLU(inplace=True), nn.Flatten()
    return nn.Sequential(*layers, nn.Linear(8, outputs)).double().eval()


def test_the_divergence_is_the_sum_over_all_weights_and_the_librarys_is_not(truths):
    method = VariationalInference(prior_mu=0.3, prior_sigma=0.8)
    converted = mean_field(truths.mlp(3, 2), method)
    means, deviations = moments(converted)
    terms = kl_divergence(
        Normal(means, deviations), Normal(torch.tensor(0.3).double(), torch.tensor(0.8).double())
    )
    found = divergence(means, deviations, 0.3, 0.8)
    torch.testing.assert_close(found, terms.sum(1))
    # bayesian-torch: the sum of the four tensors' means
    library = get_kl_loss(converted).detach()
    in_tensors = terms[0].split([p.numel() for p in trainable(truths.mlp(3, 2)).values()])
    torch.testing.assert_close(library, torch.stack([t.mean() for t in in_tensors]).sum())
    assert found.item() > 5 * library.item()


def test_the_optimum_of_a_linear_gaussian_problem_is_the_closed_forms(truths):
    """μ is the exact posterior's mean and s_j² = 1/Λ_jj, with Λ the exact posterior's precision.

    Two inputs are correlated: the exact standard deviations of their weights are 3 times as large.
    Monte Carlo, over seeds: within 0.28 exact standard deviations, and within 7% for s.
    """
    truth = truths.linear_gaussian()
    inputs = truth.data.train.inputs.clone()
    inputs[:, 1] = 0.9 * inputs[:, 0] + 0.4 * inputs[:, 1]
    targets = truth.data.train.targets
    data = replace(truth.data, train=Split(inputs, targets))
    method = VariationalInference(
        prior_sigma=truth.prior_precision**-0.5, lr=0.03, epochs=1500, schedule="cosine"
    )
    weight = 2 * truth.noise**2 / len(inputs)
    (trained,) = method.train(
        truths.problem(), data, truth.network, [weight], [0, 1], truths.context()
    )
    mean, deviation = (half.squeeze(0) for half in moments(trained))
    design = truth.features(inputs)
    precision = design.mT @ design / truth.noise**2
    precision += truth.prior_precision * torch.eye(4, dtype=torch.float64)
    exact = torch.linalg.solve(precision, design.mT @ targets / truth.noise**2)
    spread = precision.inverse().diagonal().sqrt()
    assert ((mean - exact) / spread).abs().max() < 0.4
    torch.testing.assert_close(deviation, precision.diagonal() ** -0.5, rtol=0.15, atol=0)


def test_the_gradient_of_the_expected_error_is_unbiased(truths):
    """Monte Carlo, 2,000 draws: within 5 standard errors of the closed form.

    With outputs θᵀφ, E_q Σ_i (y_i − θᵀφ_i)² = Σ_i (y_i − μᵀφ_i)² + Σ_j s_j² Σ_i φ_ij².
    """
    truth = truths.linear_gaussian()
    converted = mean_field(truth.network)
    split = truth.data.train
    design = truth.features(split.inputs)
    named = dict(converted.named_parameters())
    parameters = list(named.values())

    mean, deviation = converted.moments({n: p.unsqueeze(0) for n, p in named.items()})
    residuals = split.targets - design @ mean.squeeze(0)
    expected = residuals.square().mean() + (design.square().mean(0) * deviation.square()).sum()
    exact = torch.cat([part.flatten() for part in torch.autograd.grad(expected, parameters)])
    draws = []
    with isolated_randomness(0):
        for _ in range(2000):
            loss = squared_error(converted(split.inputs), split.targets)
            parts = torch.autograd.grad(loss, parameters)
            draws.append(torch.cat([part.flatten() for part in parts]))
    draws = torch.stack(draws)
    errors = (draws.mean(0) - exact) / (draws.std(0) / len(draws) ** 0.5)
    assert errors.abs().max() < 5


def test_samples_have_the_moments_of_the_trained_gaussian_in_the_networks_order(truths):
    network = truths.mlp(3, 2)
    converted = mean_field(network)
    mean, deviation = moments(converted)
    assert torch.equal(converted.sampled(torch.zeros(1, mean.shape[1]).double()), mean)
    one = converted.sampled(torch.ones(1, mean.shape[1]).double())
    torch.testing.assert_close(one, mean + deviation)
    layers = [layer for layer in converted.network if hasattr(layer, "mu_weight")]
    means = {"0.weight": layers[0].mu_weight, "0.bias": layers[0].mu_bias}
    means |= {"2.weight": layers[1].mu_weight, "2.bias": layers[1].mu_bias}
    in_order = {name: means[name].detach().unsqueeze(0) for name in trainable(network)}
    torch.testing.assert_close(mean, flattened(in_order))


def test_the_noise_has_the_lowest_validation_nll_and_is_in_the_variance(truths):
    data, problem = truths.regression_data(), truths.problem(epochs=30, lr=3e-2)
    nll = {}
    for grid in ((0.05,), (0.5,), (5.0,), (0.05, 0.5, 5.0)):
        posterior = VariationalInference(noise_grid=grid).fit(
            problem, data, truths.mlp(3, 1), truths.context()
        )
        prediction = posterior.predict(data.validation.inputs)
        functions = torch.cat(list(posterior.sampled_outputs(data.validation.inputs)))
        noise = posterior.tuned["noise"]
        expected = functions.squeeze(-1).var(0) + noise**2
        torch.testing.assert_close(prediction.variance, expected)
        arrays = data.validation.targets, prediction.mean, prediction.variance
        nll[grid] = (regression.nll(*(array.numpy() for array in arrays)), noise)
    best = min(score for score in nll.values() if score[1] in {0.05, 0.5, 5.0})
    assert nll[(0.05, 0.5, 5.0)] == pytest.approx(best)


def test_the_more_the_likelihood_says_the_less_remains_of_the_prior(truths):
    data = truths.regression_data()
    method = VariationalInference(posterior_rho=0.0, epochs=300, lr=3e-2)
    fits = method.train(
        truths.problem(), data, truths.mlp(3, 1), [1e-4, 1e-2, 1.0], [0, 0], truths.context()
    )
    narrow, middle, wide = (moments(fit)[1].mean().item() for fit in fits)
    assert narrow < middle < wide < 1.05
    assert moments(fits[-1])[0].abs().mean() < 0.2


@pytest.mark.parametrize("task", list(Task))
def test_convolutions_and_activations_in_place_are_covered(truths, task):
    if task is Task.REGRESSION:
        data = truths.regression_data()
    else:
        data = truths.classification_data(classes=2)
    split = Split(*images(task))
    data = replace(data, train=split, validation=split)
    posterior = SHORT.fit(
        truths.problem(task), data, convolutional(data.num_outputs), truths.context()
    )
    prediction = posterior.predict(split.inputs)
    assert prediction.variance.min() > 0
    assert posterior.samples.shape == (20, 20 + 8 * data.num_outputs + data.num_outputs)


def test_frozen_layers_stay_as_they_are(truths):
    network = truths.mlp(3, 1)
    network[0].requires_grad_(False)
    posterior = SHORT.fit(truths.problem(), truths.regression_data(), network, truths.context())
    assert posterior.samples.shape == (20, 8)
    assert torch.equal(posterior.network[0].weight, network[0].weight)


def test_the_template_and_the_global_generator_are_left_alone(truths):
    network = truths.mlp(3, 1).train()
    before, state = copy.deepcopy(network.state_dict()), torch.get_rng_state()
    SHORT.fit(truths.problem(), truths.regression_data(), network, truths.context())
    assert network.training
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[n]) for n, value in network.state_dict().items())


def test_batches_and_pickling_do_not_change_what_is_predicted(truths):
    data = truths.regression_data()
    posterior = SHORT.fit(truths.problem(), data, truths.mlp(3, 1), truths.context())
    whole = posterior.predict(data.validation.inputs)
    restored = pickle.loads(pickle.dumps(posterior))
    parts = [restored.predict(rows).variance for rows in data.validation.inputs.split(7)]
    torch.testing.assert_close(torch.cat(parts), whole.variance)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(3, 3)
        self.output = nn.Linear(3, 1)

    def forward(self, inputs):
        return self.output(self.hidden(self.hidden(inputs).tanh()).tanh())


def with_layer(*layers):
    return nn.Sequential(nn.Linear(3, 4), *layers, nn.Linear(4, 1))


def tied():
    network = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3), nn.Linear(3, 1))
    network[2].weight = network[0].weight
    return network


def half_frozen():
    network = with_layer(nn.Tanh())
    network[2].bias.requires_grad_(False)
    return network


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: with_layer(nn.BatchNorm1d(4)), r"layer '1' \(BatchNorm1d\)"),
        (lambda: with_layer(nn.LayerNorm(4)), r"layer '1' \(LayerNorm\).*Linear and Conv2d"),
        (lambda: with_layer(nn.PReLU()), r"layer '1' \(PReLU\)"),
        (tied, "tied parameters"),
        (half_frozen, r"layer '2' \(Linear\) is frozen in part"),
        (Recurrent, "used 2 times"),
    ],
)
def test_networks_that_it_does_not_cover_are_refused_by_the_modules_name(build, message):
    with pytest.raises(UnsupportedError, match=message):
        require_supported(build().eval(), torch.zeros(2, 3))


def test_padding_that_bayesian_torch_would_ignore_is_refused():
    network = nn.Sequential(nn.Conv2d(1, 1, 3, padding=1, padding_mode="circular"))
    with pytest.raises(UnsupportedError, match="padding_mode 'circular'"):
        require_supported(network, torch.zeros(1, 1, 4, 4))
