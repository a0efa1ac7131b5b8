"""Results beside the numbers that the NUQLS paper prints.

The rule. A number's difference is our mean over seeds minus the paper's, in the paper's standard
deviations, which are over experiments: 10 splits on UCI tables, 5 trainings of a LeNet5. It is
*within* if it is at most 3 of them; else *better* or *worse* by the metric's own direction, or
*outside* where a metric has none. This says whether the paper's experiments and ours could be of
one kind, not that the means are equal: a mean over 10 experiments is known three times better than
one of them. It is lenient on purpose, since splits and initialisations are not the paper's.

Few seeds. Our mean is itself uncertain by s/√n, n seeds, s the larger of our standard deviation and
the paper's (ours alone says little for small n, and nothing for one seed). A verdict that moving
our mean by 2 s/√n either way could change is *open*.

A std that is printed as 0 counts as one unit of the last printed digit. Where the paper prints no
std, the relative difference is shown and nothing is judged. Times are shown and never judged: the
machines differ. Quick runs are not compared.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache, cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from uqbench.boards import Board, Column, Row, Statistic, boards, direction
from uqbench.errors import UQBenchError, UsageError
from uqbench.formatting import compact_json, counted, printable, shortened
from uqbench.paper import Explanation, PaperNumber, explanations, paper_numbers
from uqbench.records import Identity, Record

if TYPE_CHECKING:
    import pandas as pd

    from uqbench.problems import Problem

LIMIT = 3
"""Standard deviations of the paper within which a number counts as reproduced."""

HEADLINE = ("nuqls", "map", "lla")
"""Methods whose numbers the summary counts together."""

JUDGED = ("within", "better", "worse", "outside")
"""Verdicts where the paper prints a std. The others: no std, time, undefined, not run."""

COLUMNS = (
    "table",
    "problem",
    "method",
    "settings",
    "printed_method",
    "metric",
    "ood_set",
    "mean",
    "std",
    "seeds",
    "standard_error",
    "paper_mean",
    "paper_std",
    "paper_seeds",
    "difference",
    "difference_in_std",
    "relative_difference",
    "verdict",
    "open",
    "explanation",
    "reason",
    "paper_note",
)


@dataclass(frozen=True)
class Pair:
    """A number of the paper, and ours for one method with one group of settings.

    row: the method on its board; None where nothing ran, and then ``reason`` says why.
    departures: settings that differ from those that the suite gives the problem.
    """

    number: PaperNumber
    row: Row | None
    departures: Mapping[str, Any] = field(default_factory=dict)
    ours: Statistic = field(default_factory=partial(Statistic, ()))
    reason: str = ""

    @property
    def variant(self) -> tuple[str, str]:
        """Method and departures, which tell rows of one method apart."""
        return self.number.method, compact_json(self.departures)

    @property
    def difference(self) -> float:
        """Ours minus the paper's, NaN if we have none."""
        return self.ours.mean - self.number.value

    @property
    def in_std(self) -> float:
        """The difference in the paper's standard deviations, NaN if it prints none."""
        return math.nan if self.number.is_time else self.difference / self.number.yardstick

    @property
    def relative(self) -> float:
        """The difference over the paper's value, NaN if that is 0."""
        value = self.number.value
        return self.difference / abs(value) if value else math.nan

    @property
    def standard_error(self) -> float:
        """s/√n with s the larger of our std and the paper's; NaN where neither exists."""
        known = [s for s in (self.ours.std, self.number.yardstick) if not math.isnan(s)]
        return max(known) / math.sqrt(self.ours.seeds) if known and self.ours.seeds else math.nan

    @cached_property
    def verdict(self) -> str:
        if self.row is None or not self.row.seeds or self.reason:
            return "not run"
        if math.isnan(self.ours.mean):
            return "undefined"
        if self.number.is_time:
            return "time"
        if math.isnan(self.number.std):
            return "no std"
        if abs(self.in_std) <= LIMIT + 1e-9:
            return "within"
        better, target = direction(self.number.metric)
        if better is None:
            return "outside"
        ours, theirs = self.ours.mean, self.number.value
        if target is not None:
            ours, theirs = abs(ours - target), abs(theirs - target)
        return "better" if (ours < theirs) == (better == "lower") else "worse"

    @property
    def open(self) -> bool:
        """Whether more seeds could change the verdict."""
        slack = 2 * self.standard_error / self.number.yardstick
        return self.verdict in JUDGED and abs(abs(self.in_std) - LIMIT) < slack

    @property
    def good(self) -> bool:
        return self.verdict in ("within", "better")

    @cached_property
    def explanation(self) -> Explanation | None:
        """Why it is outside; None if it is not, or nobody knows."""
        if self.row is None or self.verdict not in ("better", "worse", "outside"):
            return None
        settings = self.row.settings
        fitting = (e for e in explanations() if e.covers(self.number, settings, self.verdict))
        return next(fitting, None)

    def flat(self) -> dict[str, Any]:
        """The pair as a row of the CSV; see ``COLUMNS``. Missing numbers are NaN."""
        number = self.number
        return {
            "table": number.table,
            "problem": number.problem,
            "method": number.method,
            "settings": compact_json(self.departures),
            "printed_method": number.printed_method,
            "metric": number.metric,
            "ood_set": number.ood_set,
            "mean": self.ours.mean,
            "std": self.ours.std,
            "seeds": self.ours.seeds,
            "standard_error": self.standard_error,
            "paper_mean": number.value,
            "paper_std": number.std,
            "paper_seeds": number.seeds or math.nan,
            "difference": self.difference,
            "difference_in_std": self.in_std,
            "relative_difference": self.relative,
            "verdict": self.verdict,
            "open": self.open,
            "explanation": self.explanation.because if self.explanation else "",
            "reason": self.reason,
            "paper_note": number.note,
        }


@dataclass(frozen=True)
class Comparison:
    """Every table of the paper of which the records hold something.

    pairs: in the order of the paper; a method with several groups of settings has several.
    records: those compared. not_covered: table -> why nothing of it is here.
    notes: what a reader must know about the records.
    """

    pairs: tuple[Pair, ...]
    records: tuple[Record, ...] = field(repr=False)
    not_covered: Mapping[str, str]
    notes: tuple[str, ...] = ()

    @property
    def tables(self) -> dict[str, list[Pair]]:
        found: dict[str, list[Pair]] = {}
        for pair in self.pairs:
            found.setdefault(pair.number.table, []).append(pair)
        return found

    @cached_property
    def variants(self) -> dict[tuple[str, str], int]:
        """Methods with departures -> their number from 1 in the order of appearance."""
        found = dict.fromkeys(pair.variant for pair in self.pairs if pair.departures)
        return {variant: position for position, variant in enumerate(found, start=1)}

    def label(self, pair: Pair) -> str:
        """The method's name, with its variant's number in brackets if it has departures."""
        number = self.variants.get(pair.variant)
        return pair.number.method if number is None else f"{pair.number.method} [{number}]"

    @cached_property
    def judged(self) -> list[Pair]:
        """Pairs with a std of the paper, each number once where several tables print it."""
        once: dict[tuple[Any, ...], Pair] = {}
        for pair in self.pairs:
            if pair.verdict in JUDGED:
                once.setdefault((*_identity(pair.number), *pair.variant), pair)
        return list(once.values())

    def summary(self) -> list[str]:
        """The headline, then what it is made of."""
        main = [pair for pair in self.judged if pair.number.method in HEADLINE]
        names = f"{', '.join(HEADLINE[:-1])} and {HEADLINE[-1]}"
        if any(pair.departures for pair in main):
            names += " (every group of settings counts)"
        good = sum(pair.good for pair in main)
        bad = [pair for pair in main if not pair.good]
        lines = [f"No number of {names} that has a standard deviation in the paper was compared."]
        if main:
            lines = [
                f"Of {len(main)} numbers compared for {names}, {good} are within {LIMIT} standard "
                "deviations of the paper's or better."
            ]
        if bad:
            known = sum(pair.explanation is not None for pair in bad)
            others = f"Of the other {len(bad)}, {known or 'none'}"
            if known == len(bad):
                others = f"The other {known}"
            lines[0] += f" {others} can be explained."
        if several := sum(pair.open for pair in main):
            what = "verdicts are open: more seeds could change them"
            what = what if several > 1 else "verdict is open: more seeds could change it"
            lines[0] += f" {several} {what}."
        compared = {_identity(pair.number) for pair in main}
        printed = {
            _identity(number)
            for number in paper_numbers()
            if number.method in HEADLINE and not math.isnan(number.std)
        }
        if left := len(printed - compared):
            lines[0] += f" {left} {'others ' if main else ''}in the paper were not run."
        by_method: dict[str, list[Pair]] = {}
        for pair in self.judged:
            by_method.setdefault(self.label(pair), []).append(pair)
        if by_method:
            counts = [
                f"{name} {sum(pair.good for pair in group)} of {len(group)}"
                for name, group in by_method.items()
            ]
            lines.append(f"Within {LIMIT} or better, by method: {', '.join(counts)}.")
        return lines

    def records_of(self, pair: Pair) -> list[Record]:
        """The finished records behind a pair."""
        if pair.row is None:
            return []
        wanted = (pair.number.problem, pair.row.method, compact_json(pair.row.settings))
        return self._finished.get(wanted, [])

    @cached_property
    def _finished(self) -> dict[tuple[str, str, str], list[Record]]:
        found: dict[tuple[str, str, str], list[Record]] = {}
        for record in self.records:
            one = record.identity
            if record.status == "ok":
                key = (one.problem, one.method, compact_json(one.settings))
                found.setdefault(key, []).append(record)
        return found

    def frame(self) -> pd.DataFrame:
        """One row per pair; the columns are ``COLUMNS``."""
        import pandas as pd

        return pd.DataFrame([pair.flat() for pair in self.pairs], columns=COLUMNS)


def _identity(number: PaperNumber) -> tuple[str, ...]:
    """What a number has in common with the same number in another table."""
    return number.problem, number.method, number.metric, number.ood_set


def compare_with_paper(records: Sequence[Record], data_dir: str | Path | None = None) -> Comparison:
    """Compare records with every table of the paper that they cover, by the rule above.

    data_dir: where data sets are looked for, to say which are missing.
    Raises :class:`UsageError` if the records hold nothing that the paper has, or quick runs only.
    """
    numbers = paper_numbers()
    known = {number.problem for number in numbers}
    relevant = [record for record in records if record.identity.problem in known]
    full = tuple(record for record in relevant if not record.identity.quick)
    if not full:
        raise UsageError(_nothing_to_compare(records, relevant, known))
    notes = []
    if len(full) < len(relevant):
        notes.append(
            f"{counted(len(relevant) - len(full), 'cell')} of quick runs left out: they train for "
            "a tenth of the epochs."
        )
    by_problem = {board.problem: board for board in boards(full)}
    surroundings = _Surroundings(data_dir)
    for name in by_problem:
        first = next(r.identity for r in full if r.identity.problem == name)
        if departures := surroundings.departures_of_problem(first):
            notes.append(f"{name}: not as in the suite: {departures}.")
    pairs = [
        pair
        for number in numbers
        for pair in _pairs(number, by_problem.get(number.problem), surroundings)
    ]
    covered = {pair.number.table for pair in pairs if pair.ours.seeds}
    if not covered:
        raise UsageError(_nothing_finished(full))
    not_covered: dict[str, dict[str, None]] = {}
    for pair in pairs:
        # what another system's numbers lack is said of the tables that are shown
        if pair.number.table not in covered and surroundings.has_method(pair.number.method):
            not_covered.setdefault(pair.number.table, {})[pair.reason] = None
    return Comparison(
        tuple(pair for pair in pairs if pair.number.table in covered),
        full,
        {table: "; ".join(reasons) for table, reasons in not_covered.items()},
        tuple(notes),
    )


def _nothing_to_compare(
    records: Sequence[Record], relevant: Sequence[Record], known: set[str]
) -> str:
    if relevant:
        return (
            "quick runs train for a tenth of the epochs and are not compared with the paper; run "
            "without --quick"
        )
    held = sorted({printable(record.identity.problem) for record in records})
    there = shortened(", ".join(held) or "no problem at all", 80)
    return (
        f"nothing to compare with the paper: the runs hold {there}; the paper's tables have "
        f"{', '.join(sorted(known)[-3:])} and others ('uqbench list problems')"
    )


def _nothing_finished(records: Sequence[Record]) -> str:
    held = dict.fromkeys(
        printable(f"{r.identity.method} on {r.identity.problem} ({r.status})") for r in records
    )
    return (
        "nothing to compare with the paper: no finished cell of the runs is in its tables; they "
        f"hold {shortened(', '.join(held), 100)}"
    )


def _pairs(number: PaperNumber, board: Board | None, surroundings: _Surroundings) -> Iterator[Pair]:
    rows = [row for row in board.rows if row.method == number.method] if board else []
    if board is None or not rows:
        yield Pair(number, None, reason=surroundings.why_not_run(number, board is not None))
    known = [(surroundings.departures(number.problem, row), row) for row in rows]
    for departures, row in sorted(known, key=lambda both: bool(both[0])):  # the suite's own first
        if not row.seeds:
            yield Pair(number, row, departures, reason=board.note(row))
            continue
        if number.is_time:
            ours = row.cost[number.metric]
        else:
            ours = row.metrics.get(Column(number.metric, number.ood_set))
        if ours is None:
            reason = f"{_named(number)} is not among the metrics of these records"
            yield Pair(number, row, departures, reason=reason)
        else:
            yield Pair(number, row, departures, ours)


def _named(number: PaperNumber) -> str:
    return f"{number.metric} on {number.ood_set}" if number.ood_set else number.metric


class _Surroundings:
    """What uqbench has today: its problems, its methods with their settings, the data sets."""

    def __init__(self, data_dir: str | Path | None) -> None:
        from uqbench.registry import method_names

        self._data_dir = data_dir
        self._methods = set(method_names())

    def has_method(self, name: str) -> bool:
        return name in self._methods

    def departures(self, problem: str, row: Row) -> dict[str, Any]:
        """The row's settings that differ from the problem's own.

        Settings that only the record or only the method of today has are passed over: records
        are older than some settings.
        """
        own = _own_settings(problem, row.method)
        return {
            name: value
            for name, value in row.settings.items()
            if name in own and own[name] != value
        }

    def departures_of_problem(self, identity: Identity) -> str:
        """Network, recipe and split in which a record differs from the suite's problem."""
        problem = _problems().get(identity.problem)
        if problem is None:
            return ""
        suite = _flattened(_recipe(problem))
        ours = {"network": identity.network, **identity.training, "dtype": identity.dtype}
        if identity.split:
            ours["split"] = list(identity.split)
        return ", ".join(
            f"{name} {compact_json(value)} (suite: {compact_json(suite[name])})"
            for name, value in _flattened(_plain(ours)).items()
            if name in suite and suite[name] != value
        )

    def why_not_run(self, number: PaperNumber, has_board: bool) -> str:
        if not self.has_method(number.method):
            return f"uqbench has no method '{number.method}'"
        problem = _problems().get(number.problem)
        if problem is None:
            return "uqbench has no such problem"
        if not has_board and (missing := self._missing_data(problem)):
            return f"needs {' and '.join(missing)}, not in the data folder"
        return "not in these runs"

    def _missing_data(self, problem: Problem) -> list[str]:
        needed = [problem.dataset, *(name.removeprefix("rotated:") for name in problem.ood)]
        return sorted({name for name in needed if name in self._absent})

    @cached_property
    def _absent(self) -> set[str]:
        from uqbench.datasets.catalogue import entries

        return {entry.name for entry in entries(self._data_dir) if entry.status == "missing"}


@cache
def _problems() -> Mapping[str, Problem]:
    from uqbench.problems import all_problems

    return all_problems()


@cache
def _own_settings(problem: str, method: str) -> Mapping[str, Any]:
    """The settings that the suite gives a method on a problem; none if either is gone."""
    from uqbench.registry import build_method

    try:
        return _plain(asdict(build_method(method, _problems()[problem].methods.get(method, {}))))
    except (UQBenchError, KeyError):
        return {}


def _recipe(problem: Problem) -> dict[str, Any]:
    identity = problem.training_identity()
    for part in ("name", "dataset", "task"):
        identity.pop(part, None)
    return _plain(identity)


def _plain(value: Any) -> Any:
    """As JSON would read it back: lists for tuples."""
    return json.loads(json.dumps(value, default=str))


def _flattened(values: Mapping[str, Any], place: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= _flattened(value, f"{place}{name}.")
        else:
            flat[f"{place}{name}"] = value
    return flat
