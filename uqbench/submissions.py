"""Submissions: what people send to a published leaderboard, as files and as objects.

A submission is one method's cells on one board, ``METHOD-WHO.csv``, and what they have in common,
``METHOD-WHO.environment.json``. ``docs/leaderboard-schema.md`` describes both for their readers.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from uqbench.formatting import compact_json, printable, shortened
from uqbench.metrics import METRICS, Metric
from uqbench.records import Cost, Identity, Outcome, Record

SUBMISSION_VERSION = 2
"""Raised whenever the files change; older versions stay readable: 2 brought ``method_source``."""
_OLDER: dict[int, dict[str, Any]] = {1: {"method_source": ""}}
"""Version -> the fields that its rows lack, and what is read in their place."""

ENVIRONMENT_SUFFIX = ".environment.json"
_STRICT = ConfigDict(extra="forbid", strict=True, frozen=True)
_MARKUP = r"<>\x00-\x1f\x7f"
"""What no name and no text has, as a set of a regular expression."""
_PLAIN = re.compile(f"[^{_MARKUP}]*")


def _without_markup(value: Any) -> Any:
    """Return a value as it is; ValueError if a name or text inside could be markup."""
    if isinstance(value, str) and not _PLAIN.fullmatch(value):
        raise ValueError(_NO_MARKUP)
    if isinstance(value, Mapping):
        _without_markup([*value, *value.values()])
    elif isinstance(value, list):
        for item in value:
            _without_markup(item)
    return value


def _time(text: str) -> str:
    datetime.fromisoformat(text)
    return text


_NO_MARKUP = "names and texts have no <, > and control characters"

# Names are no markup and no path, and no text is a formula of a spreadsheet
Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
MethodName = Annotated[str, Field(pattern="^[A-Za-z][A-Za-z0-9_]{0,63}$")]
Who = Annotated[str, Field(pattern="^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$")]
PlainText = Annotated[
    str, Field(max_length=300, pattern=rf"^([^=+@<>\x00-\x20\x7f-][^{_MARKUP}]*)?$")
]
NoMarkup = AfterValidator(_without_markup)
Name = Annotated[str, Field(max_length=300, pattern=f"^{_PLAIN.pattern}$")]
MethodSource = Annotated[
    str,
    Field(
        max_length=400,
        pattern=r"^(uqbench|[A-Za-z0-9][A-Za-z0-9._-]* v?[0-9][A-Za-z0-9.!+_-]*"
        rf"|[^=+@<>\x00-\x20\x7f/\\-][^{_MARKUP}/\\]*\.py sha256:[0-9a-f]{{64}})?$",
    ),
]
Count = Annotated[int, Field(ge=0)]


class Row(BaseModel):
    """One cell: a line of the CSV.

    Fields are those of a record (see :mod:`uqbench.records`) under their own names.
    ``metrics`` and ``ood`` are columns of their own, ``NAME`` and ``ood:SET:NAME``.
    status: ``skipped`` where the method's definition does not cover the problem; ``reason`` why.
    method_source: see :func:`uqbench.registry.method_source`.
    environment: a name in the submission's ``environments``. started: UTC.
    """

    model_config = _STRICT
    problem: PlainText
    seed: Count
    status: Literal["ok", "skipped"]
    reason: PlainText
    metrics: dict[str, float]
    ood: dict[Name, dict[str, float]]
    map_seconds: float
    fit_seconds: float
    tune_seconds: float
    predict_seconds: float
    repeats: Count
    peak_device_bytes: Count
    peak_host_bytes: Count
    forward_passes: Count
    device: Annotated[str, Field(pattern="^[a-z]*(:[0-9]+)?$")]
    threads: Count
    timing_valid: bool
    tuned: dict[Name, float]
    grid_size: Count
    sizes: dict[Name, Count]
    ood_conversions: dict[Name, Name]
    streamed: list[Name]
    suite: PlainText
    method: MethodName
    settings: Annotated[dict[str, Any], NoMarkup]
    fingerprint: Digest
    split: list[float]
    network: Annotated[dict[str, Any], NoMarkup]
    training: Annotated[dict[str, Any], NoMarkup]
    map_checkpoint: Annotated[str, Field(pattern="^[0-9a-f]*$")]
    dtype: Literal["float32", "float64"]
    quick: Literal[False]
    evaluator: Annotated[int, Field(ge=1)]
    key: Digest
    commit: Annotated[str, Field(pattern="^[0-9a-f]{40}([0-9a-f]{24})?$")]
    dirty: Literal[False]
    method_source: MethodSource
    environment: Annotated[str, Field(pattern="^[0-9a-f]{12}$")]
    started: Annotated[str, Field(pattern="^[0-9T:+.-]{19,32}$"), AfterValidator(_time)]

    @property
    def started_at(self) -> datetime:
        time = datetime.fromisoformat(self.started)
        return time if time.tzinfo else time.replace(tzinfo=UTC)

    @property
    def identity(self) -> Identity:
        values = {part.name: getattr(self, part.name) for part in fields(Identity)}
        return Identity(**{**values, "split": tuple(self.split)})

    @property
    def record(self) -> Record:
        """The record that the row was made of, without what the row does not hold."""
        outcome = {name: getattr(self, name) for name in _OUTCOME}
        return Record(
            key=self.key,
            identity=self.identity,
            status=self.status,
            outcome=Outcome(**{**outcome, "streamed": tuple(self.streamed)}),
            cost=Cost(**{part.name: getattr(self, part.name) for part in fields(Cost)}),
            error_message=self.reason,
        )


class Environment(BaseModel):
    """Where cells ran: versions and hardware. packages: name -> version, null if not there."""

    model_config = _STRICT
    packages: dict[Name, Name | None]
    python: Name
    platform: Name
    cpu: Name
    gpu: Name | None


class Head(BaseModel):
    """The environment file. csv_sha256: of the CSV; it shows accidents, not fraud."""

    model_config = _STRICT
    schema_version: Literal[2]
    board: str
    method: MethodName
    who: Who
    csv_sha256: Digest
    environments: dict[str, Environment]


class Submission(Head):
    """A whole submission, both files; its JSON Schema is ``leaderboards/schema.json``.

    Files of an older version become one of the newest when they are read.
    """

    rows: list[Row]

    @property
    def name(self) -> str:
        """The CSV's path below ``submissions/``."""
        return f"{self.board}/{self.method}-{self.who}.csv"


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong. row: line of the CSV, whose header is line 1; 0 if of no line.

    other_file, other_row: what it does not go with, where nobody knows which of the two is wrong.
    """

    file: str
    what: str
    field: str = ""
    row: int = 0
    other_file: str = ""
    other_row: int = 0

    def __str__(self) -> str:
        field = [printable(self.field)] if self.field else []
        if self.other_file:
            sides = [(self.file, self.row), (self.other_file, self.other_row)]
            places = [f"{printable(file)}{f' row {row}' if row else ''}" for file, row in sides]
            return ": ".join([" and ".join(places), *field, self.what])
        place = ", ".join([*([f"row {self.row}"] if self.row else []), *field])
        return ": ".join([printable(self.file), *([place] if place else []), self.what])


_NEUTRAL = str.maketrans("<>", "‹›")
"""A reason may quote code; the signs that look alike are no markup."""
_MOST_BRACKETS = 500
"""Of a cell; more could be nested deeper than Python follows."""
_OUTCOME = ("metrics", "ood", "tuned", "grid_size", "sizes", "ood_conversions", "streamed")
_FIELDS = [name for name in Row.model_fields if name not in ("metrics", "ood")]
_FIRST = _FIELDS[:4]
_OOD = "ood:"


def json_schema() -> str:
    """Return the JSON Schema of a submission as text, each metric with its range."""
    schema = Submission.model_json_schema()
    row = schema["$defs"]["Row"]["properties"]
    (of_set,) = row["ood"]["patternProperties"].values()
    for metrics, per_ood in ((row["metrics"], False), (of_set, True)):
        metrics["properties"] = {
            metric.name: {"type": "number", **_bounds(metric)}
            for metric in METRICS.values()
            if metric.per_ood == per_ood
        }
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def _bounds(metric: Metric) -> dict[str, float]:
    """The limits of a metric in any of its tasks, as JSON Schema has them."""
    tasks = ("regression", "classification") if metric.task == "any" else (metric.task,)
    lowest, highest = zip(*map(metric.range_in, tasks), strict=True)
    limits = {"minimum": min(lowest), "maximum": max(highest)}
    return {name: limit for name, limit in limits.items() if math.isfinite(limit)}


def row_of(record: Record) -> Row:
    """Turn a record into a row; a ValidationError tells why it cannot be published."""
    provenance = record.provenance
    identity = {part.name: getattr(record.identity, part.name) for part in fields(Identity)}
    cost = {part.name: getattr(record.cost, part.name) for part in fields(Cost)}
    outcome = {name: getattr(record.outcome, name) for name in _OUTCOME}
    values = identity | cost | outcome
    values |= {
        "split": list(record.identity.split),
        "streamed": list(record.outcome.streamed),
        "key": record.key,
        "status": record.status,
        "reason": shortened(printable(record.error_message), 300).translate(_NEUTRAL),
        "commit": provenance.get("commit"),
        "dirty": provenance.get("dirty"),
        "method_source": record.method_source,
        "started": provenance.get("started"),
        "environment": environment_name(environment_of(record)),
    }
    return Row.model_validate({name: values[name] for name in Row.model_fields})


def environment_of(record: Record) -> Environment:
    """Return where a record's cell ran."""
    known = {name: record.provenance.get(name) for name in Environment.model_fields}
    return Environment.model_validate(known)


def environment_name(environment: Environment) -> str:
    """Return the short digest by which rows name it."""
    text = compact_json(environment.model_dump())
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def csv_text(rows: Sequence[Row]) -> str:
    """Return the CSV of some rows: one column per field, metric, and metric of an OoD set."""
    order = {name: position for position, name in enumerate(METRICS)}
    found = list(dict.fromkeys(name for row in rows for name in _numbers(row)))
    rank = {name: order.get(name.rpartition(":")[2], len(order)) for name in found}
    found.sort(key=lambda name: (name.startswith(_OOD), rank[name]))
    text = io.StringIO()
    names = [*_FIRST, *found, *_FIELDS[len(_FIRST) :]]
    writer = csv.DictWriter(text, names, restval="", lineterminator="\n")
    writer.writeheader()
    for row in rows:
        cells = {name: getattr(row, name) for name in _FIELDS} | _numbers(row)
        writer.writerow({n: v if isinstance(v, str) else _json(v) for n, v in cells.items()})
    return text.getvalue()


def head_text(submission: Submission) -> str:
    """Return the environment file."""
    head = submission.model_dump(exclude={"rows"})
    return json.dumps(head, indent=2, ensure_ascii=False) + "\n"


def read(path: Path, name: str) -> tuple[Submission | None, list[Fault]]:
    """Read the submission whose CSV is ``path``; ``name`` is what faults call it.

    Returns no submission if a fault keeps it from being understood.
    """
    head_name = name.removesuffix(".csv") + ENVIRONMENT_SUFFIX
    try:
        content = path.read_bytes()
        text = content.decode()
        head_path = path.with_name(path.name.removesuffix(".csv") + ENVIRONMENT_SUFFIX)
        values = json.loads(head_path.read_bytes())
    except OSError as error:
        missing = Path(error.filename).name if error.filename else name
        return None, [Fault(name, f"{missing}: cannot be read: {error.strerror}")]
    except UnicodeDecodeError:
        return None, [Fault(name, "is not UTF-8 text")]
    except (ValueError, RecursionError):
        return None, [Fault(head_name, "is not JSON")]
    version = values.get("schema_version") if isinstance(values, dict) else None
    if type(version) is not int or not 1 <= version <= SUBMISSION_VERSION:
        return None, [Fault(head_name, _version_fault(version), "schema_version")]
    try:
        head = Head.model_validate(values | {"schema_version": SUBMISSION_VERSION})
    except ValidationError as error:
        return None, [Fault(head_name, what, field) for field, what in complaints(error)]
    faults = []
    if digest_of(content) != head.csv_sha256:
        what = f"is not that of {Path(name).name}: it was changed after it was published"
        faults.append(Fault(head_name, what, "csv_sha256"))
    rows, row_faults = _rows(text, name, _OLDER.get(version, {}))
    if row_faults:
        return None, [*faults, *row_faults]
    return Submission(**{**dict(head), "rows": rows}), faults


def complaints(error: ValidationError) -> Iterator[tuple[str, str]]:
    """Yield field and complaint for each thing that a model found."""
    for one in error.errors():
        place = one["loc"]
        field = ".".join(map(str, place))
        what = _WHY.get(str(place[0]) if place else "", one["msg"])
        if one["type"] in ("missing", "extra_forbidden"):
            what = "is missing" if one["type"] == "missing" else "is no field of this schema"
        else:
            what = what.removeprefix("Value error, ")
            what = f"is {shortened(printable(_written(one['input'])), 60)}: {what}"
        yield field, what


def _written(value: Any) -> str:
    """A value as people read it: null, true and false as in the file."""
    return json.dumps(value) if value is None or isinstance(value, bool) else repr(value)


_WHY = {
    "quick": "a quick run trains for a tenth of the epochs and is not for publication; run again "
    "without --quick",
    "dirty": "the code differed from its commit, or nobody knows; run again with --rerun all from "
    "a clean checkout",
    "commit": "the commit of uqbench is not known; run again with --rerun all from a git checkout "
    "(pip install -e .)",
    "method_source": "a method's code is of uqbench, of NAME VERSION, or of FILE.py sha256:DIGEST",
    "method": "a method's name is a letter, then letters, digits and _, at most 64",
    "started": "a time is like 2026-11-30T12:00:00+00:00",
    "who": "a sender's name is letters, digits, _ and -, at most 64, the first no sign",
}


def _version_fault(version: Any) -> str:
    if isinstance(version, int) and version > SUBMISSION_VERSION:
        return f"is {version}, this uqbench reads up to {SUBMISSION_VERSION}; upgrade uqbench"
    shown = shortened(printable(repr(version)), 60)
    return f"is {shown}, this uqbench reads 1 to {SUBMISSION_VERSION}; publish the run again"


def _numbers(row: Row) -> dict[str, float]:
    on_sets = {
        f"{_OOD}{ood_set}:{name}": value
        for ood_set, metrics in row.ood.items()
        for name, value in metrics.items()
    }
    return {**row.metrics, **on_sets}


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _rows(text: str, name: str, lacking: Mapping[str, Any]) -> tuple[list[Row], list[Fault]]:
    """Read the CSV. lacking: fields that its version has no columns for, and their values."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    rows, faults = [], []
    try:
        header = next(reader, [])
        doubled = sorted({column for column in header if header.count(column) > 1})
        if doubled:
            return [], [Fault(name, "is the name of two columns", doubled[0], 1)]
        odd = next((column for column in header if not _PLAIN.fullmatch(column)), "")
        if odd:
            return [], [Fault(name, "is no name of a column", shortened(odd, 60), 1)]
        if early := sorted(lacking.keys() & set(header)):
            return [], [Fault(name, "is no field of this version", early[0], 1)]
        for number, cells in enumerate(reader, start=2):
            if len(cells) != len(header):
                what = f"has {len(cells)} cells, the header {len(header)}"
                faults.append(Fault(name, what, row=number))
                continue
            try:
                values = _values(dict(zip(header, cells, strict=True)))
                rows.append(Row.model_validate(values | lacking))
            except ValidationError as error:
                faults += [Fault(name, what, field, number) for field, what in complaints(error)]
            except _CellError as error:
                faults.append(Fault(name, str(error), error.column, number))
    except csv.Error as error:
        faults.append(Fault(name, f"is not CSV: {error}", row=reader.line_num))
    if not rows and not faults:
        faults.append(Fault(name, "has no rows"))
    return rows, faults


class _CellError(ValueError):
    def __init__(self, column: str, what: str) -> None:
        super().__init__(what)
        self.column = column


def _values(cells: Mapping[str, str]) -> dict[str, Any]:
    """Undo what :func:`csv_text` did to a row; a blank metric is one that was not measured."""
    metrics: dict[str, float] = {}
    ood: dict[str, dict[str, float]] = {}
    values: dict[str, Any] = {"metrics": metrics, "ood": ood}
    for column, cell in cells.items():
        if column in _FIELDS:
            kind = Row.model_fields[column].annotation
            is_text = kind is str or isinstance(next(iter(get_args(kind)), None), str)
            values[column] = cell if is_text else _parsed(column, cell)
        elif cell:
            ood_set, _, name = column.removeprefix(_OOD).rpartition(":")
            group = ood.setdefault(ood_set, {}) if column.startswith(_OOD) else metrics
            group[name if column.startswith(_OOD) else column] = _number(column, cell)
    return values


def _parsed(column: str, cell: str) -> Any:
    try:
        if cell.count("[") + cell.count("{") > _MOST_BRACKETS:
            raise ValueError
        return json.loads(cell)
    except ValueError:
        what = f"is {shortened(printable(repr(cell)), 60)}: {_WHY.get(column, 'not JSON')}"
        raise _CellError(column, what) from None


def _number(column: str, cell: str) -> float:
    value = _parsed(column, cell)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _CellError(column, f"is {shortened(printable(repr(cell)), 60)}: not a number")
    try:
        return float(value)
    except OverflowError:
        raise _CellError(column, "is larger than any number") from None


def digest_of(content: bytes) -> str:
    """Return the sha256 of a CSV, which git may give Windows' newlines."""
    return hashlib.sha256(content.replace(b"\r\n", b"\n")).hexdigest()


def contradiction(one: Row, other: Row) -> str:
    """Say in which metric two rows of one cell differ by more than rounding, with both values.

    Empty if in none.

    Another processor or library sums in another order, and float32 with a quantile or a skewness on
    top of it leaves few digits; costs differ on every machine.
    """
    left, right = _numbers(one), _numbers(other)
    for name in dict.fromkeys([*left, *right]):
        values = left.get(name), right.get(name)
        if None in values or not close(*values, 1e-4):
            shown = ["not there" if value is None else f"{value:.6g}" for value in values]
            return f"{name} is {' and '.join(shown)}"
    return ""


def close(one: float, other: float, tolerance: float) -> bool:
    """Whether two numbers agree; NaN agrees with NaN."""
    both_undefined = math.isnan(one) and math.isnan(other)
    return both_undefined or math.isclose(one, other, rel_tol=tolerance, abs_tol=1e-12)
