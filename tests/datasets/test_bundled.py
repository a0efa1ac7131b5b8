"""Data that needs no download."""

import numpy as np

from uqbench.datasets.bundled import load_diabetes, load_digits, toy_cubic
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


class TestToyCubic:
    def test_sizes_and_ranges_are_those_of_the_figure(self):
        data = toy_cubic(3)
        assert (len(data.train), len(data.validation), len(data.test)) == (20, 20, 200)
        for part in (data.train, data.validation):
            distance = np.abs(part.inputs)
            assert distance.min() >= 2
            assert distance.max() <= 4
        assert np.abs(data.test.inputs).max() <= 6
        assert np.abs(data.test.inputs).min() < 1

    def test_the_noise_has_a_standard_deviation_of_three(self):
        noise = np.concatenate(
            [part.targets - part.inputs[:, 0] ** 3 for part in map(_test_part, range(50))]
        )
        # 10,000 draws: standard errors 0.03 and 0.021
        assert abs(noise.mean()) < 0.12
        assert abs(noise.std() - 3) < 0.09

    def test_both_sides_are_equally_likely(self):
        x = np.concatenate([toy_cubic(seed).train.inputs for seed in range(100)])
        assert 0.45 < (x > 0).mean() < 0.55

    def test_it_is_not_standardised(self):
        data = toy_cubic(3)
        assert (data.target_mean, data.target_std) == (0.0, 1.0)
        assert np.abs(data.train.targets).max() > 10

    def test_each_seed_draws_other_points_and_the_same_seed_the_same(self):
        assert toy_cubic(1).fingerprint == toy_cubic(1).fingerprint
        assert toy_cubic(1).fingerprint != toy_cubic(2).fingerprint


def _test_part(seed):
    return toy_cubic(seed).test
