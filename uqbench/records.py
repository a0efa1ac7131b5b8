"""Records: what one cell left, one line of JSON each in ``RUN/records.jsonl``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

SCHEMA_VERSION = 1
EVALUATOR_VERSION = 1
"""Raised whenever a metric changes its meaning; part of every cell's identity."""

Status = Literal["ok", "failed", "timeout", "oom", "crashed", "skipped"]


@dataclass(frozen=True)
class Identity:
    """What makes a cell this cell; its digest is the record's ``key``."""

    suite: str
    problem: str
    fingerprint: str
    split: tuple[float, float, float]
    network: Mapping[str, Any]
    map_checkpoint: str
    method: str
    settings: Mapping[str, Any]
    seed: int
    dtype: str
    quick: bool
    evaluator: int = EVALUATOR_VERSION


@dataclass(frozen=True)
class Outcome:
    """What the evaluation of a cell measured. Undefined metrics are NaN (null in the file).

    metrics: name -> number. ood: OoD set -> name -> number.
    tuned: values chosen on the validation split. grid_size: candidates tried.
    class_names: the labels behind class indices 0..C-1 (empty for regression).
    """

    metrics: Mapping[str, float] = field(default_factory=dict)
    ood: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    tuned: Mapping[str, float] = field(default_factory=dict)
    grid_size: int = 0
    sizes: Mapping[str, int] = field(default_factory=dict)
    class_names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Cost:
    """Wall-clock seconds, bytes and counts. ``predict_seconds`` is the median over ``repeats``."""

    map_seconds: float = float("nan")
    fit_seconds: float = float("nan")
    tune_seconds: float = float("nan")
    predict_seconds: float = float("nan")
    repeats: int = 0
    peak_device_bytes: int = 0
    peak_host_bytes: int = 0
    forward_passes: int = 0
    device: str = ""
    threads: int = 0
    timing_valid: bool = True


@dataclass(frozen=True)
class Record:
    """One line of ``records.jsonl``."""

    key: str
    identity: Identity
    status: Status
    outcome: Outcome = field(default_factory=Outcome)
    cost: Cost = field(default_factory=Cost)
    error_type: str = ""
    error_message: str = ""
    log: str = ""
    provenance: Mapping[str, Any] = field(default_factory=dict)
    schema: int = SCHEMA_VERSION
