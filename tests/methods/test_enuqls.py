import torch

from uqbench.methods.enuqls import EnsembledNUQLS
from uqbench.prediction import ClassificationMoments


def fitted(method, truths, data, network):
    return method.fit(truths.problem(data.task), data, network, truths.context())


def test_the_first_network_is_the_shared_one_and_the_others_are_trained_anew(truths):
    data, network = truths.regression_data(), truths.mlp(3, 1)
    mixture = fitted(EnsembledNUQLS(networks=3, members=4), truths, data, network)
    assert [c.network is network for c in mixture.components] == [True, False, False]
    outputs = torch.stack([c.network(data.train.inputs) for c in mixture.components])
    assert (outputs.var(0) > 0).all()


def test_regression_has_the_moments_of_the_mixture_of_calibrated_components(truths):
    data, network = truths.regression_data(), truths.mlp(3, 1)
    mixture = fitted(EnsembledNUQLS(networks=3, members=4), truths, data, network)
    inputs = truths.rows(6, 3, 5)
    prediction = mixture.predict(inputs)
    means, squares = 0, 0
    for component in mixture.components:
        members = component.members(inputs).squeeze(-1)
        mean = members.mean(0)
        variance = component.tuned["scale"] ** 2 * members.var(0)
        means, squares = means + mean / 3, squares + (variance + mean.square()) / 3
    torch.testing.assert_close(prediction.mean, means)
    torch.testing.assert_close(prediction.variance, squares - means.square())
    assert {"scale_0", "scale_1", "scale_2"} <= set(mixture.tuned)


def test_classification_pools_all_members(truths):
    data, network = truths.classification_data(), truths.mlp(3, 3)
    mixture = fitted(EnsembledNUQLS(networks=2, members=4), truths, data, network)
    inputs = truths.rows(6, 3, 5)
    prediction = mixture.predict(inputs)
    pooled = torch.cat([component.members(inputs) for component in mixture.components])
    moments = ClassificationMoments()
    moments.update(pooled)
    expected = moments.prediction()
    assert prediction.samples == 8
    torch.testing.assert_close(prediction.probabilities, expected.probabilities)
    torch.testing.assert_close(prediction.variance, expected.variance)
