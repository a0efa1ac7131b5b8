"""Boards: records aggregated over seeds, one board per problem, best method first.

A board compares cells that differ in method, settings and seed, and in nothing else; records of
other data, networks or evaluators beside them are an error. A method that lacks one of the board's
seeds is shown as incomplete, below the complete ones, and never counts as best.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from uqbench.comparability import obstacle
from uqbench.errors import UQBenchError
from uqbench.formatting import compact_json, counted, printable, shortened
from uqbench.records import Cost, Record

LEVEL = 0.05
"""Significance level of the test behind "equal best", and what an interval of a mean leaves out."""


class Column(NamedTuple):
    """A metric, and the OoD set that it is measured on ("" for the test split alone).

    Where a set is there at several angles, ``rotated:NAME:DEGREES``, the set ``rotated:NAME`` is
    the mean over them.
    """

    metric: str
    ood_set: str = ""


_REGRESSION = ("rmse", "nll", "ece", "crps", "coverage95")
_OF_ONE_POINT = ("nll", "mean_prediction", "coverage95", "width95", "coverage90", "width90")
_CLASSIFICATION = (
    "accuracy",
    "nll",
    "ece",
    "brier",
    "ood_auc",
    "vmsp_auc_error",
    "vmsp_auc_ood",
    "vmsp_id_correct_median",
    "vmsp_id_incorrect_median",
    "vmsp_ood_median",
)
_RANKED_BY = Column("nll")


@dataclass(frozen=True)
class Statistic:
    """Mean and sample standard deviation over the seeds on which a value is defined.

    values: one per finished seed, in the order of seeds; NaN where it is undefined.
    mark: "best", "equal best" or "".
    worse_than_base: whether BASE, which knows nothing, does better.
    """

    values: tuple[float, ...]
    mark: str = ""
    worse_than_base: bool = False

    @cached_property
    def defined(self) -> tuple[float, ...]:
        return tuple(value for value in self.values if not math.isnan(value))

    @property
    def seeds(self) -> int:
        """Number of seeds behind mean and std."""
        return len(self.defined)

    @property
    def mean(self) -> float:
        """NaN if no value is defined."""
        return sum(self.defined) / self.seeds if self.defined else math.nan

    @property
    def std(self) -> float:
        """NaN for fewer than two values, and where one is infinite."""
        if self.seeds < 2 or not math.isfinite(self.mean):
            return math.nan
        return float(np.std(self.defined, ddof=1))

    @cached_property
    def interval(self) -> tuple[float, float]:
        """95% interval of the mean, see :func:`uqbench.statistics.bootstrap_interval`."""
        from uqbench.statistics import bootstrap_interval

        return bootstrap_interval(self.defined, 1 - LEVEL)


class Gap(NamedTuple):
    """Seeds without a result for the same reason. status: a record's, or ``not run``."""

    status: str
    reason: str
    seeds: tuple[int, ...]


@dataclass(frozen=True)
class Row:
    """One method with one group of settings on one problem.

    status: ``complete``, ``incomplete`` (some of the board's seeds are missing), or what became of
    its cells if none gave a result: ``failed``, ``timeout``, ``oom``, ``crashed``, ``skipped``.
    seeds: number of those that gave a result.
    """

    label: str
    method: str
    settings: Mapping[str, Any]
    status: str
    seeds: int
    metrics: Mapping[Column, Statistic]
    cost: Mapping[str, Statistic]
    timing_valid: bool
    gaps: tuple[Gap, ...]


@dataclass(frozen=True)
class Board:
    """All methods on one problem, best first.

    seeds: those attempted by any method. columns: the metrics of the table; the CSV has all.
    test_rows: rows that the metrics are computed on; 0 if nothing finished.
    """

    suite: str
    problem: str
    task: str
    seeds: tuple[int, ...]
    quick: bool
    columns: tuple[Column, ...]
    rows: tuple[Row, ...] = field(repr=False)
    test_rows: int = 0

    @property
    def title(self) -> str:
        parts = [self.task, counted(len(self.seeds), "seed"), f"suite {self.suite}"]
        if self.test_rows:
            parts.insert(2, counted(self.test_rows, "test row"))
        if self.quick:
            parts.insert(0, "QUICK RUN (a tenth of the training, not for publication)")
        return printable(f"{self.problem}: {', '.join(part for part in parts if part)}")

    @property
    def shown_rows(self) -> list[Row]:
        """The rows of the table; methods that skip the problem are in the notes only."""
        return [row for row in self.rows if row.status != "skipped"]

    @property
    def notes(self) -> list[tuple[str, str]]:
        """(row label, note) for every row that is not complete."""
        return [(row.label, self.note(row)) for row in self.rows if row.gaps]

    def note(self, row: Row) -> str:
        """What became of the row's missing seeds; empty for a complete row."""
        texts = [f"{gap.status}: {gap.reason}" if gap.reason else gap.status for gap in row.gaps]
        if row.status != "incomplete" and len(texts) < 2:
            return "".join(texts)
        lead = f"{row.seeds}/{counted(len(self.seeds), 'seed')}"
        if row.status == "incomplete":
            lead = f"incomplete, {lead}"
        named = [f"{_seeds(gap)} {text}" for gap, text in zip(row.gaps, texts, strict=True)]
        return "; ".join([lead, *named])


def boards(records: Sequence[Record]) -> tuple[Board, ...]:
    """Aggregate records to one board per problem, in the order in which problems first appear.

    Quick runs have boards of their own. Of several records of the same cell the last counts.
    Raises :class:`UQBenchError` where records of one problem cannot be compared.
    """
    groups: dict[tuple[str, bool], list[Record]] = {}
    for record in records:
        groups.setdefault((record.identity.problem, record.identity.quick), []).append(record)
    return tuple(_board(group) for group in groups.values())


_RowKey = tuple[str, str]  # method, settings as JSON


def _board(records: Sequence[Record]) -> Board:
    problem = records[0].identity.problem
    if found := obstacle([record.identity for record in records if record.status == "ok"]):
        raise UQBenchError(
            f"{found}\n"
            "Run one of them again into a folder of its own, or name only runs that agree."
        )
    cells: dict[_RowKey, dict[int, Record]] = {}
    for record in records:
        identity = record.identity
        key = identity.method, compact_json(identity.settings)
        cells.setdefault(key, {})[identity.seed] = record
    seeds = tuple(sorted({record.identity.seed for record in records}))
    finished = {
        key: [by_seed[seed] for seed in seeds if seed in by_seed and by_seed[seed].status == "ok"]
        for key, by_seed in cells.items()
    }
    available = _available_columns([record for group in finished.values() for record in group])
    complete = {key: group for key, group in finished.items() if len(group) == len(seeds)}
    marks = _marks(complete, available)
    worse = _worse_than_base(complete, available)
    labels = _labels(list(cells))
    rows = []
    for key, by_seed in cells.items():
        group = finished[key]
        metrics = {
            column: Statistic(
                tuple(_value(record, column) for record in group),
                marks.get((key, column), ""),
                (key, column) in worse,
            )
            for column in available
        }
        rows.append(
            Row(
                label=labels[key],
                method=key[0],
                settings=next(iter(by_seed.values())).identity.settings,
                status=_status(by_seed, seeds),
                seeds=len(group),
                metrics=metrics,
                cost=_cost(group),
                timing_valid=all(record.cost.timing_valid for record in group),
                gaps=_gaps(by_seed, seeds),
            )
        )
    task = _task(records)
    test_rows = max(record.outcome.sizes.get("test", 0) for record in records)
    main = _main_columns(task, test_rows, [c for c in available if _is_defined(c, rows)])
    return Board(
        suite="+".join(dict.fromkeys(record.identity.suite for record in records)),
        problem=problem,
        task=task,
        seeds=seeds,
        quick=records[0].identity.quick,
        columns=main,
        rows=tuple(sorted(rows, key=_rank)),
        test_rows=test_rows,
    )


def _available_columns(records: Sequence[Record]) -> list[Column]:
    """Every metric of any record, in the catalogue's order, unknown ones last.

    Means over angles come before the angles.
    """
    from uqbench.metrics import METRICS

    found: dict[Column, None] = {}
    for record in records:
        for ood_set, metrics in {"": record.outcome.metrics, **record.outcome.ood}.items():
            sets = [ood_set]
            if len(_angles(record, unrotated(ood_set))) > 1:
                sets.insert(0, unrotated(ood_set))
            found.update(dict.fromkeys(Column(name, one) for one in sets for name in metrics))
    order = {name: position for position, name in enumerate(METRICS)}
    return sorted(found, key=lambda column: order.get(column.metric, len(order)))


def _task(records: Sequence[Record]) -> str:
    for record in records:
        if "task" in record.identity.training:
            return str(record.identity.training["task"])
    names = {name for record in records for name in record.outcome.metrics}
    return "classification" if "accuracy" in names else "regression" if "rmse" in names else ""


def _main_columns(task: str, test_rows: int, available: Sequence[Column]) -> tuple[Column, ...]:
    """The table's columns. Of a regression on one test point they are those of its interval.

    Of rotated sets there is the mean over the angles alone.
    """
    regression = _OF_ONE_POINT if test_rows == 1 else _REGRESSION
    wanted = _CLASSIFICATION if task == "classification" else regression
    averaged = {column.ood_set for column in available if column.ood_set}
    shown = [column for column in available if unrotated(column.ood_set) not in averaged]
    main = [column for name in wanted for column in shown if column.metric == name]
    return tuple(main or shown)


def _is_defined(column: Column, rows: Sequence[Row]) -> bool:
    return any(row.metrics[column].seeds for row in rows)


def _value(record: Record, column: Column) -> float:
    outcome = record.outcome
    if column.ood_set:
        sets = _angles(record, column.ood_set) or [outcome.ood.get(column.ood_set, {})]
    else:
        sets = [outcome.metrics]
    return sum(float(metrics.get(column.metric, math.nan)) for metrics in sets) / len(sets)


def unrotated(ood_set: str) -> str:
    """``rotated:NAME`` of ``rotated:NAME:DEGREES``; "" of all other sets."""
    base, _, degrees = ood_set.rpartition(":")
    return base if degrees and base.startswith("rotated:") else ""


def _angles(record: Record, rotated: str) -> list[Mapping[str, float]]:
    """The metrics of ``rotated:NAME`` at each angle."""
    found = record.outcome.ood.items()
    return [metrics for name, metrics in found if rotated and unrotated(name) == rotated]


def _marks(
    complete: Mapping[_RowKey, Sequence[Record]], columns: Sequence[Column]
) -> dict[tuple[_RowKey, Column], str]:
    """Return "best" or "equal best" for each row and column that earns it."""
    from uqbench.statistics import equal_best

    if len(complete) < 2:  # nobody to be better than
        return {}
    ratio = _test_train_ratio([record for group in complete.values() for record in group])
    marks = {}
    for column in columns:
        better, target = direction(column.metric)
        if better is None:
            continue
        values = {key: [_value(r, column) for r in group] for key, group in complete.items()}
        if target is not None:
            values = {key: [abs(v - target) for v in row] for key, row in values.items()}
        means = {
            key: sum(values[key]) / len(values[key]) * (1 if better == "lower" else -1)
            for key in equal_best(values, better, ratio, LEVEL)
        }
        for key, mean in means.items():
            marks[key, column] = "best" if mean == min(means.values()) else "equal best"
    return marks


def _worse_than_base(
    complete: Mapping[_RowKey, Sequence[Record]], columns: Sequence[Column]
) -> set[tuple[_RowKey, Column]]:
    """Rows and VMSP columns whose mean over seeds is worse than that of the method ``base``."""
    bases = [group for (method, _), group in complete.items() if method == "base"]
    if not bases:
        return set()
    worse = set()
    for column in columns:
        better, _ = direction(column.metric)
        if better is None or not column.metric.startswith("vmsp_"):
            continue
        sign = 1 if better == "lower" else -1
        means = {
            key: sign * sum(_value(record, column) for record in group) / len(group)
            for key, group in complete.items()
        }
        base = sign * sum(_value(record, column) for record in bases[0]) / len(bases[0])
        worse |= {(key, column) for key, mean in means.items() if mean > base}
    return worse


def direction(metric: str) -> tuple[str | None, float | None]:
    """Return (lower, higher or None) and the target whose distance is to be low, if any."""
    from uqbench.metrics import METRICS

    better = METRICS[metric].better if metric in METRICS else None
    if better is not None and better.startswith("closer to "):
        return "lower", float(better.removeprefix("closer to "))
    return better, None


def _test_train_ratio(records: Sequence[Record]) -> float:
    """n_test / n_train, by which the test corrects for training splits that overlap.

    Generated data are new for every seed: nothing overlaps, and there is nothing to correct.
    """
    if len({record.identity.fingerprint for record in records}) > 1:
        return 0.0
    for record in records:
        sizes = record.outcome.sizes
        if sizes.get("train") and sizes.get("test"):
            return sizes["test"] / sizes["train"]
    return 0.0


_OWN_SECONDS = ("fit_seconds", "tune_seconds", "predict_seconds")


def _cost(records: Sequence[Record]) -> dict[str, Statistic]:
    """Every numeric cost, and ``post_hoc_seconds`` (fit, tune, predict) and ``total_seconds``.

    A method that trains its own networks has no post-hoc time, and no MAP time in its total.
    """
    names = [f.name for f in fields(Cost) if f.name not in ("device", "timing_valid")]
    values = {name: [float(getattr(record.cost, name)) for record in records] for name in names}
    post_hoc, total = [], []
    for record in records:
        own = sum(getattr(record.cost, name) for name in _OWN_SECONDS)
        starts_from_map = bool(record.identity.map_checkpoint)
        post_hoc.append(own if starts_from_map else math.nan)
        total.append(own + record.cost.map_seconds if starts_from_map else own)
    values |= {"post_hoc_seconds": post_hoc, "total_seconds": total}
    return {name: Statistic(tuple(numbers)) for name, numbers in values.items()}


def _status(by_seed: Mapping[int, Record], seeds: Sequence[int]) -> str:
    statuses = [record.status for record in by_seed.values()]
    if "ok" in statuses:
        return "complete" if statuses.count("ok") == len(seeds) else "incomplete"
    failures = [status for status in statuses if status != "skipped"]
    if not failures:
        return "skipped"
    return failures[0] if len(set(failures)) == 1 else "failed"


def _gaps(by_seed: Mapping[int, Record], seeds: Sequence[int]) -> tuple[Gap, ...]:
    gaps: dict[tuple[str, str], list[int]] = {}
    for seed in seeds:
        record = by_seed.get(seed)
        if record is None:
            gaps.setdefault(("not run", ""), []).append(seed)
        elif record.status != "ok":
            gaps.setdefault((record.status, _reason(record)), []).append(seed)
    return tuple(Gap(status, reason, tuple(where)) for (status, reason), where in gaps.items())


def _reason(record: Record) -> str:
    """The first line of the error, after its type unless that says no more than the status."""
    lines = [printable(line) for line in record.error_message.splitlines()]
    first = next((line for line in lines if line), "")
    parts = [first]
    if record.error_type and record.status in ("failed", "crashed"):
        parts.insert(0, printable(record.error_type))
    return shortened(": ".join(part for part in parts if part), 160)


def _labels(keys: Sequence[_RowKey]) -> dict[_RowKey, str]:
    """Name each row by its method, and by the settings in which rows of one method differ."""
    labels = {}
    for method, settings in keys:
        own = json.loads(settings)
        others = [json.loads(text) for name, text in keys if name == method]
        differing = [
            name
            for name in sorted({name for other in others for name in other})
            if len({compact_json(other[name]) if name in other else None for other in others}) > 1
        ]
        shown = ", ".join(
            f"{name}={_setting(own[name])}" if name in own else f"{name} unset"
            for name in differing
        )
        labels[method, settings] = printable(f"{method} ({shown})" if shown else method)
    return labels


def _setting(value: Any) -> str:
    return value if isinstance(value, str) else compact_json(value)


_ORDER_OF_STATUSES = {"complete": 0, "incomplete": 1, "skipped": 3}


def _rank(row: Row) -> tuple[int, bool, float, str]:
    nll = row.metrics[_RANKED_BY].mean if _RANKED_BY in row.metrics else math.nan
    undefined = math.isnan(nll)
    return _ORDER_OF_STATUSES.get(row.status, 2), undefined, 0 if undefined else nll, row.label


def _seeds(gap: Gap) -> str:
    return f"seed{'s' if len(gap.seeds) > 1 else ''} {', '.join(map(str, gap.seeds))}"
