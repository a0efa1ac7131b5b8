import copy

import pytest
import torch
from torch import nn

from uqbench.data import Split
from uqbench.errors import DivergenceError, UnsupportedError
from uqbench.networks import build_network, initialise, with_outputs
from uqbench.problems import NetworkSpec, Recipe
from uqbench.stacked import flattened
from uqbench.training import (
    Extras,
    batch_bounds,
    can_be_batched,
    cross_entropy,
    learning_rate,
    squared_error,
    train,
    train_ensemble,
)

SPEC = NetworkSpec(hidden=(6,), weight_init="xavier_normal", bias_init="standard_normal")


@pytest.fixture
def split(truths):
    return truths.regression_data(n=25).train


def networks(count, outputs=1):
    template = build_network(SPEC, (3,), outputs).double()
    return [initialise(copy.deepcopy(template), SPEC, seed) for seed in range(count)]


def naively_trained(network, split, recipe, seed, loss):
    """An independent loop over torch's own optimisers and schedulers."""
    network = copy.deepcopy(network).train()
    parameters = list(network.parameters())
    if recipe.optimizer == "adam":
        kwargs = {"lr": recipe.lr, "weight_decay": recipe.weight_decay}
        optimizer = torch.optim.Adam(parameters, **kwargs)
    else:
        kwargs = {"momentum": recipe.momentum, "nesterov": recipe.nesterov}
        optimizer = torch.optim.SGD(parameters, lr=recipe.lr, **kwargs)
    if recipe.schedule == "poly":
        total = int(recipe.poly_total * recipe.epochs)
        scheduler = torch.optim.lr_scheduler.PolynomialLR(optimizer, total, power=0.5)
    elif recipe.schedule == "cosine":
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, recipe.epochs)
    else:
        scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(recipe.epochs):
        order = torch.randperm(len(split), generator=generator)
        for batch in order.split(recipe.batch_size):
            optimizer.zero_grad()
            loss(network(split.inputs[batch]), split.targets[batch]).backward()
            optimizer.step()
        scheduler.step()
    return network


@pytest.mark.parametrize("schedule", ["none", "poly", "cosine"])
@pytest.mark.parametrize("optimizer", ["adam", "sgd", "nesterov"])
def test_training_follows_torchs_own_optimisers_and_schedulers(split, optimizer, schedule):
    recipe = Recipe(
        optimizer="adam" if optimizer == "adam" else "sgd",
        nesterov=optimizer == "nesterov",
        lr=1e-2,
        epochs=7,
        batch_size=10,
        weight_decay=1e-2 if optimizer == "adam" else 0.0,
        schedule=schedule,
    )
    network = networks(1)[0]
    trained = train(network, split, recipe, squared_error, seed=3)
    expected = naively_trained(
        network, split, recipe, 3, lambda f, y: nn.functional.mse_loss(f.squeeze(-1), y)
    )
    for ours, theirs in zip(trained.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


def test_classification_is_trained_on_the_cross_entropy(truths):
    split = truths.classification_data().train
    recipe = Recipe(lr=1e-2, epochs=4, batch_size=10)
    network = networks(1, outputs=3)[0]
    trained = train(network, split, recipe, cross_entropy, seed=3)
    expected = naively_trained(network, split, recipe, 3, nn.functional.cross_entropy)
    for ours, theirs in zip(trained.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("batch_size", [0, 8])
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_an_ensemble_trained_as_one_program_equals_its_members_trained_alone(
    split, optimizer, batch_size
):
    recipe = Recipe(optimizer=optimizer, epochs=20, batch_size=batch_size, weight_decay=1e-3)
    starts = networks(4)
    together = train_ensemble(starts, split, recipe, squared_error, range(4))
    for seed, (start, member) in enumerate(zip(starts, together, strict=True)):
        alone = train(start, split, recipe, squared_error, seed)
        for a, b in zip(member.parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


def test_networks_that_are_not_plain_sequences_are_batched_too(split):
    class Residual(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.outer = nn.Linear(3, 3, bias=False), nn.Linear(3, 1)

        def forward(self, x):
            return self.outer(x + torch.tanh(self.inner(x))).squeeze(-1)

    torch.manual_seed(0)
    starts = [Residual().double() for _ in range(3)]
    recipe = Recipe(epochs=5, batch_size=10)
    together = train_ensemble(starts, split, recipe, squared_error, range(3))
    for seed, (start, member) in enumerate(zip(starts, together, strict=True)):
        alone = train(start, split, recipe, squared_error, seed)
        for a, b in zip(member.parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


def test_frozen_parameters_stay_as_they_are(split):
    starts = networks(3)
    for network in starts:
        network[0].weight.requires_grad_(False)
    trained = train_ensemble(starts, split, Recipe(epochs=2), squared_error, range(3))
    for start, member in zip(starts, trained, strict=True):
        assert torch.equal(start[0].weight, member[0].weight)
        assert not torch.equal(start[2].weight, member[2].weight)


def test_no_last_batch_has_one_row_and_no_row_is_lost():
    assert batch_bounds(21, 10) == [(0, 10), (10, 21)]
    assert batch_bounds(22, 10) == [(0, 10), (10, 20), (20, 22)]
    assert batch_bounds(20, 10) == [(0, 10), (10, 20)]
    assert batch_bounds(1, 10) == [(0, 1)]
    assert batch_bounds(5, 0) == [(0, 5)]


@pytest.mark.parametrize("members", [1, 2])
def test_batch_norm_trains_when_the_last_batch_would_have_one_row(split, members):
    layers = [nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 1)]
    network = nn.Sequential(*layers).double()
    assert not can_be_batched(network)
    odd = Split(split.inputs[:21], split.targets[:21])
    recipe = Recipe(epochs=3, batch_size=10)
    trained = train_ensemble([network] * members, odd, recipe, squared_error, range(members))
    for member in trained:
        assert torch.isfinite(member(odd.inputs)).all()
        assert member[1].num_batches_tracked == 3 * 2
    assert network[1].num_batches_tracked == 0


@pytest.mark.parametrize("flat", [False, True])
def test_a_network_that_returns_n_or_n_by_1_has_the_same_loss(split, flat):
    base = networks(1)[0]
    network = nn.Sequential(*base, nn.Flatten(0)) if flat else base
    trained = train(network, split, Recipe(epochs=3), squared_error, seed=0)
    expected = train(base, split, Recipe(epochs=3), squared_error, seed=0)
    first = next(trained.parameters())
    torch.testing.assert_close(first, next(expected.parameters()), rtol=0, atol=0)


def test_a_diverging_training_is_an_error_that_names_the_step_size(split):
    recipe = Recipe(optimizer="sgd", lr=1e9, epochs=50)
    with pytest.raises(DivergenceError, match="lr 1e"):
        train(networks(1)[0], split, recipe, squared_error, seed=0)


def with_batch_norm(count):
    """Networks that are trained one after another."""
    torch.manual_seed(0)
    layers = [
        [nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 1)] for _ in range(count)
    ]
    return [nn.Sequential(*modules).double() for modules in layers]


@pytest.mark.parametrize("build", [networks, with_batch_norm])
def test_offsets_scales_and_penalties_belong_to_their_members(split, build):
    """Against torch's own SGD on (s(f + δ) − y)² + ½ d ‖θ‖², one member at a time."""
    starts, members = build(3), range(3)
    generator = torch.Generator().manual_seed(0)
    offsets = torch.randn(3, len(split), 1, generator=generator, dtype=torch.float64)
    scales = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)
    decays = torch.tensor([0.0, 0.1, 1.0], dtype=torch.float64)
    ends = {member: [] for member in members}

    def penalty(stacks, part):
        return decays[part] / 2 * flattened(stacks).square().sum(1)

    def after_epoch(stacks, part):
        assert not torch.is_grad_enabled()
        for member, vector in zip(members[part], flattened(stacks), strict=True):
            ends[member].append(vector.clone())

    recipe = Recipe(optimizer="sgd", lr=1e-2, epochs=5, batch_size=10)
    extras = Extras(offsets=offsets, scales=scales, penalty=penalty, after_epoch=after_epoch)
    trained = train_ensemble(starts, split, recipe, squared_error, members, extras=extras)
    for member in members:
        naive = copy.deepcopy(starts[member]).train()
        optimizer = torch.optim.SGD(
            naive.parameters(), 1e-2, momentum=0.9, weight_decay=decays[member].item()
        )
        order = torch.Generator().manual_seed(member)
        for epoch in range(5):
            for batch in torch.randperm(len(split), generator=order).split(10):
                outputs = scales[member] * (naive(split.inputs[batch]) + offsets[member, batch])
                optimizer.zero_grad()
                (outputs.squeeze(-1) - split.targets[batch]).square().mean().backward()
                optimizer.step()
            vector = nn.utils.parameters_to_vector(naive.parameters())
            torch.testing.assert_close(ends[member][epoch], vector, rtol=1e-10, atol=1e-12)
        vector = nn.utils.parameters_to_vector(trained[member].parameters())
        torch.testing.assert_close(ends[member][-1], vector, rtol=0, atol=0)


def test_rows_keep_their_order_without_shuffling(split):
    recipe = Recipe(optimizer="sgd", lr=1e-2, epochs=3, batch_size=10)
    extras = Extras(shuffle=False)
    network = networks(1)[0]
    (trained,) = train_ensemble([network], split, recipe, squared_error, [0], extras=extras)
    naive = copy.deepcopy(network)
    optimizer = torch.optim.SGD(naive.parameters(), 1e-2, momentum=0.9)
    for _ in range(3):
        for inputs, targets in zip(split.inputs.split(10), split.targets.split(10), strict=True):
            optimizer.zero_grad()
            (naive(inputs).squeeze(-1) - targets).square().mean().backward()
            optimizer.step()
    for ours, theirs in zip(trained.parameters(), naive.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("build", [networks, with_batch_norm])
def test_members_may_diverge_alone_if_the_caller_says_so(split, build):
    starts = build(3)
    decays = torch.tensor([0.0, 1e30, 0.1], dtype=torch.float64)
    recipe = Recipe(optimizer="sgd", lr=1e-2, epochs=20, batch_size=10)

    def train_all(may_diverge, decays):
        def penalty(stacks, part):
            return decays[part] / 2 * flattened(stacks).square().sum(1)

        extras = Extras(penalty=penalty, may_diverge=may_diverge)
        return train_ensemble(starts, split, recipe, squared_error, [0, 1, 2], extras=extras)

    trained = train_all(True, decays)
    decays[1] = 0.0
    expected = train_all(False, decays)
    for member in (0, 2):
        found, wanted = trained[member].parameters(), expected[member].parameters()
        for a, b in zip(found, wanted, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)
    assert not any(parameter.isfinite().any() for parameter in trained[1].parameters())
    decays[1] = 1e30
    with pytest.raises(DivergenceError, match="not finite"):
        train_all(False, decays)


def test_training_leaves_the_given_network_and_the_global_random_state_alone(split):
    network = nn.Sequential(nn.Linear(3, 5), nn.Dropout(0.5), nn.Linear(5, 1)).double()
    before = copy.deepcopy(network.state_dict())
    state = torch.get_rng_state()
    first = train(network, split, Recipe(epochs=2), squared_error, seed=1)
    assert torch.equal(torch.get_rng_state(), state)
    for name, value in network.state_dict().items():
        assert torch.equal(value, before[name])
    again = train(network, split, Recipe(epochs=2), squared_error, seed=1)
    other = train(network, split, Recipe(epochs=2), squared_error, seed=2)
    assert torch.equal(first[0].weight, again[0].weight)
    assert not torch.equal(first[0].weight, other[0].weight)


def test_schedules_step_once_per_epoch():
    poly = Recipe(lr=1.0, epochs=10, schedule="poly", poly_total=1.0)
    assert [learning_rate(poly, e) for e in (0, 5, 10)] == pytest.approx([1, 0.5**0.5, 0])
    slow = Recipe(lr=1.0, epochs=10, schedule="poly")
    assert learning_rate(slow, 10) == pytest.approx(0.9**0.5)
    cosine = Recipe(lr=1.0, epochs=10, schedule="cosine")
    assert [learning_rate(cosine, e) for e in (0, 5)] == pytest.approx([1, 0.5])


def test_a_seed_means_the_same_initialisation_in_every_dtype():
    double = initialise(build_network(SPEC, (3,), 1).double(), SPEC, 5)
    single = initialise(build_network(SPEC, (3,), 1).float(), SPEC, 5)
    for a, b in zip(double.parameters(), single.parameters(), strict=True):
        assert torch.equal(a.float(), b)


def test_initialisation_has_the_schemes_moments():
    spec = NetworkSpec(hidden=(400,), weight_init="xavier_normal", bias_init="standard_normal")
    network = initialise(build_network(spec, (300,), 1).double(), spec, 0)
    assert network[0].weight.std().item() == pytest.approx((2 / 700) ** 0.5, rel=0.01)
    assert network[0].bias.std().item() == pytest.approx(1, rel=0.1)


def test_other_outputs_replace_the_last_linear_layer_only():
    network = networks(1)[0]
    wider = with_outputs(network, 4, torch.zeros(2, 3, dtype=torch.float64))
    assert wider(torch.zeros(2, 3, dtype=torch.float64)).shape == (2, 4)
    assert torch.equal(wider[0].weight, network[0].weight)
    assert network[2].out_features == 1


def test_parameters_that_the_network_does_not_use_stay_as_they_are():
    class Spare(nn.Module):
        def __init__(self):
            super().__init__()
            self.used = nn.Linear(3, 1)
            self.spare = nn.Linear(3, 1)

        def forward(self, x):
            return self.used(x)

    network = Spare().double()
    data = Split(torch.randn(20, 3).double(), torch.randn(20).double())
    for trained in train_ensemble([network] * 2, data, Recipe(epochs=2), squared_error, [0, 1]):
        assert torch.equal(trained.spare.weight, network.spare.weight)
        assert not torch.equal(trained.used.weight, network.used.weight)


def test_what_cannot_be_trained_is_refused():
    data = Split(torch.randn(3, 3).double(), torch.randn(3).double())
    frozen = nn.Linear(3, 1).double().requires_grad_(False)
    with pytest.raises(UnsupportedError, match="no trainable parameters"):
        train(frozen, data, Recipe(epochs=1), squared_error, 0)
    normalised = nn.Sequential(nn.Linear(3, 1), nn.BatchNorm1d(1)).double()
    with pytest.raises(UnsupportedError, match=r"BatchNorm .* batch_size of at least 2"):
        train(normalised, data, Recipe(epochs=1, batch_size=1), squared_error, 0)
