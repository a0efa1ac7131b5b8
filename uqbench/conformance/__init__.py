"""Conformance: whether a method keeps the contract of :mod:`uqbench.method`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from uqbench.conformance.checks import (
    METHOD_CHECKS,
    TAGS,
    TRIAL_CHECKS,
    Check,
    Fault,
    NotApplicable,
)
from uqbench.conformance.trials import MethodError, Trial
from uqbench.errors import UQBenchError, UsageError
from uqbench.formatting import counted, printable, shortened
from uqbench.method import Method, Task
from uqbench.registry import Settings, build_method, load_plugins
from uqbench.worker import resolve_device

REASON_LENGTH = 300
SMALL = {"epochs": 3, "members": 4, "networks": 2, "random_features": 64, "samples": 10}
"""Settings that trials cut down to these values, by name."""
Outcome = tuple[Literal["ok", "failed", "skipped", "unjudged"], str]
"""A status, and the reason for it."""


@dataclass(frozen=True)
class CheckResult:
    """What one check said of a method.

    reason: of a failure (with the value seen and the value wanted) or of a skip, one line; else "".
    """

    check: str
    status: Literal["ok", "failed", "skipped"]
    reason: str = ""


def check(
    name: str,
    *,
    plugins: Iterable[str | Path] = (),
    device: str = "auto",
    settings: Mapping[str, Any] | None = None,
) -> list[CheckResult]:
    """Check that a method keeps the contract, on tiny problems; return one result per check.

    plugins: Python files that define methods. settings: of the method, in place of its defaults.
    device: ``auto`` checks on the CPU, and on a CUDA device where there is one; ``cpu`` on the CPU
    alone; ``cuda`` (or ``cuda:i``) on both.

    The trials are kept short: of settings that are not given, sizes (``SMALL``) are cut down, and
    grids to two values.

    Raises UsageError for an unknown name, setting or device.
    """
    load_plugins(plugins)
    layer = Settings(settings or {}, f"settings of {name}")
    return list(check_results(name, [layer], device))


def check_names() -> list[str]:
    """Names of all checks, in the order in which they are made."""
    return [check.name for check in (*METHOD_CHECKS, *TRIAL_CHECKS)]


def check_results(
    name: str, layers: Sequence[Mapping[str, Any]] = (), device: str = "auto"
) -> Iterator[CheckResult]:
    """Yield the results of :func:`check` as they come; ``layers`` of settings, later ones win."""
    resolved = resolve_device(device)
    cuda = None if resolved == "cpu" else resolved
    method = build_method(name, *layers)
    of_class = _Judge({})
    for check in METHOD_CHECKS:
        yield _result(check, of_class.outcome(check, name, method))
    small = _small(name, method, {setting for layer in layers for setting in layer})
    # with wrong tags no trial is made, whatever the task
    covered = [task for task in Task if TAGS in of_class.blames or task in method.tasks]
    trials = {task: Trial(small, task, cuda) for task in covered}
    judges = {task: _Judge(dict(of_class.blames)) for task in covered}
    for check in TRIAL_CHECKS:
        tasks = [task for task in covered if task in check.tasks]
        outcomes = {task: judges[task].outcome(check, trials[task]) for task in tasks}
        yield _result(check, _gravest(outcomes))


def _small(name: str, method: Method, given: Set[str]) -> Method:
    """The method with small sizes and short grids, but for what is ``given``."""
    settings = asdict(method)
    for setting, value in settings.items():
        if setting in given:
            continue
        if setting in SMALL and isinstance(value, int):
            settings[setting] = min(value, SMALL[setting])
        elif setting.endswith("_grid") and isinstance(value, tuple):
            settings[setting] = value[:: max(len(value) - 1, 1)]
    try:
        return build_method(name, settings)
    except UsageError:  # the settings depend on each other
        return method


def summary(name: str, results: Sequence[CheckResult]) -> str:
    """Say on one line how many checks passed."""
    counts = Counter(result.status for result in results)
    text = ", ".join(f"{counts[status]} {status}" for status in ("ok", "failed", "skipped"))
    return f"{name}: {counted(len(results), 'check')}: {text}"


class _Judge:
    """Makes checks, but none that needs one which failed.

    blames: check that failed or could not be made -> the check that failed.
    """

    def __init__(self, blames: dict[str, str]) -> None:
        self.blames = blames

    def outcome(self, check: Check, *arguments: Any) -> Outcome:
        for needed in check.needs:
            if needed in self.blames:
                self.blames[check.name] = self.blames[needed]
                return "unjudged", f"cannot be judged: '{self.blames[needed]}' failed"
        try:
            check.run(*arguments)
        except NotApplicable as reason:
            return "skipped", str(reason)
        except Exception as error:
            self.blames[check.name] = check.name
            known = isinstance(error, UQBenchError | Fault | MethodError)
            text = str(error) if known else f"{type(error).__name__}: {error}"
            return "failed", shortened(printable(text), REASON_LENGTH)
        return "ok", ""


def _gravest(outcomes: Mapping[Task, Outcome]) -> Outcome:
    """That of the task that fared worst; the reason names the task if another fared otherwise."""
    if not outcomes:
        return "skipped", "about a task that the method does not cover"
    order = ("failed", "unjudged", "ok", "skipped")
    task = min(outcomes, key=lambda task: order.index(outcomes[task][0]))
    status, reason = outcomes[task]
    differ = len(set(outcomes.values())) > 1
    return status, f"{task}: {reason}" if reason and differ else reason


def _result(check: Check, outcome: Outcome) -> CheckResult:
    status, reason = outcome
    return CheckResult(check.name, "skipped" if status == "unjudged" else status, reason)
