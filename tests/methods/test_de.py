import copy

import pytest
import torch
from torch import nn

from uqbench.errors import UsageError
from uqbench.method import Task
from uqbench.methods.de import (
    DeepEnsemble,
    DeepEnsemblePosterior,
    gaussian_nll,
    mean_and_variance,
)


class Constant(nn.Module):
    """A member with fixed heads."""

    def __init__(self, *outputs):
        super().__init__()
        self.outputs = torch.tensor(outputs, dtype=torch.float64)

    def forward(self, inputs):
        return self.outputs.expand(len(inputs), -1)


def test_members_that_disagree_confidently_have_a_large_predictive_variance():
    """Means −1 and 1, each with variance 1e-6: the mixture's variance is 1 + 1e-6."""
    posterior = DeepEnsemblePosterior([Constant(-1, -40), Constant(1, -40)], Task.REGRESSION)
    prediction = posterior.predict(torch.zeros(3, 2))
    torch.testing.assert_close(prediction.mean, torch.zeros(3, dtype=torch.float64))
    expected = torch.full((3,), 1 + 1e-6, dtype=torch.float64)
    torch.testing.assert_close(prediction.variance, expected, rtol=1e-12, atol=0)


def test_the_moments_are_those_of_the_equal_mixture():
    torch.manual_seed(0)
    heads = torch.randn(5, 2, dtype=torch.float64)
    posterior = DeepEnsemblePosterior([Constant(*h.tolist()) for h in heads], Task.REGRESSION)
    prediction = posterior.predict(torch.zeros(1, 1))
    means, variances = mean_and_variance(heads)
    component = torch.randint(5, (400_000,))
    draws = means[component] + variances[component].sqrt() * torch.randn(400_000).double()
    assert prediction.mean.item() == pytest.approx(draws.mean().item(), abs=0.01)
    assert prediction.variance.item() == pytest.approx(draws.var().item(), rel=0.02)


def test_the_loss_is_torchs_gaussian_negative_log_likelihood():
    outputs = torch.randn(3, 8, 2, dtype=torch.float64)
    targets = torch.randn(3, 8, dtype=torch.float64)
    found = gaussian_nll(outputs, targets)
    for m in range(3):
        mean, variance = mean_and_variance(outputs[m])
        expected = nn.functional.gaussian_nll_loss(mean, targets[m], variance)
        torch.testing.assert_close(found[m], expected)


@pytest.mark.parametrize("task", list(Task))
def test_an_ensemble_of_one_member_is_that_network(truths, task):
    regression = task is Task.REGRESSION
    data = truths.regression_data() if regression else truths.classification_data()
    template = truths.mlp(3, data.num_outputs)
    method = DeepEnsemble(members=1)
    posterior = method.fit(truths.problem(task), data, template, truths.context())
    (member,) = posterior.members
    prediction = posterior.predict(data.validation.inputs)
    outputs = member(data.validation.inputs).detach()
    if regression:
        mean, variance = mean_and_variance(outputs)
        torch.testing.assert_close(prediction.mean, mean)
        torch.testing.assert_close(prediction.variance, variance)
    else:
        torch.testing.assert_close(prediction.probabilities, outputs.softmax(1))
        assert prediction.samples == 1


def test_members_start_from_different_networks_and_leave_the_template_alone(truths):
    data, template = truths.regression_data(), truths.mlp(3, 1)
    before = copy.deepcopy(template.state_dict())
    posterior = DeepEnsemble(members=4).fit(truths.problem(), data, template, truths.context())
    first, second = (member[0].weight for member in posterior.members[:2])
    assert (first - second).abs().max() > 0.1
    for name, value in template.state_dict().items():
        assert torch.equal(value, before[name])
    assert posterior.forward_passes == 4


def test_an_ensemble_learns_the_noise_of_its_targets(truths):
    x = truths.rows(2000, 1, 0)
    noise = 0.1 + 0.4 * (x.squeeze(-1) > 0)
    y = x.squeeze(-1) + noise * truths.rows(2000, 1, 1).squeeze(-1)
    data = truths.regression_data()
    split = type(data.train)(x, y)
    data = type(data)(Task.REGRESSION, split, split)
    method = DeepEnsemble(members=3, epochs=60, lr=1e-2)
    posterior = method.fit(truths.problem(), data, truths.mlp(1, 1, (20,)), truths.context())
    at = torch.tensor([[-1.0], [1.0]], dtype=torch.float64)
    prediction = posterior.predict(at)
    torch.testing.assert_close(prediction.mean, at.squeeze(-1), rtol=0, atol=0.1)
    deviation = prediction.variance.sqrt()
    assert deviation[0].item() == pytest.approx(0.1, rel=0.2)
    assert deviation[1].item() == pytest.approx(0.5, rel=0.2)


def test_one_member_is_refused_where_a_variance_over_members_is_asked_for():
    with pytest.raises(UsageError, match="members must be at least 2"):
        DeepEnsemble(members=1).check_task(Task.CLASSIFICATION)
    DeepEnsemble(members=1).check_task(Task.REGRESSION)
