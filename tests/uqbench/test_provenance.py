"""Which commit a number is of, and when the code was another than the commit's."""

import subprocess

import pytest
import torch

from uqbench import provenance
from uqbench.provenance import code_state

FILES = (
    "README.md",
    "datasets/suites/starter.toml",
    "docs/index.md",
    "leaderboards/__init__.py",
    "leaderboards/starter.csv",
    "leaderboards/submissions/starter/a.csv",
    "methods/map.py",
    "metrics/detection.py",
    "pyproject.toml",
    "tests/test_map.py",
    "uqbench/provenance.py",
    "uqbench/templates/results.html",
)


def git(folder, *arguments):
    person = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    command = ["git", "-C", str(folder), *person, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def checkout(tmp_path):
    """A repository with files where uqbench has its own."""
    code_state.cache_clear()
    for name in FILES:
        write(tmp_path, name)
    write(tmp_path, ".gitignore", "__pycache__/\n")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message", "all")
    yield tmp_path
    code_state.cache_clear()


def write(folder, name, text="as committed\n"):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_code_as_committed_differs_nowhere(checkout):
    assert code_state(checkout) == (git(checkout, "rev-parse", "HEAD"), ())


@pytest.mark.parametrize(
    "name",
    [
        *("uqbench/provenance.py", "uqbench/templates/results.html", "methods/map.py"),
        *("metrics/detection.py", "datasets/suites/starter.toml", "pyproject.toml"),
        *("leaderboards/__init__.py", "uqbench/templates/new.html", "methods/new/one.py"),
        *("methods/two words ü.py", "datasets/suites/new.toml", "leaderboards/new/new.py"),
    ],
)
def test_code_that_differs_from_its_commit_or_is_not_added_is_named(checkout, name):
    write(checkout, name, "changed\n")
    assert code_state(checkout) == (git(checkout, "rev-parse", "HEAD"), (name,))


def test_code_that_is_staged_moved_or_deleted_is_named(checkout):
    write(checkout, "uqbench/new.py")
    git(checkout, "add", "uqbench/new.py")
    git(checkout, "mv", "methods/map.py", "methods/pam.py")
    (checkout / "metrics" / "detection.py").unlink()
    _, changed = code_state(checkout)
    assert set(changed) == {
        *("methods/map.py", "methods/pam.py", "metrics/detection.py", "uqbench/new.py")
    }


def test_documents_and_what_publishing_writes_do_not_count(checkout):
    for name in (
        *("README.md", "docs/index.md", "tests/test_map.py", "tests/test_new.py", "new.py"),
        *("leaderboards/starter.csv", "leaderboards/submissions/starter/a.csv"),
        *("leaderboards/new.csv", "leaderboards/submissions/starter/b.environment.json"),
        "methods/__pycache__/map.pyc",
    ):
        write(checkout, name, "changed\n")
    assert code_state(checkout)[1] == ()


def test_code_that_no_commit_holds_has_an_unknown_one(tmp_path):
    """As a wheel that is installed inside the repository of another project."""
    git(tmp_path, "init", "--quiet")
    write(tmp_path, "theirs.py")
    git(tmp_path, "add", "theirs.py")
    git(tmp_path, "commit", "--quiet", "--message", "theirs")
    for name in FILES:
        write(tmp_path, name)
    code_state.cache_clear()
    assert code_state(tmp_path) == (None, ())


@pytest.mark.parametrize(
    ("state", "commit", "dirty"),
    [(("c", ()), "c", False), (("c", ("a.py",)), "c", True), ((None, ()), None, None)],
)
def test_records_say_whether_the_code_was_that_of_the_commit(monkeypatch, state, commit, dirty):
    monkeypatch.setattr(provenance, "code_state", lambda: state)
    found = provenance.environment.__wrapped__(torch.device("cpu"))
    assert (found["commit"], found["dirty"]) == (commit, dirty)
