"""Tables that come with scikit-learn."""

from uqbench.datasets.bundled import load_diabetes, load_digits
from uqbench.method import Task


def test_diabetes_is_in_its_original_units():
    table = load_diabetes()
    assert table.inputs.shape == (442, 10)
    assert table.task is Task.REGRESSION
    assert table.inputs[0, 0] == 59  # age in years
    assert table.targets[0] == 151


def test_digits_have_pixels_between_zero_and_one():
    table = load_digits()
    assert table.inputs.shape == (1797, 64)
    assert (table.inputs.min(), table.inputs.max()) == (0, 1)
    assert table.class_names == tuple("0123456789")
