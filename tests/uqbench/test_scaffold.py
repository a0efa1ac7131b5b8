import ast
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from uqbench import registry
from uqbench.cli import main


@pytest.fixture
def cli(tmp_path, monkeypatch):
    """Run a command in this process, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "_plugins", {})
    return lambda *arguments: CliRunner().invoke(main, arguments, prog_name="uqbench")


def test_the_method_fits_on_a_screen_and_passes_the_check_as_it_is(cli, tmp_path):
    assert cli("new", "method", "my_method").exit_code == 0
    assert len((tmp_path / "my_method.py").read_text().splitlines()) < 70
    done = cli("check", "my_method", "--plugin", "my_method.py", "--device", "cpu")
    assert done.exit_code == 0, done.output


def test_its_test_passes_as_it_is(cli, tmp_path):
    cli("new", "method", "my_method")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_my_method.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout


def test_the_next_steps_are_commands_for_the_files_that_were_written(cli, tmp_path):
    (tmp_path / "a folder").mkdir()
    lines = cli("new", "method", "my_method", "--dir", "a folder").output.splitlines()
    steps = [line.split(":", 1) for line in lines[1:]]
    assert [step.strip() for step, _ in steps] == ["check", "run", "look", "publish"]
    check, run, look, publish = (shlex.split(command)[1:] for _, command in steps)
    plugin = ["--plugin", "a folder/my_method.py"]
    assert check == ["check", "my_method", *plugin]
    assert run == (
        [
            "run",
            "--methods",
            "my_method,map,nuqls",
            *plugin,
            "--seeds",
            "5",
            "--out",
            "runs/my_method",
        ]
    )
    assert look == ["leaderboard", "runs/my_method"]
    options = ["--to", "leaderboards", "--who", "YOU", "--methods", "my_method"]
    assert publish == ["publish", "runs/my_method", *options]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("2nd", "'2nd' cannot be a method's name: it must be letters, digits and underscores"),
        ("a-b", "'a-b' cannot be a method's name"),
        ("a b", "'a b' cannot be a method's name"),
        ("../a", "'../a' cannot be a method's name"),
        ("_private", "'_private' cannot be a method's name"),
        ("", "'' cannot be a method's name"),
        ("lambda", "'lambda' cannot be a method's name: lambda is a word of Python's"),
        ("none", "None is a word of Python's"),
        ("posterior", "Posterior is a class of uqbench's"),
        ("nuqls", "there is a method named 'nuqls'; choose another name"),
        ("torch", "torch.py would hide the Python module 'torch'"),
        ("random", "random.py would hide the Python module 'random'"),
    ],
)
def test_a_name_that_no_method_can_have_is_refused(cli, tmp_path, name, message):
    done = cli("new", "method", name)
    assert done.exit_code == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("existing", ["my_method.py", "test_my_method.py"])
def test_nothing_is_overwritten(cli, tmp_path, existing):
    (tmp_path / existing).write_text("precious")
    done = cli("new", "method", "my_method")
    assert done.exit_code == 2
    assert done.stderr == f"Error: {existing}: exists already; choose another name or --dir\n"
    assert (tmp_path / existing).read_text() == "precious"
    assert len(list(tmp_path.iterdir())) == 1


def test_nothing_is_left_half_written(cli, tmp_path):
    # a link to nowhere does not exist, and cannot be made
    (tmp_path / "test_my_method.py").symlink_to("nowhere/at_all.py")
    done = cli("new", "method", "my_method")
    assert done.exit_code == 2
    assert done.stderr == "Error: test_my_method.py: File exists\n"
    assert [path.name for path in tmp_path.iterdir()] == ["test_my_method.py"]


@pytest.mark.parametrize(("folder", "message"), [("no", "no such folder"), ("file", "is a file")])
def test_a_folder_that_is_none_is_refused(cli, tmp_path, folder, message):
    (tmp_path / "file").touch()
    done = cli("new", "method", "my_method", "--dir", folder)
    assert done.exit_code == 2
    assert done.stderr == f"Error: --dir {folder}: {message}; give a folder that exists\n"


def test_names_with_capitals_and_accents_give_valid_classes(cli, tmp_path):
    for name, kind in (("MyMethod", "MyMethod"), ("größe_2", "Größe2")):
        assert cli("new", "method", name).exit_code == 0
        tree = ast.parse(Path(f"{name}.py").read_text(encoding="utf-8"))
        assert [node.name for node in tree.body if isinstance(node, ast.ClassDef)] == [
            kind,
            f"{kind}Posterior",
        ]
