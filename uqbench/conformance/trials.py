"""Fits under observation: what a method predicts, and what it leaves changed behind it."""

from __future__ import annotations

import copy
import random
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from uqbench.conformance.tiny_problems import PLAIN, TinyProblem, tiny_problem
from uqbench.errors import UnsupportedError, UQBenchError, UsageError
from uqbench.evaluator import global_state_restored
from uqbench.method import Method, Posterior, Task
from uqbench.prediction import ClassificationPrediction, Prediction, require_valid

T = TypeVar("T")

Observations = Mapping[str, Mapping[str, Any]]
"""Aspect -> what was looked at -> its value."""


class MethodError(Exception):
    """A method raised ``error`` (None: it returned what is no posterior); the message is a line."""

    def __init__(self, message: str, error: BaseException | None = None) -> None:
        super().__init__(message)
        self.error = error

    @property
    def refusal(self) -> str | None:
        """The message of an error that refuses a network or a task on purpose."""
        refused = isinstance(self.error, UnsupportedError | UsageError)
        return str(self.error) if refused else None


@dataclass(frozen=True)
class Fitted:
    """A posterior, what it predicts at the problem's inputs, and what was changed meanwhile.

    changes: aspect (network, modes, process, randomness, data) -> the first change found.
    untouched: a copy of the posterior as ``fit`` returned it; None if it cannot be copied.
    """

    method: Method
    tiny: TinyProblem
    posterior: Posterior
    prediction: Prediction
    changes: Mapping[str, str]
    untouched: Posterior | None

    def predict(self, inputs: Tensor, posterior: Posterior | None = None) -> Prediction:
        """Return what the posterior, or a copy of it, predicts; raises as a run would."""
        posterior = posterior or self.posterior
        with global_state_restored():
            prediction = _called(self.method, "predict", lambda: posterior.predict(inputs))
        self.require_valid(prediction, len(inputs))
        return prediction

    def require_valid(self, prediction: Any, rows: int | None = None) -> None:
        """Raise ContractError or DivergenceError as a run would; rows: those of ``tiny.inputs``."""
        classes = self.posterior.classes or self.tiny.data.num_classes
        require_valid(prediction, len(self.tiny.inputs) if rows is None else rows, classes)

    @cached_property
    def moments(self) -> dict[str, Tensor]:
        """See :func:`moments`."""
        return moments(self.prediction)


def moments(prediction: Prediction) -> dict[str, Tensor]:
    """The moments that are defined, by name, in float64 on the CPU."""
    names = [field.name for field in fields(prediction)]
    if isinstance(prediction, ClassificationPrediction):
        names = names[:-1] if prediction.samples >= 2 else ["probabilities"]
    return {name: getattr(prediction, name).detach().double().cpu() for name in names}


class Trial:
    """One method on one task.

    cuda: the CUDA device to try, if any.
    """

    def __init__(self, method: Method, task: Task, cuda: str | None = None) -> None:
        self.method = method
        self.task = task
        self.cuda = cuda
        self._fits: dict[tuple[Any, ...], Fitted | MethodError] = {}

    def fit(
        self,
        architecture: str = PLAIN,
        *,
        seed: int = 0,
        dtype: str = "float64",
        device: str = "cpu",
        outside: int = 0,
        repeat: int = 0,
    ) -> Fitted:
        """Fit and predict, with the global generators seeded with ``outside``.

        Every fit is made once; another ``repeat`` is another fit. Raises MethodError.
        """
        key = (architecture, seed, dtype, device, outside, repeat)
        if key not in self._fits:
            tiny = tiny_problem(self.task, architecture, dtype, self.method.post_hoc)
            try:
                self._fits[key] = _observed_fit(self.method, tiny.copy_to(device), seed, outside)
            except MethodError as error:
                self._fits[key] = error
        found = self._fits[key]
        if isinstance(found, MethodError):
            raise found
        return found

    def fits_of(self, *architectures: str) -> Iterator[tuple[str, Fitted]]:
        """Yield the plain fit, and those to the given architectures that give valid predictions.

        Of these, fits that change a module's mode are left out: dropout and batch normalisation
        then misbehave for that reason.
        """
        yield PLAIN, self.fit()
        for architecture in architectures:
            try:
                fitted = self.fit(architecture)
                fitted.require_valid(fitted.prediction)
            except (MethodError, UQBenchError):  # the check of this architecture judges it
                continue
            if "modes" not in fitted.changes:
                yield architecture, fitted


def _observed_fit(method: Method, tiny: TinyProblem, seed: int, outside: int) -> Fitted:
    # what an import does to the process is not the method's doing
    _called(method, "import_libraries", method.import_libraries)
    with global_state_restored():
        torch.manual_seed(outside)
        np.random.seed(outside)  # noqa: NPY002
        random.seed(outside)
        context = tiny.context(seed)
        before = _observe(tiny)
        posterior = _called(
            method, "fit", lambda: method.fit(tiny.problem, tiny.data, tiny.network, context)
        )
        if not isinstance(posterior, Posterior):
            kind = type(posterior).__name__
            raise MethodError(f"fit must return a uqbench.Posterior, it returned {kind}")
        between = _observe(tiny)
        untouched = _copied(posterior)
        prediction = _called(method, "predict", lambda: posterior.predict(tiny.inputs))
        changes = _changes("predict", between, _observe(tiny)) | _changes("fit", before, between)
    return Fitted(method, tiny, posterior, prediction, changes, untouched)


def _copied(posterior: Posterior) -> Posterior | None:
    try:
        return copy.deepcopy(posterior)
    except Exception:  # the check of pickling judges it
        return None


def _called(method: Method, verb: str, call: Callable[[], T]) -> T:
    try:
        return call()
    except (Exception, SystemExit) as error:
        text = (str(error).strip().splitlines() or [""])[0]
        message = f"{verb} raised {type(error).__name__}: {text}".rstrip(": ")
        file = getattr(sys.modules.get(type(method).__module__), "__file__", None)
        frames = traceback.extract_tb(error.__traceback__)
        line = next((frame.lineno for frame in reversed(frames) if frame.filename == file), None)
        where = f" (line {line} of {Path(file).name})" if line else ""
        raise MethodError(message + where, error) from error


def _observe(tiny: TinyProblem) -> Observations:
    data = tiny.data
    return {
        "network": _contents(tiny.network),
        "modes": {
            f"mode of {_named(name)} (training)": module.training
            for name, module in tiny.network.named_modules()
        },
        "process": {
            "default dtype": torch.get_default_dtype(),
            "grad mode": torch.is_grad_enabled(),
            "number of threads": torch.get_num_threads(),
            "use of deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
            "precision of matrix products": torch.get_float32_matmul_precision(),
        },
        "randomness": _generator_states(),
        "data": {
            "training inputs": data.train.inputs.clone(),
            "training targets": data.train.targets.clone(),
            "validation inputs": data.validation.inputs.clone(),
            "validation targets": data.validation.targets.clone(),
            "inputs of predict": tiny.inputs.clone(),
            "requires_grad of the data": any(
                values.requires_grad
                for split in (data.train, data.validation)
                for values in (split.inputs, split.targets)
            ),
        },
    }


def _contents(network: nn.Module) -> dict[str, Any]:
    contents: dict[str, Any] = {}
    for name, module in network.named_modules():
        hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks)
        contents[f"class of {_named(name)}"] = type(module).__name__
        contents[f"number of hooks of {_named(name)}"] = sum(map(len, hooks))
    for name, parameter in network.named_parameters():
        gradient = parameter.grad
        contents[f"parameter '{name}'"] = parameter.detach().clone()
        contents[f"requires_grad of parameter '{name}'"] = parameter.requires_grad
        contents[f"grad of parameter '{name}'"] = None if gradient is None else gradient.clone()
    for name, buffer in network.named_buffers():
        contents[f"buffer '{name}'"] = buffer.clone()
    return contents


def _named(module: str) -> str:
    return f"module '{module}'" if module else "the network"


def _generator_states() -> dict[str, Any]:
    of_numpy = np.random.get_state(legacy=False)["state"]  # noqa: NPY002
    states = {
        "state of torch's global generator": torch.get_rng_state().numpy().tobytes(),
        "state of numpy's global generator": (of_numpy["key"].tobytes(), of_numpy["pos"]),
        "state of python's global generator": random.getstate(),
    }
    if torch.cuda.is_initialized():
        states["state of CUDA's global generators"] = [
            state.numpy().tobytes() for state in torch.cuda.get_rng_state_all()
        ]
    return states


def _changes(verb: str, before: Observations, after: Observations) -> dict[str, str]:
    """The first change in each aspect that has one."""
    changes = {}
    for aspect, values in after.items():
        for what in dict.fromkeys([*before[aspect], *values]):
            old, new = before[aspect].get(what), values.get(what)
            if not _equal(old, new):
                detail = "" if aspect == "randomness" else _difference(old, new)
                changes[aspect] = f"{verb} changed the {what}{detail}"
                break
    return changes


def _equal(old: Any, new: Any) -> bool:
    if isinstance(old, Tensor) and isinstance(new, Tensor):
        return torch.equal(old, new)
    return type(old) is type(new) and old == new


def _difference(old: Any, new: Any) -> str:
    tensors = [isinstance(value, Tensor) for value in (old, new)]
    if all(tensors) and old.shape == new.shape:
        return f" by up to {(new - old).abs().max().item():.2g}"
    return "" if any(tensors) else f" from {old} to {new}"
