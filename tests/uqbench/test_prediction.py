import weakref

import pytest
import torch

import uqbench.prediction
from uqbench.prediction import (
    ClassificationMoments,
    Moments,
    RegressionPrediction,
    concatenate,
)


@pytest.mark.parametrize("chunks", [[50], [1] * 50, [7, 20, 1, 22]])
def test_moments_of_a_stream_are_those_of_all_samples_at_once(chunks):
    samples = 1e4 + torch.randn(50, 6, 3, generator=torch.Generator().manual_seed(0)).double()
    moments = Moments()
    for chunk in samples.split(chunks):
        moments.update(chunk)
    torch.testing.assert_close(moments.mean, samples.mean(0), rtol=1e-14, atol=0)
    torch.testing.assert_close(moments.variance, samples.var(0), rtol=1e-9, atol=0)
    assert moments.count == 50


def test_small_variances_survive_single_precision_logits():
    """Probabilities of 1 - 1e-7 and their variances vanish in float32; moments are in float64."""
    logits = torch.tensor([[[16.0, 0.0]], [[16.1, 0.0]]], dtype=torch.float32)
    moments = ClassificationMoments()
    moments.update(logits)
    prediction = moments.prediction()
    expected = logits.double().softmax(-1).var(0)
    assert prediction.variance.dtype == torch.float64
    torch.testing.assert_close(prediction.variance, expected, rtol=1e-6, atol=0)
    assert (prediction.variance > 0).all()


def test_classification_moments_are_the_naive_ones():
    logits = 3 * torch.randn(40, 8, 5, generator=torch.Generator().manual_seed(1)).double()
    moments = ClassificationMoments()
    for chunk in logits.split(11):
        moments.update(chunk)
    prediction = moments.prediction()
    probabilities = logits.softmax(-1)
    entropy = -(probabilities * probabilities.log()).sum(-1).mean(0)
    torch.testing.assert_close(prediction.probabilities, probabilities.mean(0))
    torch.testing.assert_close(prediction.variance, probabilities.var(0))
    torch.testing.assert_close(prediction.logit_variance, logits.var(0))
    torch.testing.assert_close(prediction.expected_entropy, entropy)
    assert prediction.samples == 40


def test_an_impossible_class_has_no_entropy():
    moments = ClassificationMoments()
    moments.update(torch.tensor([[[0.0, -torch.inf]], [[0.0, -torch.inf]]]))
    assert moments.prediction().expected_entropy.item() == 0


def test_batches_join_in_order():
    parts = (RegressionPrediction(torch.ones(2) * k, torch.ones(2)) for k in range(3))
    joined = concatenate(parts, 6)
    assert joined.mean.tolist() == [0, 0, 1, 1, 2, 2]
    assert len(joined.variance) == 6


def test_joining_holds_one_batch_at_a_time():
    seen = []

    def batches():
        for k in range(3):
            assert all(mean() is None for mean in seen[:-1])
            prediction = RegressionPrediction(torch.ones(2) * k, torch.ones(2))
            seen.append(weakref.ref(prediction.mean))
            yield prediction

    assert concatenate(batches(), 6).mean.tolist() == [0, 0, 1, 1, 2, 2]
    assert len(seen) == 3


def test_chunks_of_samples_are_cut_to_bounded_pieces(monkeypatch):
    logits = torch.randn(9, 4, 3, generator=torch.Generator().manual_seed(0))
    whole, pieces = ClassificationMoments(), ClassificationMoments()
    whole.update(logits)
    sizes = []
    original = Moments.update
    monkeypatch.setattr(
        Moments, "update", lambda self, values: (sizes.append(len(values)), original(self, values))
    )
    monkeypatch.setattr(uqbench.prediction, "CHUNK_ENTRIES", 2 * 4 * 3)
    pieces.update(logits)
    assert max(sizes) == 2
    for name, values in vars(whole.prediction()).items():
        if isinstance(values, torch.Tensor):
            torch.testing.assert_close(getattr(pieces.prediction(), name), values)
    assert pieces.prediction().samples == 9
