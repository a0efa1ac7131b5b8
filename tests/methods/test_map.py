import math

import pytest
import torch

from uqbench.methods.map import MAP


def test_the_variance_of_y_is_the_validation_mean_squared_error(truths):
    data, network = truths.regression_data(), truths.mlp(3, 1)
    posterior = MAP().fit(truths.problem(), data, network, truths.context())
    prediction = posterior.predict(data.train.inputs)
    residuals = network(data.validation.inputs).detach().squeeze(1) - data.validation.targets
    expected = residuals.square().mean()
    torch.testing.assert_close(prediction.variance, expected.expand(30))
    torch.testing.assert_close(prediction.mean, network(data.train.inputs).detach().squeeze(1))
    assert posterior.tuned["noise"] == pytest.approx(math.sqrt(expected))


def test_classification_is_one_softmax_without_a_variance(truths):
    data, network = truths.classification_data(), truths.mlp(3, 3)
    posterior = MAP().fit(truths.problem(data.task), data, network, truths.context())
    prediction = posterior.predict(data.train.inputs)
    expected = network(data.train.inputs).detach().softmax(1)
    torch.testing.assert_close(prediction.probabilities, expected)
    assert prediction.samples == 1
    assert not prediction.variance.any()
