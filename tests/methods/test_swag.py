import copy
import itertools

import pytest
import torch
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from uqbench.batch_norm import refreshed_statistics
from uqbench.errors import DivergenceError, UsageError
from uqbench.method import Task
from uqbench.methods.swag import SWAG, Iterates
from uqbench.metrics import classification, regression
from uqbench.networks import as_matrix
from uqbench.problems import Recipe
from uqbench.stacked import unflattened


@pytest.fixture(params=[Task.REGRESSION, Task.CLASSIFICATION])
def setting(request, truths):
    """A task's data, network and problem."""
    if request.param is Task.REGRESSION:
        data, network = truths.regression_data(), truths.mlp(3, 1)
    else:
        data, network = truths.classification_data(), truths.mlp(3, 3)
    return data, network, truths.problem(request.param, epochs=14, batch_size=10)


def naive_iterates(network, data, recipe, decay, seed):
    """Parameters (epochs, p) after each epoch of torch's own SGD; rows in the order of ``seed``."""
    network = copy.deepcopy(network).train()
    optimizer = torch.optim.SGD(
        network.parameters(), recipe.lr, momentum=recipe.momentum, weight_decay=decay
    )
    regression = data.task is Task.REGRESSION
    generator = torch.Generator().manual_seed(seed)
    size = recipe.batch_size or len(data.train)
    found = []
    for _ in range(recipe.epochs):
        order = torch.arange(len(data.train))
        if size < len(data.train):
            order = torch.randperm(len(data.train), generator=generator)
        for rows in order.split(size):
            outputs, targets = network(data.train.inputs[rows]), data.train.targets[rows]
            optimizer.zero_grad()
            if regression:
                (outputs.squeeze(-1) - targets).square().mean().backward()
            else:
                nn.functional.cross_entropy(outputs, targets).backward()
            optimizer.step()
        found.append(parameters_to_vector(network.parameters()).detach().clone())
    return torch.stack(found)


def naive_moments(iterates, rank):
    """Mean, diagonal, and the last ``rank`` deviations from the running mean."""
    mean = iterates.mean(0)
    diagonal = ((iterates**2).mean(0) - mean**2).clamp(min=0)
    deviations = [
        iterates[i] - iterates[: i + 1].mean(0)
        for i in range(max(len(iterates) - rank, 0), len(iterates))
    ]
    return mean, diagonal, torch.stack(deviations)


@pytest.mark.parametrize("rank", [3, 14, 20])
def test_the_moments_are_those_of_the_iterates_of_an_independent_sgd(setting, truths, rank):
    data, network, _ = setting
    grid = (0.0, 0.3, 5e-3)
    method = SWAG(rank=rank, weight_decay_grid=grid)
    recipe = Recipe(optimizer="sgd", lr=1e-2, epochs=14, batch_size=10)
    found = method._train(network, data, recipe, 7, truths.context())
    for member, decay in enumerate(grid):
        iterates = naive_iterates(network, data, recipe, decay, 7)
        mean, diagonal, deviations = naive_moments(iterates, rank)
        close = {"rtol": 0, "atol": 1e-10}
        torch.testing.assert_close(found.mean[member], mean, **close)
        count = found.counts[member]
        assert count == 14
        torch.testing.assert_close(found.squares[member] / count, diagonal, **close)
        ours = found.deviations[member]
        torch.testing.assert_close(ours.mT @ ours, deviations.mT @ deviations, **close)


def test_the_diagonal_survives_float32_where_the_iterates_hardly_move():
    """Variance 1e-8 around 1: the difference of the moments would be rounding alone."""
    generator = torch.Generator().manual_seed(0)
    iterates = 1 + 1e-4 * torch.randn(50, 1, 20, generator=generator, dtype=torch.float64)
    found = Iterates(torch.zeros(1, 20), rank=5)
    for iterate in iterates.float():
        found.collect({"weight": iterate}, slice(0, 1))
    expected = iterates.float().double().var(0, correction=0)
    torch.testing.assert_close(found.squares.double() / 50, expected, rtol=1e-3, atol=0)


def test_the_samples_have_the_diagonal_plus_low_rank_covariance(truths):
    """Half the sum of the two, to 5 standard errors of a sample covariance."""
    data, network = truths.regression_data(), truths.mlp(3, 1, (2,))
    problem = truths.problem(epochs=30, batch_size=0, lr=5e-2, weight_decay=0.1)
    size = 100_000
    method = SWAG(rank=4, samples=size, weight_decay_grid=(1e-2,))
    posterior = method.fit(problem, data, network, truths.context())
    recipe = Recipe(optimizer="sgd", lr=5e-2, epochs=30, batch_size=0)
    mean, diagonal, deviations = naive_moments(
        naive_iterates(network, data, recipe, 1e-2, 0), rank=4
    )
    covariance = (diagonal.diag() + deviations.mT @ deviations / 3) / 2
    variance = covariance.diagonal()
    error = ((variance.outer(variance) + covariance**2) / size).sqrt()
    assert ((posterior.samples.T.cov() - covariance).abs() < 5 * error).all()
    assert ((posterior.samples.mean(0) - mean).abs() < 5 * (variance / size).sqrt()).all()


def test_the_samples_of_a_grid_are_those_of_separate_fits_and_the_best_is_chosen(setting, truths):
    data, network, problem = setting
    grid = (0.0, 0.3, 5e-3)

    def fit(grid):
        method = SWAG(rank=3, samples=20, weight_decay_grid=grid)
        return method.fit(problem, data, network, truths.context())

    targets = data.validation.targets.numpy()
    scores, alone = {}, {}
    for decay in grid:
        alone[decay] = fit((decay,))
        prediction = alone[decay].predict(data.validation.inputs)
        if data.task is Task.REGRESSION:
            moments = prediction.mean.numpy(), prediction.variance.numpy()
            scores[decay] = regression.ece(targets, *moments)
        else:
            scores[decay] = classification.nll(prediction.probabilities.numpy(), targets)
    best = min(scores, key=scores.get)
    chosen = fit(grid)
    assert chosen.tuned["weight_decay"] == best
    torch.testing.assert_close(chosen.samples, alone[best].samples, rtol=0, atol=1e-10)
    if data.task is Task.REGRESSION:
        assert chosen.tuned["noise"] == alone[best].tuned["noise"]


def with_batch_norm(outputs=1):
    torch.manual_seed(0)
    layers = [nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Dropout(0.3), nn.Linear(5, outputs)]
    return nn.Sequential(*layers).double().eval()


def test_batch_norm_statistics_are_averages_over_the_training_split_for_each_sample(truths):
    data, network = truths.regression_data(), with_batch_norm()
    problem = truths.problem(epochs=4, batch_size=8)
    method = SWAG(rank=3, samples=6, weight_decay_grid=(0.0, 1e-2))
    posterior = method.fit(problem, data, network, truths.context())
    outputs = torch.cat(list(posterior.sampled_outputs(data.validation.inputs)))
    for sample, output in zip(posterior.samples, outputs, strict=True):
        naive = copy.deepcopy(network)
        vector_to_parameters(sample, naive.parameters())
        batches = [naive[0](x).detach() for x in data.train.inputs.split(8)]
        naive[1].running_mean = torch.stack([b.mean(0) for b in batches]).mean(0)
        naive[1].running_var = torch.stack([b.var(0) for b in batches]).mean(0)
        torch.testing.assert_close(output, naive(data.validation.inputs).detach())
    assert network[1].num_batches_tracked == 0


def test_networks_without_batch_norm_have_no_statistics_to_refresh(truths):
    network = truths.mlp(3, 1)
    samples = torch.zeros(2, sum(p.numel() for p in network.parameters()), dtype=torch.float64)
    assert refreshed_statistics(network, samples, truths.regression_data().train, 10) == {}


@pytest.mark.parametrize("kind", ["batched", "one after another"])
def test_a_weight_decay_with_which_sgd_diverges_drops_out_alone(truths, kind):
    data = truths.regression_data()
    network = truths.mlp(3, 1) if kind == "batched" else with_batch_norm()
    problem = truths.problem(epochs=60, batch_size=0)

    def fit(*grid):
        method = SWAG(samples=20, weight_decay_grid=grid)
        return method.fit(problem, data, network, truths.context())

    posterior, alone = fit(1e9, 1e-3), fit(1e-3)
    assert posterior.tuned == alone.tuned
    torch.testing.assert_close(posterior.samples, alone.samples, rtol=0, atol=1e-10)
    with pytest.raises(DivergenceError, match=r"swag: sgd with lr 0.01 .* smaller swag.lr"):
        fit(1e9, 1e8)


def test_settings_replace_those_of_the_recipe_and_its_schedule_is_off(truths):
    data, network = truths.regression_data(), truths.mlp(3, 1)
    method = SWAG(lr=3e-2, epochs=6, batch_size=0, momentum=0.5, samples=10, rank=2)
    given = truths.problem(
        lr=3e-2, epochs=6, batch_size=0, schedule="cosine", weight_decay=9.0, optimizer="adam"
    )
    other = truths.problem(lr=1e-3, epochs=9, batch_size=7)
    samples = [
        method.fit(problem, data, network, truths.context()).samples for problem in (given, other)
    ]
    assert torch.equal(*samples)
    recipe = Recipe(optimizer="sgd", lr=3e-2, epochs=6, batch_size=0, momentum=0.5)
    found = method._train(network, data, recipe, 0, truths.context())
    iterates = naive_iterates(network, data, recipe, 0.0, 0)
    torch.testing.assert_close(found.mean[0], iterates.mean(0), rtol=0, atol=1e-10)


def test_batches_stay_the_same_without_shuffling(truths):
    data, network = truths.regression_data(), truths.mlp(3, 1)
    recipe = Recipe(optimizer="sgd", epochs=5, batch_size=10)
    means = {}
    for shuffle, seed in itertools.product([True, False], [0, 1]):
        method = SWAG(shuffle=shuffle, weight_decay_grid=(0.0,))
        found = method._train(network, data, recipe, seed, truths.context())
        means[shuffle, seed] = found.mean
    assert torch.equal(means[False, 0], means[False, 1])
    assert not torch.equal(means[True, 0], means[True, 1])


def test_the_variance_of_y_is_that_of_the_samples_with_or_without_the_noise(truths):
    data, network = truths.regression_data(), truths.mlp(3, 1)
    problem, inputs = truths.problem(epochs=10), data.validation.inputs
    predictions = {}
    for noise in (True, False):
        method = SWAG(observation_noise=noise, weight_decay_grid=(0.0,), samples=30)
        posterior = method.fit(problem, data, network, truths.context())
        predictions[noise] = posterior.predict(inputs)
    outputs = torch.stack(
        [
            torch.func.functional_call(network, state, (inputs,)).squeeze(-1)
            for state in (unflattened_row(network, row) for row in posterior.samples)
        ]
    )
    torch.testing.assert_close(predictions[False].variance, outputs.var(0))
    torch.testing.assert_close(predictions[False].mean, outputs.mean(0))
    added = predictions[True].variance - predictions[False].variance
    torch.testing.assert_close(added, added[:1].expand_as(added))
    assert added[0] > 1e-6


def unflattened_row(network, row):
    return {name: stack[0] for name, stack in unflattened(network, row.unsqueeze(0)).items()}


def test_frozen_parameters_stay_and_an_output_without_an_axis_is_the_same(truths):
    data, problem = truths.regression_data(), truths.problem(epochs=5)
    network = truths.mlp(3, 1)
    network[0].requires_grad_(False)
    flat = nn.Sequential(*network, nn.Flatten(0)).eval()
    fits = [SWAG(samples=10).fit(problem, data, n, truths.context()) for n in (network, flat)]
    assert fits[0].samples.shape[1] == sum(p.numel() for p in network[2].parameters())
    first, second = (fit.predict(data.validation.inputs) for fit in fits)
    torch.testing.assert_close(first.mean, second.mean, rtol=1e-9, atol=1e-12)
    assert as_matrix(flat(data.validation.inputs)).shape == (20, 1)


def test_what_was_tried_is_counted_and_the_fit_of_the_chosen_is_no_tuning(setting, truths):
    data, network, problem = setting
    context = truths.context()
    SWAG(samples=10).fit(problem, data, network, context)
    assert context.grid_size == (3 + 3 * 41 if data.task is Task.REGRESSION else 3)
    assert context.tune_seconds > 0
    context = truths.context()
    method = SWAG(samples=10, weight_decay_grid=(0.0,), observation_noise=False)
    method.fit(problem, data, network, context)
    assert context.tune_seconds == 0


def test_one_epoch_is_refused(truths):
    with pytest.raises(UsageError, match=r"swag.epochs must be at least 2"):
        SWAG(epochs=1).fit(
            truths.problem(), truths.regression_data(), truths.mlp(3, 1), truths.context()
        )
