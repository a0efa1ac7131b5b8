"""The ``uqbench run`` commands that ask for the cells of records again."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cache
from typing import TYPE_CHECKING, Any

from uqbench.boards import unrotated
from uqbench.errors import UQBenchError
from uqbench.formatting import compact_json
from uqbench.records import Identity, Record

if TYPE_CHECKING:
    from uqbench.problems import Problem

_Changes = Mapping[str, Any]


def run_commands(records: Sequence[Record]) -> list[str]:
    """Return commands that ask for the records' cells, and for no more.

    Settings and OoD sets are named where they differ from those that the suite gives now. Lines
    that begin with ``#`` say what a command lacks: a method's plugin, or data of one's own.
    """
    asked: dict[tuple[str, tuple[str, ...], bool, int, str], list[str]] = {}
    for (suite, problem, ood, quick), group in _by_problem(records).items():
        for seeds, methods in _variants(group):
            text = compact_json(methods)
            asked.setdefault((suite, ood, quick, seeds, text), []).append(problem)
    lines = []
    for (suite, ood, quick, seeds, text), problems in asked.items():
        methods = json.loads(text)
        words = ["uqbench", "run", "--methods", ",".join(methods)]
        words += _problem_words(suite, problems)
        words += [word for name in ood for word in ("--ood", name)]
        words += ["--seeds", str(seeds)]
        for method, changes in methods.items():
            for name, value in changes.items():
                words += ["--set", f"{method}.{name}={_toml(value)}"]
        lines.append(shlex.join(words + ["--quick"] * quick))
        lines += _remarks(suite, problems, methods)
    return list(dict.fromkeys(lines))


def _by_problem(
    records: Sequence[Record],
) -> dict[tuple[str, str, tuple[str, ...], bool], list[Identity]]:
    """Identities by suite, problem, OoD sets to be named, and whether the run was quick."""
    ood_sets = {
        (record.identity.problem, record.identity.fingerprint): _other_ood_sets(record)
        for record in records
        if record.status == "ok"
    }
    groups: dict[tuple[str, str, tuple[str, ...], bool], list[Identity]] = {}
    for record in records:
        one = record.identity
        ood = ood_sets.get((one.problem, one.fingerprint), ())
        groups.setdefault((one.suite, one.problem, ood, one.quick), []).append(one)
    return groups


def _other_ood_sets(record: Record) -> tuple[str, ...]:
    """The OoD sets of a problem of images, if they are not those of its suite."""
    problem = _problem(record.identity.suite, record.identity.problem)
    if problem is None or not problem.ood:
        return ()
    found = dict.fromkeys(unrotated(name) or name for name in record.outcome.ood)
    return () if set(found) == set(problem.ood) else tuple(found)


def _variants(cells: Sequence[Identity]) -> list[tuple[int, dict[str, _Changes]]]:
    """Return (seeds, method -> changed settings); a method is once in each.

    A command runs the seeds from 0 on, so the highest says how many.
    """
    seeds: dict[tuple[str, str], int] = {}
    for one in cells:
        key = one.method, compact_json(_changes(one))
        seeds[key] = max(seeds.get(key, 0), one.seed + 1)
    found: list[tuple[int, dict[str, _Changes]]] = []
    for (method, changes), number in seeds.items():
        place = next((m for n, m in found if n == number and method not in m), None)
        if place is None:
            found.append((number, place := {}))
        place[method] = json.loads(changes)
    return found


def _changes(one: Identity) -> _Changes:
    """The settings that differ from those of the method on this problem of this suite."""
    from uqbench.registry import Settings, build_method

    problem = _problem(one.suite, one.problem)
    table = problem.methods.get(one.method, {}) if problem is not None else {}
    try:
        usual = asdict(build_method(one.method, Settings(table, one.suite)))
    except UQBenchError:  # a plugin's, or settings that are no longer there
        usual = {}
    return {
        name: value
        for name, value in one.settings.items()
        if value is not None
        and (name not in usual or compact_json(usual[name]) != compact_json(value))
    }


def _problem(suite: str, name: str) -> Problem | None:
    return _problems(suite).get(name)


@cache
def _problems(suite: str) -> dict[str, Problem]:
    from uqbench.problems import load_suite, suite_names

    if suite not in suite_names():
        return {}
    return {problem.name: problem for problem in load_suite(suite).problems}


def _problem_words(suite: str, problems: Sequence[str]) -> list[str]:
    if all(_problem(suite, name) is None for name in problems):
        return ["--data", "FILE", "--target", "COLUMN"]
    return ["--suite", suite, "--problems", ",".join(problems)]


def _remarks(suite: str, problems: Sequence[str], methods: Mapping[str, Any]) -> list[str]:
    from uqbench.registry import method_names

    unknown = [name for name in methods if name not in method_names()]
    remarks = [f"# {name} is not installed: add --plugin FILE.py" for name in unknown]
    remarks += [
        f"# {name} is not a problem of an installed suite: name its suite's file, or its own data "
        "(--data FILE --target COLUMN, or --images FOLDER)"
        for name in problems
        if _problem(suite, name) is None
    ]
    return [" ".join(line.split()) for line in remarks]


def _toml(value: Any) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else f"{value}"
    return json.dumps(value)
