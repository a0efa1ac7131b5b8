"""What CONTRIBUTING.md tells people to do, done; and methods that come from outside, run."""

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from uqbench import registry
from uqbench.cli import main
from uqbench.method import Method, Posterior
from uqbench.problems import load_suite
from uqbench.records import RecordFile
from uqbench.registry import build_method, load_plugins
from uqbench.scaffold import write_method

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
COMMANDS = [
    shlex.split(line)
    for block in re.findall(r"```sh\n(.*?)```", TEXT, re.DOTALL)
    for line in block.splitlines()
]
SETTINGS, ENTRY_POINT = re.findall(r"```toml\n(.*?)```", TEXT, re.DOTALL)
SMALL = ("--quick", "--problems", "sklearn/diabetes", "--seeds", "1", "--device", "cpu")


def commands_of(program):
    return [arguments for name, *arguments in COMMANDS if Path(name).name == program]


def test_the_commands_from_nothing_to_a_row_succeed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "_plugins", {})
    shutil.copytree(ROOT / "leaderboards", tmp_path / "leaderboards")
    new, check, look, run, table, csv, publish, verify = commands_of("uqbench")
    outputs = []
    for arguments in (new, check, [*look, "--dry-run"], [*run, *SMALL], table, csv, verify):
        done = CliRunner().invoke(main, arguments, prog_name="uqbench")
        assert done.exit_code == 0, done.output
        outputs.append(done.stdout)
    assert ", 0 failed, " in outputs[1]
    assert "toy/cubic my_method seed 0: to run" in outputs[2]
    assert re.search(r"^\| my_method \| 1 \|", outputs[4], re.MULTILINE)
    assert "my_method" in (tmp_path / "my_method.csv").read_text(encoding="utf-8")
    refused = CliRunner().invoke(main, publish, prog_name="uqbench")
    assert refused.exit_code == 2
    assert "not published on starter: my_method: sklearn/diabetes seed 0: quick" in refused.stderr


def test_the_other_commands_name_what_there_is():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = commands_of("make")
    assert len(targets) == 3
    for (target,) in targets:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)
    written, chosen = commands_of("pytest")
    assert written == ["test_my_method.py"]
    assert (ROOT / chosen[0]).is_file()
    for path in re.findall(r"`((?:uqbench|methods|tests|datasets)/[\w/.]*)`", TEXT):
        assert (ROOT / path).exists() or "NAME" in path, path


def test_the_tags_that_it_explains_are_there():
    tags = re.findall(r"^\| `(\w+)` \| (?:both|`True`|none) \|", TEXT, re.MULTILINE)
    assert tags == ["tasks", "post_hoc", "deterministic", "libraries"]
    assert all(hasattr(Method, tag) for tag in tags)
    assert all(hasattr(Posterior, name) for name in ("tuned", "forward_passes"))


def test_a_suites_file_sets_what_is_shown(tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "_plugins", {})
    load_plugins([write_method("my_method", tmp_path)[0]])
    head = '[problems."uci/energy"]\ndataset = "uci/energy"\ntask = "regression"\n'
    (tmp_path / "suite.toml").write_text(head + SETTINGS)
    (problem,) = load_suite(str(tmp_path / "suite.toml")).problems
    assert build_method("my_method", problem.methods["my_method"]).scale == 0.05


@pytest.fixture
def outside(tmp_path):
    """A folder with a package that has the entry point, as pip leaves it, and a plug-in file."""
    packages = tmp_path / "site-packages"
    (packages / "my_package").mkdir(parents=True)
    (packages / "my_package" / "__init__.py").touch()
    write_method("my_method", packages / "my_package")
    info = packages / "my_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.0\n")
    (group,) = tomllib.loads(ENTRY_POINT)["project"]["entry-points"].items()
    lines = [f"[{group[0]}]", *(f"{name} = {value}" for name, value in group[1].items())]
    (info / "entry_points.txt").write_text("\n".join(lines))
    (tmp_path / "work").mkdir()
    write_method("other_method", tmp_path / "work")
    return tmp_path


def test_methods_of_a_package_and_of_a_file_reach_the_leaderboard(outside):
    names = ("my_method", "other_method", "map")
    command = [sys.executable, "-m", "uqbench", "run", "--methods", ",".join(names), *SMALL]
    done = subprocess.run(
        [*command, "--plugin", "other_method.py", "--out", "out"],
        cwd=outside / "work",
        env={**os.environ, "PYTHONPATH": str(outside / "site-packages"), "COLUMNS": "160"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    for name in names:
        assert re.search(rf"^{name} +1 ", done.stdout, re.MULTILINE)
    file = (outside / "work" / "other_method.py").read_bytes()
    assert {
        record.identity.method: record.method_source
        for record in RecordFile(outside / "work" / "out").read()
    } == {
        "my_method": "my-package 1.0",
        "other_method": f"other_method.py sha256:{hashlib.sha256(file).hexdigest()}",
        "map": "uqbench",
    }
