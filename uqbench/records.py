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
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args

from uqbench.errors import DataError, UsageError
from uqbench.replacement import replacement

SCHEMA_VERSION = 3
"""Raised whenever records get a field that older versions refuse: 2 brought ``ood_conversions``,
3 ``streamed``. In ``provenance`` any are read."""
EVALUATOR_VERSION = 1
"""Raised whenever a metric changes its meaning; part of every cell's identity."""

Status = Literal["ok", "failed", "timeout", "oom", "crashed", "skipped"]
STATUSES = get_args(Status)


@dataclass(frozen=True)
class Identity:
    """What makes a cell this cell; its digest is the record's ``key``.

    split: fractions of a table; empty for images, whose parts are official.
    """

    suite: str
    problem: str
    fingerprint: str
    split: tuple[float, ...]
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
    sizes: rows of each part and OoD set; ``timed``: of the test rows whose prediction was timed, if
    they are not all.
    ood_conversions: OoD set -> what was done to make its images fit; absent where nothing was.
    streamed: the parts that did not fit in memory and were read while they were used, which the
    times to train, fit and tune include.
    """

    metrics: Mapping[str, float] = field(default_factory=dict)
    ood: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    tuned: Mapping[str, float] = field(default_factory=dict)
    grid_size: int = 0
    sizes: Mapping[str, int] = field(default_factory=dict)
    class_names: tuple[str, ...] = ()
    ood_conversions: Mapping[str, str] = field(default_factory=dict)
    streamed: tuple[str, ...] = ()


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
    """One line of ``records.jsonl``.

    provenance: :func:`uqbench.provenance.environment`, ``method_source``, and when it ``started``.
    """

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

    @property
    def method_source(self) -> str:
        """As :func:`uqbench.registry.method_source`; empty in records that were made before it."""
        return str(self.provenance.get("method_source") or "")


FILE_NAME = "records.jsonl"


def encode(record: Record) -> str:
    """Return the record's line of JSON, without its newline."""
    return json.dumps(_jsonable(asdict(record)), allow_nan=False, separators=(",", ":"))


def decode(line: str | bytes, where: str = "record") -> Record:
    """Read a line of JSON; raise a :class:`DataError` that starts with ``where`` if it is none."""
    try:
        values = json.loads(line)
        _require(isinstance(values, dict), "not an object")
        schema = values.get("schema")
        _require(_is("int", schema), f"schema is {schema!r}")
        if schema > SCHEMA_VERSION:
            raise DataError(
                f"{where}: written by a newer uqbench (schema {schema}, this one reads up to "
                f"{SCHEMA_VERSION}). Upgrade uqbench."
            )
        return _record(values)
    except ValueError as error:
        raise DataError(
            f"{where}: not a record ({error}). Remove the line, and run again to redo its cell."
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
        try:
            self._mend()
            with self.path.open("ab") as file:
                file.write(encode(record).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise DataError(
                f"{self.path}: cannot be written: {error.strerror}. Finished cells are kept; the "
                "same command runs the others."
            ) from None

    def write_plan(self, keys: Iterable[str]) -> None:
        """Note which cells a command asked for, so that a part is not taken for the whole."""
        with replacement(self._plan_path) as file:
            file.write(json.dumps(list(keys)).encode())

    def planned(self) -> list[str]:
        """Keys of the cells that the last command in this folder asked for."""
        try:
            keys = json.loads(self._plan_path.read_text(encoding="utf-8"))
        except (OSError, ValueError):  # a courtesy, which is never worth an error
            return []
        return [key for key in keys if isinstance(key, str)] if isinstance(keys, list) else []

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


def _record(values: dict[str, Any]) -> Record:
    """Build a record from parsed JSON; a ValueError names the first value of a wrong type."""
    parts = {"identity": Identity, "outcome": Outcome, "cost": Cost}
    built = {name: _built(kind, values.pop(name, None), f"{name}.") for name, kind in parts.items()}
    record = _built(Record, {**values, **built})
    _require(record.status in STATUSES, f"status is {record.status!r}")
    return record


def _built(kind: type, values: Any, place: str = "") -> Any:
    _require(isinstance(values, dict), f"{place.rstrip('.')} is missing or not an object")
    known = {field.name: field for field in fields(kind)}
    for name in values:
        _require(name in known, f"{place}{name} is unknown")
    checked = {}
    for name, field_ in known.items():
        if name not in values:
            required = field_.default is MISSING and field_.default_factory is MISSING
            _require(not required, f"{place}{name} is missing")
            continue
        value = _read_back(field_.type, values[name])
        _require(_is(field_.type, value), f"{place}{name} is {values[name]!r:.80}")
        checked[name] = value
    return kind(**checked)


def _read_back(kind: str, value: Any) -> Any:
    """Undo what JSON makes of tuples, NaN and infinities."""
    if kind == "float":
        if value is None:
            return math.nan
        return float(value) if value in ("inf", "-inf") else value
    if kind in (_FLOATS, _FLOATS_BY_SET) and isinstance(value, dict):
        inner = "float" if kind == _FLOATS else _FLOATS
        return {key: _read_back(inner, item) for key, item in value.items()}
    return tuple(value) if kind.startswith("tuple") and isinstance(value, list) else value


_FLOATS = "Mapping[str, float]"
_FLOATS_BY_SET = "Mapping[str, Mapping[str, float]]"
_TYPES = {"str": str, "int": int, "bool": bool, "float": (int, float), "Status": str}
_ITEMS = {
    "tuple[float, ...]": "float",
    "tuple[str, ...]": "str",
    _FLOATS: "float",
    _FLOATS_BY_SET: _FLOATS,
    "Mapping[str, int]": "int",
    "Mapping[str, str]": "str",
}


def _is(kind: str, value: Any) -> bool:
    """Whether a value has the type that a field's annotation names."""
    if kind in _TYPES:
        return isinstance(value, _TYPES[kind]) and (kind == "bool") == isinstance(value, bool)
    if kind in _ITEMS:
        items = value.values() if isinstance(value, dict) else value
        container = dict if kind.startswith("Mapping") else tuple
        return isinstance(value, container) and all(_is(_ITEMS[kind], item) for item in items)
    if kind.startswith("Mapping"):
        return isinstance(value, Mapping)
    return True  # a part that is built already


def _require(condition: bool, complaint: str) -> None:
    if not condition:
        raise ValueError(complaint)
