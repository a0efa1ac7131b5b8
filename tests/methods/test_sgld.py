import copy
import math

import pytest
import torch
from torch import nn
from torch.nn.utils import parameters_to_vector

from uqbench.data import Split, TrainingData
from uqbench.errors import DivergenceError, UsageError
from uqbench.method import Task
from uqbench.methods.sgld import SGLD


def vector(network):
    return parameters_to_vector(network.parameters()).detach()


def repeated(data, times):
    """The same data with every training row ``times`` times."""
    inputs = data.train.inputs.repeat(times, 1)
    split = Split(inputs, data.train.targets.repeat(times))
    return TrainingData(data.task, split, data.validation, data.num_classes)


CHAINS = 2000


@pytest.mark.parametrize(("batch_size", "step"), [(0, 0.2), (20, 0.1)])
def test_the_samples_have_the_moments_of_a_linear_gaussian_posterior(truths, batch_size, step):
    """Whitened by the truth: mean 0 and covariance I.

    The finite step adds at most ε λ_max/4 to the covariance and the minibatches ε λ_max n/(4|B|),
    together less than 8%; a variance has a Monte Carlo error of 3.2%.
    """
    truth = truths.linear_gaussian()
    features = truth.features(truth.data.train.inputs)
    precision = features.mT @ features / truth.noise**2 + truth.prior_precision * torch.eye(4)
    a = step / torch.linalg.eigvalsh(precision)[-1].item()
    far = copy.deepcopy(truth.network)
    with torch.no_grad():
        far.bias += 0.2
    method = SGLD(
        samples=CHAINS,
        chains=CHAINS,
        epochs=200,
        batch_size=batch_size,
        a=a,
        c=0.0,
        prior_precision=truth.prior_precision,
        noise_grid=(truth.noise,),
    )
    posterior = method.fit(truths.problem(), truth.data, far, truths.context())
    root = torch.linalg.cholesky(precision)
    white = (posterior.samples - vector(truth.network)) @ root
    error = 1 / math.sqrt(CHAINS)
    assert white.mean(0).abs().max() < 5 * error
    assert (white.T.cov() - torch.eye(4)).abs().max() < 0.08 + 5 * math.sqrt(2) * error
    found = posterior.predict(truth.data.validation.inputs)
    expected = truth.predictive_variance(truth.data.validation.inputs)
    torch.testing.assert_close(found.variance, expected, rtol=0.03, atol=0)


def test_the_samples_have_the_moments_of_a_logistic_regression_posterior(truths):
    """One weight for each of two classes; the posterior of their difference by quadrature."""
    inputs = truths.rows(12, 1, 3)
    targets = (inputs.squeeze(-1) + 0.5 * truths.rows(12, 1, 4).squeeze(-1) > 0).long()
    split = Split(inputs, targets)
    data = TrainingData(Task.CLASSIFICATION, split, split, 2)
    network = truths.mlp(1, 2, (), bias=False)
    method = SGLD(
        samples=CHAINS, chains=CHAINS, epochs=300, a=0.1, c=0.0, batch_size=0, prior_precision=0.5
    )
    posterior = method.fit(truths.problem(data.task), data, network, truths.context())
    difference = posterior.samples[:, 1] - posterior.samples[:, 0]
    grid = torch.linspace(-20, 30, 20_001, dtype=torch.float64)
    signs = 2.0 * targets - 1
    likelihood = nn.functional.logsigmoid(grid.unsqueeze(1) * (signs * inputs.squeeze(-1))).sum(1)
    # half the squared norm of both weights is a quarter of their squared difference, and their sum
    density = (likelihood - 0.5 * grid.square() / 4).softmax(0)
    mean = (density * grid).sum()
    deviation = (density * (grid - mean).square()).sum().sqrt()
    # 5 standard errors; the discretisation adds less than 1%
    assert (difference.mean() - mean).abs() < (5 / math.sqrt(CHAINS) + 0.01) * deviation
    assert difference.std() / deviation == pytest.approx(1, abs=5 / math.sqrt(2 * CHAINS) + 0.01)


def with_batch_norm_and_dropout():
    torch.manual_seed(0)
    layers = [nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Dropout(0.5), nn.Linear(5, 1)]
    network = nn.Sequential(*layers).double()
    network[1].running_mean += 0.3
    network[1].running_var *= 2
    return network.eval()


@pytest.mark.parametrize("kind", ["plain", "batch norm and dropout"])
def test_without_noise_it_is_gradient_descent_on_the_energy_of_all_rows(truths, kind):
    data = truths.regression_data()
    network = truths.mlp(3, 1) if kind == "plain" else with_batch_norm_and_dropout()
    noise, prior = 0.4, 0.7
    method = SGLD(
        samples=10,
        epochs=10,
        burn_in=0.0,
        batch_size=0,
        a=2e-3,
        b=3.0,
        c=0.6,
        noise_factor=0.0,
        prior_precision=prior,
        noise_grid=(noise,),
    )
    found = method.fit(truths.problem(), data, network, truths.context()).samples
    naive = copy.deepcopy(network)
    parameters = list(naive.parameters())
    expected = []
    for t in range(10):
        residuals = data.train.targets - naive(data.train.inputs).squeeze(-1)
        energy = residuals.square().sum() / (2 * noise**2)
        energy = energy + prior / 2 * sum(p.square().sum() for p in parameters)
        gradients = torch.autograd.grad(energy, parameters)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter -= 2e-3 * (3 + t) ** -0.6 / 2 * gradient
        expected.append(vector(naive))
    torch.testing.assert_close(found, torch.stack(expected), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("task", [Task.REGRESSION, Task.CLASSIFICATION])
def test_the_likelihood_weighs_as_much_as_there_are_rows(truths, task):
    """Every row twice: the same mean loss, twice the displacement."""
    data = truths.regression_data() if task is Task.REGRESSION else truths.classification_data()
    network = truths.mlp(3, data.num_outputs)
    method = SGLD(epochs=2, batch_size=0, a=1e-5, burn_in=0.0, noise_factor=0.0, noise_grid=(0.3,))
    moved = [
        method.fit(truths.problem(task), rows, network, truths.context()).samples[-1]
        - vector(network)
        for rows in (data, repeated(data, 2))
    ]
    # not equal, as the second step starts where the first has ended
    assert (moved[1] - 2 * moved[0]).norm() < 0.01 * moved[1].norm()


@pytest.mark.parametrize("factor", [1.0, 1e-3])
def test_the_injected_noise_has_the_step_size_as_its_variance(truths, factor):
    data, network = truths.regression_data(), truths.mlp(3, 1, (2,))
    size = 20_000

    def one_step(factor, chains):
        method = SGLD(
            samples=chains,
            chains=chains,
            epochs=1,
            batch_size=0,
            burn_in=0.0,
            a=1e-3,
            b=4.0,
            c=0.5,
            noise_factor=factor,
            noise_grid=(0.3,),
        )
        return method.fit(truths.problem(), data, network, truths.context()).samples

    drift = one_step(0.0, 2)[0]
    noise = (one_step(factor, size) - drift) / (factor * math.sqrt(5e-4))
    assert noise.mean(0).abs().max() < 5 / math.sqrt(size)
    covariance = noise.T.cov()
    assert (covariance - torch.eye(len(drift))).abs().max() < 5 * math.sqrt(2 / size)


def test_the_prior_is_that_of_the_training_so_that_the_map_network_stays(truths):
    """Weight decay d beside the mean squared error: λ = n d/2σ²."""
    truth = truths.linear_gaussian()
    decay = 2 * truth.noise**2 * truth.prior_precision / len(truth.data.train)
    method = SGLD(noise_grid=(truth.noise,), noise_factor=0.0, batch_size=0, epochs=50)
    problem = truths.problem(weight_decay=decay)
    posterior = method.fit(problem, truth.data, truth.network, truths.context())
    assert posterior.tuned["prior_precision"] == pytest.approx(truth.prior_precision)
    start = vector(truth.network).expand_as(posterior.samples)
    torch.testing.assert_close(posterior.samples, start, rtol=1e-9, atol=1e-10)


def test_the_likelihoods_noise_is_the_map_networks_and_that_of_y_is_chosen_anew(truths):
    data, network = truths.regression_data(), truths.mlp(3, 1)
    context = truths.context()
    method = SGLD(epochs=20)
    posterior = method.fit(truths.problem(weight_decay=1e-2), data, network, context)
    outputs = network(data.validation.inputs).squeeze(-1).detach()
    error = (outputs - data.validation.targets).square().mean()
    at_map = min(method.noise_grid, key=lambda s: math.log(s) + error / (2 * s**2))
    prior = len(data.train) * 1e-2 / (2 * at_map**2)
    assert posterior.tuned["prior_precision"] == pytest.approx(prior)
    assert posterior.tuned["noise"] in method.noise_grid
    assert posterior.noise_variance == pytest.approx(posterior.tuned["noise"] ** 2)
    assert context.grid_size == 2 * len(method.noise_grid)


@pytest.mark.parametrize("batch_size", [0, 10])
def test_the_first_step_is_set_by_the_largest_curvature_at_the_map_network(truths, batch_size):
    data, network = truths.regression_data(), truths.mlp(3, 1)
    method = SGLD(batch_size=batch_size, epochs=4, noise_grid=(0.2,), prior_precision=0.6)
    posterior = method.fit(truths.problem(), data, network, truths.context())
    jacobian = truths.naive_jacobian(network, data.train.inputs)
    hessian = jacobian.mT @ jacobian / 0.04 + 0.6 * torch.eye(jacobian.shape[1])
    largest = torch.linalg.eigvalsh(hessian)[-1].item()
    part = (batch_size or len(data.train)) / len(data.train)
    first = posterior.tuned["a"] * method.b**-method.c
    assert first == pytest.approx(part / largest, rel=0.02)


def test_samples_are_taken_at_equal_distances_after_burn_in_from_every_chain():
    assert list(SGLD(samples=4, burn_in=0.5)._kept(16)) == [15, 13, 11, 9]
    assert list(SGLD(samples=8, burn_in=0.5, chains=2)._kept(16)) == [15, 13, 11, 9]
    assert list(SGLD(samples=100, burn_in=0.5)._kept(8)) == [7, 6, 5, 4]
    assert len(SGLD(samples=3, burn_in=0.0)._kept(10)) == 3
    with pytest.raises(UsageError, match=r"sgld.epochs: 2 steps"):
        SGLD(burn_in=0.9)._kept(2)


def test_a_diverging_chain_is_an_error_that_names_the_setting(truths):
    method = SGLD(a=1e9, noise_grid=(0.1,))
    with pytest.raises(DivergenceError, match=r"set a smaller sgld.a than 1e\+09"):
        method.fit(truths.problem(), truths.regression_data(), truths.mlp(3, 1), truths.context())


def test_frozen_parameters_stay_and_an_output_without_an_axis_is_the_same(truths):
    data, network = truths.regression_data(), truths.mlp(3, 1)
    network[0].requires_grad_(False)
    flat = nn.Sequential(*network, nn.Flatten(0)).eval()
    fits = [
        SGLD(epochs=10).fit(truths.problem(), data, n, truths.context()) for n in (network, flat)
    ]
    assert fits[0].samples.shape[1] == 8
    torch.testing.assert_close(fits[0].samples, fits[1].samples, rtol=1e-9, atol=1e-12)


def test_step_sizes_beyond_floating_point_are_refused_by_the_settings_names():
    for b, c in ((1e-300, 50.0), (1e300, 50.0)):
        with pytest.raises(UsageError, match=r"sgld\.b and sgld\.c"):
            SGLD(b=b, c=c)._decay(0)
