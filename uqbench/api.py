"""What the command line does, one call away in Python."""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from uqbench.errors import UsageError
from uqbench.formatting import counted, printable

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console

    from uqbench.cells import Cell, Request
    from uqbench.comparison import Comparison
    from uqbench.records import Record
    from uqbench.registry import Settings
    from uqbench.results import Results
    from uqbench.worker import Prepared

RERUN = ("failed", "all")
AGAINST = ("paper",)


class Interrupted(KeyboardInterrupt):
    """Ctrl-C; the message says what is done and how to go on."""


@dataclass(frozen=True)
class Execution:
    """What :func:`execute` did. cells: those asked for; records: those of the whole folder."""

    run_dir: Path
    cells: Sequence[Cell]
    records: Sequence[Record]

    @property
    def statuses(self) -> Counter[str]:
        from uqbench.runner import count_statuses

        return count_statuses(self.cells, self.records)

    @property
    def failures(self) -> list[Record]:
        """Records of this request's cells that ran and have no result."""
        from uqbench.runner import FAILURES

        keys = {cell.key for cell in self.cells}
        return [r for r in self.records if r.key in keys and r.status in FAILURES]


def run(
    methods: str | Iterable[str],
    suite: str | None = None,
    problems: str | Iterable[str] | None = None,
    seeds: int = 3,
    settings: Mapping[str, Mapping[str, Any]] | Iterable[str] | None = None,
    device: str = "auto",
    out: str | Path | None = None,
    jobs: int = 1,
    timeout: float | str | None = None,
    rerun: str | None = None,
    plugins: Iterable[str | Path] = (),
    data_dir: str | Path | None = None,
    quick: bool = False,
    data: str | Path | None = None,
    target: str | None = None,
    task: str | None = None,
    images: str | Path | None = None,
    ood: str | Path | Iterable[str | Path] = (),
    image_size: int | None = None,
) -> Results:
    """Run every method on every problem with every seed, and return the folder's results.

    methods: names, or one string with commas between them.
    suite: a suite's name or TOML file (default: ``starter``); problems: names, to run these alone
    (of ``suite`` if it is given, else of any).
    seeds: number of seeds, 0 .. seeds − 1.
    settings: ``{"nuqls": {"gamma": 0.1}}`` or ``["nuqls.gamma=0.1"]``.
    device: ``auto``, ``cpu``, ``cuda`` or ``cuda:i``.
    out: the run's folder (default: ``runs/`` and the suite's name). Cells that have a record there
    are not run again, failed ones only with ``rerun="failed"``; ``rerun="all"`` runs all, and
    trains their MAP networks again.
    jobs: cells that run at the same time; with more than one, timings are marked as shared.
    timeout: seconds that one cell may take, or a string like ``"2h"``.
    plugins: Python files that define methods. data_dir: where the data sets are.
    quick: a tenth of the training epochs, and of images a few thousand, to try things out.
    data, target, task: a table of one's own, the column to predict, and what kind of target it is
    (guessed if not given).
    images: a folder of images of one's own, with train/CLASS/*, test/CLASS/* and optionally val/.
    ood: folders of images unlike them, or names of data sets, to be told apart. With a suite they
        take the place of its problems' own.
    image_size: their height and width in pixels (the most common size if not given).

    Progress goes to standard error. Raises :class:`UQBenchError` if anything asked for is wrong,
    before any work is done. A cell that fails is a record, not an exception. Ctrl-C raises
    KeyboardInterrupt; what is finished is kept.
    """
    from uqbench.results import Results

    execution = execute(
        request(
            methods,
            suite,
            problems,
            seeds,
            settings,
            quick,
            data_dir,
            data,
            target,
            task,
            images,
            ood,
            image_size,
        ),
        device=device,
        out=out,
        jobs=jobs,
        timeout=timeout,
        rerun=rerun,
        plugins=plugins,
    )
    return Results.load([execution.run_dir])


def compare(
    results: Results | str | Path | Iterable[str | Path],
    against: str = "paper",
    *,
    data_dir: str | Path | None = None,
) -> pd.DataFrame:
    """Return results beside the numbers that the NUQLS paper prints: one row for each of these.

    results: what :func:`run` returned, or folders of runs. against: ``paper``.
    data_dir: where data sets are looked for, to say which are missing.

    The columns are :data:`uqbench.comparison.COLUMNS`, the rule of the verdicts is in
    :mod:`uqbench.comparison`. Tables of which the results hold nothing are left out. Raises
    :class:`UsageError` if they hold nothing of any table, or quick runs only.
    """
    from uqbench.results import Results

    if not isinstance(results, Results):
        results = Results.load(results)
    return comparison(results, against, data_dir).frame()


def comparison(
    results: Results, against: str = "paper", data_dir: str | Path | None = None
) -> Comparison:
    """Return what :func:`compare` does as an object that a report can be made of."""
    from uqbench.comparison import compare_with_paper
    from uqbench.suggestions import did_you_mean

    if against not in AGAINST:
        hint = did_you_mean(against, AGAINST)
        raise UsageError(f"--against {against}: must be {' or '.join(AGAINST)}.{hint}")
    return compare_with_paper(results.records, data_dir)


def request(
    methods: str | Iterable[str],
    suite: str | None = None,
    problems: str | Iterable[str] | None = None,
    seeds: int = 3,
    settings: Mapping[str, Mapping[str, Any]] | Iterable[str] | None = None,
    quick: bool = False,
    data_dir: str | Path | None = None,
    data: str | Path | None = None,
    target: str | None = None,
    task: str | None = None,
    images: str | Path | None = None,
    ood: str | Path | Iterable[str | Path] = (),
    image_size: int | None = None,
) -> Request:
    """Return the arguments of :func:`run` that say which cells to run, checked for their form."""
    from uqbench.cells import Request

    if isinstance(seeds, bool) or not isinstance(seeds, int) or seeds < 1:
        raise UsageError(f"seeds must be a whole number, at least 1; got {seeds!r}")
    if problems is not None and not problems:
        raise UsageError("problems: none are named")
    ood = [ood] if isinstance(ood, str | Path) else ood
    ood = tuple(map(str, ood))
    if data is not None and (suite is not None or problems is not None):
        raise UsageError("give either a table of your own (--data) or --suite and --problems")
    if images is not None and any(other is not None for other in (data, suite, problems)):
        raise UsageError(
            "give either images of your own (--images), or --data, or --suite and --problems"
        )
    if data is not None and ood:
        raise UsageError("--ood is for images, --data is a table")
    if images is None and image_size is not None:
        raise UsageError("--image-size is for images of your own: give --images as well")
    whole = isinstance(image_size, int) and not isinstance(image_size, bool)
    if image_size is not None and not (whole and image_size >= 1):
        raise UsageError(f"image_size must be a whole number, at least 1; got {image_size!r}")
    if data is None and (target is not None or task is not None):
        raise UsageError("--target and --task describe a table of your own: give --data as well")
    if data is not None and target is None:
        raise UsageError("--data needs --target: the name of the column to predict")
    return Request(
        methods=_names(methods, "methods"),
        suite=suite,
        problems=_names(problems or (), "problems"),
        seeds=seeds,
        settings=_settings(settings or ()),
        quick=quick,
        data_dir=_path(data_dir),
        data=_path(data),
        target=target,
        task=task,
        images=_path(images),
        ood=ood,
        image_size=image_size,
    )


def execute(
    request: Request,
    *,
    device: str = "auto",
    out: str | Path | None = None,
    jobs: int = 1,
    timeout: float | str | None = None,
    rerun: str | None = None,
    plugins: Iterable[str | Path] = (),
    console: Console | None = None,
) -> Execution:
    """Plan the request, run what has no record yet, and return what the folder then holds."""
    from rich.console import Console

    from uqbench import worker
    from uqbench.records import RecordFile
    from uqbench.runner import Runner, cells_to_run, workers

    worker.check_not_in_worker()
    # in a notebook rich would show it as output of the cell
    console = console or Console(stderr=True, force_jupyter=False)
    if isinstance(jobs, bool) or not isinstance(jobs, int) or jobs < 1:
        raise UsageError(f"jobs must be a whole number, at least 1; got {jobs!r}")
    if rerun is not None and rerun not in RERUN:
        raise UsageError(f"rerun must be one of {', '.join(RERUN)}; got {rerun!r}")
    limit = parse_duration(timeout)
    _check_writable(out)
    files = _plugin_paths(plugins)
    with workers(jobs) as pool:
        try:
            with console.status("Checking methods, settings, data and device ..."):
                prepared = pool[0].call(worker.prepare, request, device, files)
        except KeyboardInterrupt:
            raise Interrupted("Interrupted before any cell was run.") from None
        cells = prepared.cells
        run_dir = _run_dir(out, request, cells)
        records = RecordFile(run_dir)
        with records.locked():
            before = records.read()
            todo = cells_to_run(cells, before, rerun)
            _announce(console, prepared, todo, before, run_dir)
            records.write_plan(cell.key for cell in cells)
            job = worker.Job(
                run_dir=run_dir,
                device=prepared.device,
                data_root=request.data_dir,
                plugins=files,
                machine=prepared.machine,
                shared=jobs > 1,
            )
            if rerun == "all":
                job.remove_networks(todo)
            runner = Runner(job, records, limit, console)
            try:
                runner.run(todo, pool)
            except KeyboardInterrupt:
                # the file, not a counter, knows whether the last record was written
                there = {record.key for record in records.read()}
                left = sum(cell.key not in there for cell in todo)
                raise Interrupted(_interrupted(len(cells), left, run_dir, rerun)) from None
            return Execution(run_dir, cells, records.read())


def dry_run(
    request: Request,
    *,
    device: str = "auto",
    out: str | Path | None = None,
    plugins: Iterable[str | Path] = (),
) -> Execution:
    """Check and plan the request as :func:`execute` does, but run nothing and write nothing."""
    from uqbench import worker
    from uqbench.records import RecordFile
    from uqbench.runner import workers

    _check_writable(out)
    with workers(1) as pool:
        cells = pool[0].call(worker.prepare, request, device, _plugin_paths(plugins)).cells
    run_dir = _run_dir(out, request, cells)
    return Execution(run_dir, cells, RecordFile(run_dir).read())


def parse_duration(value: float | str | None) -> float | None:
    """Return seconds for a number or for a string like ``90``, ``90s``, ``1.5h`` or ``1h30m``."""
    if value is None:
        return None
    if isinstance(value, str):
        text = re.sub(r"\s", "", value)
        text = f"{text}s" if text[-1:].isdigit() and text.replace(".", "", 1).isdigit() else text
        if not re.fullmatch(r"(\d+(\.\d+)?[dhms])+", text):
            raise UsageError(f"--timeout {value}: must be a duration like 90s, 30m, 2h or 1h30m")
        units = {"d": 86400, "h": 3600, "m": 60, "s": 1}
        value = sum(float(n) * units[unit] for n, unit in re.findall(r"([\d.]+)([dhms])", text))
    if isinstance(value, bool) or not 0 < value < math.inf:
        raise UsageError(f"--timeout must be longer than 0 seconds, got {value}")
    return float(value)


def _announce(
    console: Console,
    prepared: Prepared,
    todo: Sequence[Cell],
    records: Sequence[Record],
    run_dir: Path,
) -> None:
    """Say what will run, and what is there already."""
    from uqbench.runner import FAILURES, count_statuses, other_sources

    cells = prepared.cells
    there = count_statuses(cells, records)
    del there["missing"]
    text = f"{counted(len(cells), 'cell')} on {prepared.device}, in {run_dir}"
    if there:
        text += f": {there.total()} already there"
    if there and not todo:
        text += ", nothing to run (--rerun all runs them again)"
    elif there:
        text += f", {len(todo)} to run"
    unsuccessful = sum(there[status] for status in FAILURES)
    if unsuccessful and len(todo) == len(cells) - there.total():
        text += f". {unsuccessful} of them failed: --rerun failed tries these again"
    own_data = {cell.problem.description for cell in cells if cell.problem.of_own_data}
    run_again = {cell.key for cell in todo}
    changed = other_sources(cells, [one for one in records if one.key not in run_again])
    warnings = [
        f"Warning: {method}: its code changed since {counted(number, 'finished cell')} ran; "
        "--rerun all runs again what this command asks for"
        for method, number in changed.items()
    ]
    obstacle = _obstacle_to_publishing(prepared)
    if obstacle and any(not (cell.quick or cell.problem.of_own_data) for cell in todo):
        warnings.append(f"Note: {obstacle}: these results cannot be published")
    for line in (*own_data, text, *warnings):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _obstacle_to_publishing(prepared: Prepared) -> str:
    """What is wrong with the code of a run for a leaderboard, if anything is."""
    if prepared.machine.get("commit") is None:
        return "uqbench's commit is unknown (pip install -e . in a git checkout makes it known)"
    if not prepared.changed:
        return ""
    first, *others = map(printable, prepared.changed)
    rest = others[0] if len(others) == 1 else counted(len(others), "other file")
    return f"uqbench's code differs from its commit in {first}" + (f" and {rest}" if others else "")


def _interrupted(cells: int, left: int, run_dir: Path, rerun: str | None) -> str:
    text = (
        f"Interrupted: {cells - left} of {counted(cells, 'cell')} are done and kept in {run_dir}."
    )
    if rerun is None:
        return f"{text} The same command runs the other {left}."
    return f"{text} Cells that were not reached keep their earlier records, if they have any."


def _run_dir(out: str | Path | None, request: Request, cells: Sequence[Cell]) -> Path:
    if out is not None:
        return Path(out)
    suites = {cell.suite for cell in cells}
    name = suites.pop() if len(suites) == 1 else "problems"
    if request.data is not None:
        name = request.data.stem
    elif request.images is not None:
        name = request.images.name
    return Path("runs") / (f"{name}-quick" if request.quick else name)


def _check_writable(out: str | Path | None) -> None:
    """Raise before any work if a folder cannot be made or written at ``out``."""
    if out is None:
        return
    if not str(out):
        raise UsageError("--out is empty; give a folder")
    path = Path(out).absolute()
    if path.exists() and not path.is_dir():
        raise UsageError(f"--out {out}: is a file; give a folder")
    nearest = next(parent for parent in (path, *path.parents) if parent.exists())
    if not nearest.is_dir():
        raise UsageError(f"--out {out}: {nearest} is a file; give a folder")
    if not os.access(nearest, os.W_OK):
        raise UsageError(f"--out {out}: no permission to write in {nearest}")


def _plugin_paths(plugins: Iterable[str | Path]) -> tuple[Path, ...]:
    plugins = [plugins] if isinstance(plugins, str | Path) else plugins
    return tuple(Path(path).expanduser().resolve() for path in plugins)


def _path(value: str | Path | None) -> Path | None:
    return None if value is None else Path(value).expanduser().resolve()


def _names(value: str | Iterable[str], what: str) -> tuple[str, ...]:
    parts = value.split(",") if isinstance(value, str) else list(value)
    if not all(isinstance(part, str) for part in parts):
        raise UsageError(f"{what} must be names, got {parts!r}")
    names = tuple(part.strip() for part in parts)
    if names and not all(names):
        raise UsageError(f"{what}: a name is empty in {','.join(names)!r}")
    return names


def _settings(
    given: Mapping[str, Mapping[str, Any]] | Iterable[str],
) -> tuple[tuple[str, Settings], ...]:
    from uqbench.cells import parse_setting
    from uqbench.registry import Settings

    if not isinstance(given, Mapping):
        return tuple(parse_setting(text) for text in given)
    layers = []
    for method, values in given.items():
        if not isinstance(values, Mapping):
            raise UsageError(
                f"settings: must be like {{'nuqls': {{'gamma': 0.1}}}}; under '{method}' is "
                f"{values!r}"
            )
        for name, value in values.items():
            layers.append((method, Settings({name: value}, f"setting {method}.{name}={value!r}")))
    return tuple(layers)
