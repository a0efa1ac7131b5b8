"""A method that does what a test tells it to, and the command line to run it with.

The plug-in file stands in for the evaluator too, so that these tests train nothing.
"""

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from uqbench.records import Record, RecordFile

PROBE = '''
import multiprocessing
import os
import signal
import sys
import time
import types
from dataclasses import dataclass

import tqdm

import uqbench.worker
from uqbench.errors import UnsupportedError
from uqbench.method import Method
from uqbench.records import Cost, Outcome


@dataclass(frozen=True)
class Probe(Method):
    """Does what its settings say: the first action with seed 0, the next with seed 1, ..."""

    actions: tuple[str, ...] = ("ok",)
    seconds: float = 0.0

    def fit(self, problem, data, network, context):
        raise NotImplementedError


@dataclass(frozen=True)
class OtherProbe(Probe):
    pass


def evaluate_cell(cell, *, device, data_root, cache_dir, progress, keep):
    print("hello from", cell, "with", os.environ.get("OMP_NUM_THREADS"), "threads")
    os.write(2, b"a C library's complaint\\n")
    progress("sleeping", 0, 1)
    time.sleep(cell.settings["seconds"])
    actions = cell.settings["actions"]
    match actions[cell.seed % len(actions)]:
        case "raise":
            raise ValueError("the first line\\nthe second line")
        case "memory":
            raise MemoryError
        case "allocate":
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: 8 bytes")
        case "refuse":
            raise UnsupportedError("not for this network")
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "vanish":
            os._exit(0)
        case "exit":
            sys.exit(3)
        case "bar":
            list(tqdm.tqdm([1, 2]))
    return Outcome(metrics={"rmse": 0.5 + cell.seed}), Cost(device=device), {"worker": os.getpid()}


if multiprocessing.parent_process() is not None:  # in a worker; never in the tests' own process
    sys.modules["uqbench.evaluator"] = types.SimpleNamespace(evaluate_cell=evaluate_cell)
    uqbench.worker.describe_machine = lambda device: {"packages": {}}
'''

SUITE = """
[shared]
dataset = "toy/cubic"
task = "regression"
standardise = false

[problems."toy/a"]
[problems."toy/b"]
"""


@dataclass(frozen=True)
class Bench:
    """A folder with a plug-in, a suite of two problems, and a place for a run."""

    folder: Path

    @property
    def out(self) -> Path:
        return self.folder / "out"

    def command(self, *arguments: str) -> list[str]:
        return [
            *(sys.executable, "-m", "uqbench", "run", "--methods", "probe", "--device", "cpu"),
            *("--plugin", "probe.py", "--suite", "mini.toml", "--out", "out", *arguments),
        ]

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.execute(self.command(*arguments))

    def execute(self, command: Sequence[str], **options) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, cwd=self.folder, capture_output=True, text=True, timeout=120, **options
        )

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start a run in a process group of its own, in which Ctrl-C counts, as a shell does.

        Tests that were started in the background may have inherited that SIGINT is ignored.
        """
        return subprocess.Popen(
            self.command(*arguments),
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
            env={**os.environ, "COLUMNS": "200"},
        )

    def records(self) -> list[Record]:
        return RecordFile(self.out).read()

    def files(self) -> set[str]:
        return {str(path.relative_to(self.folder)) for path in self.folder.rglob("*")}


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    (tmp_path / "probe.py").write_text(PROBE)
    (tmp_path / "mini.toml").write_text(SUITE)
    return Bench(tmp_path)


@pytest.fixture
def assert_nothing_overlaps():
    """A function that fails if panels, legends or ticks of a figure overlap or leave its page."""

    def check(figure):
        figure.draw_without_rendering()
        boxes = [part.get_tightbbox() for part in (*figure.axes, *figure.legends)]
        page = figure.bbox
        for box in boxes:
            assert page.x0 <= box.x0 < box.x1 <= page.x1
            assert page.y0 <= box.y0 < box.y1 <= page.y1
        assert not any(one.overlaps(other) for one, other in itertools.combinations(boxes, 2))
        for axes in figure.axes:
            labels = [label.get_window_extent() for label in axes.get_xticklabels()]
            assert not any(one.overlaps(other) for one, other in itertools.pairwise(labels))

    return check
