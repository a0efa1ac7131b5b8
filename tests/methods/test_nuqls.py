import math
import re
from dataclasses import replace

import pytest
import torch

from uqbench import linearised
from uqbench.descent import Descent
from uqbench.errors import DivergenceError, UsageError
from uqbench.linearised import Chunks, linearise, num_parameters
from uqbench.linearised_ensemble import LinearisedEnsemble
from uqbench.linearised_training import (
    cheapest_full_batch_solver,
    cholesky_with_jitter,
    descend_in_batches,
    solve_exactly,
    target_matrix,
)
from uqbench.method import Task
from uqbench.methods.ntk_gp import NTKGPPosterior
from uqbench.methods.nuqls import NUQLS
from uqbench.metrics import regression
from uqbench.registry import build_method

DESCENT = {"epochs": 40, "lr": 0.02, "gamma": 0.5, "members": 6}


def naive_members(network, data, truths, starts, lr, epochs, momentum=0.9):
    """θ-space gradient descent on the linearised network, one member at a time, from J alone."""
    jacobian = truths.naive_jacobian(network, data.train.inputs)
    outputs = network(data.train.inputs).detach()
    n, classes = outputs.shape
    result = []
    for start in starts:
        theta, velocity = start.clone(), torch.zeros_like(start)
        for _ in range(epochs):
            f = outputs + (jacobian @ theta).view(n, classes)
            if data.task is Task.REGRESSION:
                slope = f - data.train.targets.view(-1, 1)
            else:
                slope = f.softmax(1)
                slope[torch.arange(n), data.train.targets] -= 1
            velocity = momentum * velocity + jacobian.mT @ slope.flatten() / n
            theta = theta - lr * velocity
        result.append(theta)
    return torch.stack(result)


@pytest.fixture(params=["regression", "classification"])
def setting(request, truths):
    if request.param == "regression":
        return truths.regression_data(), truths.mlp(3, 1)
    return truths.classification_data(), truths.mlp(3, 3)


@pytest.mark.parametrize("solver", ["kernel", "jacobian", "minibatch", "auto"])
def test_every_full_batch_solver_gives_the_naive_iterates(setting, truths, solver):
    data, network = setting
    posterior = NUQLS(**DESCENT, solver=solver).fit(
        truths.problem(data.task), data, network, truths.context()
    )
    parameters = posterior.displacements.shape[1]
    generator = torch.Generator().manual_seed(0)
    starts = 0.5 * torch.randn(6, parameters, generator=generator, dtype=torch.float64)
    expected = naive_members(network, data, truths, starts, 0.02, 40)
    torch.testing.assert_close(posterior.displacements, expected, rtol=0, atol=1e-8)


def test_stochastic_batches_follow_a_naive_loop_over_the_same_order(setting, truths):
    data, network = setting
    starts = truths.rows(4, sum(p.numel() for p in network.parameters()), 9)
    found = descend_in_batches(
        network,
        data.train,
        data.task,
        starts,
        Descent(lr=0.01, epochs=3),
        batch_size=8,
        generator=torch.Generator().manual_seed(7),
    )
    theta, velocity = starts.clone(), torch.zeros_like(starts)
    generator = torch.Generator().manual_seed(7)
    for _ in range(3):
        for batch in torch.randperm(30, generator=generator).split(8):
            jacobian = truths.naive_jacobian(network, data.train.inputs[batch])
            outputs = network(data.train.inputs[batch]).detach()
            f = outputs + (theta @ jacobian.mT).view(4, *outputs.shape)
            targets = target_matrix(data.task, data.train.targets[batch], outputs)
            slope = (f if data.task is Task.REGRESSION else f.softmax(-1)) - targets
            velocity = 0.9 * velocity + slope.flatten(1) @ jacobian / len(batch)
            theta = theta - 0.01 * velocity
    torch.testing.assert_close(found, theta, rtol=1e-9, atol=1e-10)


def gp_setting(truths):
    """Few rows and many parameters: a well-conditioned NTK."""
    data = truths.regression_data(n=12)
    return data, truths.mlp(3, 1, (40,))


def test_exact_members_have_the_mean_and_covariance_of_the_ntk_gp(truths):
    """With the scaled unit vectors as starts the sample moments are those of z ~ N(0, γ²I)."""
    data, network = gp_setting(truths)
    jacobian = linearise(network, data.train.inputs)
    targets = target_matrix(data.task, data.train.targets, jacobian.outputs)
    parameters, gamma = jacobian.num_parameters, 0.7
    basis = gamma * parameters**0.5 * torch.eye(parameters, dtype=torch.float64)
    starts = torch.cat([basis, -basis])
    displacements, jitter = solve_exactly(jacobian, targets, data.task, starts)
    members = LinearisedEnsemble(network, displacements, data.task).members(data.validation.inputs)
    gp = NTKGPPosterior(network, data.train, gamma).predict(data.validation.inputs)
    assert jitter == 0
    samples = members.squeeze(-1)
    torch.testing.assert_close(samples.mean(0), gp.mean, rtol=0, atol=1e-8)
    torch.testing.assert_close(samples.var(0, correction=0), gp.variance, rtol=0, atol=1e-8)


def test_the_ntk_gp_is_the_textbook_formula_on_the_naive_jacobian(truths):
    data, network = gp_setting(truths)
    j_train = truths.naive_jacobian(network, data.train.inputs)
    j_test = truths.naive_jacobian(network, data.validation.inputs)
    inverse = (j_train @ j_train.mT).inverse()
    cross = j_test @ j_train.mT
    gap = data.train.targets - network(data.train.inputs).detach().squeeze(-1)
    mean = network(data.validation.inputs).detach().squeeze(-1) + cross @ inverse @ gap
    variance = 0.49 * (j_test @ j_test.mT - cross @ inverse @ cross.mT).diagonal()
    gp = NTKGPPosterior(network, data.train, 0.7).predict(data.validation.inputs)
    torch.testing.assert_close(gp.mean, mean, rtol=0, atol=1e-8)
    torch.testing.assert_close(gp.variance, variance, rtol=0, atol=1e-8)
    at_training = NTKGPPosterior(network, data.train, 0.7).predict(data.train.inputs)
    torch.testing.assert_close(at_training.mean, data.train.targets, rtol=0, atol=1e-8)
    assert (at_training.variance < 1e-8).all()
    assert (at_training.variance >= 0).all()


def test_the_sampled_variance_converges_to_the_gps_as_members_grow(truths):
    """A variance from S Gaussian samples has the relative standard deviation √(2/(S−1))."""
    data, network = gp_setting(truths)
    gp = NTKGPPosterior(network, data.train, 1.0).predict(data.validation.inputs)
    for members in (100, 10_000):
        method = NUQLS(members=members, gamma=1.0, solver="exact", calibrate=False)
        posterior = method.fit(truths.problem(), data, network, truths.context(seed=1))
        prediction = posterior.predict(data.validation.inputs)
        relative = prediction.variance / gp.variance - 1
        spread = (2 / (members - 1)) ** 0.5
        assert 0.3 * spread < relative.square().mean().sqrt() < 2 * spread
        standard_error = (gp.variance / members).sqrt()
        assert ((prediction.mean - gp.mean).abs() < 5 * standard_error).all()


def test_descent_converges_to_the_exact_solution(truths):
    data, network = gp_setting(truths)
    settings = {"members": 4, "gamma": 0.3, "calibrate": False}
    exact = NUQLS(**settings, solver="exact")
    descended = NUQLS(**settings, solver="kernel", epochs=40_000, momentum=0.995)
    limit, iterate = (
        method.fit(truths.problem(), data, network, truths.context()).predict(
            data.validation.inputs
        )
        for method in (exact, descended)
    )
    torch.testing.assert_close(iterate.mean, limit.mean, rtol=0, atol=1e-5)
    torch.testing.assert_close(iterate.variance, limit.variance, rtol=1e-3, atol=1e-6)


def test_exact_classification_keeps_the_networks_training_predictions(truths):
    data, network = truths.classification_data(n=8), truths.mlp(3, 3, (60,))
    posterior = NUQLS(members=5, gamma=1.0, solver="exact").fit(
        truths.problem(data.task), data, network, truths.context()
    )
    members = posterior.members(data.train.inputs)
    kept = network(data.train.inputs).detach().expand_as(members)
    torch.testing.assert_close(members, kept, rtol=0, atol=1e-7)
    assert posterior.members(data.validation.inputs).var(0).min() > 1e-3


@pytest.mark.parametrize("members", [5, math.inf])
@pytest.mark.parametrize("calibrated", [False, True])
def test_the_inflation_multiplies_the_standard_deviation_alone(truths, members, calibrated):
    data, network = truths.regression_data(), truths.mlp(3, 1)
    method = NUQLS(members=members, calibrate=calibrated)
    plain = method.fit(truths.problem(), data, network, truths.context())
    inflated = replace(method, inflation=1.5).fit(truths.problem(), data, network, truths.context())
    before, after = (each.predict(data.validation.inputs) for each in (plain, inflated))
    torch.testing.assert_close(after.mean, before.mean, rtol=0, atol=0)
    torch.testing.assert_close(after.variance, 2.25 * before.variance)
    assert inflated.tuned == plain.tuned


def test_the_variance_is_scaled_to_the_least_validation_ece(truths):
    data, network = truths.regression_data(n=40), truths.mlp(3, 1)
    method = NUQLS(members=10, epochs=50)
    plain = replace(method, calibrate=False).fit(truths.problem(), data, network, truths.context())
    scaled = method.fit(truths.problem(), data, network, truths.context())
    before = plain.predict(data.validation.inputs)
    after = scaled.predict(data.validation.inputs)
    scale = scaled.tuned["scale"]
    torch.testing.assert_close(after.mean, before.mean)
    torch.testing.assert_close(after.variance, scale**2 * before.variance)
    targets = data.validation.targets.numpy()
    found = regression.ece(targets, after.mean.numpy(), after.variance.numpy())
    for factor in torch.logspace(-3, 3, 400, dtype=torch.float64):
        other = regression.ece(targets, before.mean.numpy(), (factor**2 * before.variance).numpy())
        assert found <= other + 1e-12


def test_a_step_size_is_chosen_that_does_not_diverge(setting, truths):
    data, network = setting
    posterior = NUQLS(members=3, epochs=300).fit(
        truths.problem(data.task), data, network, truths.context()
    )
    gram = linearise(network, data.train.inputs).gram()
    largest = torch.linalg.eigvalsh(gram)[-1].item() / len(data.train)
    assert posterior.tuned["lr"] == pytest.approx(1 / largest, rel=0.02)


EVERY_DESCENT = [("kernel", 0), ("jacobian", 0), ("minibatch", 0), ("minibatch", 8)]


@pytest.mark.parametrize(("share", "epochs"), [(1e9, 1), (100, 100), (1.05, 1000)])
@pytest.mark.parametrize(("solver", "batch_size"), EVERY_DESCENT)
def test_a_step_size_beyond_the_stable_one_is_an_error_that_names_it(
    truths, solver, batch_size, share, epochs
):
    data, network = truths.regression_data(), truths.mlp(3, 1)
    gram = linearise(network, data.train.inputs).gram()
    lr = share * 2 * 1.9 / (torch.linalg.eigvalsh(gram)[-1].item() / len(gram))
    method = NUQLS(lr=lr, epochs=epochs, solver=solver, batch_size=batch_size)
    with pytest.raises(DivergenceError, match=re.escape(f"lr {lr:g} ")):
        method.fit(truths.problem(), data, network, truths.context())


@pytest.mark.parametrize(("solver", "batch_size"), EVERY_DESCENT)
def test_the_cross_entropy_cannot_diverge_but_overflow_is_an_error(truths, solver, batch_size):
    data, network = truths.classification_data(), truths.mlp(3, 3)

    def fitted(lr, epochs=30):
        method = NUQLS(lr=lr, epochs=epochs, solver=solver, batch_size=batch_size)
        return method.fit(truths.problem(data.task), data, network, truths.context())

    assert fitted(1e6).predict(data.validation.inputs).probabilities.isfinite().all()
    for epochs in (1, 30):
        with pytest.raises(DivergenceError, match=re.escape("lr 1e+308 ")):
            fitted(1e308, epochs)


def test_a_singular_gram_matrix_gets_the_smallest_jitter_that_works():
    vectors = torch.randn(20, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    factor, jitter = cholesky_with_jitter(vectors @ vectors.mT)
    assert 0 < jitter < 1e-12
    torch.testing.assert_close(factor @ factor.mT, vectors @ vectors.mT, rtol=0, atol=1e-10)
    assert cholesky_with_jitter(torch.eye(3, dtype=torch.float64))[1] == 0
    with pytest.raises(DivergenceError, match="positive semi-definite"):
        cholesky_with_jitter(torch.full((2, 2), torch.nan))


def test_auto_weighs_rows_against_parameters(truths):
    few_rows = linearise(truths.mlp(3, 1, (100,)), truths.rows(5, 3, 0))
    many_rows = linearise(truths.mlp(3, 1, (4,)), truths.rows(500, 3, 0))
    starts = torch.zeros(10, 501, dtype=torch.float64)
    assert cheapest_full_batch_solver(few_rows, Task.CLASSIFICATION, starts, 50) == "kernel"
    starts = torch.zeros(10, 21, dtype=torch.float64)
    assert cheapest_full_batch_solver(many_rows, Task.CLASSIFICATION, starts, 50) == "jacobian"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"members": 1}, "members"),
        ({"gamma": -1}, "gamma"),
        ({"gama": 1}, "gama"),
        ({"solver": "kernels"}, "solver"),
        ({"solver": "kernel", "batch_size": 10}, "batch_size must be 0"),
        ({"epochs": 1.5}, "epochs"),
    ],
)
def test_settings_that_make_no_sense_are_refused_when_they_are_read(settings, message):
    with pytest.raises(UsageError, match=message):
        build_method("nuqls", settings)


@pytest.mark.parametrize("chunks", [Chunks(3, 2), Chunks(100, 1), Chunks(7, 100)])
@pytest.mark.parametrize("batch_size", [0, 10])
def test_chunks_of_a_batch_do_not_change_the_members(setting, truths, chunks, batch_size):
    data, network = setting
    starts = truths.rows(3, num_parameters(network), 3)
    descent = Descent(lr=0.02, epochs=3)

    def members(chosen):
        generator = torch.Generator().manual_seed(0)
        return descend_in_batches(
            network, data.train, data.task, starts, descent, batch_size, generator, chunks=chosen
        )

    torch.testing.assert_close(members(chunks), members(None), rtol=1e-10, atol=1e-12)


def test_scarce_memory_is_shared_out_to_members_first_and_said_in_the_record(monkeypatch, truths):
    """An MLP of 3-7-1 takes 50 numbers per row, and 3·7 for each member, of 8 bytes.

    The activations twice, 2·(7 + 7 + 1), and the layers' factors, 4 + 7 + 8 + 1.
    """
    network, data = truths.mlp(3, 1), truths.regression_data(n=30)
    quarters = 4 * 8
    for free, expected in (
        (quarters * 10 * (50 + 4 * 21), (10, 4)),
        (quarters * 3 * (50 + 4 * 21), (3, 4)),
        (quarters * (50 + 2 * 21), (1, 2)),
        (1, (1, 1)),
    ):
        monkeypatch.setattr(linearised, "available_bytes", lambda device, free=free: free)
        posterior = NUQLS(members=4, batch_size=10, lr=0.01).fit(
            truths.problem(), data, network, truths.context()
        )
        tuned = posterior.tuned
        assert (tuned["rows_at_a_time"], tuned["members_at_a_time"]) == expected
