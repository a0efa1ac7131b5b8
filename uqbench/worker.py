"""What happens inside a worker process: planning, and the evaluation of one cell at a time.

Importing this module imports neither torch nor pydantic, so that a worker starts at once and a
misspelt name is reported at once.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import multiprocessing
import os
import re
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from uqbench.errors import UnsupportedError, UsageError
from uqbench.records import Cost, Record, Status, encode
from uqbench.registry import load_plugins, method_source

if TYPE_CHECKING:
    from uqbench.cells import Cell, Request

PROGRESS_PREFIX = "progress: "
_PROGRESS_INTERVAL = 0.5
_ALLOCATION_FAILURES = ("out of memory", "can't allocate memory", "cannot allocate memory")


@dataclass(frozen=True)
class Job:
    """What the cells of a run have in common.

    device: a torch device, resolved. machine: versions and hardware, for the records.
    shared: whether other cells run at the same time.
    """

    run_dir: Path
    device: str
    data_root: Path | None = None
    plugins: tuple[Path, ...] = ()
    machine: Mapping[str, Any] = field(default_factory=dict)
    shared: bool = False

    def provenance(self, cell: Cell, started: str) -> dict[str, Any]:
        """Where a cell's record comes from: the machine, the method's code, the time."""
        return {**self.machine, "method_source": cell.method_source, "started": started}

    @property
    def cache_dir(self) -> Path:
        return self.run_dir / "checkpoints"

    def trained_network(self, cell: Cell) -> Path | None:
        """The file of the cell's MAP network; None if it needs none, or one that is given."""
        if not cell.map_checkpoint or cell.problem.network.weights is not None:
            return None
        return self.cache_dir / f"{cell.map_checkpoint}.pt"

    def has_network(self, cell: Cell) -> bool:
        """Whether the cell starts from no MAP network, or from one that need not be trained."""
        path = self.trained_network(cell)
        return path is None or path.exists()

    def remove_networks(self, cells: Iterable[Cell]) -> None:
        """Have the MAP networks of these cells trained again; those that are given stay."""
        for path in {self.trained_network(cell) for cell in cells} - {None}:
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                raise UsageError(f"{path}: cannot be removed: {error.strerror}") from None

    def log_path(self, cell: Cell) -> Path:
        # file systems limit a name's bytes, and a problem may be called after a file of any name
        problem = re.sub(r"[^\w.-]", "_", cell.problem.name, flags=re.ASCII)[:80]
        name = f"{problem}-{cell.method}-{cell.seed}-{cell.key[:8]}.log"
        return self.run_dir / "logs" / name


_is_worker = False


def check_not_in_worker() -> None:
    """Raise if a worker, which imports plug-in files, is about to start a run of its own."""
    if _is_worker:
        raise UsageError(
            "a plug-in file starts a run while it is imported: put its call of uqbench.run under "
            "if __name__ == '__main__':"
        )


def start(threads: int | None) -> None:
    """Initialise a worker: limit its threads, and end it when its parent ends."""
    global _is_worker
    _is_worker = True
    if threads is not None:
        for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
            os.environ[variable] = str(threads)
    # Threads that wait for each other spin for about the length of a short kernel and then sleep:
    # the default, ten times longer, makes short kernels many times slower as soon as anything else
    # uses the cores; not to spin at all costs half of what the second core brings.
    os.environ.setdefault("GOMP_SPINCOUNT", "30000")
    parent = multiprocessing.parent_process()
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    faulthandler.enable()
    for stream in (sys.stdout, sys.stderr):
        # what was printed must be in the log when the process is killed
        stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)


def _end_with(parent: multiprocessing.process.BaseProcess) -> None:
    parent.join()  # returns when the parent is gone, kill -9 included
    os._exit(1)


@dataclass(frozen=True)
class Prepared:
    """A request that was found to be in order.

    device, machine: as in :class:`Job`. changed: files of uqbench's code that differ from its
    commit.
    """

    cells: list[Cell]
    device: str
    machine: Mapping[str, Any]
    changed: tuple[str, ...] = ()


def prepare(request: Request, device: str, plugins: tuple[Path, ...]) -> Prepared:
    """Plan a request, and raise on whatever is wrong with it."""
    load_plugins(plugins)
    from uqbench.cells import plan
    from uqbench.provenance import code_state

    cells = plan(request)
    resolved = resolve_device(device)
    _, changed = code_state()
    return Prepared(cells, resolved, describe_machine(resolved), changed)


def describe_machine(device: str) -> dict[str, Any]:
    """Return versions, hardware and commit."""
    import torch

    from uqbench.provenance import environment

    return environment(torch.device(device))


def resolve_device(device: str) -> str:
    """Return the torch device for ``auto``, ``cpu``, ``cuda`` or ``cuda:i``."""
    found = re.fullmatch(r"auto|cpu|cuda(?::(\d+))?", device)
    if not found:
        raise UsageError(f"--device must be auto, cpu, cuda or cuda:INDEX, got '{device}'")
    if device == "cpu":
        return device
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device == "auto":
        return "cuda:0" if count else "cpu"
    index = int(found[1] or 0)
    if index >= count:
        seen = f"torch sees {count} CUDA device{'' if count == 1 else 's'}"
        raise UsageError(f"--device {device}: not available; {seen}")
    return f"cuda:{index}"


def warm_up(plugins: tuple[Path, ...]) -> None:
    """Import all that a cell needs, so that its time limit does not pay for it."""
    with contextlib.suppress(Exception):  # the cell meets the same error, and records it
        load_plugins(plugins)
        import tqdm

        import uqbench.evaluator  # noqa: F401

        # A library's progress bar makes a lock for several processes, which is left behind, with a
        # warning, when this one is ended.
        tqdm.tqdm.set_lock(threading.RLock())
    gc.freeze()  # the collections after cells need not go through the libraries' objects each time


def run_cell(cell: Cell, job: Job) -> str:
    """Evaluate a cell and return its record as JSON: no object of torch's reaches the parent.

    Whatever the method prints or raises is in the cell's log.
    """
    log = job.log_path(cell)
    with _output_to(log):
        unfinished = Record(
            key=cell.key,
            identity=cell.identity(),
            status="failed",
            cost=Cost(device=job.device, timing_valid=not job.shared),
            log=str(log.relative_to(job.run_dir)),
            provenance=job.provenance(cell, now()),
        )
        try:
            return encode(_evaluated(cell, job, unfinished))
        except BaseException as error:  # of a plug-in, anything at all
            traceback.print_exc()
            failure = replace(
                unfinished,
                status=_status(error),
                error_type=type(error).__name__,
                error_message=_message(error),
            )
            return encode(failure)
        finally:
            gc.collect()


def _evaluated(cell: Cell, job: Job, unfinished: Record) -> Record:
    load_plugins(job.plugins)
    if cell.method_source not in ("", method_source(cell.method)):
        raise UsageError(
            f"{cell.method}: its code has changed since the run was planned; run it again"
        )
    from uqbench.evaluator import evaluate_cell
    from uqbench.saved_predictions import predictions_path, write_predictions

    outcome, cost, provenance = evaluate_cell(
        cell,
        device=job.device,
        data_root=job.data_root,
        cache_dir=job.cache_dir,
        progress=_progress_reporter(),
        keep=partial(write_predictions, predictions_path(job.run_dir, cell.key)),
    )
    return replace(
        unfinished,
        status="ok",
        outcome=outcome,
        cost=replace(cost, timing_valid=cost.timing_valid and not job.shared),
        provenance={**unfinished.provenance, **provenance},
    )


def now() -> str:
    """Return the time as records hold it: ISO 8601, UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


@contextlib.contextmanager
def _output_to(path: Path) -> Iterator[None]:
    """Send the process's standard output and error to a new file, C libraries' included."""
    path.parent.mkdir(parents=True, exist_ok=True)
    saved = [os.dup(number) for number in (1, 2)]
    with path.open("wb", buffering=0) as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, old in zip((1, 2), saved, strict=True):
            os.dup2(old, number)
            os.close(old)


def _progress_reporter() -> Callable[[str, int, int], None]:
    """Return a reporter that writes to the log, from which the parent shows the latest line."""
    last = -_PROGRESS_INTERVAL

    def report(description: str, done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= _PROGRESS_INTERVAL:
            last = now
            print(f"{PROGRESS_PREFIX}{description} {done}/{total}")

    return report


def _status(error: BaseException) -> Status:
    if isinstance(error, UnsupportedError):
        return "skipped"
    out_of_memory = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    if isinstance(error, RuntimeError):
        text = str(error).lower()
        out_of_memory = out_of_memory or any(words in text for words in _ALLOCATION_FAILURES)
    return "oom" if out_of_memory else "failed"


def _message(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    if not lines:
        return "out of memory" if isinstance(error, MemoryError) else "no message"
    return lines[0]
