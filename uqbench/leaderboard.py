"""The leaderboard: records aggregated over seeds, one board per problem, and its renderings.

A board compares cells that differ in method, settings and seed, and in nothing else; records of
other data, networks or evaluators beside them are an error. A method that lacks one of the board's
seeds is shown as incomplete, below the complete ones, and never counts as best.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from uqbench.errors import UQBenchError, UsageError
from uqbench.records import Cost, Record
from uqbench.suggestions import did_you_mean

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.table import Table

LEVEL = 0.05
"""Significance level of the test behind "equal best"."""

FORMATS = ("table", "csv", "md")


class Column(NamedTuple):
    """A metric, and the OoD set that it is measured on ("" for the test split alone)."""

    metric: str
    ood_set: str = ""


_REGRESSION = ("rmse", "nll", "ece", "crps", "coverage95")
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
    """

    values: tuple[float, ...]
    mark: str = ""

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
    """

    suite: str
    problem: str
    task: str
    seeds: tuple[int, ...]
    quick: bool
    columns: tuple[Column, ...]
    rows: tuple[Row, ...] = field(repr=False)

    @property
    def title(self) -> str:
        parts = [self.task, _count(len(self.seeds), "seed"), f"suite {self.suite}"]
        if self.quick:
            parts.insert(0, "QUICK RUN (a tenth of the training, not for publication)")
        return _printable(f"{self.problem}: {', '.join(part for part in parts if part)}")

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
        lead = f"{row.seeds}/{_count(len(self.seeds), 'seed')}"
        if row.status == "incomplete":
            lead = f"incomplete, {lead}"
        named = [f"{_seeds(gap)} {text}" for gap, text in zip(row.gaps, texts, strict=True)]
        return "; ".join([lead, *named])


def boards(records: Sequence[Record]) -> tuple[Board, ...]:
    """Aggregate records to one board per problem, in the order in which problems first appear.

    Quick runs have boards of their own. Of several records of the same cell the last counts.
    Raises :class:`UQBenchError` where records of one problem cannot be compared.
    """
    by_problem: dict[tuple[str, bool], list[Record]] = {}
    for record in records:
        identity = record.identity
        by_problem.setdefault((identity.problem, identity.quick), []).append(record)
    return tuple(_board(group) for group in by_problem.values())


_RowKey = tuple[str, str]  # method, settings as JSON


def _board(records: Sequence[Record]) -> Board:
    problem = records[0].identity.problem
    _require_comparable(problem, records)
    cells: dict[_RowKey, dict[int, Record]] = {}
    for record in records:
        identity = record.identity
        cells.setdefault((identity.method, _json(identity.settings)), {})[identity.seed] = record
    seeds = tuple(sorted({record.identity.seed for record in records}))
    finished = {
        key: [by_seed[seed] for seed in seeds if seed in by_seed and by_seed[seed].status == "ok"]
        for key, by_seed in cells.items()
    }
    available = _available_columns([record for group in finished.values() for record in group])
    complete = {key: group for key, group in finished.items() if len(group) == len(seeds)}
    marks = _marks(complete, available)
    labels = _labels(list(cells))
    rows = []
    for key, by_seed in cells.items():
        group = finished[key]
        metrics = {
            column: Statistic(
                tuple(_value(record, column) for record in group), marks.get((key, column), "")
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
    return Board(
        suite="+".join(dict.fromkeys(record.identity.suite for record in records)),
        problem=problem,
        task=task,
        seeds=seeds,
        quick=records[0].identity.quick,
        columns=_main_columns(task, [c for c in available if _is_defined(c, rows)]),
        rows=tuple(sorted(rows, key=_rank)),
    )


def _require_comparable(problem: str, records: Sequence[Record]) -> None:
    """Raise unless the results of a problem differ in method, settings and seed alone."""
    results = [record for record in records if record.status == "ok"]
    for what, name in _SAME_EVERYWHERE.items():
        _require_one_value(problem, what, [(getattr(r.identity, name), r) for r in results])
    by_seed: dict[int, list[Record]] = {}
    for record in results:
        by_seed.setdefault(record.identity.seed, []).append(record)
    for same_seed in by_seed.values():
        prints = [(record.identity.fingerprint, record) for record in same_seed]
        _require_one_value(problem, "data fingerprint", prints)
        networks = [(record.identity.map_checkpoint, record) for record in same_seed]
        # methods that train their own networks have none
        _require_one_value(problem, "MAP network", [pair for pair in networks if pair[0]])
    # Generated data differ from seed to seed; of one data set no seed may stand out
    prints = [(group[0].identity.fingerprint, group[0]) for group in by_seed.values()]
    if len({value for value, _ in prints}) < len(prints):
        _require_one_value(problem, "data fingerprint", prints)


_SAME_EVERYWHERE = {
    "evaluator version": "evaluator",
    "network": "network",
    "split": "split",
    "dtype": "dtype",
    "training recipe": "training",
}


def _require_one_value(problem: str, what: str, values: Sequence[tuple[Any, Record]]) -> None:
    for value, record in values[1:]:
        first_value, first = values[0]
        if _json(value) == _json(first_value):
            continue
        if isinstance(value, Mapping):  # name only what differs
            keys = [k for k in {**first_value, **value} if first_value.get(k) != value.get(k)]
            first_value, value = ({k: v.get(k) for k in keys} for v in (first_value, value))
        sides = [
            f"{_shortened(seen, 24) if isinstance(seen, str) else _shortened(_json(seen), 64)} "
            f"({_printable(of.identity.method)}, seed {of.identity.seed})"
            for seen, of in ((first_value, first), (value, record))
        ]
        raise UQBenchError(
            f"{_printable(problem)}: results that differ in {what} cannot share a leaderboard: "
            f"{sides[0]} and {sides[1]}.\n"
            "Run one of them again into a folder of its own, or name only runs that agree."
        )


def _available_columns(records: Sequence[Record]) -> list[Column]:
    """Every metric of any record, in the catalogue's order, unknown ones last."""
    from uqbench.metrics import METRICS

    found: dict[Column, None] = {}
    for record in records:
        for ood_set, metrics in {"": record.outcome.metrics, **record.outcome.ood}.items():
            found.update(dict.fromkeys(Column(name, ood_set) for name in metrics))
    order = {name: position for position, name in enumerate(METRICS)}
    return sorted(found, key=lambda column: order.get(column.metric, len(order)))


def _task(records: Sequence[Record]) -> str:
    for record in records:
        if "task" in record.identity.training:
            return str(record.identity.training["task"])
    names = {name for record in records for name in record.outcome.metrics}
    return "classification" if "accuracy" in names else "regression" if "rmse" in names else ""


def _main_columns(task: str, available: Sequence[Column]) -> tuple[Column, ...]:
    wanted = _CLASSIFICATION if task == "classification" else _REGRESSION
    main = [column for name in wanted for column in available if column.metric == name]
    return tuple(main or available)


def _is_defined(column: Column, rows: Sequence[Row]) -> bool:
    return any(row.metrics[column].seeds for row in rows)


def _value(record: Record, column: Column) -> float:
    outcome = record.outcome
    metrics = outcome.ood.get(column.ood_set, {}) if column.ood_set else outcome.metrics
    return float(metrics.get(column.metric, math.nan))


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
        better, target = _direction(column.metric)
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


def _direction(metric: str) -> tuple[str | None, float | None]:
    """Return (lower, higher or None) and the target whose distance is to be low, if any."""
    from uqbench.metrics import METRICS

    better = METRICS[metric].better if metric in METRICS else None
    if better is not None and better.startswith("closer to "):
        return "lower", float(better.removeprefix("closer to "))
    return better, None


def _test_train_ratio(records: Sequence[Record]) -> float:
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
    lines = [_printable(line) for line in record.error_message.splitlines()]
    first = next((line for line in lines if line), "")
    parts = [first]
    if record.error_type and record.status in ("failed", "crashed"):
        parts.insert(0, _printable(record.error_type))
    return _shortened(": ".join(part for part in parts if part), 160)


def _labels(keys: Sequence[_RowKey]) -> dict[_RowKey, str]:
    """Name each row by its method, and by the settings in which rows of one method differ."""
    labels = {}
    for method, settings in keys:
        own = json.loads(settings)
        others = [json.loads(text) for name, text in keys if name == method]
        differing = [
            name
            for name in sorted({name for other in others for name in other})
            if len({_json(other[name]) if name in other else None for other in others}) > 1
        ]
        shown = ", ".join(
            f"{name}={_setting(own[name])}" if name in own else f"{name} unset"
            for name in differing
        )
        labels[method, settings] = _printable(f"{method} ({shown})" if shown else method)
    return labels


def _setting(value: Any) -> str:
    return value if isinstance(value, str) else _json(value)


_ORDER_OF_STATUSES = {"complete": 0, "incomplete": 1, "skipped": 3}


def _rank(row: Row) -> tuple[int, bool, float, str]:
    nll = row.metrics[_RANKED_BY].mean if _RANKED_BY in row.metrics else math.nan
    undefined = math.isnan(nll)
    return _ORDER_OF_STATUSES.get(row.status, 2), undefined, 0 if undefined else nll, row.label


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)


# Numbers and strings for people ------------------------------------------------------------------

UNDEFINED = "–"


def format_mean_std(mean: float, std: float = math.nan) -> tuple[str, str]:
    """Return mean and std as text, std empty if it is NaN.

    As many decimals as two significant digits of the std need, and three of a mean that is larger;
    at most four, or five for a std below 1e-4. Beyond 1e-4 and 1e6: scientific.
    """
    if math.isnan(mean):
        return UNDEFINED, ""
    if math.isinf(mean):
        return ("∞" if mean > 0 else "-∞"), ""
    spread = 0.0 if math.isnan(std) else std
    scale = max(abs(mean), spread)
    if scale and not 1e-4 <= scale < 1e6:
        texts = [f"{mean:.2e}", f"{std:.1e}"]
        texts = [re.sub(r"e([+-])0*(\d)", r"e\1\2", text).replace("e+", "e") for text in texts]
    else:
        wanted = [_decimals(spread, 2)]
        if abs(mean) >= spread:
            wanted.append(_decimals(mean, 3))
        decimals = min(max(wanted), 5 if 0 < spread < 1e-4 else 4)
        texts = [f"{mean:.{decimals}f}", f"{std:.{decimals}f}"]
        if not float(texts[0]):
            texts[0] = texts[0].removeprefix("-")
    return texts[0], ("" if math.isnan(std) else texts[1])


def _decimals(value: float, digits: int) -> int:
    """Decimals at which ``value`` shows ``digits`` significant digits; 0 for 0."""
    return max(0, digits - 1 - math.floor(math.log10(abs(value)))) if value else 0


def format_seconds(mean: float, std: float = math.nan) -> str:
    """Return a duration like ``0.15 s``, ``12.3 ± 0.4 s``, ``4 m 10 s ± 12 s`` or ``2 h 05 m``."""
    if not math.isfinite(mean):
        return format_mean_std(mean)[0]
    if mean >= 59.95:
        text = _long_duration(mean)
        return text if math.isnan(std) else f"{text} ± {_long_duration(std)}"
    if 0 < mean < 0.0005:
        return "<0.001 s"
    # two digits below a second, three above, and none finer than a millisecond
    wanted = [_decimals(mean, 2 if mean < 1 else 3), _decimals(std, 1) if std > 0 else 0]
    decimals = min(3, max(wanted))
    spread = "" if math.isnan(std) else f" ± {std:.{decimals}f}"
    return f"{mean:.{decimals}f}{spread} s"


def _long_duration(seconds: float) -> str:
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} m {whole % 60:02d} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02d} m"


def _printable(text: str) -> str:
    """Return the text on one line, without control and other invisible characters."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def _shortened(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 1].rstrip()}…"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _seeds(gap: Gap) -> str:
    return f"seed{'s' if len(gap.seeds) > 1 else ''} {', '.join(map(str, gap.seeds))}"


# Renderings --------------------------------------------------------------------------------------


class _Cell(NamedTuple):
    text: str
    bold: bool = False


class _TextColumn(NamedTuple):
    """One column as text, one cell per shown row. right: whether cells are flush right."""

    header: str
    cells: list[_Cell]
    right: bool = False

    @property
    def header_lines(self) -> list[str]:
        """The header broken into as many lines as fit the cells, but two at most."""
        for width in range(self._cell_width, len(self.header)):
            lines = wrap(self.header, max(width, 1), break_long_words=False, break_on_hyphens=False)
            if len(lines) <= 2 and max(map(len, lines)) <= width:
                return [line.replace(_NO_BREAK, " ") for line in lines]
        return [self.header.replace(_NO_BREAK, " ")]

    @property
    def width(self) -> int:
        return max(self._cell_width, *map(_displayed_width, self.header_lines))

    @property
    def _cell_width(self) -> int:
        return max((_displayed_width(cell.text) for cell in self.cells), default=0)


def _displayed_width(text: str) -> int:
    from rich.cells import cell_len

    return cell_len(text)


@dataclass(frozen=True)
class Leaderboard:
    """The boards of one or more runs. Printed by rich it fits the console's width."""

    boards: tuple[Board, ...]

    @classmethod
    def of(cls, records: Sequence[Record]) -> Leaderboard:
        """Aggregate records; see :func:`boards` for the errors."""
        return cls(boards(records))

    def render(self, format: str = "table", *, width: int = 120) -> str:
        """Return the leaderboard as text: ``table`` (of ``width`` columns), ``csv`` or ``md``."""
        if format == "csv":
            return self._csv()
        if format == "md":
            return self._markdown()
        if format == "table":
            return self._plain(width)
        hint = did_you_mean(format, FORMATS)
        raise UsageError(f"no leaderboard format named '{_printable(format)}'.{hint}")

    def write(self, path: str | Path, format: str | None = None) -> None:
        """Write the leaderboard to a file, which is whole or unchanged at any time.

        format: as in :meth:`render`; by default from the suffix, ``.csv``, ``.md`` or ``.txt``.
        """
        path = Path(path)
        if format is None:
            suffixes = {".csv": "csv", ".md": "md", ".txt": "table"}
            if path.suffix.lower() not in suffixes:
                raise UsageError(
                    f"{path}: unknown suffix '{path.suffix}' for a leaderboard; use "
                    f"{', '.join(suffixes)}, or name the format."
                )
            format = suffixes[path.suffix.lower()]
        text = self.render(format)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with temporary.open("w", encoding="utf-8", newline="") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except OSError as error:
            raise UsageError(f"{path}: cannot be written: {error.strerror}") from None
        finally:
            temporary.unlink(missing_ok=True)

    def tidy_rows(self) -> Iterator[dict[str, Any]]:
        """Yield one mapping per problem, method and number (metrics, then costs).

        ``mark`` is "best", "equal best" or empty; ``reason`` tells why seeds are missing. A method
        without any result has one row, whose ``metric`` is empty.
        """
        for board in self.boards:
            for row in board.rows:
                lead = {
                    "suite": board.suite,
                    "problem": board.problem,
                    "task": board.task,
                    "quick": board.quick,
                    "method": row.method,
                    "settings": _json(row.settings),
                }
                tail = {
                    "seeds_planned": len(board.seeds),
                    "status": row.status,
                    "timing_valid": row.timing_valid,
                    "reason": board.note(row),
                }
                numbers = [(*column, number) for column, number in row.metrics.items()]
                numbers += [(name, "", number) for name, number in row.cost.items()]
                for metric, ood_set, number in numbers if row.seeds else [("", "", Statistic(()))]:
                    yield {
                        **lead,
                        "metric": metric,
                        "ood_set": ood_set,
                        "mean": number.mean,
                        "std": number.std,
                        "seeds": number.seeds,
                        "mark": number.mark,
                        **tail,
                    }

    def _csv(self) -> str:
        text = io.StringIO()
        writer = csv.DictWriter(text, CSV_COLUMNS, lineterminator="\n")
        writer.writeheader()
        for row in self.tidy_rows():
            blank = {name: "" for name in ("mean", "std") if math.isnan(row[name])}
            writer.writerow(row | blank)
        return text.getvalue()

    def _markdown(self) -> str:
        parts = []
        for board in self.boards:
            lines = [f"### {_escaped(board.title)}", ""]
            columns = [
                _TextColumn("method", [_Cell(row.label) for row in board.shown_rows]),
                _seeds_column(board),
                *(_metric_column(board, c, " ± ", align=False) for c in board.columns),
                *_time_columns(board, with_std=True),
            ]
            if board.shown_rows:
                lines.append(_markdown_row([_escaped(" ".join(c.header_lines)) for c in columns]))
                lines.append(_markdown_row([":--", *["--:"] * (len(columns) - 1)]))
                for position in range(len(board.shown_rows)):
                    cells = [column.cells[position] for column in columns]
                    lines.append(_markdown_row([_markdown_cell(cell) for cell in cells]))
                lines.append("")
            lines += [f"- {_escaped(label)}: {_escaped(text)}" for label, text in board.notes]
            parts.append("\n".join(lines).rstrip())
        legend = " ".join(self._legend(star=False, time_std=True))
        return "\n\n".join([*parts, _escaped(legend)]) + "\n"

    def _plain(self, width: int) -> str:
        from rich.console import Console

        text = io.StringIO()
        Console(file=text, width=width, color_system=None, legacy_windows=False).print(self)
        return "\n".join(line.rstrip() for line in text.getvalue().splitlines()) + "\n"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Any]:
        from rich.padding import Padding
        from rich.text import Text

        star = console.color_system is None  # bold cannot be seen there
        time_std = True
        for board in self.boards:
            yield Text(board.title, style="bold")
            folded, shows_std = _folded(board, options.max_width, star)
            time_std = time_std and shows_std
            for position, table in enumerate(folded):
                if position:
                    yield Text()
                yield table
            for label, text in board.notes:
                yield Padding(Text.assemble((label, "bold"), f": {text}"), (0, 0, 0, 2))
            yield Text()
        for sentence in self._legend(star, time_std):
            yield Text(sentence, style="dim")

    def _legend(self, star: bool, time_std: bool) -> list[str]:
        """What a reader needs to know, and only what occurs."""
        rows = [row for board in self.boards for row in board.shown_rows]
        if not rows:
            return [] if self.boards else ["No records."]
        shown = [
            (row, row.metrics[column])
            for board in self.boards
            for row in board.shown_rows
            for column in board.columns
        ]
        several = any(len(board.seeds) > 1 for board in self.boards)
        over = "Mean ± sample standard deviation over seeds" if several else "One seed"
        test = "; one seed allows no test"
        if several:
            test = (
                ", or not significantly worse: corrected resampled t-test, paired seeds, 5%, Holm"
            )
        marks = f"{'*' if star else 'Bold'}: best{test}."
        sentences = {
            f"{over}; lowest NLL first.": True,
            marks: any(number.mark for _, number in shown),
            "Rows that lack seeds are not ranked and take no part in the test.": any(
                row.status == "incomplete" for row in rows
            ),
            f"{UNDEFINED}: undefined. (n): defined on n seeds only.": any(
                number.seeds < row.seeds for row, number in shown
            ),
            "total: MAP training + fit + tuning + prediction; post-hoc: the same without MAP "
            f"training, {UNDEFINED} for methods that train their own networks.": any(
                row.seeds for row in rows
            ),
            "A time without ± is the mean over seeds; its deviation is in the CSV.": (
                several and not time_std
            ),
            "†: timed while other jobs shared the device.": any(
                not row.timing_valid for row in rows
            ),
        }
        return [sentence for sentence, applies in sentences.items() if applies]


CSV_COLUMNS = (
    "suite",
    "problem",
    "task",
    "quick",
    "method",
    "settings",
    "metric",
    "ood_set",
    "mean",
    "std",
    "seeds",
    "seeds_planned",
    "status",
    "mark",
    "timing_valid",
    "reason",
)


def _seeds_column(board: Board) -> _TextColumn:
    planned = len(board.seeds)
    cells = []
    for row in board.shown_rows:
        texts = {"complete": f"{planned}", "incomplete": f"{row.seeds}/{planned}"}
        cells.append(_Cell(texts.get(row.status, row.status)))
    return _TextColumn("seeds", cells, right=True)


_NO_BREAK = "\N{NO-BREAK SPACE}"


def _metric_column(
    board: Board, column: Column, separator: str, *, star: bool = False, align: bool = True
) -> _TextColumn:
    """Means and deviations as text; with ``align`` they are padded so that all ± line up."""
    from uqbench.metrics import METRICS

    arrow = {"lower": f"{_NO_BREAK}↓", "higher": f"{_NO_BREAK}↑"}
    title, better = column.metric, None
    if column.metric in METRICS:
        title, better = METRICS[column.metric].title, METRICS[column.metric].better
    header = title
    if column.ood_set:
        ood_set = _shortened(_printable(column.ood_set), 24).replace(" ", _NO_BREAK)
        header += f" ({ood_set})"
    header += arrow.get(better, "")
    halves = []
    for row in board.shown_rows:
        number = row.metrics[column]
        mean, std = format_mean_std(number.mean, number.std)
        after = f"{separator}{std}" if std else ""
        if number.mark and star:
            after += "*"
        if 0 < number.seeds < row.seeds:
            after += f" ({number.seeds})"
        halves.append((mean, after, bool(number.mark)))
    pad = max(len(mean) for mean, _, _ in halves) if align else 0
    pad_after = max(len(after) for _, after, _ in halves) if align else 0
    cells = [_Cell(f"{mean:>{pad}}{after:<{pad_after}}", bold) for mean, after, bold in halves]
    return _TextColumn(header, cells)


def _time_columns(board: Board, with_std: bool) -> list[_TextColumn]:
    columns = []
    for header, name in (("total", "total_seconds"), ("post-hoc", "post_hoc_seconds")):
        cells = []
        for row in board.shown_rows:
            number = row.cost[name]
            text = format_seconds(number.mean, number.std if with_std else math.nan)
            shared = number.seeds and not row.timing_valid
            cells.append(_Cell(f"{text}†" if shared else text))
        columns.append(_TextColumn(header, cells, right=True))
    return columns


def _folded(board: Board, width: int, star: bool) -> tuple[list[Table], bool]:
    """Return the board as tables of at most ``width`` columns, and whether times have a std.

    Of the layouts, roomy first, the one of the fewest tables.
    """
    rows = board.shown_rows
    if not rows:
        return [], True
    labels = _TextColumn("method", [_Cell(row.label) for row in rows])
    label_width = min(labels.width, max(16, width // 4))
    layouts = []
    for time_std in (True, False):
        for separator in (" ± ", "±"):
            units = [[_seeds_column(board)]]
            units += [[_metric_column(board, c, separator, star=star)] for c in board.columns]
            units += [_time_columns(board, time_std)]
            layouts.append((_packed(units, width - label_width), time_std))
    packed, time_std = min(layouts, key=lambda layout: len(layout[0]))
    return [_table(rows, labels, label_width, columns) for columns in packed], time_std


_GAP = 2


def _packed(units: Sequence[list[_TextColumn]], width: int) -> list[list[_TextColumn]]:
    """Fill tables of ``width`` columns in order; the columns of a unit stay together."""
    tables: list[list[_TextColumn]] = [[]]
    used = 0
    for unit in units:
        needed = sum(column.width + _GAP for column in unit)
        if tables[-1] and used + needed > width:
            tables.append([])
            used = 0
        tables[-1] += unit
        used += needed
    return tables


def _table(
    rows: Sequence[Row], labels: _TextColumn, label_width: int, columns: Sequence[_TextColumn]
) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column(labels.header, width=label_width, overflow="fold")
    for column in columns:
        justify = "right" if column.right else "left"
        table.add_column(Text("\n".join(column.header_lines)), width=column.width, justify=justify)
    for position, row in enumerate(rows):
        cells = [column.cells[position] for column in columns]
        texts = [Text(cell.text, style="bold" if cell.bold else "") for cell in cells]
        is_last_complete = row.status == "complete" and any(
            other.status != "complete" for other in rows[position + 1 : position + 2]
        )
        table.add_row(Text(row.label), *texts, end_section=is_last_complete)
    return table


_MARKDOWN = re.compile(r"[\\`*\[\]{}<>|~$#&!@]|(?<![0-9A-Za-z])_|_(?![0-9A-Za-z])")


def _escaped(text: str) -> str:
    """Escape what Markdown would read as markup, pipes of tables among it."""
    return _MARKDOWN.sub(lambda found: f"\\{found.group()}", text)


def _markdown_cell(cell: _Cell) -> str:
    return f"**{_escaped(cell.text)}**" if cell.bold else _escaped(cell.text)


def _markdown_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
