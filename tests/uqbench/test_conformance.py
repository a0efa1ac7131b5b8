"""The conformance checks pass for every built-in method, and each finds the fault it is about."""

import re
from functools import cache
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

import uqbench
from uqbench import registry
from uqbench.cli import main
from uqbench.conformance import check_names, check_results
from uqbench.conformance.tiny_problems import UNUSUAL
from uqbench.errors import UsageError
from uqbench.registry import method_names

BROKEN_METHODS = Path(__file__).parent / "broken_methods"
ON_CUDA = "works on cuda as on the cpu"


@cache
def under_way(name):
    return check_results(name), {}


def result_of(name, check):
    """Check the method as far as this check; the fits are shared with the checks that follow."""
    results, found = under_way(name)
    while check not in found:
        result = next(results)
        found[result.check] = result
    return found[check]


@pytest.mark.parametrize("check", check_names())
@pytest.mark.parametrize("name", method_names())
def test_built_in_methods_keep_the_contract(name, check):
    result = result_of(name, check)
    if result.status == "skipped":
        pytest.skip(result.reason)
    assert result.status == "ok", result.reason


@pytest.fixture
def checked(monkeypatch):
    """Check the method of a plug-in file by the command line; return the failures' reasons."""

    def check(name, path, *options):
        monkeypatch.setattr(registry, "_plugins", {})
        arguments = ["check", name, "--plugin", str(path), "--device", "cpu", *options]
        done = CliRunner().invoke(main, arguments, prog_name="uqbench")
        assert done.exit_code in (0, 1), done.output
        found = re.findall(r"^(.*?) {2,}(ok|failed|skipped)(?: +(.*))?$", done.output, re.MULTILINE)
        assert [name for name, _, _ in found] == check_names()
        failures = {name: reason for name, status, reason in found if status == "failed"}
        assert done.exit_code == (1 if failures else 0)
        return failures

    return check


BROKEN = [
    (
        "changes_the_network",
        "leaves the network alone",
        r"fit changed the parameter '0\.weight' by up to 0\.",
    ),
    (
        "draws_from_the_global_generator",
        "draws from the generator of the context alone",
        "fit changed the state of torch's global generator",
    ),
    (
        "does_not_normalise",
        "predicts probabilities that sum to 1",
        "the probabilities of a point sum to 2, not to 1",
    ),
    (
        "negative_variance",
        "predicts no negative variance",
        r"variance must not be negative, its lowest is -0\.5",
    ),
    (
        "depends_on_the_batch",
        "predicts the same in one batch or in many",
        "predicting in batches of 2 changes the mean: .* instead of ",
    ),
    (
        "ignores_its_seed",
        "depends on the seed unless declared deterministic",
        "seeds 0 and 1 give the same numbers",
    ),
    (
        "wrong_shape",
        "predicts moments of the right shape",
        r"mean must have shape \(4,\), it has \(4, 1\)",
    ),
    (
        "leaves_train_mode_on",
        "leaves the modes of modules alone",
        r"fit changed the mode of the network \(training\) from False to True",
    ),
]


@pytest.mark.parametrize(("name", "check", "reason"), BROKEN, ids=[b[0] for b in BROKEN])
def test_a_broken_method_fails_the_one_check_that_is_about_its_fault(checked, name, check, reason):
    failures = checked(name, BROKEN_METHODS / f"{name}.py")
    assert list(failures) == [check]
    assert re.search(reason, failures[check])


def test_every_broken_method_is_among_the_tested_ones():
    assert {path.stem for path in BROKEN_METHODS.glob("*.py")} == {name for name, _, _ in BROKEN}


HEADER = """
import copy
import itertools
from dataclasses import dataclass

import torch
from torch import nn
from uqbench import Task
from uqbench.errors import UnsupportedError
from uqbench.methods.map import MAP

COUNT = itertools.count(1)


@dataclass(frozen=True)
class Faulty(MAP):
    tasks = deterministic = frozenset({Task.REGRESSION})
"""


def class_with(*lines):
    return HEADER + "".join(f"    {line}\n" for line in lines)


def fit_that(before="pass", after="pass"):
    """A fit that does something to its arguments, and something to the posterior."""
    return class_with(
        "def fit(self, problem, data, network, context):",
        f"    {before}",
        "    posterior = super().fit(problem, data, network, context)",
        f"    {after}",
        "    return posterior",
    )


SHRUNK = "network = copy.deepcopy(network); [w.data.mul_(1 / {}) for w in network.parameters()]"

FAULTS = [
    (
        "declares its tags",
        class_with("deterministic = frozenset(Task)"),
        r"deterministic must be a part of tasks, it is frozenset\(.*'classification'",
    ),
    (
        "settings survive a suite file",
        class_with("salt: bytes = b'salt'"),
        "setting 'salt': TOML has no bytes, it is b'salt'",
    ),
    (
        "settings survive the command line",
        class_with("version: str = '1'"),
        "version: .*valid string, got 1",
    ),
    (
        "fits and predicts",
        fit_that("raise UnsupportedError('not today')"),
        "UnsupportedError: not today .*; if it must, leave regression out of tasks",
    ),
    (
        "fits and predicts",
        fit_that(after="posterior = None"),
        r"fit must return a uqbench\.Posterior, it returned NoneType",
    ),
    (
        "fits and predicts",
        fit_that("data.training"),
        r"fit raised AttributeError: .*'training' \(line \d+ of faulty\.py\)",
    ),
    (
        "fits and predicts",
        class_with("libraries = ('no_such_library',)"),
        "import_libraries raised ModuleNotFoundError: No module named 'no_such_library'",
    ),
    (
        "predicts finite values",
        fit_that(after="posterior.variance = float('inf')"),
        "4 of 4 values of the predictive variance are not finite",
    ),
    (
        "reports finite numbers",
        fit_that(after="posterior.tuned = {'lr': float('nan')}"),
        r"tuned\['lr'\] must be finite, it is nan",
    ),
    (
        "leaves the data alone",
        fit_that("data.train.targets.zero_()"),
        "fit changed the training targets by up to",
    ),
    (
        "leaves the data alone",
        fit_that("data.validation.inputs.requires_grad_()"),
        "fit changed the requires_grad of the data from False to True",
    ),
    (
        "leaves default dtype and grad mode alone",
        fit_that("torch.set_grad_enabled(False)"),
        "fit changed the grad mode from True to False",
    ),
    (
        "repeats itself with the same seed",
        fit_that(SHRUNK.format("next(COUNT)")),
        "the second fit with the same seed changes the mean: .* instead of",
    ),
    (
        "depends on the seed unless declared deterministic",
        fit_that(SHRUNK.format("(1 + context.seed)")),
        "another seed, of which it is declared independent, changes the mean",
    ),
    (
        "predicts the same after pickling",
        fit_that(after="posterior.progress = lambda: None"),
        "the posterior cannot be pickled: .*lambda",
    ),
    (
        "works in float32 as in float64",
        fit_that("network(data.validation.inputs.double())"),
        "fit raised RuntimeError: .*same dtype",
    ),
    (
        "works in float32 as in float64",
        fit_that(SHRUNK.format("(1 if context.dtype is torch.float64 else 9)")),
        r"mean on float32 and on float64 are 0\.\d+ apart .* at most 0\.1 is wanted",
    ),
]

UNUSUAL_NETWORKS = {
    "batch normalisation": "any(isinstance(m, nn.BatchNorm1d) for m in network.modules())",
    "dropout": "any(isinstance(m, nn.Dropout) for m in network.modules())",
    "functional dropout": "type(network).__name__ == '_FunctionalDropout'",
    "in-place activations": "any(getattr(m, 'inplace', False) for m in network.modules())",
    "tied parameters": "len(network.state_dict()) > len(list(network.parameters()))"
    " and not list(network.buffers())",
    "frozen parameters": "not all(p.requires_grad for p in network.parameters())",
    "missing biases": "getattr(network[0] if hasattr(network, '0') else 0, 'bias', 0) is None",
    "convolutions": "any(isinstance(m, nn.Conv2d) for m in network.modules())",
}


def refusing(architecture, error):
    return fit_that(f"if {UNUSUAL_NETWORKS[architecture]}: raise {error}")


FAULTS += [
    (
        f"covers or refuses {architecture.name}",
        refusing(architecture.name, "UnsupportedError('not this one')"),
        f"must name what it refuses .{architecture.words[0]}, .* it says: not this one",
    )
    for architecture in UNUSUAL
]
FAULTS += [
    (
        "covers or refuses convolutions",
        refusing("convolutions", "ValueError('4 is not 2')"),
        "fit raised ValueError: 4 is not 2 .*; cover it, or raise UnsupportedError",
    ),
    (
        "covers or refuses convolutions",
        refusing("convolutions", "UnsupportedError('no\\nConv2d\\n!')"),
        "a refusal must be at most two lines, it has 3: no Conv2d !",
    ),
]


@pytest.mark.parametrize(("check", "source", "reason"), FAULTS, ids=[f[0] for f in FAULTS])
def test_a_fault_fails_the_one_check_that_is_about_it(checked, tmp_path, check, source, reason):
    (tmp_path / "faulty.py").write_text(source)
    failures = checked("faulty", tmp_path / "faulty.py")
    assert list(failures) == [check]
    assert re.search(reason, failures[check])


def test_every_check_is_shown_to_find_its_fault():
    shown = {check for _, check, _ in BROKEN} | {check for check, _, _ in FAULTS}
    assert shown == set(check_names()) - {ON_CUDA}


def test_a_refusal_that_names_the_module_is_fine(checked, tmp_path):
    error = "UnsupportedError(\"layer '1' is not covered\")"
    (tmp_path / "faulty.py").write_text(refusing("batch normalisation", error))
    assert checked("faulty", tmp_path / "faulty.py") == {}


def test_settings_can_be_set(checked, tmp_path):
    source = fit_that("1 / (not self.broken)") + "    broken: bool = True\n"
    (tmp_path / "faulty.py").write_text(source)
    assert list(checked("faulty", tmp_path / "faulty.py")) == ["fits and predicts"]
    assert checked("faulty", tmp_path / "faulty.py", "--set", "faulty.broken=false") == {}


def test_the_report_ends_with_a_summary(monkeypatch):
    done = CliRunner().invoke(main, ["check", "map", "--device", "cpu"])
    ok, skipped = len(check_names()) - 1, 1
    assert done.output.splitlines()[-1] == (
        f"map: {ok + skipped} checks: {ok} ok, 0 failed, {skipped} skipped"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["mapp"], "no method named 'mapp'. Did you mean 'map'?"),
        (["map", "--set", "map.x=1"], "map has no setting 'x'"),
        (["map", "--set", "nuqls.members=3"], "nuqls.members=3: the method that is checked is map"),
        (["map", "--device", "gpu"], "--device must be auto, cpu, cuda or cuda:INDEX, got 'gpu'"),
        (["map", "--device", "cuda:77"], "--device cuda:77: not available"),
        (["map", "--plugin", "nowhere.py"], "nowhere.py: no such file"),
        ([], "Missing argument 'METHOD'"),
    ],
)
def test_wrong_usage_is_one_line_and_status_2(arguments, message):
    done = CliRunner().invoke(main, ["check", *arguments], prog_name="uqbench")
    assert done.exit_code == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


def test_a_method_is_checked_from_python(monkeypatch):
    monkeypatch.setattr(registry, "_plugins", {})
    plugin = BROKEN_METHODS / "negative_variance.py"
    found = uqbench.check("negative_variance", plugins=[plugin], device="cpu")
    assert [result.check for result in found if result.status == "failed"] == [
        "predicts no negative variance"
    ]
    with pytest.raises(UsageError, match="no method named 'nothing'"):
        uqbench.check("nothing")
    with pytest.raises(UsageError, match="settings of map: map has no setting 'x'"):
        uqbench.check("map", settings={"x": 1})


def test_checking_a_method_leaves_the_process_as_it_was(checked, tmp_path):
    (tmp_path / "faulty.py").write_text(fit_that("torch.manual_seed(3)"))
    state, grad = torch.get_rng_state(), torch.is_grad_enabled()
    assert len(checked("faulty", tmp_path / "faulty.py")) == 1
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.is_grad_enabled() == grad


def test_what_a_posterior_keeps_of_the_first_batch_that_it_sees_is_found(checked, tmp_path):
    path = tmp_path / "faulty.py"
    path.write_text(
        class_with(
            "def fit(self, problem, data, network, context):",
            "    return Centred(super().fit(problem, data, network, context))",
        )
        + """

class Centred(Posterior):
    def __init__(self, inner):
        self.inner, self.shift = inner, None

    def predict(self, inputs):
        if self.shift is None:
            self.shift = inputs.mean()
        prediction = self.inner.predict(inputs)
        return replace(prediction, mean=prediction.mean + self.shift)
""".replace(
            "class Centred",
            "from dataclasses import replace\nfrom uqbench import Posterior\n\nclass Centred",
        )
    )
    failures = checked("faulty", path)
    assert list(failures) == ["predicts the same in one batch or in many"]
    assert "in batches of 2 first of all changes the mean" in failures.popitem()[1]
