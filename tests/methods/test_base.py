import pytest
import torch

from uqbench.errors import UnsupportedError
from uqbench.methods.base import RandomBaseline, RandomBaselinePosterior
from uqbench.metrics.vmsp import skew, vmsp
from uqbench.prediction import concatenate


def test_ten_classes_have_the_papers_median_and_skew_of_vmsp(truths):
    """Median 0.0200 and skew about 1.07 for 10 draws of 10 classes (Tables 10 and 11)."""
    prediction = RandomBaselinePosterior(10, 10, seed=1).predict(truths.rows(20_000, 3, 0))
    values = vmsp(prediction.probabilities.numpy(), prediction.variance.numpy())
    assert sorted(values)[10_000] == pytest.approx(0.0200, abs=0.0005)
    assert skew(values) == pytest.approx(1.07, abs=0.08)


def test_draws_do_not_depend_on_the_batch_and_do_depend_on_the_seed(truths):
    inputs = truths.rows(50, 3, 0)
    posterior = RandomBaselinePosterior(10, 4, seed=1)
    whole = posterior.predict(inputs)
    parts = concatenate(map(posterior.predict, inputs.split(7)), len(inputs))
    torch.testing.assert_close(parts.probabilities, whole.probabilities, rtol=1e-13, atol=0)
    torch.testing.assert_close(parts.variance, whole.variance, rtol=1e-13, atol=0)
    other = RandomBaselinePosterior(10, 4, seed=2).predict(inputs)
    assert not torch.equal(whole.probabilities, other.probabilities)


def test_the_class_count_is_the_problems_unless_it_is_set(truths):
    data = truths.classification_data()
    arguments = (truths.problem(data.task), data, truths.mlp(3, 3), truths.context())
    shape = RandomBaseline().fit(*arguments).predict(data.train.inputs).probabilities.shape
    assert shape == (30, 3)
    shape = RandomBaseline(classes=10).fit(*arguments).predict(data.train.inputs).variance.shape
    assert shape == (30, 10)
    with pytest.raises(UnsupportedError, match="fewer than the problem's 3 classes"):
        RandomBaseline(classes=2).fit(*arguments)
