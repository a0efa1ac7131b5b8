"""A starting point for a method of one's own: a file that works as it stands, and its test."""

from __future__ import annotations

import ast
import keyword
import re
import shlex
from importlib.util import find_spec
from pathlib import Path
from string import Template

from uqbench.errors import UsageError
from uqbench.registry import method_names

METHOD = Template('''\
"""$name: an ensemble around the trained network."""

import copy
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field, PositiveFloat
from uqbench import ClassificationMoments, Method, Posterior, RegressionPrediction, Task
from uqbench.networks import as_matrix


@dataclass(frozen=True)
class $class_name(Method):
    """Members with weights w(1 + scale z): w the trained network's, z ~ N(0, I).

    Regression: variance of y = variance over members + validation mean squared error.

    members: size of the ensemble. scale: relative standard deviation of the weights.
    """

    name: ClassVar[str] = "$name"

    members: Annotated[int, Field(ge=2)] = 10
    scale: PositiveFloat = 0.1

    def fit(self, problem, data, network, context):
        members = [self.perturbed(network, context) for _ in range(self.members)]
        posterior = ${class_name}Posterior(members, data.task)
        if data.task is Task.REGRESSION:
            with context.tuning(grid_size=1):
                mean = posterior.predict(data.validation.inputs).mean
                errors = mean - data.validation.targets
                posterior.noise_variance = errors.square().mean().item()
            posterior.tuned = {"noise": posterior.noise_variance**0.5}
        return posterior

    @torch.no_grad()
    def perturbed(self, network, context):
        member = copy.deepcopy(network)  # the given network must stay as it is
        for weight in member.parameters():
            like = {"device": weight.device, "dtype": weight.dtype}
            noise = torch.randn(weight.shape, generator=context.generator, **like)
            weight.mul_(1 + self.scale * noise)
        return member


class ${class_name}Posterior(Posterior):
    def __init__(self, members, task):
        self.members, self.task, self.noise_variance = members, task, 0.0
        self.forward_passes = len(members)

    @torch.no_grad()
    def predict(self, inputs):
        outputs = [as_matrix(member(inputs)) for member in self.members]
        outputs = torch.stack(outputs)  # (S, N, C)
        if self.task is Task.REGRESSION:
            mean, variance = outputs[..., 0].mean(0), outputs[..., 0].var(0)
            return RegressionPrediction(mean, variance + self.noise_variance)
        moments = ClassificationMoments()
        moments.update(outputs)
        return moments.prediction()
''')

TEST = Template('''\
"""$name keeps the contract, and computes what its definition says."""

from pathlib import Path

import pytest
import torch
import uqbench
from uqbench.registry import load_plugins

load_plugins([Path(__file__).with_name("$name.py")])


def test_the_contract_is_kept():
    results = uqbench.check("$name")
    assert not [result for result in results if result.status == "failed"]


def test_a_vanishing_scale_gives_the_network_itself():
    draws = torch.Generator().manual_seed(0)
    inputs = torch.randn(60, 2, generator=draws)
    targets = torch.randn(60, generator=draws)
    pairs = zip(inputs.split(20), targets.split(20), strict=True)
    splits = dict(zip(("train", "validation", "test"), pairs, strict=True))
    layers = torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)
    network = torch.nn.Sequential(*layers)
    seen = uqbench.evaluate("$name", network, **splits, settings={"scale": 1e-6})
    wanted = uqbench.evaluate("map", network, **splits)
    assert seen.metrics["nll"] == pytest.approx(wanted.metrics["nll"], rel=1e-3)
''')


def write_method(name: str, folder: str | Path = ".") -> tuple[Path, Path]:
    """Write ``NAME.py`` and ``test_NAME.py`` into ``folder``; return their paths.

    Raises UsageError for a name that a method cannot have, a folder that does not exist, and a
    file that does; then nothing is written.
    """
    folder = Path(folder)
    if not folder.is_dir():
        found = "is a file" if folder.exists() else "no such folder"
        raise UsageError(f"--dir {folder}: {found}; give a folder that exists")
    _check_identifier(name)
    files = folder / f"{name}.py", folder / f"test_{name}.py"
    for file in files:
        if file.exists():
            raise UsageError(f"{file}: exists already; choose another name or --dir")
    _check_free(name)
    words = {"name": name, "class_name": _class_name(name)}
    texts = [template.substitute(words) for template in (METHOD, TEST)]
    written = []
    try:
        for file, text in zip(files, texts, strict=True):
            with file.open("x", encoding="utf-8") as stream:
                written.append(file)
                stream.write(text)
    except BaseException:
        for file in written:
            file.unlink()
        raise
    return files


def next_steps(name: str, files: tuple[Path, Path]) -> list[str]:
    """What to do with the files, as lines with the commands."""
    method, test = (shlex.quote(str(file)) for file in files)
    plugin, out = f"--plugin {method}", f"--out runs/{name}"
    return [
        f"Wrote {method} and {test}. Change them, then",
        f"  check:    uqbench check {name} {plugin}",
        f"  run:      uqbench run --methods {name},map,nuqls {plugin} --seeds 5 {out}",
        f"  look:     uqbench leaderboard runs/{name}",
        f"  publish:  uqbench publish runs/{name} --to leaderboards --who YOU --methods {name}",
    ]


def _class_name(name: str) -> str:
    return "".join(word[:1].upper() + word[1:] for word in name.split("_"))


def _check_identifier(name: str) -> None:
    if not re.fullmatch(r"[A-Za-z]\w*", name) or not name.isidentifier():
        wanted = "letters, digits and underscores, a letter first"
        raise UsageError(f"'{name}' cannot be a method's name: it must be {wanted}, like my_method")
    imported = {
        alias.name
        for node in ast.walk(ast.parse(METHOD.substitute(name="name", class_name="Name")))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    for word in (name, _class_name(name)):
        if keyword.iskeyword(word) or word in imported:
            meaning = "a word of Python's" if keyword.iskeyword(word) else "a class of uqbench's"
            raise UsageError(f"'{name}' cannot be a method's name: {word} is {meaning}")


def _check_free(name: str) -> None:
    if name in method_names():
        raise UsageError(f"there is a method named '{name}'; choose another name")
    if find_spec(name) is not None:
        raise UsageError(f"{name}.py would hide the Python module '{name}'; choose another name")
