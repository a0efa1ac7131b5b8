import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import dropout

import uqbench
from uqbench.errors import UnsupportedError, UsageError
from uqbench.methods.nuqls import NUQLS
from uqbench.metrics import regression
from uqbench.problems import Recipe
from uqbench.training import cross_entropy, squared_error, train


def pairs(data):
    train_pair = (data.train.inputs, data.train.targets)
    validation = (data.validation.inputs, data.validation.targets)
    return {"train": train_pair, "validation": validation, "test": validation}


@pytest.fixture
def regression_setting(truths):
    data = truths.regression_data()
    network = train(truths.mlp(3, 1), data.train, Recipe(epochs=50), squared_error, 0)
    return network, pairs(data)


@pytest.fixture
def classification_setting(truths):
    data = truths.classification_data()
    network = train(truths.mlp(3, 3), data.train, Recipe(epochs=50), cross_entropy, 0)
    return network, pairs(data)


@pytest.mark.parametrize("method", ["map", "nuqls", "lla", "de", "ntk_gp"])
def test_a_method_is_measured_on_a_persons_own_network(regression_setting, method):
    network, data = regression_setting
    found = uqbench.evaluate(method, network, **data)
    assert set(found.metrics) >= {"rmse", "nll", "ece", "crps"}
    assert all(np.isfinite(value) for value in found.metrics.values())
    assert found.cost.predict_seconds > 0


def test_the_metrics_are_those_of_the_given_network(regression_setting):
    network, data = regression_setting
    found = uqbench.evaluate("map", network, **data)
    inputs, targets = data["test"]
    mean = network(inputs).detach().squeeze(1)
    assert found.metrics["rmse"] == pytest.approx(regression.rmse(targets, mean), rel=1e-12)


def test_out_of_distribution_sets_are_measured_by_name(classification_setting):
    network, data = classification_setting
    found = uqbench.evaluate("nuqls", network, **data, ood={"far": 10 * data["test"][0]})
    assert set(found.ood) == {"far"}
    assert 0 <= found.ood["far"]["ood_auc"] <= 1


@pytest.mark.parametrize("method", ["nuqls", "lla", "de"])
def test_column_targets_and_flat_outputs_change_nothing(regression_setting, method):
    network, data = regression_setting
    expected = uqbench.evaluate(method, network, **data).metrics
    columns = {name: (x, y.unsqueeze(1)) for name, (x, y) in data.items()}
    found = uqbench.evaluate(method, network, **columns).metrics
    assert found == expected
    if method != "de":
        flat = nn.Sequential(*network, nn.Flatten(0)).eval()
        found = uqbench.evaluate(method, flat, **data).metrics
        assert found == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("method", ["nuqls", "lla", "de", "map"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_computation_follows_the_networks_dtype(regression_setting, method, dtype):
    network, data = regression_setting
    network = network.to(dtype)
    other = {torch.float32: torch.float64, torch.float64: torch.float32}[dtype]
    cast = {name: (x.to(other), y.to(other)) for name, (x, y) in data.items()}
    found = uqbench.evaluate(method, network, **cast)
    assert np.isfinite(found.metrics["nll"])


def test_numpy_arrays_and_method_objects_are_taken(regression_setting):
    network, data = regression_setting
    arrays = {name: (x.numpy(), y.numpy()) for name, (x, y) in data.items()}
    by_name = uqbench.evaluate("nuqls", network, **arrays, settings={"members": 5})
    by_object = uqbench.evaluate(NUQLS(members=5), network, **data)
    assert by_name.metrics == by_object.metrics


def test_the_given_network_is_left_as_it_was(regression_setting):
    network, data = regression_setting
    network.train()
    before = copy.deepcopy(network.state_dict())
    state = torch.get_rng_state()
    for method in ("nuqls", "lla", "de"):
        uqbench.evaluate(method, network, **data)
    assert network.training
    assert torch.equal(torch.get_rng_state(), state)
    for name, value in network.state_dict().items():
        assert torch.equal(value, before[name])


def test_the_same_seed_gives_the_same_numbers(regression_setting):
    network, data = regression_setting
    first, again = (uqbench.evaluate("nuqls", network, **data, seed=3) for _ in range(2))
    other = uqbench.evaluate("nuqls", network, **data, seed=4)
    assert first.metrics == again.metrics
    assert first.metrics != other.metrics


def test_the_recipe_is_that_of_the_networks_a_method_trains(regression_setting):
    network, data = regression_setting
    short = uqbench.evaluate("de", network, **data, recipe={"epochs": 1})
    long = uqbench.evaluate("de", network, **data, recipe={"epochs": 200})
    assert long.metrics["rmse"] < short.metrics["rmse"]
    with pytest.raises(UsageError, match="recipe: epoch: unknown key"):
        uqbench.evaluate("de", network, **data, recipe={"epoch": 1})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda d: {"test": (d["test"][0], d["test"][1][:-1])},
            r"test: inputs have shape \(20, 3\)",
        ),
        (lambda d: {"train": (d["train"][0] * torch.nan, d["train"][1])}, "train inputs: row 0"),
        (lambda d: {"test": (d["test"][0][:0], d["test"][1][:0])}, "test: has no rows"),
        (lambda d: {"train": (d["train"][0], d["train"][1].long())}, "one output per class"),
    ],
)
def test_data_that_does_not_fit_is_refused(regression_setting, change, message):
    network, data = regression_setting
    with pytest.raises(UsageError, match=message):
        uqbench.evaluate("nuqls", network, **{**data, **change(data)})


def test_classes_beyond_the_networks_outputs_are_refused(classification_setting):
    network, data = classification_setting
    inputs, targets = data["train"]
    with pytest.raises(UsageError, match=r"class 7 is outside 0\.\.2"):
        uqbench.evaluate("nuqls", network, **{**data, "train": (inputs, targets.clamp(min=7))})


def test_a_method_refuses_a_task_it_does_not_cover(classification_setting):
    network, data = classification_setting
    with pytest.raises(UnsupportedError, match="ntk_gp is defined for regression"):
        uqbench.evaluate("ntk_gp", network, **data)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("method", ["map", "nuqls", "lla", "de", "ntk_gp"])
def test_a_network_on_a_gpu_is_evaluated_there(regression_setting, method):
    network, data = regression_setting
    on_cpu = uqbench.evaluate(method, network, **data)
    on_gpu = uqbench.evaluate(method, network.cuda(), **data)
    assert on_gpu.cost.device.startswith("cuda")
    assert on_gpu.cost.peak_device_bytes > 0
    if method in {"map", "lla", "ntk_gp"}:  # the others draw other numbers on another device
        assert on_gpu.metrics == pytest.approx(on_cpu.metrics, rel=1e-6)


def network_of(forward):
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 1)
            self.norm = nn.BatchNorm1d(1, track_running_stats=False)

    Odd.forward = forward
    return Odd().double()


ODD = {
    "functional dropout that is always on": (
        lambda self, x: self.layer(dropout(x, 0.5)),
        "other outputs in another call or batch",
    ),
    "rows that depend on the batch": (
        lambda self, x: self.layer(x - x.mean(0)),
        "other outputs in another call or batch",
    ),
    "batch statistics": (lambda self, x: self.norm(self.layer(x)), "one at a time: Expected more"),
    "inputs changed in place": (lambda self, x: self.layer(x.mul_(2)), "changes its inputs"),
    "two outputs": (lambda self, x: (self.layer(x), x), "return a tensor"),
    "another width": (lambda self, x: self.layer(x[:, :2]), r"inputs of shape \(3,\)"),
}


@pytest.mark.parametrize("name", ODD)
def test_a_network_that_no_method_could_work_with_is_refused_at_once(regression_setting, name):
    _, data = regression_setting
    forward, reason = ODD[name]
    network = network_of(forward)
    state = torch.get_rng_state()
    with pytest.raises((UsageError, UnsupportedError), match=reason):
        uqbench.evaluate("map", network, **data)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_network_without_parameters_or_in_half_precision_is_refused(regression_setting):
    network, data = regression_setting
    with pytest.raises(UnsupportedError, match="no parameters"):
        uqbench.evaluate("map", nn.Flatten(), **data)
    with pytest.raises(UnsupportedError, match=r"'0.weight' is torch.bfloat16.*network.float"):
        uqbench.evaluate("map", copy.deepcopy(network).bfloat16(), **data)
    network[2].float()
    with pytest.raises(UnsupportedError, match=r"'2.weight' is torch.float32"):
        uqbench.evaluate("map", network, **data)
