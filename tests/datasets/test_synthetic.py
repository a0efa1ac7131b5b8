"""Data that is drawn anew for each seed."""

import numpy as np
import pytest

from uqbench.datasets.synthetic import SETS, gaussian, sines, toy_cubic


@pytest.mark.parametrize("name", SETS)
class TestEverySet:
    def test_the_same_seed_draws_the_same_and_another_one_draws_anew(self, name):
        draw = SETS[name].draw
        assert draw(1).fingerprint == draw(1).fingerprint
        assert draw(1).fingerprint != draw(2).fingerprint

    def test_its_listed_size_is_right_and_it_is_not_standardised(self, name):
        data = SETS[name].draw(0)
        parts = (data.train, data.validation, data.test)
        assert sum(map(len, parts)) == SETS[name].rows
        assert {part.inputs.shape[1] for part in parts} == {SETS[name].features}
        assert len(data.feature_names) == SETS[name].features
        assert (data.target_mean, data.target_std) == (0.0, 1.0)


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


class TestSines:
    def test_inputs_fill_the_cube_and_the_noise_has_a_standard_deviation_of_a_thousandth(self):
        data = sines(4, 5000, 0)
        x = data.train.inputs
        assert (x.min(0) < 0.001).all()
        assert (x.max(0) > 0.199).all()
        assert (x.min(), x.max()) == (pytest.approx(0, abs=1e-3), pytest.approx(0.2, abs=1e-3))
        noise = data.train.targets - np.sin(x).sum(1)
        # standard errors 1.4e-5 and 1e-5
        assert abs(noise.mean()) < 6e-5
        assert abs(noise.std() - 0.001) < 4e-5

    def test_the_one_test_point_is_the_middle_and_has_no_noise(self):
        data = sines(3, 300, 1)
        np.testing.assert_array_equal(data.test.inputs, [[0.1, 0.1, 0.1]])
        np.testing.assert_allclose(data.test.targets, [3 * np.sin(0.1)], rtol=1e-15)

    def test_there_are_as_many_validation_points_as_training_points_but_256_at_most(self):
        assert len(sines(2, 128, 0).validation) == 128
        assert len(sines(2, 300, 0).validation) == 256


def test_gaussian_inputs_and_targets_are_standard_normal_and_tell_nothing_of_each_other():
    parts = [part for seed in range(50) for part in _parts(gaussian(seed))]
    values = np.concatenate([np.column_stack([part.inputs, part.targets]) for part in parts])
    # 15,000 draws: standard error 0.008 of each covariance
    np.testing.assert_allclose(np.cov(values.T), np.eye(6), atol=0.05)
    np.testing.assert_allclose(values.mean(0), 0, atol=0.04)


def _parts(data):
    return data.train, data.validation, data.test


def _test_part(seed):
    return toy_cubic(seed).test
