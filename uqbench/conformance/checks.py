"""The conformance checks: small functions, each of which finds one kind of fault.

A check looks at one trial (a method on one task). It passes if it returns, and fails by raising a
:class:`Fault` or whatever the method or the contract raises; :class:`NotApplicable` says that there
is nothing to check. The messages are reasons: one line, with the value seen and the value wanted.
"""

from __future__ import annotations

import json
import math
import pickle
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from uqbench.cells import parse_setting
from uqbench.conformance.tiny_problems import (
    BATCH_NORM,
    CLASSES,
    DROPOUT,
    PLAIN,
    UNUSUAL,
    Architecture,
)
from uqbench.conformance.trials import Fitted, MethodError, Trial, moments
from uqbench.evaluator import require_posterior
from uqbench.method import Method, Task
from uqbench.prediction import Prediction, concatenate
from uqbench.problems import load_suite
from uqbench.registry import build_method

ROUNDING = 1e-6
"""How far two computations of a moment in float64 may be apart, relative to its largest value: the
solution of an ill-conditioned linear system does not come out the same to the last digits."""
ROUGHLY = 0.1
"""How far means (of targets with variance about 1) and probabilities in two precisions may be
apart, root mean square over inputs."""
WITH_STATE = (BATCH_NORM, DROPOUT)
"""Architectures in which an input's prediction might depend on its batch or on the global state."""


class Fault(Exception):
    """What a check found."""


class NotApplicable(Exception):
    """Why there is nothing to check."""


@dataclass(frozen=True)
class Check:
    """A named check.

    needs: names of the checks without which this one cannot be judged.
    tasks: the tasks that it is about.
    """

    name: str
    run: Callable[..., None]
    needs: tuple[str, ...] = ()
    tasks: frozenset[Task] = frozenset(Task)


METHOD_CHECKS: list[Check] = []
"""Checks of a method's class and settings: ``run(name, method)``."""
TRIAL_CHECKS: list[Check] = []
"""Checks of a method on one task: ``run(trial)``."""


def _check(
    *needs: Callable, tasks: frozenset[Task] = frozenset(Task), among: list[Check] = TRIAL_CHECKS
) -> Callable[[Callable], Callable]:
    """Make a function a check, named as the function is."""

    def register(function: Callable) -> Callable:
        among.append(Check(_sentence(function), function, _sentences(needs), tasks))
        return function

    return register


def _sentence(function: Callable) -> str:
    return function.__name__.replace("_", " ")


def _sentences(functions: Iterable[Callable]) -> tuple[str, ...]:
    return tuple(map(_sentence, functions))


@_check(among=METHOD_CHECKS)
def declares_its_tags(name: str, method: Method) -> None:
    if not (isinstance(method.tasks, Set) and method.tasks and method.tasks <= set(Task)):
        raise Fault(f"tasks must be a frozenset of uqbench.Task, it is {method.tasks!r}")
    if not (isinstance(method.deterministic, Set) and method.deterministic <= method.tasks):
        raise Fault(f"deterministic must be a part of tasks, it is {method.deterministic!r}")
    if not isinstance(method.post_hoc, bool):
        raise Fault(f"post_hoc must be True or False, it is {method.post_hoc!r}")


@_check(declares_its_tags, among=METHOD_CHECKS)
def settings_survive_a_suite_file(name: str, method: Method) -> None:
    task = min(method.tasks)
    settings = {key: value for key, value in asdict(method).items() if value is not None}
    lines = [f"{key} = {toml_value(key, value)}" for key, value in settings.items()]
    head = f'[problems.p]\ndataset = "none"\ntask = "{task}"\n[problems.p.methods.{name}]'
    with TemporaryDirectory() as folder:
        path = Path(folder) / "suite.toml"
        path.write_text("\n".join([head, *lines]), encoding="utf-8")
        (problem,) = load_suite(str(path)).problems
    _require_settings(name, method, problem.methods[name])


@_check(settings_survive_a_suite_file, among=METHOD_CHECKS)
def settings_survive_the_command_line(name: str, method: Method) -> None:
    for key, value in asdict(method).items():
        if value is None:
            continue
        texts = [toml_value(key, value)]
        if isinstance(value, str) and value:
            texts.append(value)  # as people type it
        for text in texts:
            _, layer = parse_setting(f"{name}.{key}={text}")
            others = {k: v for k, v in asdict(method).items() if k != key}
            _require_settings(name, method, {**others, **layer})


def _require_settings(name: str, method: Method, written: Mapping[str, Any]) -> None:
    read, wanted = asdict(build_method(name, written)), asdict(method)
    for key, value in wanted.items():
        if read[key] != value:
            raise Fault(f"setting '{key}' = {value!r} comes back as {read[key]!r}")


def toml_value(key: str, value: Any) -> str:
    """Write a setting as a TOML literal, which has no null."""
    match value:
        case bool():
            return str(value).lower()
        case int() | float():
            return repr(value)
        case str():
            return json.dumps(str(value), ensure_ascii=False)
        case list() | tuple():
            return f"[{', '.join(toml_value(key, item) for item in value)}]"
        case Mapping():
            items = (f"{json.dumps(k)} = {toml_value(key, v)}" for k, v in value.items())
            return f"{{ {', '.join(items)} }}"
    raise Fault(f"setting '{key}': TOML has no {type(value).__name__}, it is {value!r}")


TAGS = _sentence(declares_its_tags)


@_check(declares_its_tags)
def fits_and_predicts(trial: Trial) -> None:
    trial.method.check_task(trial.task)
    try:
        trial.fit()
    except MethodError as error:
        hint = "" if error.refusal is None else f"; if it must, leave {trial.task} out of tasks"
        raise Fault(f"{error}{hint}") from None


# The four checks of validity ask the evaluator's own judge, each about one thing: what the others
# are about is replaced by harmless values.


@_check(fits_and_predicts)
def predicts_moments_of_the_right_shape(trial: Trial) -> None:
    _require_valid(trial.fit(), lambda name, values: _harmless(values))


@_check(predicts_moments_of_the_right_shape)
def predicts_finite_values(trial: Trial) -> None:
    _require_valid(
        trial.fit(), lambda name, values: torch.where(values.isfinite(), _harmless(values), values)
    )


@_check(predicts_finite_values, tasks=frozenset({Task.CLASSIFICATION}))
def predicts_probabilities_that_sum_to_1(trial: Trial) -> None:
    _require_valid(
        trial.fit(), lambda name, values: values if name == "probabilities" else _harmless(values)
    )


@_check(predicts_finite_values)
def predicts_no_negative_variance(trial: Trial) -> None:
    _require_valid(
        trial.fit(), lambda name, values: values if "variance" in name else _harmless(values)
    )


VALID = (
    predicts_moments_of_the_right_shape,
    predicts_finite_values,
    predicts_probabilities_that_sum_to_1,
    predicts_no_negative_variance,
)


def _require_valid(fitted: Fitted, repaired: Callable[[str, Tensor], Tensor]) -> None:
    prediction = fitted.prediction
    if isinstance(prediction, Prediction):
        values = {field.name: getattr(prediction, field.name) for field in fields(prediction)}
        tensors = {name: value for name, value in values.items() if isinstance(value, Tensor)}
        prediction = replace(prediction, **{n: repaired(n, v) for n, v in tensors.items()})
    fitted.require_valid(prediction)


def _harmless(values: Tensor) -> Tensor:
    """Values that are finite, positive, and sum to 1 along the last axis."""
    return torch.full_like(values, 1 / max(values.shape[-1:].numel(), 1))


@_check(fits_and_predicts)
def reports_finite_numbers(trial: Trial) -> None:
    posterior = trial.fit().posterior
    require_posterior(posterior)
    for name, value in posterior.tuned.items():
        if not math.isfinite(float(value)):
            raise Fault(f"tuned['{name}'] must be finite, it is {value}")


@_check(fits_and_predicts)
def leaves_the_modes_of_modules_alone(trial: Trial) -> None:
    _require_unchanged(trial, "modes")


@_check(fits_and_predicts)
def leaves_the_network_alone(trial: Trial) -> None:
    _require_unchanged(trial, "network")


@_check(fits_and_predicts)
def leaves_the_data_alone(trial: Trial) -> None:
    _require_unchanged(trial, "data")


@_check(fits_and_predicts)
def leaves_default_dtype_and_grad_mode_alone(trial: Trial) -> None:
    _require_unchanged(trial, "process")


def _require_unchanged(trial: Trial, aspect: str) -> None:
    for architecture, fitted in trial.fits_of(*WITH_STATE):
        if aspect in fitted.changes:
            raise Fault(f"{fitted.changes[aspect]}{_on(architecture)}")


def _on(architecture: str) -> str:
    return "" if architecture == PLAIN else f" (network with {architecture})"


@_check(predicts_moments_of_the_right_shape)
def repeats_itself_with_the_same_seed(trial: Trial) -> None:
    _require_same(trial.fit(), trial.fit(repeat=1), "the second fit with the same seed")


@_check(repeats_itself_with_the_same_seed)
def draws_from_the_generator_of_the_context_alone(trial: Trial) -> None:
    _require_unchanged(trial, "randomness")
    for architecture, fitted in trial.fits_of(DROPOUT):
        other = trial.fit(architecture, outside=1)
        _require_same(fitted, other, f"another torch.manual_seed before fit{_on(architecture)}")


def _require_same(fitted: Fitted, other: Fitted, occasion: str) -> None:
    """Identical numbers."""
    _require_close(fitted.moments, other.moments, 0.0, occasion)


def _require_close(
    wanted: dict[str, Tensor], seen: dict[str, Tensor], tolerance: float, occasion: str
) -> None:
    """Moments within ``tolerance`` times their largest value; the fault names the worst."""
    for name, values in wanted.items():
        gap = (seen[name] - values).abs()
        if gap.max() > tolerance * values.abs().max():
            worst = gap.argmax()
            a, b = values.view(-1)[worst].item(), seen[name].view(-1)[worst].item()
            raise Fault(f"{occasion} changes the {name}: {b:.6g} instead of {a:.6g}")


SEEDS = (repeats_itself_with_the_same_seed, draws_from_the_generator_of_the_context_alone)


@_check(*SEEDS)
def depends_on_the_seed_unless_declared_deterministic(trial: Trial) -> None:
    first, other = trial.fit(), trial.fit(seed=1)
    if trial.task in trial.method.deterministic:
        _require_same(first, other, "another seed, of which it is declared independent,")
    elif all(torch.equal(first.moments[name], other.moments[name]) for name in first.moments):
        raise Fault(
            "seeds 0 and 1 give the same numbers: draw from context.generator, or declare "
            f"{trial.task} in deterministic"
        )


@_check(*VALID, draws_from_the_generator_of_the_context_alone)
def predicts_the_same_in_one_batch_or_in_many(trial: Trial) -> None:
    for architecture, fitted in trial.fits_of(*WITH_STATE):
        inputs, wanted = fitted.tiny.inputs, fitted.moments
        backwards = torch.arange(len(inputs) - 1, -1, -1, device=inputs.device)
        ways = {
            "a second call of predict": [inputs],
            "predicting in batches of 2": inputs.split(2),
            "predicting one row at a time": inputs.split(1),
            "predicting the rows in reverse": [inputs[backwards]],
        }
        for way, batches in ways.items():
            seen = moments(concatenate(map(fitted.predict, batches), len(inputs)))
            if way.endswith("reverse"):
                seen = {name: values[backwards.cpu()] for name, values in seen.items()}
            _require_close(wanted, seen, ROUNDING, way + _on(architecture))
        if fitted.untouched is not None:  # what it keeps of its first batch would show
            batches = (fitted.predict(batch, fitted.untouched) for batch in inputs.split(2))
            occasion = f"predicting in batches of 2 first of all{_on(architecture)}"
            _require_close(wanted, moments(concatenate(batches, len(inputs))), ROUNDING, occasion)


@_check(predicts_the_same_in_one_batch_or_in_many)
def predicts_the_same_after_pickling(trial: Trial) -> None:
    fitted = trial.fit()
    try:
        copied = pickle.loads(pickle.dumps(fitted.posterior))
    except Exception as error:
        raise Fault(f"the posterior cannot be pickled: {type(error).__name__}: {error}") from None
    seen = moments(fitted.predict(fitted.tiny.inputs, copied))
    _require_close(fitted.moments, seen, ROUNDING, "pickling the posterior")


@_check(*VALID, *SEEDS)
def works_in_float32_as_in_float64(trial: Trial) -> None:
    _require_roughly_equal(trial, trial.fit(dtype="float32"), "float32", "float64")


@_check(*VALID, *SEEDS)
def works_on_cuda_as_on_the_cpu(trial: Trial) -> None:
    if trial.cuda is None:
        raise NotApplicable("no CUDA device")
    on_cuda = trial.fit(device=trial.cuda)
    _require_roughly_equal(trial, on_cuda, "CUDA", "the CPU")
    if on_cuda.changes:
        raise Fault(f"on CUDA {next(iter(on_cuda.changes.values()))}")


def _require_roughly_equal(trial: Trial, other: Fitted, there: str, here: str) -> None:
    """Means or probabilities as far apart as rounding or other draws may take them.

    Draws differ between dtypes and devices; by how much that matters, another seed tells.
    """
    other.require_valid(other.prediction)
    name = "mean" if trial.task is Task.REGRESSION else "probabilities"
    first = trial.fit().moments[name]
    seeds = _distance(trial.fit(seed=1).moments[name], first)
    seen, allowed = _distance(other.moments[name], first), ROUGHLY + 3 * seeds
    if seen > allowed:
        raise Fault(
            f"{name} on {there} and on {here} are {seen:.2g} apart (root mean square), at most "
            f"{allowed:.2g} is wanted"
        )


def _distance(a: Tensor, b: Tensor) -> float:
    return (a - b).square().mean().sqrt().item()


def _covers_or_refuses(architecture: Architecture) -> Check:
    def run(trial: Trial) -> None:
        try:
            fitted = trial.fit(architecture.name)
        except MethodError as error:
            if error.refusal is None:
                raise Fault(f"{error}; cover it, or raise UnsupportedError") from None
            _require_clear(error.refusal, architecture)
        else:
            fitted.require_valid(fitted.prediction)

    return Check(f"covers or refuses {architecture.name}", run, _sentences(VALID))


def _require_clear(message: str, architecture: Architecture) -> None:
    lines = message.strip().count("\n") + 1
    if lines > 2:
        raise Fault(f"a refusal must be at most two lines, it has {lines}: {message}")
    named = [f"'{name}'" for name, _ in architecture.build(CLASSES).named_modules() if name]
    if not any(word.lower() in message.lower() for word in (*architecture.words, *named)):
        wanted = f"{architecture.words[0]}, or the module's name"
        raise Fault(f"a refusal must name what it refuses ({wanted}), it says: {message}")


TRIAL_CHECKS += [_covers_or_refuses(architecture) for architecture in UNUSUAL]
