"""Files with the weights of trained networks."""

import hashlib
import os
import re

import pytest
import torch

from uqbench.datasets import weights
from uqbench.datasets.catalogue import entries, fetch, verify
from uqbench.datasets.weights import Known, content_digest, path_of, read_weights
from uqbench.errors import DataError


@pytest.fixture
def known(tmp_path, monkeypatch):
    """Weights that can be fetched to the root: ``tiny``, whose file is returned."""
    source = tmp_path / "source.pth"
    torch.save({"weight": torch.ones(2, 3)}, source)
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    tiny = Known(f"tiny-{digest[:8]}.pth", "Tiny_Weights.V1", 6)

    def download(known, folder):
        (folder / known.file).write_bytes(source.read_bytes())

    monkeypatch.setitem(weights.WEIGHTS, "resnet50-imagenet", tiny)
    monkeypatch.setattr(weights, "_download", download)
    return tmp_path / "weights" / tiny.file


def test_they_are_fetched_verified_and_listed(known, tmp_path):
    def outcome(of):
        (one,) = of(chosen=["resnet50-imagenet"], root=tmp_path)
        return one.status

    def listed():
        return next(e for e in entries(tmp_path) if e.name == "resnet50-imagenet")

    assert (outcome(verify), listed().status) == ("missing", "missing")
    assert outcome(fetch) == "fetched"
    assert [file.name for file in known.parent.iterdir()] == [known.name]
    assert (outcome(fetch), outcome(verify), listed().status) == ("present", "ok", "present")
    torch.testing.assert_close(read_weights(known.name, tmp_path)["weight"], torch.ones(2, 3))


def test_another_content_is_refused(known, tmp_path):
    known.parent.mkdir()
    known.write_bytes(b"something else")
    for of, status in ((verify, "wrong"), (fetch, "failed")):
        (one,) = of(chosen=["resnet50-imagenet"], root=tmp_path)
        assert one.status == status
        assert re.match(f"{known}: its content is not the known one .*; move it away", one.message)


def test_a_download_that_fails_leaves_nothing(known, tmp_path, monkeypatch):
    def fail(known, folder):
        raise DataError("no network")

    monkeypatch.setattr(weights, "_download", fail)
    (one,) = fetch(["resnet50-imagenet"], tmp_path)
    assert (one.status, one.message) == ("failed", "no network")
    assert not list(known.parent.iterdir())


def test_a_plain_name_is_of_the_data_root_and_all_else_is_a_path(tmp_path):
    assert path_of("a.pth", tmp_path) == tmp_path / "weights" / "a.pth"
    assert str(path_of("./a.pth", tmp_path)) == "a.pth"
    assert path_of("/x/a.pth", tmp_path).as_posix() == "/x/a.pth"


def test_a_missing_file_names_the_command_if_there_is_one(known, tmp_path):
    for name, remedy in (
        (known.name, f"get it with `uqbench data fetch resnet50-imagenet --data-dir {tmp_path}`"),
        ("mine.pth", "correct network.weights"),
    ):
        with pytest.raises(DataError) as caught:
            read_weights(name, tmp_path)
        assert str(caught.value) == f"{tmp_path / 'weights' / name}: no such file; {remedy}"


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (
            b"no weights",
            r"cannot be read as weights \(\w+\): it must be a whole file",
        ),
        (b"", r"cannot be read as weights \(EOFError\)"),
        ({1: torch.ones(2)}, "must hold a state_dict"),
        ({"a": torch.tensor([1.0, torch.nan])}, "'a' has values that are not finite"),
        ({"a": torch.ones(2).to_sparse()}, "'a' must be a dense tensor"),
        ({"a": torch.ones(2, device="meta")}, "'a' must be a dense tensor"),
        ([1, 2], "must hold a state_dict"),
        ({"model": {"weight": torch.ones(2)}}, "must hold a state_dict"),
    ],
)
def test_a_file_that_holds_no_state_is_one_line(tmp_path, content, complaint):
    path = tmp_path / "x.pth"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        torch.save(content, path)
    with pytest.raises(DataError, match=f"^{path}: {complaint}") as caught:
        read_weights(str(path), tmp_path)
    assert "\n" not in str(caught.value)


class _Code:
    """Runs a command when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_code_in_a_file_is_not_run(tmp_path):
    torch.save({"a": _Code(tmp_path / "ran")}, tmp_path / "x.pth")
    with pytest.raises(DataError, match="which holds tensors alone"):
        read_weights(str(tmp_path / "x.pth"), tmp_path)
    assert not (tmp_path / "ran").exists()


def test_the_digest_follows_the_content(tmp_path):
    path = tmp_path / "x.pth"
    path.write_bytes(b"a")
    before = content_digest(str(path), tmp_path)
    assert before == hashlib.sha256(b"a").hexdigest()
    path.write_bytes(b"ab")
    assert content_digest(str(path), tmp_path) != before
