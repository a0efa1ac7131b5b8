import copy
import itertools
import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional

from uqbench.errors import UnsupportedError
from uqbench.masked_dropout import draw_masks, linear_layers_in_use, with_dropout
from uqbench.method import Task
from uqbench.methods.mc_dropout import MCDropout, MCDropoutPosterior
from uqbench.training import squared_error, train

WIDTH = 4


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def inputs_of(*shape, seed=1):
    return torch.randn(shape, generator=generator(seed), dtype=torch.float64)


def all_masks(p):
    """The 2^WIDTH masks over the hidden units, scaled, and their probabilities."""
    kept = torch.tensor(list(itertools.product((0.0, 1.0), repeat=WIDTH)), dtype=torch.float64)
    probabilities = torch.where(kept == 1, 1 - p, p).prod(1)
    return kept / (1 - p), probabilities


def naive_outputs(network, inputs, masks):
    """The outputs (S, N, C) of a network of two linear layers with each mask before its last."""
    hidden = network[:-1](inputs)
    return torch.stack([network[-1](hidden * mask) for mask in masks]).detach()


@pytest.fixture
def network(truths):
    return truths.mlp(3, 2, (WIDTH,))


@pytest.mark.parametrize("task", list(Task))
def test_the_moments_over_all_masks_are_those_of_their_enumeration(truths, task):
    network = truths.mlp(3, 1 if task is Task.REGRESSION else 3, (WIDTH,))
    inputs = inputs_of(5, 3)
    masks, _ = all_masks(0.5)
    start = with_dropout(network, 0.5, inputs)
    ((layer, _),) = draw_masks(start, inputs, 2, generator())
    prediction = MCDropoutPosterior(start, [(layer, masks)], task, inputs).predict(inputs)
    expected = naive_outputs(network, inputs, masks)
    if task is Task.REGRESSION:
        torch.testing.assert_close(prediction.mean, expected.mean(0).squeeze(1))
        torch.testing.assert_close(prediction.variance, expected.var(0).squeeze(1))
    else:
        torch.testing.assert_close(prediction.probabilities, expected.softmax(2).mean(0))
        torch.testing.assert_close(prediction.variance, expected.softmax(2).var(0))
        torch.testing.assert_close(prediction.logit_variance, expected.var(0))
        assert prediction.samples == 2**WIDTH


def test_the_moments_over_drawn_masks_converge_to_those_of_the_enumeration(network):
    inputs, p, samples = inputs_of(5, 3), 0.2, 20_000
    start = with_dropout(network, p, inputs)
    masks = draw_masks(start, inputs, samples, generator())
    posterior = MCDropoutPosterior(start, masks, Task.CLASSIFICATION, inputs)
    prediction = posterior.predict(inputs)
    every, probabilities = all_masks(p)
    weights = probabilities.view(-1, 1, 1)
    outputs = naive_outputs(network, inputs, every)
    softmax = outputs.softmax(2)
    mean = (weights * softmax).sum(0)
    variance = (weights * (softmax - mean) ** 2).sum(0)
    error = 5 * (variance / samples).sqrt()  # five standard errors
    assert ((prediction.probabilities - mean).abs() < error).all()
    # variance of the sample variance, from the fourth central moment
    fourth = (weights * (softmax - mean) ** 4).sum(0)
    error = 5 * ((fourth - variance**2) / samples).sqrt()
    assert ((prediction.variance - variance).abs() < error).all()


def test_training_with_dropout_of_probability_zero_is_plain_training(truths):
    data, network = truths.regression_data(), truths.mlp(3, 1)
    recipe = truths.problem(batch_size=8).training
    plain = train(network, data.train, recipe, squared_error, 3)
    start = with_dropout(network, 0.0, data.train.inputs[:3])
    dropped = train(start, data.train, recipe, squared_error, 3)
    for a, b in zip(plain.parameters(), dropped.parameters(), strict=True):
        assert torch.equal(a, b)
    start = with_dropout(network, 0.5, data.train.inputs[:3])
    dropped = train(start, data.train, recipe, squared_error, 3)
    assert not torch.equal(plain[0].weight, dropped[0].weight)


@pytest.mark.parametrize("task", list(Task))
def test_the_fit_is_the_trained_network_with_dropout_kept_on(truths, task):
    regression = task is Task.REGRESSION
    data = truths.regression_data() if regression else truths.classification_data()
    context = truths.context()
    posterior = MCDropout(p=0.3, samples=50).fit(
        truths.problem(task), data, truths.mlp(3, data.num_outputs), context
    )
    ((_, masks),) = posterior.masks
    assert masks.shape == (50, 7)
    assert set(masks.unique().tolist()) == {0.0, 1 / 0.7}
    first, activation, (dropout, last) = posterior.network
    assert dropout.dropout.p == 0.3
    inputs = data.validation.inputs
    outputs = naive_outputs(nn.Sequential(first, activation, last), inputs, masks)
    prediction = posterior.predict(inputs)
    if regression:
        noise = posterior.tuned["noise"]
        assert context.grid_size == len(MCDropout().noise_grid)
        torch.testing.assert_close(prediction.mean, outputs.mean(0).squeeze(1))
        torch.testing.assert_close(prediction.variance, outputs.var(0).squeeze(1) + noise**2)
    else:
        torch.testing.assert_close(prediction.probabilities, outputs.softmax(2).mean(0))


class WithDropout(nn.Module):
    """A convolutional network with one dropout layer for channels and one that is used twice.

    It returns log probabilities, and has BatchNorm and an activation in place.
    """

    def __init__(self, residual=False):
        super().__init__()
        self.convolution = nn.Conv2d(3, 4, 3)
        self.normalisation = nn.BatchNorm2d(4)
        self.channels = nn.Dropout2d(0.3)
        self.hidden = nn.Linear(4 * 4 * 4, 6)
        self.dropout = nn.Dropout(0.4)
        self.last = nn.Linear(6, 2)
        self.residual = residual

    def forward(self, inputs):
        images = self.normalisation(self.convolution(inputs)).relu_()
        hidden = self.hidden(self.dropout(self.channels(images).flatten(1)))
        hidden = self.dropout(hidden)
        if self.residual:
            hidden = hidden + inputs.mean((1, 2, 3)).unsqueeze(1)
        return self.last(hidden).log_softmax(1)


@pytest.mark.parametrize("residual", [False, True])
def test_the_dropout_layers_of_a_network_are_kept_on_and_no_other_is_added(residual):
    torch.manual_seed(0)
    network = WithDropout(residual).double().eval()
    network.normalisation.running_var.fill_(0.5)
    inputs = inputs_of(5, 3, 6, 6)
    start = with_dropout(network, 0.1, inputs)
    masks = draw_masks(start, inputs, 300, generator())
    assert [name for name, _ in masks] == ["channels", "dropout", "dropout"]
    shapes = [tuple(mask.shape) for _, mask in masks]
    assert shapes == [(300, 4, 1, 1), (300, 64), (300, 6)]
    posterior = MCDropoutPosterior(start, masks, Task.CLASSIFICATION, inputs)
    assert posterior.splits is not residual
    assert posterior.forward_passes == (300 if residual else 1)
    images = network.normalisation(network.convolution(inputs)).relu()
    outputs = []
    for first, second, third in zip(*(mask for _, mask in masks), strict=True):
        hidden = network.hidden((images * first).flatten(1) * second) * third
        if residual:
            hidden = hidden + inputs.mean((1, 2, 3)).unsqueeze(1)
        outputs.append(network.last(hidden))
    expected = torch.stack(outputs).softmax(2).detach()
    prediction = posterior.predict(inputs)
    torch.testing.assert_close(prediction.probabilities, expected.mean(0))
    torch.testing.assert_close(prediction.variance, expected.var(0))


class Regressor(nn.Module):
    """A network that returns (N,) and defines its last layer first."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(8, 1, bias=False)
        self.normalisation = nn.BatchNorm1d(8)
        self.first = nn.Linear(3, 8)

    def forward(self, inputs):
        return self.last(self.normalisation(self.first(inputs)).relu_()).squeeze(-1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_networks_with_state_are_fitted_and_left_alone(truths, dtype):
    torch.manual_seed(0)
    template = Regressor().to(dtype).eval()
    before = copy.deepcopy(template.state_dict())
    data = truths.regression_data()
    splits = [
        type(split)(split.inputs.to(dtype), split.targets.to(dtype))
        for split in (data.train, data.validation)
    ]
    data = type(data)(data.task, *splits)
    state = torch.get_rng_state()
    posterior = MCDropout().fit(
        truths.problem(batch_size=8), data, template, truths.context(dtype=dtype)
    )
    assert posterior.masks[0][0] == "last.0"
    posterior = pickle.loads(pickle.dumps(posterior))
    whole = posterior.predict(data.validation.inputs)
    rows = [posterior.predict(row) for row in data.validation.inputs.split(1)]
    torch.testing.assert_close(torch.cat([row.mean for row in rows]), whole.mean)
    torch.testing.assert_close(torch.cat([row.variance for row in rows]), whole.variance)
    assert torch.equal(torch.get_rng_state(), state)
    assert not template.training
    for name, value in template.state_dict().items():
        assert torch.equal(value, before[name])


def test_dropout_goes_before_a_network_that_is_one_linear_layer():
    network, inputs = nn.Linear(3, 1).double(), inputs_of(4, 3)
    start = with_dropout(network, 0.5, inputs)
    ((name, masks),) = draw_masks(start, inputs, 6, generator())
    assert (name, masks.shape) == ("0", (6, 3))


class Functional(nn.Module):
    """``inner`` holds a module that draws its randomness in a function."""

    def __init__(self, training=True):
        super().__init__()
        self.inner = FunctionalDropout(training)
        self.last = nn.Linear(3, 1)

    def forward(self, inputs):
        return self.last(self.inner(inputs))


class FunctionalDropout(nn.Module):
    def __init__(self, always):
        super().__init__()
        self.always = always

    def forward(self, inputs):
        return functional.dropout(inputs, 0.5, self.always or self.training)


@pytest.mark.parametrize("always", [False, True])
def test_functional_dropout_is_an_error_that_names_its_module(truths, always):
    network = Functional(always).double().eval()
    with pytest.raises(
        UnsupportedError, match=r"'inner' \(FunctionalDropout\).*functional dropout"
    ):
        MCDropout().fit(truths.problem(), truths.regression_data(), network, truths.context())


def test_the_dropout_inside_a_recurrent_module_is_an_error_that_names_it():
    recurrent = nn.GRU(3, 4, num_layers=2, dropout=0.5).double()

    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.recurrent = recurrent
            self.last = nn.Linear(4, 1).double()

        def forward(self, inputs):
            return self.last(self.recurrent(inputs)[0])

    with pytest.raises(UnsupportedError, match=r"layer 'recurrent' \(GRU\)"):
        linear_layers_in_use(Recurrent(), inputs_of(4, 3))


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (nn.Conv1d(3, 1, 1), r"the network \(Conv1d\) has neither dropout nor a linear layer"),
        (nn.Sequential(nn.Linear(3, 3), nn.AlphaDropout()), r"layer '1' \(AlphaDropout\)"),
        (nn.Sequential(*[nn.Linear(3, 3)] * 2), r"layer '0' \(Linear\) is used more than once"),
    ],
)
def test_networks_that_dropout_cannot_be_put_into_are_refused(network, message):
    inputs = inputs_of(4, 3, 1) if isinstance(network, nn.Conv1d) else inputs_of(4, 3)
    with pytest.raises(UnsupportedError, match=message):
        with_dropout(network.double(), 0.1, inputs)


def test_dropout_on_another_axis_than_the_rows_first_is_refused():
    network = nn.Sequential(nn.Unflatten(1, (3, 1)), nn.Flatten(0, 1), nn.Dropout(0.5)).double()
    inputs = inputs_of(4, 3)
    with pytest.raises(UnsupportedError, match=r"'2' \(Dropout\) is called with shape \(12, 1\)"):
        draw_masks(with_dropout(network, 0.1, inputs), inputs, 5, generator())


def test_dropout_layers_that_the_network_does_not_use_are_refused():
    class Unused(WithDropout):
        def forward(self, inputs):
            return self.last(inputs)

    inputs = inputs_of(4, 6)
    with pytest.raises(UnsupportedError, match="does not use its dropout layers"):
        draw_masks(with_dropout(Unused().double(), 0.1, inputs), inputs, 5, generator())


def test_a_dropout_layer_of_probability_zero_does_not_count_as_dropout(truths):
    network = nn.Sequential(nn.Dropout(0.0), *truths.mlp(3, 1))
    inputs = inputs_of(4, 3)
    ((name, _),) = draw_masks(with_dropout(network, 0.1, inputs), inputs, 5, generator())
    assert name == "3.0"
