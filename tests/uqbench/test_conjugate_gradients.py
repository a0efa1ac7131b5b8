import re

import pytest
import torch

from uqbench import conjugate_gradients, linearised_training
from uqbench.errors import DivergenceError
from uqbench.linearised import linearise
from uqbench.methods.nuqls import NUQLS


def drawn(rows, condition, members=3, seed=0):
    """K with eigenvalues from 1 down to 1/condition, equally spaced on a log scale, and B."""
    generator = torch.Generator().manual_seed(seed)
    normals = torch.randn(rows, rows, generator=generator, dtype=torch.float64)
    basis, _ = torch.linalg.qr(normals)
    exponents = torch.linspace(0, 1, rows, dtype=torch.float64)
    right = torch.randn(rows, members, generator=generator, dtype=torch.float64)
    return (basis * condition**-exponents) @ basis.mT, right


def solved(gram, right, tolerance):
    generator = torch.Generator().manual_seed(1)
    return conjugate_gradients.conjugate_gradients(gram.matmul, right, tolerance, generator)


@pytest.mark.parametrize("rank", [10, 200])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_systems_of_moderate_condition_are_solved_as_by_cholesky(monkeypatch, rank, seed):
    monkeypatch.setattr(conjugate_gradients, "RANK", rank)
    gram, right = drawn(300, 1e4, seed=seed)
    found, left, iterations = solved(gram, right, 1e-11)
    expected = torch.cholesky_solve(right, torch.linalg.cholesky(gram))
    assert (found - expected).norm() < 1e-7 * expected.norm()  # condition x tolerance
    residuals = (right - gram @ found).norm(dim=0) / right.norm(dim=0)
    assert left == pytest.approx(residuals.max().item())
    assert left <= 2e-11
    assert 0 < iterations < 1000


def test_the_preconditioner_saves_iterations(monkeypatch):
    gram, right = drawn(300, 1e4)
    taken = []
    for rank in (1, 100, 300):
        monkeypatch.setattr(conjugate_gradients, "RANK", rank)
        taken.append(solved(gram, right, 1e-8)[2])
    assert taken[1] < 0.6 * taken[0]
    assert taken[2] < 5


def test_columns_that_are_zero_or_solved_early_are_no_obstacle():
    gram, right = drawn(300, 1e3)
    right[:, 0] = 0
    right[:, 1] = gram[:, 0]  # K times a unit vector
    found, left, _ = solved(gram, right, 1e-9)
    assert left <= 1e-9
    assert (found[:, 0] == 0).all()
    assert found.isfinite().all()
    assert (solved(0 * gram, right, 1e-9)[0] == 0).all()


@pytest.mark.parametrize("classification", [False, True])
def test_without_room_for_the_gram_matrix_exact_members_are_those_of_cholesky(
    monkeypatch, truths, classification
):
    data = truths.regression_data(n=15)
    network = truths.mlp(3, 1, (60,))
    if classification:
        data, network = truths.classification_data(n=8), truths.mlp(3, 3, (60,))
    method = NUQLS(members=4, gamma=0.7, solver="exact", calibrate=False, tolerance=1e-10)

    def fitted():
        return method.fit(truths.problem(data.task), data, network, truths.context())

    direct = fitted()
    condition = torch.linalg.cond(linearise(network, data.train.inputs).gram()).item()
    assert 1e2 < condition < 1e6
    monkeypatch.setattr(linearised_training, "available_bytes", lambda device: 1)
    monkeypatch.setattr(conjugate_gradients, "RANK", 5)
    iterative = fitted()
    assert iterative.tuned["residual"] <= 1e-10
    assert iterative.tuned["iterations"] > 1
    inputs = data.validation.inputs
    torch.testing.assert_close(iterative.members(inputs), direct.members(inputs), rtol=0, atol=1e-5)


def test_a_tolerance_that_is_not_reached_is_an_error_that_says_what_was(monkeypatch, truths):
    """60 rows and 36 parameters: the residual has a part that no parameters explain."""
    data, network = truths.regression_data(n=60), truths.mlp(3, 1)
    monkeypatch.setattr(linearised_training, "available_bytes", lambda device: 1)
    method = NUQLS(members=3, solver="exact")
    with pytest.raises(DivergenceError) as caught:
        method.fit(truths.problem(), data, network, truths.context())
    left = float(re.search(r"leave (\S+) of the training residual", str(caught.value)).group(1))
    jacobian = truths.naive_jacobian(network, data.train.inputs)
    gap = data.train.targets - network(data.train.inputs).detach().squeeze(1)
    unexplained = (gap - jacobian @ torch.linalg.lstsq(jacobian, gap).solution).norm() / gap.norm()
    assert left > 0.5 * unexplained
    assert "tolerance 0.0001" in str(caught.value)
