import pytest
import torch

from uqbench.descent import Descent, DivergenceGuard, descend_in_closed_form, descent_filter
from uqbench.errors import DivergenceError


def drawn(rows, rank, members, seed=0):
    """A Gram matrix JJᵀ whose eigenvalues span eight decades, J, and residuals."""
    generator = torch.Generator().manual_seed(seed)
    decay = torch.logspace(0, -4, rank, dtype=torch.float64)
    jacobian = torch.randn(rows, rank, generator=generator, dtype=torch.float64) * decay
    residuals = torch.randn(rows, members, generator=generator, dtype=torch.float64)
    return jacobian @ jacobian.mT, jacobian, residuals


def steps(gram, share, epochs, momentum):
    """A descent with ``share`` of the largest stable step size."""
    largest = torch.linalg.eigvalsh(gram)[-1].item() / len(gram)
    return Descent(2 * share * (1 + momentum) / largest, epochs, momentum)


def by_the_loop(gram, residuals, descent):
    weights, velocity = torch.zeros_like(residuals), torch.zeros_like(residuals)
    for _ in range(descent.epochs):
        velocity = descent.momentum * velocity + (residuals - gram @ weights) / len(gram)
        weights = weights + descent.lr * velocity
    return weights


@pytest.mark.parametrize("epochs", [1, 2, 7, 100, 1000])
@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
@pytest.mark.parametrize(
    ("rows", "rank", "members"), [(5, 5, 1), (30, 10, 3), (40, 40, 10), (150, 200, 4)]
)
def test_the_closed_form_is_the_loop(rows, rank, members, epochs, momentum):
    gram, jacobian, residuals = drawn(rows, rank, members, seed=epochs)
    for share in (0.01, 0.5, 0.95):
        descent = steps(gram, share, epochs, momentum)
        products = []

        def product(vectors, products=products, gram=gram):
            products.append(vectors.shape[1])
            return gram @ vectors

        found = descend_in_closed_form(product, residuals, descent)
        expected = by_the_loop(gram, residuals, descent)
        for along in (torch.eye(rows, dtype=torch.float64), jacobian.mT):
            error = (along @ (found - expected)).norm() / (along @ expected).norm()
            assert error < 1e-9
        assert len(products) <= epochs
        assert sum(products) <= rows


@pytest.mark.parametrize("momentum", [0.0, 0.9, 0.99])
def test_the_filter_is_its_recurrence_for_every_eigenvalue(momentum):
    eigenvalues = torch.cat([torch.zeros(1), torch.logspace(-12, 0, 50)]).double()
    for epochs in (1, 2, 7, 100, 1000):
        descent = Descent(1.9 * (1 + momentum) * 20, epochs, momentum)
        result, velocity = torch.zeros_like(eigenvalues), torch.zeros_like(eigenvalues)
        for _ in range(epochs):
            velocity = momentum * velocity + (1 - eigenvalues * result) / 20
            result = result + descent.lr * velocity
        torch.testing.assert_close(
            descent_filter(eigenvalues, 20, descent), result, rtol=1e-9, atol=0
        )


def test_endless_descent_inverts():
    eigenvalues = torch.logspace(-2, 0, 20, dtype=torch.float64)
    found = descent_filter(eigenvalues, 1, Descent(1.0, 10**6, 0.9))
    torch.testing.assert_close(found, 1 / eigenvalues, rtol=1e-9, atol=0)


def test_equal_and_vanishing_residuals_are_no_obstacle():
    gram, _, residuals = drawn(20, 30, 1)
    descent = steps(gram, 0.5, 50, 0.9)
    several = torch.cat([residuals, residuals, 0 * residuals], 1)
    found = descend_in_closed_form(gram.matmul, several, descent)
    expected = by_the_loop(gram, several, descent)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9 * expected.abs().max().item())
    assert (descend_in_closed_form(gram.matmul, 0 * several, descent) == 0).all()


def test_single_precision_is_as_accurate_as_its_products():
    gram, jacobian, residuals = drawn(100, 120, 5)
    descent = steps(gram, 0.3, 50, 0.9)
    found = descend_in_closed_form(gram.float().matmul, residuals.float(), descent)
    assert found.dtype is torch.float32
    ways = jacobian.mT @ found.double(), jacobian.mT @ by_the_loop(gram, residuals, descent)
    assert (ways[0] - ways[1]).norm() < 1e-4 * ways[1].norm()


@pytest.mark.parametrize(("share", "epochs"), [(3.0, 100), (1e5, 1), (1e300, 1), (1.05, 1000)])
def test_a_step_size_beyond_the_stable_one_is_an_error_that_names_it(share, epochs):
    gram, _, residuals = drawn(30, 40, 3)
    descent = steps(gram, share, epochs, 0.9)
    with pytest.raises(DivergenceError, match=r"lr [\d.e+]+ \(momentum 0.9\)"):
        descend_in_closed_form(gram.matmul, residuals, descent)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite_are_an_error(bad):
    gram, _, residuals = drawn(10, 10, 2)
    descent = steps(gram, 0.5, 5, 0.9)
    with pytest.raises(DivergenceError):
        descend_in_closed_form(gram.matmul, bad * residuals, descent)
    with pytest.raises(DivergenceError):
        descend_in_closed_form(lambda v: bad * v, residuals, descent)
    guard = DivergenceGuard(descent)
    with pytest.raises(DivergenceError):
        guard.checked(bad * residuals)
