"""Cells: the units that run, fail and resume; and the plan that a request expands to."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from uqbench.errors import UsageError
from uqbench.problems import (
    Problem,
    data_fingerprint,
    defining_suites,
    digest,
    load_suite,
    network_sides,
)
from uqbench.records import Identity
from uqbench.registry import (
    Settings,
    build_method,
    check_method_name,
    find_method,
    method_names,
    method_source,
)
from uqbench.suggestions import did_you_mean

MAP_VERSION = 1
"""Raised whenever the training of the MAP network changes; part of its checkpoint's name."""

DEFAULT_SUITE = "starter"


@dataclass(frozen=True)
class Request:
    """What somebody asked for, before any of it is looked up."""

    methods: tuple[str, ...]
    suite: str | None = None
    problems: tuple[str, ...] = ()
    seeds: int = 3
    settings: tuple[tuple[str, Settings], ...] = ()
    quick: bool = False
    data_dir: Path | None = None
    data: Path | None = None
    target: str | None = None
    task: str | None = None
    images: Path | None = None
    ood: tuple[str, ...] = ()
    image_size: int | None = None


@dataclass(frozen=True)
class Cell:
    """One method, with all its settings, on one problem with one seed.

    map_checkpoint: id of the MAP network that the method starts from, "" if it trains its own.
    method_source: whose code the method was when the cell was planned. It is no part of the
    identity, so that an edit of a plug-in file does not hide the results that are there.
    """

    suite: str
    problem: Problem
    method: str
    settings: Mapping[str, Any]
    seed: int
    quick: bool
    fingerprint: str
    map_checkpoint: str
    method_source: str = ""

    def identity(self) -> Identity:
        """All that makes this cell this cell, in plain JSON values."""
        training = _training_identity(self.problem)
        for held_elsewhere in ("name", "network", "split", "dtype"):
            training.pop(held_elsewhere, None)
        return Identity(
            suite=self.suite,
            problem=self.problem.name,
            fingerprint=self.fingerprint,
            split=() if self.problem.of_images else self.problem.split,
            network=_plain(self.problem.network.identity()),
            map_checkpoint=self.map_checkpoint,
            method=self.method,
            settings=_plain(self.settings),
            seed=self.seed,
            dtype=self.problem.dtype,
            quick=self.quick,
            training=training,
        )

    @cached_property
    def key(self) -> str:
        """Digest of the identity."""
        return digest(asdict(self.identity()))

    def __str__(self) -> str:
        return f"{self.problem.name} {self.method} seed {self.seed}"


def parse_setting(text: str) -> tuple[str, Settings]:
    """Read ``METHOD.SETTING=VALUE``; the value is a TOML literal, or else a plain string."""
    found = re.fullmatch(r"\s*([\w-]+)\.([\w.-]+)\s*=\s*(.*\S)\s*", text, re.DOTALL)
    if not found:
        raise UsageError(f"--set {text}: must be METHOD.SETTING=VALUE, like nuqls.gamma=0.1")
    method, setting, value = found.groups()
    try:
        parsed = tomllib.loads(f"value = {value}")
    except tomllib.TOMLDecodeError:
        parsed = {"value": value}
    # A value with a newline could hold more than the one key
    literal = parsed["value"] if len(parsed) == 1 else value
    return method, Settings({setting: literal}, f"--set {text}")


def plan(request: Request) -> list[Cell]:
    """Expand a request to cells in the order problem, seed, method.

    Cells that share a MAP network are neighbours. Names, settings and data are all checked before
    this returns; nothing is trained or written.
    """
    methods = _method_names(request)
    if request.seeds < 1:
        raise UsageError(f"--seeds must be at least 1, got {request.seeds}")
    problems = [
        (suite, problem.quick() if request.quick else problem)
        for suite, problem in _problems(request)
    ]
    for suite, problem in problems:
        _require_known_methods(suite, problem)
    settings = {
        (problem.name, method): _settings(request, suite, problem, method)
        for suite, problem in problems
        for method in methods
    }
    sources = {method: method_source(method) for method in methods}
    if any(problem.of_images for _, problem in problems):
        from uqbench.datasets.image_problems import image_memory

        image_memory()  # what is wrong with its variable is wrong for every cell
    cells = []
    for suite, problem in problems:
        for seed in range(request.seeds):
            fingerprint = _fingerprint(request, suite, problem, seed)
            if seed == 0:
                _check_weights(request, problem)
            checkpoint = _map_checkpoint(request, problem, fingerprint, seed)
            for method in methods:
                cells.append(
                    Cell(
                        suite=suite,
                        problem=problem,
                        method=method,
                        settings=settings[problem.name, method],
                        seed=seed,
                        quick=request.quick,
                        fingerprint=fingerprint,
                        map_checkpoint=checkpoint if find_method(method).post_hoc else "",
                        method_source=sources[method],
                    )
                )
    return cells


def _method_names(request: Request) -> list[str]:
    names = list(dict.fromkeys(request.methods))
    if not names:
        raise UsageError("no methods given: name some with --methods, like --methods nuqls,de,lla")
    for name in names:
        check_method_name(name)
    for method, settings in request.settings:
        if method not in names:
            check_method_name(method)
            raise UsageError(f"{settings.source}: {method} is not among --methods")
    return names


def _require_known_methods(suite: str, problem: Problem) -> None:
    """Raise if a problem has settings for a method that does not exist: they would do nothing."""
    known = method_names()
    for name in problem.methods:
        if name not in known:
            raise UsageError(
                f"{_place(suite, problem)}.methods: no method named '{name}'."
                f"{did_you_mean(name, known)} (A method of a file needs --plugin FILE.py.)"
            )


def _place(suite: str, problem: Problem) -> str:
    return f'suite {suite}: problems."{problem.name}"'


def _settings(request: Request, suite: str, problem: Problem, method: str) -> dict[str, Any]:
    table = problem.methods.get(method, {})
    layers = [Settings(table, f"{_place(suite, problem)}.methods.{method}")]
    layers += [settings for name, settings in request.settings if name == method]
    built = build_method(method, *layers)
    if problem.task in built.tasks:
        try:
            built.check_task(problem.task)
        except Exception as error:
            place = layers[-1].source if layers[-1] else f"method '{method}'"
            raise UsageError(f"{place}: {error} (on {problem.name})") from None
    return asdict(built)


def _problems(request: Request) -> list[tuple[str, Problem]]:
    """Return the problems asked for, each with the name of its suite."""
    if request.data is not None or request.images is not None:
        return [_own_problem(request)]
    if request.suite is None and request.problems:
        homes = defining_suites()
        chosen = []
        for name in dict.fromkeys(request.problems):
            if name not in homes:
                raise UsageError(f"no problem named '{name}'.{did_you_mean(name, homes)}")
            chosen.append((homes[name], _pick(homes[name], [name])[0]))
    else:
        suite = request.suite or DEFAULT_SUITE
        chosen = [(Path(suite).stem, problem) for problem in _pick(suite, request.problems)]
    return [(suite, _with_ood(problem, request.ood)) for suite, problem in chosen]


def _with_ood(problem: Problem, ood: Sequence[str]) -> Problem:
    """The problem with the OoD sets of ``--ood`` in place of its own, if any are given."""
    if not ood:
        return problem
    if not problem.of_images:
        raise UsageError(f"--ood is for problems of images, which {problem.name} is not")
    from uqbench.own_images import ood_name

    description = f"{problem.description}; here OoD: {', '.join(ood)}"
    return replace(problem, ood=tuple(map(ood_name, ood)), description=description)


def _own_problem(request: Request) -> tuple[str, Problem]:
    """Return the problem that somebody's own data makes; it is a suite of its own."""
    if request.images is not None:
        from uqbench.own_images import own_images_problem

        problem = own_images_problem(request.images, request.ood, request.image_size)
        return problem.name, problem
    from uqbench.datasets.catalogue import FILE_PREFIX, load_table
    from uqbench.own_data import own_table_problem

    dataset = f"{FILE_PREFIX}{request.data}"
    table = load_table(dataset, target=request.target, task=request.task)
    problem = own_table_problem(request.data, request.target, table)
    return problem.name, problem


def _pick(suite: str, names: Sequence[str]) -> list[Problem]:
    problems = {problem.name: problem for problem in load_suite(suite).problems}
    for name in names:
        if name not in problems:
            hint = did_you_mean(name, problems)
            raise UsageError(f"suite '{suite}' has no problem named '{name}'.{hint}")
    return [problems[name] for name in dict.fromkeys(names or problems)]


def _fingerprint(request: Request, suite: str, problem: Problem, seed: int) -> str:
    try:
        return data_fingerprint(problem, seed, request.data_dir)
    except UsageError as error:
        raise UsageError(f"{_place(suite, problem)}: {error}") from None


def _check_weights(request: Request, problem: Problem) -> None:
    """Raise if the problem's network is given and its file is not there or does not fit."""
    if problem.network.weights is not None:
        from uqbench.checkpoints import check_given
        from uqbench.datasets.root import data_root

        shape, outputs = network_sides(problem, 0, request.data_dir)
        check_given(problem.network, shape, outputs, data_root(request.data_dir))


def _map_checkpoint(request: Request, problem: Problem, fingerprint: str, seed: int) -> str:
    """The id of the MAP network; that of given weights depends on the content of their file."""
    if problem.network.weights is not None:
        from uqbench.checkpoints import given_id
        from uqbench.datasets.root import data_root

        return given_id(problem.network.weights, data_root(request.data_dir))
    return digest([MAP_VERSION, _training_identity(problem), fingerprint, seed])


def _training_identity(problem: Problem) -> dict[str, Any]:
    identity = _plain(problem.training_identity())
    del identity["dataset"]  # the fingerprint says which data; a file may move
    return identity


def _plain(value: Any) -> Any:
    """Return the value as JSON would read it back: lists for tuples, strings for paths."""
    return json.loads(json.dumps(value, default=str))
