import os
import subprocess
import sys
from importlib.metadata import version

import pytest
from click.testing import CliRunner

from uqbench import registry
from uqbench.api import parse_duration, request
from uqbench.cli import main
from uqbench.errors import UsageError


@pytest.fixture
def cli(bench, monkeypatch):
    """Run a command in this process, in a folder with the probe and the suite of two problems."""
    monkeypatch.chdir(bench.folder)
    monkeypatch.setattr(registry, "_plugins", {})
    runner = CliRunner()
    return lambda *arguments: runner.invoke(main, arguments, prog_name="uqbench")


EMPTY = ("methods", "suite", "problems", "out", "data", "target", "data-dir", "timeout", "plugin")
RUN = ("run", "--methods", "probe", "--plugin", "probe.py", "--suite", "mini.toml")


def test_help_and_version_import_nothing_heavy():
    code = """
import sys
from uqbench.cli import main
for argument in ("--help", "--version"):
    try:
        main([argument], prog_name="uqbench")
    except SystemExit as end:
        assert end.code == 0
heavy = {"torch", "numpy", "pandas", "pydantic", "rich", "pebble", "scipy"} & set(sys.modules)
assert not heavy, heavy
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "run methods on problems" in done.stdout.lower()
    assert version("uqbench") in done.stdout


def test_the_module_runs_as_the_command_does():
    command = [sys.executable, "-m", "uqbench", "list", "methods"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "nuqls" in done.stdout.split()


def test_methods_are_listed_with_plugins(cli):
    result = cli("list", "methods", "--plugin", "probe.py")
    assert result.exit_code == 0
    assert {"probe", "other_probe", "map"} <= set(result.stdout.split())


@pytest.mark.parametrize(
    ("what", "name"),
    [("methods", "swag"), ("problems", "uci/energy"), ("suites", "starter"), ("metrics", "rmse")],
)
def test_names_are_listed_one_a_line_with_a_description(cli, what, name):
    result = cli("list", what)
    assert result.exit_code == 0
    assert any(
        line.split()[0] == name and len(line.split()) > 2 for line in result.stdout.splitlines()
    )


def test_show_describes_a_method_and_its_settings(cli):
    result = cli("show", "probe", "--plugin", "probe.py")
    assert result.exit_code == 0
    assert "Does what its settings say:" in result.stdout
    assert "tasks: classification, regression" in result.stdout
    assert "seconds  float            default 0.0" in result.stdout


def test_show_describes_a_problem(cli):
    result = cli("show", "uci/energy")
    assert result.exit_code == 0
    for part in ("dataset: uci/energy", "hidden", "optimizer", "settings of nuqls:"):
        assert part in result.stdout


def test_show_suggests_a_name(cli):
    result = cli("show", "uci/enrgy")
    assert result.exit_code == 2
    assert result.stderr == (
        "Error: no method or problem named 'uci/enrgy'. Did you mean 'uci/energy'?\n"
    )


def test_a_dry_run_lists_the_cells_and_writes_nothing(cli, bench):
    before = bench.files()
    result = cli(*RUN, "--out", "out", "--seeds", "1", "--dry-run", "--device", "cpu")
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "toy/a probe seed 0: to run",
        "toy/b probe seed 0: to run",
        "2 cells, 0 with a record in out",
    ]
    assert bench.files() == before


def test_a_dry_run_says_what_is_done(cli, bench):
    bench.run("--seeds", "1")
    result = cli(*RUN, "--out", "out", "--seeds", "2", "--dry-run", "--device", "cpu")
    assert "toy/a probe seed 0: already there, ok\ntoy/a probe seed 1: to run\n" in result.stdout
    assert "4 cells, 2 with a record in out" in result.stdout


def test_the_default_folder_is_named_after_the_suite(cli, bench):
    result = cli(*RUN, "--seeds", "1", "--dry-run", "--device", "cpu", "--quick")
    assert "0 with a record in runs/mini-quick" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--seeds", "0"), "--seeds"),
        (("--seeds", "-1"), "--seeds"),
        (("--seeds", "two"), "must be a whole number, at least 1; got 'two'"),
        (("--jobs", "0"), "--jobs"),
        (("--no-such-flag",), "--no-such-flag"),
        (("--rerun", "some"), "--rerun"),
        (("--timeout", "soon"), "must be a duration like 90s, 30m, 2h or 1h30m"),
        (("--timeout", "0"), "longer than 0 seconds"),
        (("--out", "probe.py"), "--out probe.py: is a file; give a folder"),
        (("--out", "probe.py/x"), "probe.py is a file; give a folder"),
        (("--set", "probe"), "--set probe: must be METHOD.SETTING=VALUE"),
        (("--target", "price"), "give --data as well"),
        (("--data", "mini.csv", "--target", "y"), "either a table of your own (--data) or --suite"),
        (("--methods", "probe,,map"), "a name is empty"),
        *((("--" + name, ""), f"Invalid value for '--{name}': it is empty") for name in EMPTY),
    ],
)
def test_wrong_usage_is_one_line_and_status_2_and_leaves_nothing(cli, bench, arguments, message):
    before = bench.files()
    result = cli(*RUN, *arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1
    assert bench.files() == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--methods", "prboe"), "no method named 'prboe'. Did you mean 'probe'?"),
        (("--set", "probe.second=1"), "Did you mean 'seconds'?"),
        (("--device", "gpu"), "--device must be auto, cpu, cuda or cuda:INDEX, got 'gpu'"),
        (("--device", "cuda:77"), "--device cuda:77: not available; torch sees"),
        (("--plugin", "mini.toml"), "mini.toml: not a Python file"),
        (("--out", "/proc/nowhere/run", "--device", "cpu"), "/proc/nowhere/run: cannot be written"),
    ],
)
def test_what_only_the_worker_finds_is_also_one_line(cli, bench, arguments, message):
    before = bench.files()
    result = cli(*RUN, *arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.splitlines()[-1].startswith("Error: ")
    assert "Traceback" not in result.stderr
    assert bench.files() == before


def test_a_folder_without_permission_is_refused_before_any_work(cli, bench, monkeypatch):
    monkeypatch.setattr("os.access", lambda path, mode: False)
    result = cli(*RUN, "--out", "sealed/run")
    assert result.exit_code == 2
    assert result.stderr == f"Error: --out sealed/run: no permission to write in {bench.folder}\n"


def test_the_leaderboard_is_rebuilt_from_the_records(cli, bench):
    bench.run("--seeds", "2")
    table = cli("leaderboard", "out")
    assert table.exit_code == 0
    assert "probe" in table.stdout
    text = cli("leaderboard", "out", "--format", "csv")
    assert text.stdout.startswith("suite,problem,")
    assert cli("leaderboard", "out", "--out", "board.md").exit_code == 0
    assert "probe" in (bench.folder / "board.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nowhere",), "nowhere: no run here"),
        (("out", "--format", "cvs"), "Did you mean 'csv'?"),
        (("out", "--out", "board.xyz"), "unknown suffix '.xyz'"),
        (("out", "--out", "mini.toml/board.md"), "mini.toml/board.md: cannot be written"),
    ],
)
def test_a_wrong_leaderboard_is_one_line(cli, bench, arguments, message):
    bench.run("--seeds", "1")
    result = cli("leaderboard", *arguments)
    assert result.exit_code == 2
    assert message in result.stderr


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"rmse":', '"rmse":"low","crps":', "outcome.metrics is {"),
        ('"status":"ok"', '"status":"fine"', "status is 'fine'"),
        ('"seed":0', '"seed":"zero"', "identity.seed is 'zero'"),
        ('"settings":{', '"settings":5,"x":{', "identity.x is unknown"),
        ('"schema":3', '"schema":"3"', "schema is '3'"),
        ('"key":', '"keys":', "keys is unknown"),
        ('{"key"', '[{"key"', "not a record"),
    ],
)
def test_a_corrupt_record_is_one_line_that_names_file_line_and_field(cli, bench, old, new, message):
    bench.run("--seeds", "1")
    path = bench.out / "records.jsonl"
    first, second = path.read_text().splitlines()
    assert old in second
    path.write_text(f"{first}\n{second.replace(old, new, 1)}\n")
    for result in (cli("leaderboard", "out"), cli(*RUN, "--out", "out", "--device", "cpu")):
        assert result.exit_code == 2
        assert "out/records.jsonl: line 2: not a record (" in result.stderr
        assert message in result.stderr
        assert "Traceback" not in result.stderr


@pytest.mark.parametrize("plan", ["garbage", "5", '{"a": 1}', "[[1]]", ""])
def test_a_corrupt_plan_does_no_harm(cli, bench, plan):
    bench.run("--seeds", "1")
    (bench.out / "plan.json").write_text(plan)
    assert cli("leaderboard", "out").exit_code == 0


def test_data_sets_are_listed_with_their_state(cli, tmp_path):
    result = cli("data", "list", "--data-dir", str(tmp_path))
    assert result.exit_code == 0
    states = {line.split()[0]: line.split()[-1] for line in result.stdout.splitlines()}
    assert (states["uci/energy"], states["sklearn/digits"]) == ("missing", "bundled")


def test_verifying_a_data_set_that_is_missing_has_status_2(cli, tmp_path):
    result = cli("data", "verify", "uci/energy", "--data-dir", str(tmp_path))
    assert result.exit_code == 2
    assert "missing" in result.stdout


def test_verifying_a_data_set_that_was_changed_names_the_file_and_the_remedy(cli, tmp_path):
    (tmp_path / "uci").mkdir()
    (tmp_path / "uci" / "yacht.csv").write_text("x0,x1,target\n1,2,3\n1,x,3\n2,2,2\n")
    result = cli("data", "verify", "uci/yacht", "--data-dir", str(tmp_path))
    assert result.exit_code == 2
    assert "yacht.csv: line 3, column 'x1': 'x' is not a finite number; move it" in result.stdout
    assert f"uqbench data fetch uci/yacht --data-dir {tmp_path}" in result.stdout
    run = cli("run", "--methods", "map", "--problems", "uci/yacht", "--data-dir", str(tmp_path))
    assert run.exit_code == 2
    assert "move it away" in run.stderr


def test_data_that_comes_with_a_package_needs_no_verifying(cli):
    result = cli("data", "verify", "sklearn/digits")
    assert result.exit_code == 0
    assert result.stdout.startswith("sklearn/digits  bundled")


def test_a_data_folder_that_is_a_file_is_refused(cli):
    for command in (("data", "list"), ("data", "verify"), (*RUN, "--problems", "toy/a")):
        result = cli(*command, "--data-dir", "mini.toml")
        if command[0] == "data":
            assert result.exit_code == 2
            assert "mini.toml: is a file; give a folder" in result.stderr


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("90s", 90), ("1.5h", 5400), ("1h30m", 5400), ("1h 30m", 5400), ("2 d", 172800)],
)
def test_durations_are_read(text, seconds):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "h", "2x", "1h30", "-5", "1m1h2", "nan", 0, -1, float("inf")])
def test_a_malformed_duration_is_an_error(text):
    with pytest.raises(UsageError, match="--timeout"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seeds": 0}, "seeds must be a whole number, at least 1; got 0"),
        ({"seeds": 2.0}, "got 2.0"),
        ({"settings": {"nuqls": 3}}, "under 'nuqls' is 3"),
        ({"methods": [None]}, "methods must be names"),
        ({"data": "x.csv"}, "--data needs --target"),
    ],
)
def test_wrong_arguments_from_python_are_usage_errors(changes, message):
    with pytest.raises(UsageError, match=message):
        request(**{"methods": "map", **changes})


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_is_one_line():
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "uqbench", "list", "metrics"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("Error: No space left on device\n")


def test_a_run_on_ones_own_table_says_what_it_read_and_how_it_trains(cli, tmp_path):
    table = tmp_path / "houses.csv"
    lines = [f"{i % 7},{'xy'[i % 2]},{i * 1.5 + i % 3}" for i in range(60)]
    table.write_text("\n".join(["rooms,kind,price", *lines]))
    arguments = ["--methods", "map", "--data", str(table), "--target", "price", "--seeds", "1"]
    result = cli("run", *arguments, "--quick", "--out", str(tmp_path / "run"))
    assert "regression of 'price' from 3 features" in result.output
    assert "60 rows of houses.csv; MLP with 50 and 50 tanh units, trained in" in result.output


def test_a_long_grid_is_shown_by_its_size_and_ends(cli):
    shown = cli("show", "swag").stdout
    assert "default 41 values from 0.001 to 10" in shown
    assert "default (0.0, 0.005, 5e-05)" in shown
