import contextlib
import hashlib
import io
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from types import SimpleNamespace

import psutil
import pytest
from pebble import ProcessExpired
from rich.console import Console

from uqbench import api, provenance, runner, worker
from uqbench.cells import Request, plan
from uqbench.errors import UsageError
from uqbench.records import Record
from uqbench.runner import duration
from uqbench.worker import Job, Prepared


def statuses(bench) -> Counter:
    return Counter(record.status for record in bench.records())


def wait_for(condition, seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.02)


def finished_lines(bench) -> int:
    path = bench.out / "records.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def test_every_cell_leaves_one_record_and_the_second_run_does_nothing(bench):
    first = bench.run("--seeds", "2")
    assert first.returncode == 0, first.stderr
    assert "[4/4] toy/b probe seed 1: ok" in first.stderr
    assert "4 cells: 4 ok. Records: out/records.jsonl" in first.stdout
    before = (bench.out / "records.jsonl").read_bytes()
    assert before.count(b"\n") == 4
    second = bench.run("--seeds", "2")
    assert second.returncode == 0
    assert "4 already there, nothing to run" in second.stderr
    assert (bench.out / "records.jsonl").read_bytes() == before
    third = bench.run("--seeds", "3")
    assert "6 cells on cpu, in out: 4 already there, 2 to run" in third.stderr
    assert [r.identity.seed for r in bench.records()] == [0, 1, 0, 1, 2, 2]


def networks(bench) -> list[str]:
    return sorted(path.name for path in (bench.out / "checkpoints").iterdir())


def write_networks(bench, *others: str) -> list[str]:
    """Write what stands for the networks of all cells, which the probe does not train."""
    (bench.out / "checkpoints").mkdir()
    for name in (*others, *(f"{record.identity.map_checkpoint}.pt" for record in bench.records())):
        (bench.out / "checkpoints" / name).touch()
    return networks(bench)


def test_rerun_all_runs_again_without_old_networks_and_the_newest_record_counts(bench):
    bench.run("--seeds", "1")
    first = bench.records()
    assert len(write_networks(bench, "of another problem.pt")) == 3
    assert bench.run("--seeds", "1", "--rerun", "all").returncode == 0
    assert networks(bench) == ["of another problem.pt"]
    assert finished_lines(bench) == 4
    second = bench.records()
    assert [r.key for r in second] == [r.key for r in first]
    assert [r.provenance["worker"] for r in second] != [r.provenance["worker"] for r in first]


def job_cell(checkpoint, weights=None, **names):
    """A cell, as far as a job looks at it."""
    problem = SimpleNamespace(network=SimpleNamespace(weights=weights))
    return SimpleNamespace(map_checkpoint=checkpoint, problem=problem, **names)


def test_networks_are_removed_once_and_those_that_are_given_never(tmp_path):
    job = Job(tmp_path, "cpu")
    cells = [job_cell("a"), job_cell("a"), job_cell("b", "mine.pth"), job_cell("")]
    job.cache_dir.mkdir()
    for name in ("a.pt", "a.pt.lock", "b.pt", ".pt"):
        (job.cache_dir / name).touch()
    for _ in range(2):
        job.remove_networks(cells)
        assert {path.name for path in job.cache_dir.iterdir()} == {"a.pt.lock", "b.pt", ".pt"}


def test_a_network_that_cannot_be_removed_is_named(tmp_path):
    job = Job(tmp_path, "cpu")
    (job.cache_dir / "a.pt").mkdir(parents=True)
    with pytest.raises(UsageError, match=r"checkpoints/a\.pt: cannot be removed: "):
        job.remove_networks([job_cell("a")])


BAD_ENDS = [
    ("raise", "failed", "ValueError: the first line"),
    ("exit", "failed", "SystemExit: 3"),
    ("memory", "oom", "MemoryError: out of memory"),
    ("allocate", "oom", "RuntimeError: DefaultCPUAllocator: can't allocate memory: 8 bytes"),
    ("refuse", "skipped", "not for this network"),
    ("kill", "crashed", "the worker process was killed by SIGKILL"),
    ("vanish", "crashed", "the worker process ended with status 0"),
    ("ok", "ok", ""),
]


def test_a_cell_that_ends_badly_is_a_record_and_the_others_go_on(bench):
    actions = [action for action, _, _ in BAD_ENDS]
    seeds = str(len(actions))
    done = bench.run("--seeds", seeds, "--set", f"probe.actions={actions}", "--problems", "toy/a")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr + done.stdout
    assert "8 cells: 2 failed, 2 oom, 2 crashed, 1 skipped, 1 ok" in done.stdout
    records = {record.identity.seed: record for record in bench.records()}
    for seed, (_, status, reason) in enumerate(BAD_ENDS):
        record = records[seed]
        assert record.status == status
        assert f"toy/a probe seed {seed}: {status}" in done.stderr
        assert reason in done.stderr
        assert (f"{reason} (log: out/logs/toy_a-probe-{seed}-" in done.stdout) == (
            status not in ("ok", "skipped")
        )
        assert record.provenance["started"]
        log = (bench.out / record.log).read_text()
        assert f"hello from toy/a probe seed {seed}" in log
        assert "a C library's complaint" in log
        assert ("Traceback" in log) == (status in ("failed", "oom", "skipped"))


def test_skipped_cells_are_no_failures(bench):
    done = bench.run("--seeds", "1", "--set", 'probe.actions=["refuse"]')
    assert done.returncode == 0
    assert "not for this network" in done.stderr
    assert "2 cells: 2 skipped" in done.stdout


@pytest.mark.parametrize(
    "change", ["training = { epochs = 7 }", "network = { hidden = [3] }", 'dtype = "float32"']
)
def test_a_folder_with_results_of_another_recipe_is_refused_before_any_work(bench, change):
    bench.run("--seeds", "1")
    write_networks(bench)
    before = {path: path.read_bytes() for path in bench.out.rglob("*") if path.is_file()}
    suite = bench.folder / "mini.toml"
    suite.write_text(suite.read_text() + change)
    done = bench.run("--seeds", "1", "--rerun", "all")
    assert done.returncode == 2
    assert "toy/b: results that differ in" in done.stderr
    assert "give another --out" in done.stderr
    assert {path: path.read_bytes() for path in bench.out.rglob("*") if path.is_file()} == before


def test_a_log_that_cannot_be_written_fails_its_cell_and_the_others_go_on(bench):
    first = bench.run("--seeds", "1")
    assert first.returncode == 0
    [log, _] = sorted((bench.out / "logs").iterdir())
    log.unlink()
    log.mkdir()
    done = bench.run("--seeds", "1", "--rerun", "all")
    assert done.returncode == 1
    assert statuses(bench) == {"failed": 1, "ok": 1}
    assert "IsADirectoryError" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_problem_of_any_name_has_a_log(bench):
    suite = bench.folder / "mini.toml"
    suite.write_text(suite.read_text().replace("toy/a", "日" * 150).replace("toy/b", "b [x]|/.."))
    done = bench.run("--seeds", "1")
    assert done.returncode == 0, done.stderr
    assert len(list((bench.out / "logs").iterdir())) == 2


def test_a_failed_cell_runs_again_only_if_asked_and_its_network_stays(bench):
    arguments = ("--seeds", "2", "--set", 'probe.actions=["ok", "kill"]')
    first = bench.run(*arguments)
    assert statuses(bench) == {"ok": 2, "crashed": 2}
    assert first.returncode == 1
    again = bench.run(*arguments)
    assert again.returncode == 1
    assert "nothing to run" in again.stderr
    assert "2 of them failed: --rerun failed tries these again" in again.stderr
    assert finished_lines(bench) == 4
    before = write_networks(bench)
    assert bench.run(*arguments, "--rerun", "failed").returncode == 1
    assert finished_lines(bench) == 6
    assert networks(bench) == before


def test_a_cell_over_its_time_limit_ends_alone(bench):
    begin = time.monotonic()
    done = bench.run("--seeds", "1", "--set", "probe.seconds=60", "--timeout", "1s")
    assert time.monotonic() - begin < 40
    assert done.returncode == 1
    assert statuses(bench) == {"timeout": 2}
    assert "TimeoutError: no result after 1 s" in done.stderr


def test_cells_that_share_the_machine_say_so_and_divide_its_cores(bench):
    done = bench.run("--seeds", "2", "--jobs", "2", "--set", "probe.seconds=0.3")
    assert done.returncode == 0, done.stderr
    records = bench.records()
    assert len({record.provenance["worker"] for record in records}) == 2
    assert not any(record.cost.timing_valid for record in records)
    threads = max(runner.available_cores() // 2, 1)
    assert f"with {threads} threads" in (bench.out / records[0].log).read_text()


def test_no_cell_waits_for_a_network_that_another_one_trains(tmp_path):
    def cell(name, *network):
        return job_cell(*network, name=name)

    def started():
        chosen = waiting._next()
        if chosen is not None:
            waiting._running[chosen.name] = SimpleNamespace(cell=chosen)
            return chosen.name

    waiting = runner.Runner(Job(tmp_path, "cpu"), None, None, None)
    waiting._waiting.extend(
        [
            cell("map a", "a"),
            cell("lla a", "a"),
            cell("map b", "b"),
            cell("de a", ""),
            cell("de b", ""),
            cell("map c", "c", "a file"),
            cell("lla c", "c", "a file"),
            cell("lla b", "b"),
        ]
    )
    order = [started() for _ in range(7)]
    assert order == ["map a", "map b", "de a", "de b", "map c", "lla c", None]
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "b.pt").touch()
    assert [started(), started()] == ["lla b", None]
    del waiting._running["map a"]  # it failed: the next one trains the network
    assert [started(), started()] == ["lla a", None]


def announced(folder, commit, changed, quick=False, own_data=False, nothing_to_do=False):
    """The notes at the start of a run."""
    console = Console(file=io.StringIO())
    cell = SimpleNamespace(
        key="k",
        method="map",
        method_source="uqbench",
        problem=SimpleNamespace(of_own_data=own_data, description="mine"),
        quick=quick,
    )
    prepared = Prepared([cell], "cpu", {"commit": commit}, changed)
    api._announce(console, prepared, [] if nothing_to_do else [cell], [], folder)
    return [line for line in console.file.getvalue().splitlines() if line.startswith("Note: ")]


@pytest.mark.parametrize(
    ("commit", "changed", "reason"),
    [
        ("c", ("a.py",), "code differs from its commit in a.py"),
        ("c", ("a.py", "b.py"), "code differs from its commit in a.py and b.py"),
        ("c", ("a.py", "b", "c"), "code differs from its commit in a.py and 2 other files"),
        (None, (), "commit is unknown (pip install -e . in a git checkout makes it known)"),
    ],
)
def test_a_run_that_cannot_be_published_says_so_and_why_at_once(tmp_path, commit, changed, reason):
    note = f"Note: uqbench's {reason}: these results cannot be published"
    assert announced(tmp_path, commit, changed) == [note]
    assert announced(tmp_path, commit, changed, nothing_to_do=True) == []


def test_the_files_that_a_run_names_are_those_of_the_checkout(monkeypatch):
    monkeypatch.setattr(provenance, "code_state", lambda: ("c", ("a.py",)))
    prepared = worker.prepare(api.request("map", problems="toy/cubic", seeds=1), "cpu", ())
    assert prepared.changed == ("a.py",)


def test_a_run_that_can_be_published_or_was_never_to_be_says_nothing_of_it(tmp_path):
    assert announced(tmp_path, "c", ()) == []
    for commit, changed in (("c", ("a.py",)), (None, ())):
        assert announced(tmp_path, commit, changed, quick=True) == []
        assert announced(tmp_path, commit, changed, own_data=True) == []


def test_one_cell_at_a_time_has_valid_timings_and_keeps_its_worker(bench):
    bench.run("--seeds", "2")
    records = bench.records()
    assert len({record.provenance["worker"] for record in records}) == 1
    assert all(record.cost.timing_valid for record in records)


def test_a_second_run_in_the_same_folder_is_refused_while_the_first_works(bench):
    suite = str(bench.folder / "mini.toml")
    (cell,) = plan(Request(("map",), suite=suite, problems=("toy/a",), seeds=1))
    network = Job(bench.out, "cpu").trained_network(cell)
    network.parent.mkdir(parents=True)
    network.touch()
    first = bench.start("--seeds", "1", "--set", "probe.seconds=60", "--problems", "toy/a")
    wait_for((bench.out / "plan.json").exists)
    second = bench.run("--seeds", "1", "--rerun", "all")
    assert second.returncode == 2
    assert "Error: out: another run is writing to this folder." in second.stderr
    assert network.exists()
    assert first.poll() is None
    ctrl_c(first)
    first.communicate(timeout=60)


def ctrl_c(process) -> None:
    os.killpg(process.pid, signal.SIGINT)


def end_of_a_batch_job(process) -> None:
    process.send_signal(signal.SIGTERM)


@pytest.mark.parametrize("interrupt", [ctrl_c, end_of_a_batch_job])
def test_an_interrupted_run_keeps_what_is_done_and_says_how_to_go_on(bench, interrupt):
    arguments = ("--seeds", "4", "--set", "probe.seconds=0.5")
    process = bench.start(*arguments)
    wait_for(lambda: finished_lines(bench) >= 2)
    interrupt(process)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    done = len(bench.records())
    assert 2 <= done < 8
    assert f"Interrupted: {done} of 8 cells are done and kept in out." in errors
    assert f"The same command runs the other {8 - done}." in errors
    assert "Traceback" not in errors + output
    assert "leaked" not in errors
    assert "RMSE" not in output
    board = bench.execute([sys.executable, "-m", "uqbench", "leaderboard", "out"])
    assert f"out: {8 - done} of the 8 cells that were asked for have not run" in board.stderr
    rest = bench.run(*arguments)
    assert f"{done} already there, {8 - done} to run" in rest.stderr
    assert len(bench.records()) == 8


def test_a_progress_bar_of_a_library_leaves_nothing_behind(bench):
    done = bench.run("--seeds", "1", "--set", "probe.actions=['bar']")
    assert statuses(bench) == {"ok": len(bench.records())}
    logs = [bench.out / record.log for record in bench.records()]
    assert all("2/2" in log.read_text() for log in logs)
    assert "leaked" not in done.stderr


def test_a_worker_stops_although_a_wake_up_of_its_pool_was_lost(monkeypatch):
    """Ctrl-C inside Condition.notify leaves a stale waiter in front of the real one."""
    monkeypatch.setattr(runner, "_JOIN_SECONDS", 2.0)
    worker = runner.Worker()
    pid = worker.call(os.getpid)
    stale = threading.Lock()
    stale.acquire()
    worker._pool._context.task_queue.not_empty._waiters.appendleft(stale)
    worker.stop()
    assert not psutil.pid_exists(pid)


def kill_at_random(bench, arguments, seconds: float) -> None:
    """Start a run, kill -9 it at a random moment, and require that its workers end too."""
    before = {record.key for record in bench.records()}
    process = bench.start(*arguments)
    time.sleep(random.uniform(0, seconds))
    family = [psutil.Process(process.pid)]
    with contextlib.suppress(psutil.NoSuchProcess):
        family += family[0].children(recursive=True)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=30)
    _, alive = psutil.wait_procs(family, timeout=15)
    assert not alive, f"still running: {alive}"
    assert before <= {record.key for record in bench.records()}


@pytest.mark.parametrize("kills", [2, pytest.param(25, marks=pytest.mark.slow)])
def test_a_run_that_is_killed_again_and_again_loses_no_finished_cell(bench, kills):
    arguments = ("--seeds", "8", "--set", "probe.seconds=0.2")
    for _ in range(kills):
        kill_at_random(bench, arguments, seconds=5)
    there = len(bench.records())
    last = bench.run(*arguments)
    assert last.returncode == 0, last.stderr
    assert f"16 cells on cpu, in out{f': {there} already there' if there else ''}" in last.stderr
    assert statuses(bench) == {"ok": 16}
    assert finished_lines(bench) == 16


SCRIPT = """
import sys
import threading
import uqbench

print("the script runs")
results = uqbench.run(["probe"], suite="mini.toml", seeds=1, device="cpu", out="out",
                      plugins=["probe.py"], settings={"probe": {"seconds": 0.01}})
print("torch" in sys.modules, sorted(results.frame["status"]))
"""


def test_a_script_without_a_main_guard_runs_once_and_never_imports_torch(bench):
    (bench.folder / "script.py").write_text(SCRIPT)
    done = bench.execute([sys.executable, "script.py"])
    assert done.returncode == 0, done.stderr
    assert done.stdout == "the script runs\nFalse ['ok', 'ok']\n"


def test_a_script_that_is_its_own_plugin_is_told_to_guard_its_call(bench):
    script = bench.folder / "script.py"
    script.write_text(
        f"{(bench.folder / 'probe.py').read_text()}\nimport uqbench\nuqbench.run(\n"
        "    'probe', suite='mini.toml', device='cpu', plugins=[__file__])\n"
    )
    done = bench.execute([sys.executable, "script.py"])
    assert "UsageError" in done.stderr
    assert "put its call of uqbench.run under if __name__ == '__main__'" in done.stderr


def test_code_without_a_file_runs_too(bench):
    done = bench.execute([sys.executable, "-"], input=SCRIPT)
    assert done.stdout == "the script runs\nFalse ['ok', 'ok']\n", done.stderr


def test_a_worker_that_the_kernel_kills_for_memory_is_out_of_memory(bench, monkeypatch):
    running = runner._Running(None, None, oom_kills=3)
    statuses = []
    monkeypatch.setattr(
        runner.Runner, "_failure", lambda self, running, status, *_: statuses.append(status)
    )
    running.worker = type("Worker", (), {"fresh": False})()

    class Expired:
        def result(self):
            raise ProcessExpired("gone", code=-signal.SIGKILL)

    for counter in (3, 4):
        monkeypatch.setattr(runner, "oom_kills", lambda counter=counter: counter)
        runner.Runner(None, None, None, None)._record(Expired(), running)
    assert statuses == ["crashed", "oom"]


def test_kernel_counters_of_both_cgroup_versions_are_read(tmp_path):
    files = {
        "memory.events": "low 0\nhigh 0\nmax 5\noom 2\noom_kill 2\noom_group_kill 0\n",
        "memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 7\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert [runner._oom_counter(tmp_path / name) for name in files] == [2, 7]
    assert runner._oom_counter(tmp_path / "absent") == 0
    assert runner.oom_kills() >= 0


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.123, "0.12 s"),
        (1, "1 s"),
        (12.4, "12 s"),
        (59.6, "1 min"),
        (200, "3 min 20 s"),
        (7200, "2 h"),
        (7505, "2 h 5 min"),
    ],
)
def test_durations_are_written_for_people(seconds, text):
    assert duration(seconds) == text


# Whose code a method was


def source_of(bench) -> str:
    return f"probe.py sha256:{hashlib.sha256((bench.folder / 'probe.py').read_bytes()).hexdigest()}"


def edit_plugin(bench) -> None:
    with (bench.folder / "probe.py").open("a") as file:
        file.write("# edited\n")


def test_a_record_holds_the_hash_of_the_plugin_whatever_becomes_of_its_cell(bench):
    actions = 'probe.actions=["ok", "raise", "kill"]'
    bench.run("--seeds", "3", "--set", actions, "--problems", "toy/a")
    records = bench.records()
    assert [record.status for record in records] == ["ok", "failed", "crashed"]
    assert {record.provenance["method_source"] for record in records} == {source_of(bench)}


def test_a_changed_plugin_is_said_and_its_finished_cells_stay_until_all_run_again(bench):
    assert "Warning" not in bench.run("--seeds", "1", "--problems", "toy/a").stderr
    old = source_of(bench)
    edit_plugin(bench)
    warning = (
        "Warning: probe: its code changed since 1 finished cell ran; --rerun all runs again what "
        "this command asks for\n"
    )
    assert warning in bench.run("--seeds", "1").stderr
    assert [record.method_source for record in bench.records()] == [old, source_of(bench)]
    assert "Warning" not in bench.run("--seeds", "1", "--rerun", "all").stderr
    assert {record.method_source for record in bench.records()} == {source_of(bench)}


def test_finished_records_of_another_source_count_and_those_of_an_unknown_one_do_not():
    def record(method, status, **provenance):
        identity = SimpleNamespace(method=method)
        return Record("", identity, status, provenance=provenance)

    cells = [SimpleNamespace(method=name, method_source=f"{name} 2") for name in ("a", "b")]
    records = [
        record("a", "ok", method_source="a 1"),
        record("a", "skipped", method_source="a 1.1"),
        record("a", "failed", method_source="a 1"),
        record("a", "ok", method_source="a 2"),
        record("b", "ok"),
        record("c", "ok", method_source="c 1"),
    ]
    assert runner.other_sources(cells, records) == {"a": 2}


def test_a_plugin_that_changes_during_a_run_is_not_mixed_into_it(bench):
    """A worker that takes the place of a dead one loads the file again."""
    kill = "os.kill(os.getpid(), signal.SIGKILL)"
    edit = 'print("#", file=open("probe.py", "a"), flush=True)'
    plugin = bench.folder / "probe.py"
    plugin.write_text(plugin.read_text().replace(kill, f"{edit}; {kill}"))
    planned = source_of(bench)
    bench.run("--seeds", "3", "--set", 'probe.actions=["ok", "kill", "ok"]', "--problems", "toy/a")
    records = bench.records()
    assert [record.status for record in records] == ["ok", "crashed", "failed"]
    assert {record.method_source for record in records} == {planned}
    assert records[2].error_message.startswith("probe: its code has changed since the run was")
