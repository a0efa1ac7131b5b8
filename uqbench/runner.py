"""The parent of the worker processes: it hands out cells, and alone writes the records.

torch is never imported here. Each worker is a process of its own, kept from cell to cell and
replaced when it dies or exceeds the time limit.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, TimeoutError, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from multiprocessing.context import SpawnContext, SpawnProcess
from pathlib import Path
from types import ModuleType
from typing import Any

from pebble import ProcessExpired, ProcessPool
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column

from uqbench import worker
from uqbench.cells import Cell
from uqbench.comparability import by_problem, obstacle
from uqbench.errors import UQBenchError, UsageError
from uqbench.records import Cost, Record, RecordFile, Status, decode
from uqbench.worker import PROGRESS_PREFIX, Job

_POLL_SECONDS = 0.2
_JOIN_SECONDS = 10.0
FAILURES = ("failed", "timeout", "oom", "crashed")
"""Statuses of cells that ran and have no result."""

_ENDED_UNASKED = 255


class WorkerProcess(SpawnProcess):
    """A spawned process that does not run the caller's script again, and that never just ends."""

    def start(self) -> None:
        with _main_module_hidden(), _interrupts_blocked():
            super().start()

    @property
    def exitcode(self) -> int | None:
        # The pool takes status 0 for an orderly end and would wait for the result forever.
        code = super().exitcode
        return _ENDED_UNASKED if code == 0 else code


class WorkerContext(SpawnContext):
    Process = WorkerProcess


_main_module_lock = threading.Lock()


@contextlib.contextmanager
def _main_module_hidden() -> Iterator[None]:
    # A spawned process imports the parent's __main__, which starts a second run if a script calls
    # uqbench.run without `if __name__ == "__main__"`. Nothing of __main__ is needed there.
    with _main_module_lock:
        main = sys.modules["__main__"]
        stand_in = ModuleType("__main__")
        sys.modules["__main__"] = stand_in
        try:
            yield
        finally:
            sys.modules["__main__"] = main


@contextlib.contextmanager
def _interrupts_blocked() -> Iterator[None]:
    # Ctrl-C reaches all processes of a terminal; a worker that is starting would print a traceback.
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Worker:
    """One worker process."""

    def __init__(self, threads: int | None = None) -> None:
        self._threads = threads
        self._open()

    def _open(self) -> None:
        self._pool = ProcessPool(
            max_workers=1,
            initializer=worker.start,
            initargs=(self._threads,),
            context=WorkerContext(),
        )
        self.fresh = True

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Run a function in the worker and return what it returns, or raise what it raises."""
        try:
            return self._pool.schedule(function, args=args).result()
        except (ProcessExpired, BrokenProcessPool) as error:
            raise UQBenchError(
                f"a worker process ended before it answered: {error}. Either a --plugin file ends "
                "the process, or the system had no memory for it."
            ) from None

    def submit(self, cell: Cell, job: Job, timeout: float | None) -> Future[str]:
        if not self._pool.active:
            self.stop()
            self._open()
        if self.fresh:
            self._pool.schedule(worker.warm_up, args=(job.plugins,))
            self.fresh = False
        return self._pool.schedule(worker.run_cell, args=(cell, job), timeout=timeout)

    def stop(self) -> None:
        self._pool.stop()
        # A Ctrl-C that falls into the notification of a queue's reader loses the next one, and the
        # pool's scheduler then sleeps for ever. Its worker process has ended by the time that join
        # waits for it, so nothing is lost by leaving that thread behind.
        joining = threading.Thread(target=self._pool.join, daemon=True)
        joining.start()
        joining.join(_JOIN_SECONDS)


@contextlib.contextmanager
def workers(jobs: int) -> Iterator[list[Worker]]:
    """Start ``jobs`` workers that share the processor's cores; end them whatever happens."""
    threads = max(available_cores() // jobs, 1) if jobs > 1 else None
    started = [Worker(threads) for _ in range(jobs)]
    try:
        yield started
    finally:
        for one in started:
            one.stop()


def available_cores() -> int:
    """Number of processor cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cells_to_run(cells: Sequence[Cell], records: Sequence[Record], rerun: str | None) -> list[Cell]:
    """Return the cells that have no record yet, or whose record ``rerun`` says to replace.

    Raises UsageError if the records are of other data, networks or recipes than the cells: their
    results could never share a leaderboard.
    """
    finished = [record.identity for record in records if record.status == "ok"]
    for group in by_problem([*finished, *(cell.identity() for cell in cells)]).values():
        if found := obstacle(group):
            raise UsageError(f"{found}\nThe first is in this folder already; give another --out.")
    status = {record.key: record.status for record in records}
    redo = {"failed": FAILURES, "all": (*FAILURES, "ok", "skipped"), None: ()}[rerun]
    return [cell for cell in cells if cell.key not in status or status[cell.key] in redo]


def other_sources(cells: Sequence[Cell], records: Sequence[Record]) -> Counter[str]:
    """Count, for each method of the cells, the finished records of another source than theirs.

    Records that do not know their source are not counted.
    """
    planned = {cell.method: cell.method_source for cell in cells}
    return Counter(
        record.identity.method
        for record in records
        if record.status in ("ok", "skipped")
        and record.identity.method in planned
        and record.method_source not in ("", planned[record.identity.method])
    )


@dataclass
class _Running:
    """A cell that a worker is busy with."""

    cell: Cell
    worker: Worker
    oom_kills: int
    started: float = field(default_factory=time.monotonic)
    started_at: str = field(default_factory=worker.now)


class Runner:
    """Runs cells on workers and appends one record as each of them ends."""

    def __init__(
        self, job: Job, records: RecordFile, timeout: float | None, console: Console
    ) -> None:
        self.job = job
        self.records = records
        self.timeout = timeout
        self.console = console
        self._waiting: deque[Cell] = deque()
        self._running: dict[Future[str], _Running] = {}
        self._retried: set[str] = set()

    def run(self, cells: Sequence[Cell], workers: Sequence[Worker]) -> None:
        """Return when every cell has its record."""
        self._waiting.extend(cells)
        idle = list(workers)
        with _Display(self.console, len(cells), self.job) as display:
            while self._waiting or self._running:
                while idle and (cell := self._next()) is not None:
                    self._start(idle.pop(), cell)
                display.show(running.cell for running in self._running.values())
                done, _ = wait(self._running, timeout=_POLL_SECONDS, return_when=FIRST_COMPLETED)
                for future in done:
                    running = self._running.pop(future)
                    idle.append(running.worker)
                    record = self._record(future, running)
                    if record is None:
                        self._waiting.appendleft(running.cell)
                        continue
                    self.records.append(record)
                    display.finished(running.cell, record, time.monotonic() - running.started)

    def _next(self) -> Cell | None:
        """Take the first cell that need not wait for a network which a running one trains."""
        in_training = {
            running.cell.map_checkpoint
            for running in self._running.values()
            if not self.job.has_network(running.cell)
        }
        for position, cell in enumerate(self._waiting):
            if cell.map_checkpoint not in in_training:
                del self._waiting[position]
                return cell
        return None

    def _start(self, worker: Worker, cell: Cell) -> None:
        running = _Running(cell, worker, oom_kills())
        self._running[worker.submit(cell, self.job, self.timeout)] = running

    def _record(self, future: Future[str], running: _Running) -> Record | None:
        """Return the record of a cell that ended, or None if it is to be tried once more."""
        cell = running.cell
        try:
            return decode(future.result())
        except TimeoutError:
            running.worker.fresh = True
            limit = duration(self.timeout)
            return self._failure(running, "timeout", "TimeoutError", f"no result after {limit}")
        except ProcessExpired as error:
            running.worker.fresh = True
            if error.exitcode == -signal.SIGKILL and oom_kills() > running.oom_kills:
                message = "the system ran out of memory and killed the worker process"
                return self._failure(running, "oom", "OutOfMemory", message)
            message = f"the worker process {_how_it_ended(error.exitcode)}"
            return self._failure(running, "crashed", "ProcessExpired", message)
        except BrokenProcessPool as error:  # the worker died between two cells
            if cell.key not in self._retried:
                self._retried.add(cell.key)
                return None
            return self._failure(running, "crashed", "BrokenProcessPool", str(error))
        except Exception as error:  # such as a log that cannot be opened; the others go on
            return self._failure(running, "failed", type(error).__name__, str(error))

    def _failure(self, running: _Running, status: Status, kind: str, message: str) -> Record:
        cell = running.cell
        return Record(
            key=cell.key,
            identity=cell.identity(),
            status=status,
            cost=Cost(device=self.job.device, timing_valid=not self.job.shared),
            error_type=kind,
            error_message=message,
            log=str(self.job.log_path(cell).relative_to(self.job.run_dir)),
            provenance=self.job.provenance(cell, running.started_at),
        )


def _how_it_ended(exitcode: int) -> str:
    if exitcode < 0:
        return f"was killed by {signal.Signals(-exitcode).name}"
    return f"ended with status {0 if exitcode == _ENDED_UNASKED else exitcode}"


def oom_kills() -> int:
    """Processes that the kernel has killed for want of memory, as far as its counters are seen."""
    return sum(_oom_counter(path) for path in _OOM_COUNTERS)


def _oom_counter_paths() -> list[Path]:
    """Counters of the machine, and of this process's memory cgroup (version 2 or 1)."""
    root = Path("/sys/fs/cgroup")
    paths = [Path("/proc/vmstat"), root / "memory.events", root / "memory/memory.oom_control"]
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, group = line.split(":", 2)
            if not controllers:
                paths.append(root / group.lstrip("/") / "memory.events")
            elif "memory" in controllers.split(","):
                paths.append(root / "memory" / group.lstrip("/") / "memory.oom_control")
    return list(dict.fromkeys(paths))


def _oom_counter(path: Path) -> int:
    with contextlib.suppress(OSError, ValueError):
        for line in path.read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill":
                return int(value)
    return 0


_OOM_COUNTERS = _oom_counter_paths()


class _Display:
    """One line per finished cell; on a terminal also a bar with what is running."""

    def __init__(self, console: Console, total: int, job: Job) -> None:
        self.console = console
        self.total = total
        self.job = job
        self.count = 0
        self.progress = Progress(
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True)),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self.task = self.progress.add_task("", total=total)

    def __enter__(self) -> _Display:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def show(self, cells: Iterator[Cell]) -> None:
        if self.console.is_terminal:
            texts = [
                f"{cell} {_latest_progress(self.job.log_path(cell))}".strip() for cell in cells
            ]
            self.progress.update(self.task, description="; ".join(texts))

    def finished(self, cell: Cell, record: Record, seconds: float) -> None:
        self.count += 1
        width = len(str(self.total))
        text = f"[{self.count:{width}}/{self.total}] {cell}: {record.status} ({duration(seconds)})"
        if record.status != "ok":
            text += f": {reason(record)}"
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)
        self.progress.advance(self.task)


def _latest_progress(log: Path) -> str:
    with contextlib.suppress(OSError), log.open("rb") as file:
        file.seek(max(file.seek(0, os.SEEK_END) - 4096, 0))
        for line in reversed(file.read().decode(errors="replace").splitlines()):
            if line.startswith(PROGRESS_PREFIX):
                return line.removeprefix(PROGRESS_PREFIX)
    return ""


def reason(record: Record) -> str:
    """Why a cell has no result, in one line."""
    if record.status == "skipped":
        return record.error_message
    return f"{record.error_type}: {record.error_message}"


def duration(seconds: float) -> str:
    """Return a time span for people: 0.4 s, 12 s, 3 min 20 s, 2 h 5 min."""
    if seconds < 10:
        return f"{seconds:.2g} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes == 0:
        return f"{rest} s"
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"


def count_statuses(cells: Sequence[Cell], records: Sequence[Record]) -> Counter[str]:
    """Count the cells by the status of their record; cells without one count as ``missing``."""
    status = {record.key: record.status for record in records}
    return Counter(status.get(cell.key, "missing") for cell in cells)
