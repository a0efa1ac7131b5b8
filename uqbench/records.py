"""Records: what one cell left, one line of JSON each in ``RUN/records.jsonl``.

The file is strict JSON. Numbers that JSON lacks are written as ``null`` (NaN), ``"inf"`` and
``"-inf"``; wherever a :class:`Record` holds a float they are read back as numbers.
"""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from uqbench.errors import DataError, UsageError

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
    training: Mapping[str, Any] = field(default_factory=dict)
    """The training recipe and all else of the problem that changes a trained network."""
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


FILE_NAME = "records.jsonl"


def encode(record: Record) -> str:
    """Return the record's line of JSON, without its newline."""
    return json.dumps(_jsonable(asdict(record)), allow_nan=False, separators=(",", ":"))


def decode(line: str | bytes, where: str = "record") -> Record:
    """Read a line of JSON; raise a :class:`DataError` that starts with ``where`` if it is none."""
    try:
        values = json.loads(line)
        schema = values["schema"]
        if schema > SCHEMA_VERSION:
            raise DataError(
                f"{where}: written by a newer uqbench (schema {schema}, this one reads up to "
                f"{SCHEMA_VERSION}). Upgrade uqbench."
            )
        return _record(values)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DataError(
            f"{where}: not a record ({type(error).__name__}: {error}). Remove the line, and run "
            "again to redo its cell."
        ) from None


class RecordFile:
    """The records of one run. Only the process that holds :meth:`locked` may append."""

    def __init__(self, run_dir: str | Path) -> None:
        self.path = Path(run_dir) / FILE_NAME

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other commands out of the run's folder, which is made if it does not exist."""
        from filelock import FileLock, Timeout

        lock = FileLock(self.path.with_name(f".{FILE_NAME}.lock"))
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            lock.acquire(timeout=0)
        except Timeout:
            folder = self.path.parent
            raise UsageError(
                f"{folder}: another run is writing to this folder. Wait until it ends, or give "
                "another --out."
            ) from None
        except OSError as error:
            raise UsageError(f"{self.path.parent}: cannot be written: {error.strerror}") from None
        try:
            yield
        finally:
            lock.release()

    def read(self) -> list[Record]:
        """Return the newest record of each key, in the order in which the keys first appear.

        A last line that was cut off while it was written is ignored. Raises :class:`DataError`,
        with file and line, if any other line is not a record.
        """
        whole, cut_off = self._lines()
        lines = whole + ([cut_off] if _is_json(cut_off) else [])
        records: dict[str, Record] = {}
        for number, line in enumerate(lines, start=1):
            if line.strip():
                record = decode(line, f"{self.path}: line {number}")
                records[record.key] = record
        return list(records.values())

    def append(self, record: Record) -> None:
        """Add one line and wait until it is on the disk."""
        self._mend()
        with self.path.open("ab") as file:
            file.write(encode(record).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def write_plan(self, keys: Iterable[str]) -> None:
        """Note which cells a command asked for, so that a part is not taken for the whole."""
        temporary = self._plan_path.with_suffix(".tmp")
        temporary.write_text(json.dumps(list(keys)), encoding="utf-8")
        os.replace(temporary, self._plan_path)

    def planned(self) -> list[str]:
        """Keys of the cells that the last command in this folder asked for."""
        try:
            return json.loads(self._plan_path.read_text(encoding="utf-8"))
        except (OSError, ValueError):  # a courtesy, which is never worth an error
            return []

    @property
    def _plan_path(self) -> Path:
        return self.path.with_name("plan.json")

    def _lines(self) -> tuple[list[bytes], bytes]:
        """Return the lines that end in a newline, and what follows the last newline."""
        try:
            *whole, cut_off = self.path.read_bytes().split(b"\n")
        except FileNotFoundError:
            return [], b""
        except OSError as error:
            raise DataError(f"{self.path}: cannot be read: {error.strerror}") from None
        return whole, cut_off

    def _mend(self) -> None:
        """End the last line if it lacks its newline only; cut it away if it is a fragment."""
        if not self.path.exists() or _ends_in_newline(self.path):
            return
        whole, cut_off = self._lines()
        with self.path.open("r+b") as file:
            if _is_json(cut_off):
                file.seek(0, os.SEEK_END)
                file.write(b"\n")
                return
            file.truncate(sum(len(line) + 1 for line in whole))
        logging.getLogger(__name__).warning(
            "%s: removed an incomplete last line (%d bytes) that an interrupted run left",
            self.path,
            len(cut_off),
        )


def _ends_in_newline(path: Path) -> bool:
    with path.open("rb") as file:
        if file.seek(0, os.SEEK_END) == 0:
            return True
        file.seek(-1, os.SEEK_END)
        return file.read() == b"\n"


def _is_json(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


def _jsonable(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    if isinstance(value, Mapping):
        return {str(key): _jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_jsonable(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if hasattr(value, "item"):  # a NumPy scalar
        return _jsonable(value.item())
    return str(value)


def _number(value: Any) -> Any:
    if value is None:
        return math.nan
    return float(value) if value in ("inf", "-inf") else value


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    return {key: _number(value) for key, value in values.items()}


def _record(values: dict[str, Any]) -> Record:
    identity, outcome, cost = (values.pop(part) for part in ("identity", "outcome", "cost"))
    for name in ("metrics", "tuned"):
        outcome[name] = _numbers(outcome[name])
    outcome["ood"] = {name: _numbers(metrics) for name, metrics in outcome["ood"].items()}
    outcome["class_names"] = tuple(outcome["class_names"])
    floats = {f.name for f in fields(Cost) if f.type == "float"}
    cost = {key: _number(value) if key in floats else value for key, value in cost.items()}
    identity["split"] = tuple(identity["split"])
    return Record(
        identity=Identity(**identity), outcome=Outcome(**outcome), cost=Cost(**cost), **values
    )
