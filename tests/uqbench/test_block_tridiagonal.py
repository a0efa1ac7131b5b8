import pytest
import torch

from uqbench.block_tridiagonal import BLOCK, BlockTridiagonal

SHIFTS = torch.tensor([1e-4, 0.3, 50.0], dtype=torch.float64)


def draws(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# one block, a whole number of blocks, a short last one, and a rank below the size
@pytest.fixture(params=[(5, 5), (2 * BLOCK, 200), (BLOCK + 3, 200), (3 * BLOCK + 10, 40)], ids=str)
def matrix(request):
    size, rank = request.param
    root = draws(size, rank)
    return root @ root.mT / rank


def shifted(matrix, shift):
    return matrix + shift * torch.eye(len(matrix), dtype=torch.float64)


def test_quadratic_forms_are_those_of_the_dense_inverse_for_each_shift(matrix):
    rows = draws(7, 3, len(matrix), seed=1)
    found = BlockTridiagonal(matrix.clone())
    expected = torch.stack([rows @ shifted(matrix, s).inverse() @ rows.mT for s in SHIFTS])
    torch.testing.assert_close(found.quadratic_forms(rows, SHIFTS), expected, rtol=1e-8, atol=0)
    diagonals = found.quadratic_forms(rows, SHIFTS, diagonal=True)
    torch.testing.assert_close(diagonals, expected.diagonal(dim1=2, dim2=3), rtol=1e-8, atol=0)


def test_solutions_are_those_of_the_dense_matrix(matrix):
    rows = draws(4, len(matrix), seed=1)
    found = BlockTridiagonal(matrix.clone()).solve(rows, 0.3)
    torch.testing.assert_close(found, rows @ shifted(matrix, 0.3).inverse(), rtol=1e-8, atol=1e-10)


def test_the_root_squares_to_the_inverse(matrix):
    root = BlockTridiagonal(matrix.clone()).root_solve(torch.eye(len(matrix)).double(), 0.3)
    torch.testing.assert_close(
        root.mT @ root, shifted(matrix, 0.3).inverse(), rtol=1e-8, atol=1e-10
    )


def test_a_matrix_that_is_zero_or_diagonal_already_is_reduced_too():
    for matrix in (torch.zeros(200, 200).double(), torch.diag(draws(200).abs())):
        rows = draws(1, 1, 200, seed=1)
        found = BlockTridiagonal(matrix.clone()).quadratic_forms(rows, SHIFTS).view(-1)
        expected = torch.stack([(rows**2 / (matrix.diagonal() + s)).sum() for s in SHIFTS])
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=0)


def test_only_the_shifts_that_leave_the_matrix_indefinite_give_nan(matrix):
    found = BlockTridiagonal(shifted(matrix, -1.0))
    rows = draws(1, 1, len(matrix), seed=1)
    assert found.quadratic_forms(rows, SHIFTS).view(-1).isnan().tolist() == [True, True, False]
