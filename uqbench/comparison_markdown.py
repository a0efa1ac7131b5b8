"""A comparison with the paper as a page of Markdown: docs/reproduction.md is one."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from uqbench.comparison import Comparison, Pair
from uqbench.formatting import compact_json, counted
from uqbench.leaderboard_markdown import escaped, markdown_row
from uqbench.paper import TITLES
from uqbench.records import Record

if TYPE_CHECKING:
    from uqbench.comparison_report import Report


def page(report: Report) -> str:
    """Return the whole page: summary, one section per table, what is not covered, the rule."""
    from uqbench.comparison_report import RULE

    comparison = report.comparison
    parts = [
        "# Reproduction of the paper",
        "This page is generated: `uqbench compare RUN... --against paper --format md --out FILE`. "
        "The paper is Wilson et al., *Uncertainty Quantification with the Empirical Neural Tangent "
        "Kernel* (arXiv 2502.02870); its numbers are in `leaderboards/paper/`.",
        *map(escaped, comparison.summary()),
        *(f"- {escaped(note)}" for note in comparison.notes),
        "How to read the tables:",
        "\n".join(f"- {escaped(sentence)}" for sentence in RULE),
    ]
    for table, pairs in comparison.tables.items():
        parts.append("\n".join(_section(report, table, pairs)))
    if comparison.not_covered:
        parts.append("## Tables without a result")
        parts.append("\n".join(f"- {escaped(text)}" for text in report.tables_without_result()))
    return "\n\n".join(parts) + "\n"


def _section(report: Report, table: str, pairs: Sequence[Pair]) -> Iterator[str]:
    from uqbench.comparison_report import HEADINGS, state

    yield f"## {escaped(TITLES[table])}"
    yield ""
    yield f"- State: {escaped(state(pairs))}."
    for command in commands(report.comparison, pairs):
        yield f"- Command: {_code(command)}"
    yield f"- Seeds: {_seeds(pairs)}."
    for environment in environments(report.comparison, pairs):
        yield f"- Environment: {escaped(environment)}."
    yield ""
    yield markdown_row(["problem", *HEADINGS])
    yield markdown_row([":--", ":--", ":--", "--:", "--:", "--:", "--:", ":--"])
    problem = ""
    for line in report.lines(pairs):
        shown = line.problem if line.problem != problem else ""
        problem = line.problem
        yield markdown_row([escaped(cell) for cell in (shown, *line.cells)])
    yield ""
    for text in report.remarks(pairs):
        yield f"- {escaped(text)}"
    for letter, one in report.explanations(pairs):
        yield f"- ({letter}) {one.because} Experiment: {one.evidence}"


def commands(comparison: Comparison, pairs: Sequence[Pair]) -> list[str]:
    """Command lines that make the cells behind these pairs: one per suite, settings and seeds."""
    groups: dict[tuple[str, str, int], tuple[Pair, dict[str, None], dict[str, None]]] = {}
    for pair in pairs:
        for record in comparison.records_of(pair):
            variant = compact_json(pair.variant) if pair.departures else ""
            seeds = 1 + max(r.identity.seed for r in comparison.records_of(pair))
            key = (record.identity.suite, variant, seeds)
            _, problems, methods = groups.setdefault(key, (pair, {}, {}))
            problems[pair.number.problem] = None
            methods[pair.number.method] = None
    lines = []
    for (suite, _, seeds), (pair, problems, methods) in groups.items():
        words = ["uqbench", "run", "--suite", suite, "--problems", ",".join(problems)]
        words += ["--methods", ",".join(methods)]
        for name, value in sorted(pair.departures.items()):
            words += ["--set", f"{pair.number.method}.{name}={_toml(value)}"]
        lines.append(shlex.join([*words, "--seeds", str(seeds)]))
    return lines


def _toml(value: Any) -> str:
    return str(value) if isinstance(value, str | float) else compact_json(value)


def _code(text: str) -> str:
    """A code span, which ends at as many backticks as it begins with: more than are inside."""
    ticks = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{ticks} {text} {ticks}" if len(ticks) > 1 else f"`{text}`"


def _seeds(pairs: Sequence[Pair]) -> str:
    counts = sorted({pair.ours.seeds for pair in pairs if pair.ours.seeds})
    compared = [pair for pair in pairs if pair.ours.seeds]
    theirs = sorted({pair.number.seeds for pair in compared if pair.number.seeds})
    text = f"{' or '.join(map(str, counts))} of ours"
    return f"{text}, {' or '.join(map(str, theirs))} of the paper" if theirs else text


def environments(comparison: Comparison, pairs: Sequence[Pair]) -> list[str]:
    """Versions, hardware and commit of the records behind these pairs, each once."""
    records: dict[str, Record] = {}
    for pair in pairs:
        records |= {record.key: record for record in comparison.records_of(pair)}
    return list(dict.fromkeys(map(_environment, records.values())))


def _environment(record: Record) -> str:
    origin = record.provenance
    versions = origin.get("packages") or {}
    parts = [f"{name} {version}" for name, version in versions.items()]
    if origin.get("python"):
        parts.append(f"Python {origin['python']}")
    parts += [str(origin[name]) for name in ("cpu", "gpu") if origin.get(name)]
    threads = counted(record.cost.threads, "thread")
    parts.append(f"device {record.cost.device or 'unknown'}, {threads}")
    if origin.get("commit"):
        dirty = " with changes" if origin.get("dirty") else ""
        parts.append(f"commit {str(origin['commit'])[:10]}{dirty}")
    return ", ".join(parts)
