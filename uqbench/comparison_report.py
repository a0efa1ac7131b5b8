"""A comparison with the paper as a table for the terminal, as CSV and as Markdown."""

from __future__ import annotations

import csv
import io
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from uqbench.comparison import COLUMNS, JUDGED, LIMIT, Comparison, Pair
from uqbench.formatting import (
    UNDEFINED,
    compact_json,
    counted,
    format_mean_std,
    format_seconds,
    setting_text,
)
from uqbench.paper import TITLES, Explanation
from uqbench.text_formats import check_format, plain_text, write_text

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.table import Table

    from uqbench.results import Results

HEADINGS = ("method", "metric", "ours", "n", "paper", "diff", "verdict")
"""Of the columns; n: our seeds."""

RULE = (
    "n: our seeds. diff: our mean minus the paper's, in the paper's standard deviations (sd); "
    "where it prints none, relative and not judged.",
    f"within k sd: k is at most {LIMIT}. better, worse: beyond {LIMIT} sd, by the metric's "
    "direction (outside: it has none).",
    "?: open; moving our mean by two standard errors (the larger std of both, over √n) could "
    "change the verdict.",
    "The paper's regression NLLs are shown with the ½ log 2π that they are printed without. Its "
    "times are an H100's and not judged. A std printed as 0 counts as one unit of the last digit.",
)

_TIMES = {"total_seconds": "time, total", "post_hoc_seconds": "time, post-hoc"}
_GAP = 2
_FOLDING = ("verdict", "metric", "method", "diff")
"""Columns that fold at blanks where the terminal is narrow, in this order; then those with a ±."""
_SPREAD = ("ours", "paper")


class Line(NamedTuple):
    """A row of a table as text, one cell per heading."""

    problem: str
    cells: tuple[str, ...]
    verdict: str


class Report:
    """A comparison, to be printed by rich, rendered or written.

    results: those that were compared; a page of Markdown that is written has figures of them.
    """

    def __init__(self, comparison: Comparison, results: Results | None = None) -> None:
        self.comparison = comparison
        self._results = results
        found = dict.fromkeys(
            id(pair.explanation) for pair in comparison.pairs if pair.explanation is not None
        )
        self._letters = {one: chr(ord("a") + place) for place, one in enumerate(found)}

    def render(self, format: str = "table", *, width: int = 120) -> str:
        """Return the comparison as text: ``table`` (of ``width`` columns), ``csv`` or ``md``."""
        from uqbench.comparison_markdown import page

        check_format(format, "comparison")
        if format == "csv":
            return self._csv()
        return page(self) if format == "md" else plain_text(self, width)

    def write(self, path: str | Path, format: str | None = None) -> None:
        """Write the comparison to a file, which is whole or unchanged at any time.

        format: as in :meth:`render`; by default from the suffix, ``.csv``, ``.md`` or ``.txt``.
        """
        from uqbench.comparison_figures import draw_figures
        from uqbench.comparison_markdown import page

        def text(format: str) -> str:
            if format != "md" or self._results is None:
                return self.render(format)
            return page(self, list(draw_figures(self._results, Path(path))))

        write_text(path, format, "comparison", text)

    def lines(self, pairs: Sequence[Pair]) -> list[Line]:
        """The rows of a table: pairs for which something ran, by problem and then by method.

        A method's name stands in its first row only.
        """
        shown = [pair for pair in pairs if pair.verdict != "not run"]
        problems = list(dict.fromkeys(pair.number.problem for pair in shown))
        groups = list(dict.fromkeys(map(_group, shown)))
        shown.sort(key=lambda p: (problems.index(p.number.problem), groups.index(_group(p))))
        lines = []
        before = None
        for pair in shown:
            name = self.comparison.label(pair) if _group(pair) != before else ""
            before = _group(pair)
            cells = (
                name,
                metric_text(pair),
                ours_text(pair),
                str(pair.ours.seeds),
                paper_text(pair),
                difference_text(pair),
                self.verdict_text(pair),
            )
            lines.append(Line(pair.number.problem, cells, pair.verdict))
        return lines

    def verdict_text(self, pair: Pair) -> str:
        """Like ``within 2 sd``, ``better? (a)`` with an explanation, or ``worse, unexplained``."""
        mark = "?" if pair.open else ""
        if pair.verdict == "within":
            return f"within {max(1, math.ceil(abs(pair.in_std) - 1e-9))} sd{mark}"
        if pair.verdict not in JUDGED:
            return "" if pair.verdict == "time" else pair.verdict
        letter = self._letters.get(id(pair.explanation))
        return f"{pair.verdict}{mark}" + (f" ({letter})" if letter else ", unexplained")

    def variants(self, pairs: Sequence[Pair]) -> list[str]:
        """What the numbers in brackets behind methods stand for."""
        found = dict.fromkeys(
            f"{self.comparison.label(pair)}: {departures_text(pair)}"
            for pair in pairs
            if pair.departures and pair.verdict != "not run"
        )
        return list(found)

    def remarks(self, pairs: Sequence[Pair]) -> list[str]:
        """What stands below a table: variants, the paper's own remarks, what was not run."""
        return [*self.variants(pairs), *paper_notes(pairs), *not_run(pairs)]

    def explanations(self, pairs: Sequence[Pair]) -> list[tuple[str, Explanation]]:
        """(letter, explanation) of all that these pairs refer to."""
        used = {id(pair.explanation): pair.explanation for pair in pairs if pair.explanation}
        return sorted((self._letters[key], one) for key, one in used.items() if one is not None)

    def tables_without_result(self) -> list[str]:
        """One sentence for each reason, like ``Table 3, Table 4: not in these runs.``"""
        tables: dict[str, list[str]] = {}
        for table, reason in self.comparison.not_covered.items():
            tables.setdefault(reason, []).append(TITLES[table].partition(":")[0])
        return [f"{', '.join(names)}: {reason}." for reason, names in tables.items()]

    def _csv(self) -> str:
        text = io.StringIO()
        writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for pair in self.comparison.pairs:
            row = pair.flat()
            blank = [k for k, v in row.items() if isinstance(v, float) and math.isnan(v)]
            writer.writerow(row | dict.fromkeys(blank, ""))
        return text.getvalue()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Any]:
        from rich.padding import Padding
        from rich.text import Text

        for table, pairs in self.comparison.tables.items():
            yield Text(TITLES[table], style="bold")
            lines, widths = _fitted(self.lines(pairs), options.max_width)
            yield _grid([HEADINGS], widths, "dim")
            for problem in dict.fromkeys(line.problem for line in lines):
                yield Text(problem, style="bold cyan")
                yield _grid([line for line in lines if line.problem == problem], widths)
            for text in self.remarks(pairs):
                yield Padding(Text(text), (0, 0, 0, 2))
            yield Text()
        for letter, one in self.explanations(self.comparison.pairs):
            yield Text(f"({letter}) {one.because}")
        for sentence in self.tables_without_result():
            yield Text(sentence)
        for note in self.comparison.notes:
            yield Text(note)
        for sentence in RULE:
            yield Text(sentence, style="dim")
        for sentence in self.comparison.summary():
            yield Text(sentence, style="bold")


def _group(pair: Pair) -> tuple[str, str, str, str]:
    """What the rows of one method share."""
    return (pair.number.problem, pair.number.printed_method, *pair.variant)


def metric_text(pair: Pair) -> str:
    from uqbench.metrics import METRICS

    metric = pair.number.metric
    title = _TIMES.get(metric) or (METRICS[metric].title if metric in METRICS else metric)
    return f"{title} ({pair.number.ood_set})" if pair.number.ood_set else title


def ours_text(pair: Pair) -> str:
    if pair.number.is_time:
        return format_seconds(pair.ours.mean)
    mean, std = format_mean_std(pair.ours.mean, pair.ours.std)
    return f"{mean} ± {std}" if std else mean


def paper_text(pair: Pair) -> str:
    """The paper's number with as many digits as it prints."""
    number = pair.number
    if number.is_time:
        return format_seconds(number.mean)
    if number.decimals > 6 and number.mean:
        digits = max(0, number.decimals + math.floor(math.log10(abs(number.mean))))
        return _exponent(f"{number.mean:.{digits}e}")
    text = f"{number.value:.{number.decimals}f}"
    return text if math.isnan(number.std) else f"{text} ± {number.std:.{number.decimals}f}"


def _exponent(text: str) -> str:
    """``1.0e-07`` as ``1.0e-7``, ``1e+02`` as ``1e2``."""
    return text.replace("e-0", "e-").replace("e+0", "e").replace("e+", "e")


def difference_text(pair: Pair) -> str:
    """In standard deviations; else in percent, or as a factor from 10 or to a tenth."""
    if pair.verdict in JUDGED:
        text = f"{pair.in_std:+.1f}" if abs(pair.in_std) < 1e4 else f"{pair.in_std:+.0e}"
        text = text.replace("inf", "∞")
        return "0.0 sd" if text in ("-0.0", "+0.0") else f"{text} sd"
    if pair.verdict != "no std" or math.isnan(pair.relative):
        return "" if pair.verdict == "time" else UNDEFINED
    factor = pair.ours.mean / pair.number.value
    if factor > 0 and not 0.1 < factor < 10:
        return f"×{_exponent(f'{factor:.2g}')}"
    return f"{pair.relative:+.1%}"


def departures_text(pair: Pair) -> str:
    return ", ".join(f"{k} = {_setting(v)}" for k, v in sorted(pair.departures.items()))


def _setting(value: Any) -> str:
    return setting_text(value) if isinstance(value, str | float | list) else compact_json(value)


def state(pairs: Sequence[Pair]) -> str:
    """How many numbers of a table were compared, and what came out. Times do not count."""
    numbers = [pair for pair in pairs if not pair.number.is_time]
    counts = Counter(pair.verdict for pair in numbers)
    compared = len(numbers) - counts["not run"]
    words = {"within": f"within {LIMIT} sd", "no std": "without a std of the paper"}
    parts = [
        f"{counts[verdict]} {words.get(verdict, verdict)}"
        for verdict in (*JUDGED, "no std", "undefined")
        if counts[verdict]
    ]
    if several := sum(pair.open for pair in numbers):
        parts.append(f"{several} of these verdicts open")
    return f"{compared} of {counted(len(numbers), 'number')} compared: {', '.join(parts)}"


def paper_notes(pairs: Sequence[Pair]) -> list[str]:
    """What the paper prints otherwise than we do, of the numbers that were compared."""
    places: dict[tuple[str, str], dict[str, None]] = {}
    for pair in pairs:
        number = pair.number
        if number.note and pair.verdict not in ("not run", "time"):
            names = places.setdefault((number.problem, number.note), {})
            names[number.printed_method] = None
    return [
        f"The paper's {', '.join(names)} on {problem}: {note}."
        for (problem, note), names in places.items()
    ]


def not_run(pairs: Sequence[Pair]) -> list[str]:
    """One sentence for each reason, with the problems and methods that it keeps from comparison."""
    methods: dict[str, dict[str, dict[str, None]]] = {}
    for pair in pairs:
        if pair.verdict == "not run" and not pair.number.is_time:
            by_problem = methods.setdefault(pair.reason, {})
            by_problem.setdefault(pair.number.problem, {})[pair.number.method] = None
    sentences = []
    for reason, by_problem in methods.items():
        problems: dict[tuple[str, ...], list[str]] = {}
        for problem, names in by_problem.items():
            problems.setdefault(tuple(names), []).append(problem)
        where = [f"{', '.join(group)} ({', '.join(names)})" for names, group in problems.items()]
        sentences.append(f"Not run: {'; '.join(where)}: {reason}.")
    return sentences


def _fitted(lines: Sequence[Line], available: int) -> tuple[list[Line], list[int]]:
    """Return lines, and widths of the columns that fit.

    The ± of a column stand below each other unless the terminal is so narrow that cells fold there.
    """
    for separator, folding in (
        (" ± ", ()),
        ("±", ()),
        ("±", _FOLDING),
        ("", (*_FOLDING, *_SPREAD)),
    ):
        columns = [list(column) for column in zip(*(line.cells for line in lines), strict=True)]
        for heading in _SPREAD if separator else ():
            place = HEADINGS.index(heading)
            columns[place] = _aligned(columns[place], separator)
        widths = [
            max(len(heading), *map(len, column))
            for heading, column in zip(HEADINGS, columns, strict=True)
        ]
        excess = sum(widths) + _GAP * (len(widths) - 1) - available
        for heading in folding:
            place = HEADINGS.index(heading)
            pieces = [piece for cell in columns[place] for piece in _pieces(cell)]
            cut = min(max(excess, 0), widths[place] - max(len(heading), *map(len, pieces)))
            widths[place] -= cut
            excess -= cut
        if excess <= 0:
            break
    cells = zip(*columns, strict=True)
    return [line._replace(cells=row) for line, row in zip(lines, cells, strict=True)], widths


def _pieces(cell: str) -> list[str]:
    """What stays together where a cell folds: words, and a ± with what precedes it."""
    return cell.replace(" ± ", "\N{NO-BREAK SPACE}± ").split(" ")


def _aligned(cells: Sequence[str], separator: str) -> list[str]:
    halves = [cell.partition(" ± ") for cell in cells]
    pad = max((len(mean) for mean, plus, _ in halves if plus), default=0)
    return [f"{mean:>{pad}}{separator}{std}" if plus else mean for mean, plus, std in halves]


def _grid(rows: Sequence[Line | Sequence[str]], widths: Sequence[int], style: str = "") -> Table:
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, _GAP, 0, 0))
    for heading, width in zip(HEADINGS, widths, strict=True):
        right = heading in ("n", "diff")
        justify = "right" if right else "left"
        grid.add_column(width=width, justify=justify, overflow="fold")
    colours = {"within": "green", "better": "cyan", "worse": "red", "outside": "red"}
    for row in rows:
        cells = row.cells if isinstance(row, Line) else row
        texts = [Text(cell, style=style) for cell in cells]
        if isinstance(row, Line):
            texts[-1].stylize(colours.get(row.verdict, ""))
        grid.add_row(*texts)
    return grid
