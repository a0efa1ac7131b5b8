"""The numbers that the NUQLS paper prints, and what is known of why ours differ.

They are data: ``leaderboards/paper/table*.csv``, one row per number, and ``explanations.toml``.
The README beside them has the meaning of the columns.
"""

from __future__ import annotations

import csv
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from fnmatch import fnmatchcase
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any

FIELDS = (
    "table",
    "problem",
    "method",
    "printed_method",
    "metric",
    "ood_set",
    "mean",
    "std",
    "seeds",
    "decimals",
    "offset",
    "source",
    "note",
)

TITLES = {
    "table1": "Table 1: regression on UCI tables",
    "table2": "Table 2: predictions of LeNet5 and its OoD detection",
    "table3": "Table 3: confidence intervals, wide networks trained in part",
    "table4": "Table 4: confidence intervals, networks of finite width trained in full",
    "table5": "Table 5: OoD detection by the variance of the logits",
    "table6": "Table 6: predictions of an MLP on MNIST and its OoD detection",
    "table7": "Table 7: predictions of ResNets on CIFAR-10",
    "table8": "Table 8: regression on UCI tables, Bayesian deep ensembles",
    "table9": "Table 9: regression on further UCI tables",
    "table10": "Table 10: median and skew of the VMSP",
    "table11": "Table 11: median and skew of the VMSP, further methods",
}


@dataclass(frozen=True)
class PaperNumber:
    """One number of one table.

    mean, std: as printed; std is NaN where none is. seeds: experiments behind them, 0 if unknown.
    decimals: of the printed mean. offset: what makes the printed mean our metric if it is added.
    printed_method: the method's name in the paper. note: what is printed otherwise than we do.
    """

    table: str
    problem: str
    method: str
    printed_method: str
    metric: str
    ood_set: str
    mean: float
    std: float
    seeds: int
    decimals: int
    offset: float
    source: str
    note: str

    @property
    def value(self) -> float:
        """The mean, in our metric's convention."""
        return self.mean + self.offset

    @property
    def yardstick(self) -> float:
        """The std; one unit of the last printed digit where it is printed as 0. NaN if none is."""
        return self.std or 10.0**-self.decimals

    @property
    def is_time(self) -> bool:
        return self.metric.endswith("_seconds")


@dataclass(frozen=True)
class Explanation:
    """Why numbers differ, and the experiment that says so.

    tables, problems, methods, metrics: patterns like ``uci/*``; one of each must match.
    settings: values that the method's settings must have. verdicts: those that it explains.
    """

    because: str
    evidence: str
    tables: tuple[str, ...] = ("*",)
    problems: tuple[str, ...] = ("*",)
    methods: tuple[str, ...] = ("*",)
    metrics: tuple[str, ...] = ("*",)
    settings: Mapping[str, Any] = field(default_factory=dict)
    verdicts: tuple[str, ...] = ("*",)

    def covers(self, number: PaperNumber, settings: Mapping[str, Any], verdict: str) -> bool:
        asked = (
            (number.table, self.tables),
            (number.problem, self.problems),
            (number.method, self.methods),
            (number.metric, self.metrics),
            (verdict, self.verdicts),
        )
        return all(
            any(fnmatchcase(value, pattern) for pattern in patterns) for value, patterns in asked
        ) and all(name in settings and settings[name] == v for name, v in self.settings.items())


@cache
def paper_numbers() -> tuple[PaperNumber, ...]:
    """All numbers, in the order of the tables and of their rows."""
    numbers = []
    for table in TITLES:
        text = _file(f"{table}.csv").read_text(encoding="utf-8")
        for row in csv.DictReader(text.splitlines()):
            numbers.append(_number(row))
    return tuple(numbers)


@cache
def explanations() -> tuple[Explanation, ...]:
    """All explanations; of several that cover a number the first counts."""
    entries = tomllib.loads(_file("explanations.toml").read_text(encoding="utf-8"))
    return tuple(_explanation(entry) for entry in entries["explanation"])


def _file(name: str) -> Traversable:
    return resources.files("uqbench.leaderboards") / "paper" / name


def _number(row: Mapping[str, str]) -> PaperNumber:
    texts = {name: row[name] for name in FIELDS}
    return PaperNumber(
        **texts
        | {
            "mean": float(row["mean"]),
            "std": float(row["std"] or math.nan),
            "seeds": int(row["seeds"] or 0),
            "decimals": int(row["decimals"]),
            "offset": float(row["offset"] or 0),
        }
    )


def _explanation(entry: Mapping[str, Any]) -> Explanation:
    known = {one.name for one in fields(Explanation)}
    if unknown := set(entry) - known:
        raise ValueError(f"explanations.toml: unknown key '{min(unknown)}'")
    return Explanation(**{k: tuple(v) if isinstance(v, list) else v for k, v in entry.items()})
