import math
import pickle
from dataclasses import asdict, replace

import pytest
import torch

from uqbench import infinite_ensemble
from uqbench.descent import Descent
from uqbench.errors import DivergenceError, UnsupportedError, UsageError
from uqbench.infinite_ensemble import InfiniteEnsemble
from uqbench.linearised import linearise
from uqbench.method import Task
from uqbench.methods.enuqls import EnsembledNUQLS
from uqbench.methods.ntk_gp import NTKGPPosterior
from uqbench.methods.nuqls import NUQLS
from uqbench.problems import load_suite
from uqbench.registry import build_method

STOPPING_TIMES = [1, 2, 7, 100]
MOMENTA = [0.0, 0.5, 0.9]


def drawn(truths, seed, rows=30):
    """A problem, and the largest step size at which descent without momentum is stable."""
    data = truths.regression_data(n=rows, seed=seed)
    network = truths.mlp(3, 1, (5,), seed=seed)
    gram = linearise(network, data.train.inputs).gram()
    return data, network, 2 * rows / torch.linalg.eigvalsh(gram)[-1].item()


def fitted(method, truths, data, network, seed=0):
    return method.fit(truths.problem(data.task), data, network, truths.context(seed))


@pytest.mark.parametrize("momentum", MOMENTA)
@pytest.mark.parametrize("epochs", STOPPING_TIMES)
def test_ten_thousand_members_have_its_moments_within_their_sampling_error(
    truths, epochs, momentum
):
    """4 standard errors: √(σ²/S) of the mean, σ²√(2/(S − 1)) of the variance."""
    count, seed = 10_000, epochs + int(10 * momentum)
    data, network, stable = drawn(truths, seed)
    method = NUQLS(
        members=count,
        gamma=0.5,
        lr=0.6 * stable,
        epochs=epochs,
        momentum=momentum,
        calibrate=False,
    )
    sampled = fitted(method, truths, data, network, seed)
    limit = fitted(replace(method, members=math.inf), truths, data, network)
    for inputs in (data.validation.inputs, data.train.inputs):
        found, exact = sampled.predict(inputs), limit.predict(inputs)
        standard_error = (exact.variance / count).sqrt()
        assert ((found.mean - exact.mean).abs() < 4 * standard_error).all()
        standard_error = exact.variance * (2 / (count - 1)) ** 0.5
        assert ((found.variance - exact.variance).abs() < 4 * standard_error).all()


@pytest.mark.parametrize("momentum", MOMENTA)
@pytest.mark.parametrize("epochs", STOPPING_TIMES)
def test_it_is_descent_from_every_unit_vector_of_parameter_space(truths, epochs, momentum):
    """The iterate is affine in z, so the iterates from 0 and from a basis say what it is."""
    data, network, stable = drawn(truths, 20 + epochs)
    lr, gamma = 0.9 * stable, 0.7
    jacobian = truths.naive_jacobian(network, data.train.inputs)
    gap = network(data.train.inputs).detach() - data.train.targets.view(-1, 1)
    parameters = jacobian.shape[1]
    theta = torch.eye(parameters, parameters + 1, dtype=torch.float64)  # the last one starts at 0
    velocity = torch.zeros_like(theta)
    for _ in range(epochs):
        slope = jacobian.mT @ (gap + jacobian @ theta) / len(gap)
        velocity = momentum * velocity + slope
        theta = theta - lr * velocity
    limit = InfiniteEnsemble(network, data.train, gamma, Descent(lr, epochs, momentum))
    for inputs in (data.validation.inputs, data.train.inputs):
        moved = truths.naive_jacobian(network, inputs) @ theta
        mean = network(inputs).detach().squeeze(1) + moved[:, -1]
        variance = gamma**2 * (moved[:, :-1] - moved[:, -1:]).square().sum(1)
        found = limit.predict(inputs)
        torch.testing.assert_close(found.mean, mean, rtol=0, atol=1e-9)
        torch.testing.assert_close(found.variance, variance, rtol=0, atol=1e-9)


def test_endless_descent_leads_to_the_ntk_gp(truths):
    data, network = truths.regression_data(n=12), truths.mlp(3, 1, (40,))
    gp = NTKGPPosterior(network, data.train, 0.7)
    endless = NUQLS(members=math.inf, gamma=0.7, epochs=10**8, calibrate=False)
    exact = replace(endless, solver="exact")
    for inputs in (data.validation.inputs, data.train.inputs):
        expected = gp.predict(inputs)
        for method in (endless, exact):
            found = fitted(method, truths, data, network).predict(inputs)
            torch.testing.assert_close(found.mean, expected.mean, rtol=0, atol=1e-8)
            torch.testing.assert_close(found.variance, expected.variance, rtol=0, atol=1e-8)


def test_it_is_calibrated_does_not_depend_on_seed_or_batches_and_pickles(truths):
    data, network = truths.regression_data(n=40), truths.mlp(3, 1)
    method = NUQLS(members=math.inf, epochs=50)
    posterior = fitted(method, truths, data, network)
    plain = fitted(replace(method, calibrate=False), truths, data, network, seed=1)
    inputs = truths.rows(30, 3, 8)
    prediction, uncalibrated = posterior.predict(inputs), plain.predict(inputs)
    assert method.deterministic == {Task.REGRESSION}
    torch.testing.assert_close(prediction.mean, uncalibrated.mean, rtol=0, atol=0)
    scale = posterior.tuned["scale"]
    torch.testing.assert_close(prediction.variance, scale**2 * uncalibrated.variance)
    parts = [posterior.predict(batch) for batch in inputs.split(7)]
    copied = pickle.loads(pickle.dumps(posterior)).predict(inputs)
    for moment in ("mean", "variance"):
        whole = getattr(prediction, moment)
        split = torch.cat([getattr(part, moment) for part in parts])
        torch.testing.assert_close(split, whole, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(getattr(copied, moment), whole, rtol=0, atol=0)


def test_single_precision_networks_are_decomposed_in_double(truths):
    """K of 40 rows and 36 parameters is singular; rounding blurs its smallest eigenvalues."""
    data, network = truths.regression_data(n=40), truths.mlp(3, 1)
    inputs = torch.cat([data.train.inputs, truths.rows(10, 3, 8)])
    descent = Descent(0.05, 200)
    exact = InfiniteEnsemble(network, data.train, 1.0, descent).predict(inputs)
    rounded = type(data.train)(data.train.inputs.float(), data.train.targets.float())
    single = truths.mlp(3, 1, dtype=torch.float32)
    found = InfiniteEnsemble(single, rounded, 1.0, descent).predict(inputs.float())
    assert found.mean.dtype is found.variance.dtype is torch.float32
    assert (found.variance >= 0).all()
    torch.testing.assert_close(found.mean.double(), exact.mean, rtol=0, atol=1e-3)
    torch.testing.assert_close(found.variance.double(), exact.variance, rtol=0, atol=1e-3)


def test_enuqls_mixes_the_limits(truths):
    data, network = truths.regression_data(), truths.mlp(3, 1)
    method = EnsembledNUQLS(networks=3, members=math.inf)
    mixture = fitted(method, truths, data, network)
    inputs = truths.rows(6, 3, 5)
    parts = [component.predict(inputs) for component in mixture.components]
    mean = sum(part.mean for part in parts) / 3
    second = sum(part.variance + part.mean.square() for part in parts) / 3
    prediction = mixture.predict(inputs)
    torch.testing.assert_close(prediction.mean, mean)
    torch.testing.assert_close(prediction.variance, second - mean.square())
    assert method.deterministic == frozenset()


def test_what_has_no_closed_form_is_refused_in_one_line(truths, monkeypatch):
    data, network = truths.classification_data(), truths.mlp(3, 3)
    for solver in ("auto", "exact"):
        with pytest.raises(UnsupportedError, match="members = inf covers regression"):
            fitted(NUQLS(members=math.inf, solver=solver), truths, data, network)
    data, network, stable = drawn(truths, 0)
    method = NUQLS(members=math.inf, lr=1.1 * stable, momentum=0, epochs=500)
    with pytest.raises(DivergenceError, match="smaller lr"):
        fitted(method, truths, data, network)
    monkeypatch.setattr(infinite_ensemble, "available_bytes", lambda device: 100_000)
    for solver in ("auto", "exact"):
        with pytest.raises(UnsupportedError, match=r"n = 30 takes .* GiB.* finite number"):
            fitted(NUQLS(members=math.inf, solver=solver), truths, data, network)


def test_infinity_is_a_setting_of_members_alone():
    for written in (math.inf, "inf"):
        assert build_method("nuqls", {"members": written}).members == math.inf
    method = build_method("nuqls", {"members": 3})
    assert build_method("nuqls", asdict(method)) == method
    assert isinstance(method.members, int)
    for settings, message in [
        ({"members": math.inf, "batch_size": 10}, "leave out batch_size"),
        ({"members": math.inf, "solver": "minibatch"}, "finite number of members"),
        ({"members": -math.inf}, "or inf"),
        ({"members": math.nan}, "or inf"),
        ({"members": 2.5}, "or inf"),
        ({"gamma": math.inf}, "gamma: must be a finite number"),
    ]:
        with pytest.raises(UsageError, match=message):
            build_method("nuqls", settings)


def test_a_suite_may_ask_for_infinitely_many_members(tmp_path):
    path = tmp_path / "suite.toml"
    problem = '[problems.p]\ndataset = "none"\ntask = "regression"\n'
    path.write_text(f"{problem}methods.nuqls = {{ members = inf }}\n")
    (problem,) = load_suite(str(path)).problems
    assert build_method("nuqls", problem.methods["nuqls"]).members == math.inf
