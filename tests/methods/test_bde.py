import copy

import pytest
import torch
from torch import nn

from uqbench.errors import UnsupportedError
from uqbench.method import Task
from uqbench.methods.bde import BayesianDeepEnsemble
from uqbench.networks import prior_variances
from uqbench.problems import NetworkSpec
from uqbench.stacked import StackedNetworks, jacobian_products, unflattened


def fitted(method, truths, data, network=None, **recipe):
    network = network or truths.mlp(3, data.num_outputs)
    problem = truths.problem(data.task, schedule="none", weight_decay=0.1, **recipe)
    return method.fit(problem, data, network, truths.context())


def last_layer_names(network):
    return [name for name, _ in network.named_parameters()][-2:]


@pytest.mark.parametrize("task", list(Task))
def test_the_added_function_is_the_jacobian_at_the_start_times_the_draw(truths, task):
    regression = task is Task.REGRESSION
    data = truths.regression_data() if regression else truths.classification_data()
    posterior = fitted(BayesianDeepEnsemble(members=3), truths, data)
    inputs = truths.rows(5, 3, 8)
    found = jacobian_products(posterior.network, posterior.points, posterior.tangents, inputs)
    for m in range(3):
        member = copy.deepcopy(posterior.network)
        nn.utils.vector_to_parameters(posterior.points[m], member.parameters())
        expected = truths.naive_jacobian(member, inputs) @ posterior.tangents[m]
        torch.testing.assert_close(found[m].flatten(), expected, rtol=1e-10, atol=1e-12)


def test_the_last_layer_is_not_perturbed_and_all_others_are(truths):
    posterior = fitted(BayesianDeepEnsemble(members=3), truths, truths.regression_data())
    stacks = unflattened(posterior.network, posterior.tangents)
    last = last_layer_names(posterior.network)
    assert all(not stacks[name].any() for name in last)
    assert all((stacks[name] != 0).all() for name in stacks if name not in last)


def test_members_of_a_wide_network_are_draws_of_the_ntk_prior(truths):
    """Cov f(x, θ₀) + δ(x) = J(x) diag(v) J(x')ᵀ, v the variances of the initialisation.

    3,000 members of width 400: a standard error of √(2/3000) = 2.6% for a variance.
    """
    spec = NetworkSpec(hidden=(400,), weight_init="xavier_normal", bias_init="standard_normal")
    template = truths.mlp(2, 1, (400,))
    inputs = truths.rows(4, 2, 3)
    variances = prior_variances(template, spec)
    weights = torch.cat(
        [torch.full((p.numel(),), variances[n]) for n, p in template.named_parameters()]
    )
    last = torch.cat(
        [
            torch.full((p.numel(),), n in last_layer_names(template))
            for n, p in template.named_parameters()
        ]
    )
    starts, tangents = truths.rows(2 * 3000, len(weights), 4).mul(weights.sqrt()).chunk(2)
    tangents = tangents * ~last
    kernels = []
    for start in starts[:20]:
        nn.utils.vector_to_parameters(start, template.parameters())
        jacobian = truths.naive_jacobian(template, inputs)
        kernels.append(jacobian * weights @ jacobian.mT)
    added = jacobian_products(template, starts, tangents, inputs).squeeze(-1)
    at_start = StackedNetworks(template)(unflattened(template, starts), inputs).squeeze(-1)
    found = torch.cov((at_start + added).mT)
    expected = torch.stack(kernels).mean(0)
    scale = expected.diagonal().sqrt()
    differences = (found - expected) / (scale[:, None] * scale)
    assert differences.abs().max() < 4 * (2 / 3000) ** 0.5
    without = torch.cov(at_start.mT).diagonal()
    assert (without / expected.diagonal()).max() < 0.75


def test_members_of_a_linear_model_are_the_regularised_optima_from_their_starts(truths):
    """θ_m = (ΦᵀΦ/σ² + Λ)⁻¹(Φᵀy/σ² + Λθ₀_m); a linear layer alone is the last one, so δ = 0."""
    truth = truths.linear_gaussian()
    data, noise = truth.data, 0.5
    method = BayesianDeepEnsemble(members=4, noise_grid=(noise,), prior_variance=0.25)
    posterior = fitted(
        method, truths, data, truth.network, optimizer="sgd", lr=0.1, epochs=400, batch_size=0
    )
    features = truth.features(data.train.inputs)
    precision = features.mT @ features / noise**2 + 4 * torch.eye(4)
    for start, found in zip(posterior.points, posterior.samples, strict=True):
        right = features.mT @ data.train.targets / noise**2 + 4 * start
        torch.testing.assert_close(found, torch.linalg.solve(precision, right), atol=1e-8, rtol=0)
    inputs = truths.rows(6, 3, 9)
    prediction = posterior.predict(inputs)
    outputs = truth.features(inputs) @ posterior.samples.mT
    torch.testing.assert_close(prediction.mean, outputs.mean(1))
    torch.testing.assert_close(prediction.variance, outputs.var(1) + noise**2)


@pytest.mark.parametrize("task", list(Task))
def test_a_member_is_trained_as_by_a_naive_loop(truths, task):
    """Full-batch SGD on 2σ²/n (or 1/n) times the objective as He et al. write it."""
    regression = task is Task.REGRESSION
    data = truths.regression_data() if regression else truths.classification_data()
    noise, scale, n = 0.5, 3.0, len(data.train)
    method = BayesianDeepEnsemble(members=2, noise_grid=(noise,), scale_grid=(scale,))
    posterior = fitted(method, truths, data, optimizer="sgd", lr=0.02, epochs=7, batch_size=0)
    spec = truths.problem(task).network
    for m in range(2):
        member = copy.deepcopy(posterior.network)
        nn.utils.vector_to_parameters(posterior.points[m].clone(), member.parameters())
        start = copy.deepcopy(member)
        added = truths.naive_jacobian(start, data.train.inputs) @ posterior.tangents[m]
        variances = prior_variances(member, spec)
        optimizer = torch.optim.SGD(member.parameters(), lr=0.02, momentum=0.9)
        for _ in range(7):
            outputs = member(data.train.inputs) + added.view(n, -1)
            distance = sum(
                (p - q).square().sum() / variances[name]
                for (name, p), q in zip(member.named_parameters(), start.parameters(), strict=True)
            )
            if regression:
                likelihood = (data.train.targets - outputs.squeeze(1)).square().sum()
                loss = (likelihood / (2 * noise**2) + distance / 2) * 2 * noise**2 / n
            else:
                likelihood = nn.functional.cross_entropy(
                    scale * outputs, data.train.targets, reduction="sum"
                )
                loss = (likelihood + distance / 2) / n
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        expected = nn.utils.parameters_to_vector(member.parameters())
        torch.testing.assert_close(posterior.samples[m], expected, rtol=1e-9, atol=1e-11)
        inputs = data.validation.inputs
        function = member(inputs) + (
            truths.naive_jacobian(start, inputs) @ posterior.tangents[m]
        ).view(len(inputs), -1)
        found = torch.cat(list(posterior.sampled_outputs(inputs)))[m]
        torch.testing.assert_close(found, function if regression else scale * function)


def test_the_noise_with_the_lowest_validation_nll_is_chosen(truths):
    data = truths.regression_data()
    grid = (0.05, 0.4, 2.0)
    scores = {}
    for noise in grid:
        alone = fitted(
            BayesianDeepEnsemble(members=3, noise_grid=(noise,)), truths, data, epochs=50
        )
        prediction = alone.predict(data.validation.inputs)
        scores[noise] = nn.functional.gaussian_nll_loss(
            prediction.mean, data.validation.targets, prediction.variance
        ).item()
    context = truths.context()
    together = BayesianDeepEnsemble(members=3, noise_grid=grid).fit(
        truths.problem(schedule="none", weight_decay=0.1, epochs=50),
        data,
        truths.mlp(3, 1),
        context,
    )
    best = min(scores, key=scores.get)
    assert together.tuned == {"noise": best}
    assert context.grid_size == 3
    alone = fitted(BayesianDeepEnsemble(members=3, noise_grid=(best,)), truths, data, epochs=50)
    torch.testing.assert_close(together.samples, alone.samples, rtol=1e-9, atol=1e-11)


def test_the_noise_can_be_left_out_of_the_variance_as_in_the_paper(truths):
    data = truths.regression_data()
    inputs = data.validation.inputs
    settings = {"members": 3, "noise_grid": (0.4,)}
    full = fitted(BayesianDeepEnsemble(**settings), truths, data).predict(inputs)
    without = fitted(
        BayesianDeepEnsemble(**settings, observation_noise=False), truths, data
    ).predict(inputs)
    torch.testing.assert_close(full.variance - without.variance, torch.full((20,), 0.16).double())


def test_batch_normalisation_is_trained_by_each_member_and_has_no_prior(truths):
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Linear(3, 6, bias=False), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 1)
    ).double()
    posterior = fitted(BayesianDeepEnsemble(members=2), truths, truths.regression_data(), network)
    assert prior_variances(network, None)["1.weight"] == 0
    means = posterior.buffers["1.running_mean"]
    assert not torch.equal(means[0], means[1])
    prediction = posterior.predict(truths.rows(5, 3, 4))
    assert prediction.variance.isfinite().all()


def test_a_layer_whose_initialisation_is_not_known_is_refused_by_name(truths):
    network = nn.Sequential(nn.Linear(3, 4), nn.PReLU(), nn.Linear(4, 1)).double()
    with pytest.raises(UnsupportedError, match=r"layer '1' \(PReLU\)"):
        fitted(BayesianDeepEnsemble(members=2), truths, truths.regression_data(), network)
