import copy
import pickle

import pytest
import torch
from torch import nn

from uqbench import laplace_covariance
from uqbench.data import Split
from uqbench.errors import TuningError, UnsupportedError
from uqbench.laplace import with_last_layer_trainable
from uqbench.laplace_covariance import (
    DiagonalCovariance,
    FunctionSpaceCovariance,
    ParameterSpaceCovariance,
)
from uqbench.laplace_kronecker import KroneckerCovariance
from uqbench.method import Task
from uqbench.methods.la import SampledLaplace
from uqbench.methods.lla import LinearisedLaplace
from uqbench.metrics import classification, regression

SAMPLES = 40_000


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.fixture(params=["regression", "classification"])
def setting(request, truths):
    if request.param == "regression":
        return truths.regression_data(), truths.mlp(3, 1, (4,)), 0.3
    return truths.classification_data(), truths.mlp(3, 3, (4,)), 1.0


def naive_precision(truths, network, data, prior, noise):
    """Σ⁻¹ = ΣJᵀHJ + λI from the dense Jacobian and the softmax Hessian."""
    jacobian = truths.naive_jacobian(network, data.train.inputs)
    outputs = network(data.train.inputs).detach()
    blocks = jacobian.view(*outputs.shape, -1)
    if data.task is Task.REGRESSION:
        hessian = torch.full((len(outputs), 1, 1), noise**-2, dtype=torch.float64)
    else:
        p = outputs.softmax(1)
        hessian = torch.diag_embed(p) - p.unsqueeze(2) * p.unsqueeze(1)
    precision = (blocks.mT @ hessian @ blocks).sum(0)
    return precision + prior * torch.eye(len(precision), dtype=torch.float64)


def require_covariance(samples, expected):
    """The second moments of Gaussian draws: five of their standard errors, entry by entry.

    Var(θ_i θ_j) = Σ_ii Σ_jj + Σ_ij². With 1,000 entries, five standard errors are passed by chance
    less than once in a thousand times; the seed is fixed besides.
    """
    found = samples.mT @ samples / len(samples)
    scales = expected.diagonal()
    error = 5 * ((scales.unsqueeze(1) * scales + expected**2) / len(samples)).sqrt()
    assert ((found - expected).abs() < error).all()
    assert (samples.mean(0).abs() < 5 * (scales / len(samples)).sqrt()).all()


@pytest.mark.parametrize("kind", [FunctionSpaceCovariance, ParameterSpaceCovariance])
def test_full_draws_have_the_covariance_of_the_naive_inverse(setting, truths, kind):
    data, network, noise = setting
    covariance = kind(network, data.train, data.task)
    samples = covariance.draws(SAMPLES, generator())(0.5, noise)
    expected = naive_precision(truths, network, data, 0.5, noise).inverse()
    require_covariance(samples, expected)


def test_function_space_draws_do_not_depend_on_whether_the_jacobian_is_formed(setting, monkeypatch):
    data, network, noise = setting
    draws = []
    for chunk_bytes in (2**28, 1):
        monkeypatch.setattr(laplace_covariance, "CHUNK_BYTES", chunk_bytes)
        covariance = FunctionSpaceCovariance(network, data.train, data.task)
        draws.append(covariance.draws(7, generator())(0.5, noise))
    torch.testing.assert_close(*draws, rtol=1e-8, atol=1e-10)


def test_diagonal_draws_have_the_inverse_of_the_diagonal(setting, truths):
    data, network, noise = setting
    covariance = DiagonalCovariance(network, data.train, data.task)
    samples = covariance.draws(SAMPLES, generator())(0.5, noise)
    precision = naive_precision(truths, network, data, 0.5, noise)
    require_covariance(samples, torch.diag(1 / precision.diagonal()))


def test_kronecker_draws_have_the_covariance_of_the_kronecker_factors(setting):
    data, network, noise = setting
    covariance = KroneckerCovariance(network, data.train, data.task)
    samples = covariance.draws(SAMPLES, generator())(0.5, noise)
    require_covariance(samples, naive_kronecker_inverse(covariance, 0.5, noise))


def naive_kronecker_inverse(covariance, prior, noise):
    """The inverse of the dense block-diagonal precision, from the undecomposed factors."""
    blocks = []
    for factors in covariance.laplace.H_facs.kfacs:
        block = factors[0] if len(factors) == 1 else torch.kron(*factors)
        block = block / noise**2
        blocks.append(block + prior * torch.eye(len(block), dtype=block.dtype))
    return torch.block_diag(*blocks).inverse()


def test_la_of_a_linear_network_is_bayesian_linear_regression(truths):
    truth = truths.linear_gaussian()
    method = SampledLaplace(
        noise_grid=(truth.noise,), prior_grid=(truth.prior_precision,), samples=SAMPLES
    )
    posterior = method.fit(truths.problem(), truth.data, truth.network, truths.context())
    inputs = truth.data.validation.inputs
    prediction = posterior.predict(inputs)
    noise_variance = truth.noise**2
    variance = truth.predictive_variance(inputs) - noise_variance
    mean = truth.network(inputs).squeeze(1).detach()
    # five standard errors of a Gaussian's sample mean and sample variance
    assert ((prediction.mean - mean).abs() < 5 * (variance / SAMPLES).sqrt()).all()
    found = prediction.variance - noise_variance
    torch.testing.assert_close(found, variance, rtol=5 * (2 / SAMPLES) ** 0.5, atol=0)
    assert posterior.forward_passes == SAMPLES


@pytest.mark.parametrize("structure", ["full", "kron", "diag"])
def test_la_and_lla_have_the_same_moments_where_the_network_is_linear(truths, structure):
    """A linear classifier: logits of both are N(f, JΣJᵀ), within five standard errors."""
    data = truths.classification_data()
    network = truths.mlp(3, 3, ())
    found, expected = (
        method(structure=structure, prior_grid=(0.5,), samples=SAMPLES)
        .fit(truths.problem(data.task), data, network, truths.context())
        .predict(data.validation.inputs)
        for method in (SampledLaplace, LinearisedLaplace)
    )
    error = 5 * (2 * expected.variance / SAMPLES).sqrt()
    assert ((found.probabilities - expected.probabilities).abs() < error).all()
    tolerance = 5 * 2 * SAMPLES**-0.5
    torch.testing.assert_close(
        found.logit_variance, expected.logit_variance, rtol=tolerance, atol=0
    )


def test_samples_are_around_the_map_weights_and_frozen_ones_stay(truths):
    data, network = truths.regression_data(), truths.mlp(3, 1)
    method = SampledLaplace(prior_grid=(1e8,), subset="last_layer", samples=50)
    posterior = method.fit(truths.problem(), data, network, truths.context())
    weights = torch.cat([network[2].weight.flatten(), network[2].bias]).detach()
    assert posterior.samples.shape == (50, 8)
    torch.testing.assert_close(posterior.samples.mean(0), weights, rtol=0, atol=1e-4)
    torch.testing.assert_close(
        posterior.predict(data.validation.inputs).mean,
        network(data.validation.inputs).squeeze(1).detach(),
        rtol=0,
        atol=1e-3,
    )


def test_the_prior_minimises_the_validation_nll_of_the_sampled_predictive(setting, truths):
    data, network, _ = setting
    grid = (0.01, 1.0, 1e4)
    inputs, targets = data.validation.inputs, data.validation.targets.numpy()

    def fitted(prior_grid):
        method = SampledLaplace(prior_grid=prior_grid)
        return method.fit(truths.problem(data.task), data, network, truths.context())

    scores = {}
    for prior in grid:
        prediction = fitted((prior,)).predict(inputs)
        if data.task is Task.REGRESSION:
            mean, variance = prediction.mean.numpy(), prediction.variance.numpy()
            scores[prior] = regression.nll(targets, mean, variance)
        else:
            scores[prior] = classification.nll(prediction.probabilities.numpy(), targets)
    ordered = sorted(scores.values())
    assert ordered[1] - ordered[0] > 0.02  # more than the scores' Monte Carlo error
    assert fitted(grid).tuned["prior_precision"] == min(scores, key=scores.get)


def test_the_noise_is_chosen_as_in_lla(truths):
    data, network = truths.regression_data(), truths.mlp(3, 1)
    context = truths.context()
    found = SampledLaplace(samples=20).fit(truths.problem(), data, network, context)
    expected = LinearisedLaplace().fit(truths.problem(), data, network, truths.context())
    assert found.tuned["noise"] == expected.tuned["noise"]
    assert found.noise_variance == found.tuned["noise"] ** 2
    assert context.grid_size == len(SampledLaplace().noise_grid) + len(SampledLaplace().prior_grid)


class Regressor(nn.Module):
    """A network that returns (N,), with BatchNorm, dropout, an activation in place, no bias."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 6, bias=False)
        self.normalisation = nn.BatchNorm1d(6)
        self.last = nn.Linear(6, 1)

    def forward(self, inputs):
        hidden = self.normalisation(self.first(inputs)).relu_()
        return self.last(nn.functional.dropout(hidden, 0.5, self.training)).squeeze(-1)


def convolutional():
    return nn.Sequential(
        nn.Unflatten(1, (1, 3, 1)),
        nn.Conv2d(1, 2, (2, 1)),
        nn.ReLU(inplace=True),
        nn.Flatten(),
        nn.Linear(4, 1),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("build", "structures"),
    [(Regressor, ("full", "diag")), (convolutional, ("full", "kron", "diag"))],
)
def test_networks_of_many_kinds_are_covered_and_left_alone(truths, build, structures, dtype):
    torch.manual_seed(0)
    network = build().to(dtype).eval()
    before = copy.deepcopy(network.state_dict())
    data = truths.regression_data()
    parts = (data.train, data.validation)
    splits = [Split(part.inputs.to(dtype), part.targets.to(dtype)) for part in parts]
    data = type(data)(data.task, *splits)
    state = torch.get_rng_state()
    for structure in structures:
        method = SampledLaplace(structure=structure, samples=30)
        context = truths.context(dtype=dtype)
        posterior = method.fit(truths.problem(), data, network, context)
        posterior = pickle.loads(pickle.dumps(posterior))
        assert posterior.samples.dtype == dtype
        whole = posterior.predict(data.validation.inputs)
        rows = [posterior.predict(row) for row in data.validation.inputs.split(1)]
        tolerance = {"rtol": 1e-4, "atol": 1e-5}
        torch.testing.assert_close(torch.cat([r.mean for r in rows]), whole.mean, **tolerance)
        torch.testing.assert_close(
            torch.cat([r.variance for r in rows]), whole.variance, **tolerance
        )
    assert torch.equal(torch.get_rng_state(), state)
    assert not any(module.training for module in network.modules())
    for name, value in network.state_dict().items():
        assert torch.equal(value, before[name])


def tied():
    network = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3), nn.Linear(3, 1))
    network[2].weight = network[0].weight
    return network


def with_a_layer_used_twice():
    layer = nn.Linear(3, 3)
    return nn.Sequential(layer, nn.Tanh(), layer, nn.Linear(3, 1))


class WithASpareLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.spare = nn.Linear(2, 2)
        self.output = nn.Linear(3, 1)

    def forward(self, inputs):
        return self.output(inputs)


def partly_frozen():
    network = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
    network[0].weight.requires_grad_(False)
    return network


@pytest.mark.parametrize(
    ("network", "layer"),
    [
        (Regressor(), r"layer 'normalisation' \(BatchNorm1d\)"),
        (tied(), r"layer '2' \(Linear\) has tied parameters"),
        (with_a_layer_used_twice(), r"layer '0' \(Linear\) used once .* 2 times"),
        (WithASpareLayer(), r"layer 'spare' \(Linear\) used once .* 0 times"),
        (partly_frozen(), r"all of layer '0' \(Linear\) trainable"),
    ],
)
def test_kronecker_factors_refuse_by_name_what_has_none(truths, network, layer):
    data, network = truths.regression_data(), network.double().eval()
    with pytest.raises(UnsupportedError, match=rf"'kron'.*{layer}"):
        KroneckerCovariance(network, data.train, data.task)
    KroneckerCovariance(
        with_last_layer_trainable(network, data.train.inputs), data.train, data.task
    )


def test_kronecker_factors_cover_a_network_that_returns_one_number_for_each_input(truths):
    data, network = truths.regression_data(), truths.mlp(3, 1)

    class Flat(nn.Module):
        def __init__(self):
            super().__init__()
            self.network = network

        def forward(self, inputs):
            return self.network(inputs).squeeze(-1)

    found, expected = (
        KroneckerCovariance(each.eval(), data.train, data.task) for each in (Flat(), network)
    )
    at = data.validation.inputs
    torch.testing.assert_close(found.at(at, 0.5, 0.3), expected.at(at, 0.5, 0.3))


def test_a_grid_without_a_finite_score_is_an_error_that_names_the_setting(truths):
    data, network = truths.regression_data(), truths.mlp(3, 1)
    with torch.no_grad():
        network[2].bias.fill_(float("nan"))
    with pytest.raises(TuningError, match=r"la\.noise_grid"):
        SampledLaplace().fit(truths.problem(), data, network, truths.context())
