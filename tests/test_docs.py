"""The experiments in docs/."""

import importlib.util
import math
from dataclasses import replace
from pathlib import Path

import pytest

from uqbench.methods.nuqls import NUQLS
from uqbench.problems import load_suite


@pytest.fixture(scope="module")
def convergence():
    path = Path(__file__).parents[1] / "docs" / "convergence.py"
    spec = importlib.util.spec_from_file_location("convergence", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def experiment(convergence):
    problem = load_suite("convergence").problems[-1]
    return convergence.prepare(replace(problem, training=replace(problem.training, epochs=300)), 0)


def test_infinitely_many_members_converge_to_the_gaussian_process(convergence, experiment):
    found = [convergence.deviation(experiment, math.inf, 10**power) for power in range(0, 9, 2)]
    sev, loss = zip(*found, strict=True)
    assert list(sev[:3]) == sorted(sev[:3], reverse=True)
    assert list(loss[:3]) == sorted(loss[:3], reverse=True)
    # 1e-8 is the Gram matrix's condition number, 4e3, times rounding errors of the variances
    assert sev[-1] < 1e-8 < sev[0]
    assert loss[-1] < 1e-8 < loss[0]


@pytest.mark.parametrize("members", [50, 800])
def test_finitely_many_members_are_off_by_their_sampling_error(convergence, experiment, members):
    """E SEV² = 2/(S − 1) ‖Var‖² at convergence; the test points' errors are not independent."""
    sev, loss = convergence.deviation(experiment, members, 10**8)
    expected = (2 / (members - 1)) ** 0.5 * experiment.variance.norm().item()
    assert 0.3 * expected < sev < 2.5 * expected
    assert loss < 1e-8


def test_the_training_loss_is_the_mean_over_members_and_points(convergence, experiment):
    problem, data, _, network, *_ = experiment
    method = NUQLS(members=6, gamma=1.0, lr=0.1, epochs=20, calibrate=False)
    seed = convergence.derive_seed(problem.name, 0, "6 members")
    ensemble = method.fit(problem, data, network, convergence._context(seed))
    members = ensemble.members(data.train.inputs).squeeze(-1)
    expected = (members - data.train.targets).square().mean().item()
    assert convergence.deviation(experiment, 6, 20)[1] == pytest.approx(expected, rel=1e-10)
