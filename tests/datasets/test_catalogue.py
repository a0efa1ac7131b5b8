"""Data sets by name."""

import subprocess
import sys

import numpy as np
import pytest

from uqbench.datasets import catalogue, images, uci
from uqbench.errors import DataError, UsageError
from uqbench.method import Task


def load(dataset, **changes):
    settings = {
        "task": Task.REGRESSION,
        "split": (0.70, 0.15, 0.15),
        "seed": 1,
        "standardise": True,
        "held_out_classes": (),
        "root": None,
    }
    return catalogue.load_problem_data(dataset, **{**settings, **changes})


class TestDataRoot:
    def test_the_explicit_folder_comes_first(self, tmp_path, monkeypatch):
        monkeypatch.setenv("UQBENCH_DATA", "/elsewhere")
        assert catalogue.data_root(tmp_path) == tmp_path
        assert catalogue.data_root(str(tmp_path)) == tmp_path

    def test_then_the_environment_variable(self, tmp_path, monkeypatch):
        monkeypatch.setenv("UQBENCH_DATA", str(tmp_path))
        assert catalogue.data_root(None) == tmp_path

    def test_then_the_users_cache(self, monkeypatch):
        monkeypatch.delenv("UQBENCH_DATA", raising=False)
        assert catalogue.data_root(None).parts[-2:] == ("uqbench", "data")


class TestLoadProblemData:
    def test_a_uci_set_is_split_and_standardised(self, shared_data):
        data = load("uci/energy", root=shared_data)
        assert (len(data.train), len(data.validation), len(data.test)) == (537, 115, 116)
        np.testing.assert_allclose(data.train.targets.std(), 1)
        assert data.fingerprint == uci.SETS["energy"].fingerprint

    def test_the_constant_columns_of_naval_are_zero_not_nan(self, shared_data):
        data = load("uci/naval", root=shared_data)
        for part in (data.train, data.validation, data.test):
            assert np.isfinite(part.inputs).all()
            assert (part.inputs[:, [8, 11]] == 0).all()

    def test_digits_hold_out_classes(self):
        data = load("sklearn/digits", task="classification", held_out_classes=[8, 9])
        assert data.class_names == tuple("01234567")
        assert data.ood["held-out"].shape == (354, 64)
        assert len(data.train) == 1010

    def test_diabetes_is_a_regression(self):
        data = load("sklearn/diabetes")
        assert len(data.train) == 309
        assert data.num_classes is None

    def test_the_toy_problem_follows_the_seed(self):
        first, again, other = (load("toy/cubic", standardise=False, seed=s) for s in (1, 1, 2))
        np.testing.assert_array_equal(first.train.inputs, again.train.inputs)
        assert not np.array_equal(first.train.inputs, other.train.inputs)

    def test_the_toy_problem_is_not_standardised(self):
        with pytest.raises(UsageError, match="standardise = false"):
            load("toy/cubic", standardise=True)

    def test_a_file_of_ones_own_is_read_by_its_path(self, tmp_path):
        path = tmp_path / "my.csv"
        path.write_text("a,y\n" + "".join(f"{i},{i}.5\n" for i in range(40)))
        data = load(f"file:{path}", target="y")
        assert len(data.train) == 28
        assert data.feature_names == ("a",)

    def test_the_task_overrides_what_the_file_looks_like(self, tmp_path):
        path = tmp_path / "my.csv"
        path.write_text("a,y\n" + "".join(f"{i},{i % 2}\n" for i in range(40)))
        assert load(f"file:{path}", target="y", task="regression").num_classes is None
        assert load(f"file:{path}", target="y", task="classification").num_classes == 2

    def test_a_file_needs_a_target(self, tmp_path):
        with pytest.raises(UsageError, match="no target column named"):
            load(f"file:{tmp_path / 'my.csv'}")

    def test_a_task_that_the_data_set_is_not_for_is_an_error(self, shared_data):
        with pytest.raises(UsageError, match="uci/wine is for regression, but the problem says"):
            load("uci/wine", task="classification", root=shared_data)

    @pytest.mark.parametrize(
        ("name", "suggestion"),
        [("uci/energi", "uci/energy"), ("sklearn/digit", "sklearn/digits"), ("cubic", "toy/cubic")],
    )
    def test_an_unknown_name_is_suggested(self, name, suggestion):
        with pytest.raises(UsageError, match=f"no data set named '{name}'. Did you mean"):
            load(name)
        with pytest.raises(UsageError, match=f"Did you mean '{suggestion}'?"):
            load(name)


class TestReadingOnce:
    def test_several_seeds_read_the_file_once(self, tmp_path, monkeypatch):
        path = tmp_path / "my.csv"
        path.write_text("a,y\n" + "".join(f"{i},{i}.5\n" for i in range(40)))
        tables = {id(catalogue.load_table(f"file:{path}", target="y")) for _ in range(3)}
        assert len(tables) == 1

    def test_a_file_that_was_rewritten_is_read_again(self, tmp_path):
        path = tmp_path / "my.csv"
        path.write_text("a,y\n1,2.5\n2,3.5\n")
        first = catalogue.load_table(f"file:{path}", target="y")
        path.write_text("a,y\n1,2.5\n2,3.5\n3,4.5\n")
        assert len(catalogue.load_table(f"file:{path}", target="y")) == len(first) + 1

    def test_a_fault_that_was_mended_is_forgotten(self, tmp_path):
        path = tmp_path / "my.csv"
        with pytest.raises(DataError, match="no such file"):
            catalogue.load_table(f"file:{path}", target="y")
        path.write_text("a,y\n1,2.5\n2,3.5\n")
        assert len(catalogue.load_table(f"file:{path}", target="y")) == 2


class TestListing:
    def test_entries_say_what_is_there(self, tmp_path):
        (tmp_path / "uci").mkdir()
        (tmp_path / "uci" / "wine.csv").write_text("anything")
        status = {entry.name: entry.status for entry in catalogue.entries(tmp_path)}
        assert status["uci/wine"] == "present"
        assert status["uci/song"] == "missing"
        assert status["sklearn/digits"] == "bundled"
        assert list(status) == catalogue.names()

    def test_the_listed_sizes_of_bundled_tables_are_right(self):
        for entry in catalogue.entries():
            if entry.name.startswith("sklearn/"):
                table = catalogue.load_table(entry.name)
                assert table.inputs.shape == (entry.rows, *entry.shape)
                assert table.task is entry.task

    def test_verify_tells_good_wrong_and_missing_apart(self, shared_data, tmp_path):
        (tmp_path / "uci").mkdir()
        for name in ("yacht", "energy"):
            content = (shared_data / "uci" / f"{name}.csv").read_text()
            (tmp_path / "uci" / f"{name}.csv").write_text(content)
        (tmp_path / "uci" / "energy.csv").write_text("x0,target\n1,2\n2,3\n")
        outcomes = catalogue.verify(tmp_path, ["uci/yacht", "uci/energy", "uci/wine", "toy/cubic"])
        found = {outcome.name: outcome.status for outcome in outcomes}
        assert found == {
            "uci/yacht": "ok",
            "uci/energy": "wrong",
            "uci/wine": "missing",
            "toy/cubic": "bundled",
        }

    def test_all_shared_sets_verify(self, shared_data):
        found = {outcome.name: outcome.status for outcome in catalogue.verify(shared_data)}
        assert "wrong" not in found.values()
        assert all(found[f"uci/{name}"] == "ok" for name in uci.SETS if name != "song")
        assert {found["mnist"], found["fashion-mnist"]} <= {"ok", "missing"}

    def test_song_is_unchecked(self, tmp_path, monkeypatch):
        small = uci.UCISet(2, 1, "", None, uci.parse_target_first, None)
        monkeypatch.setitem(uci.SETS, "song", small)
        (tmp_path / "uci").mkdir()
        (tmp_path / "uci" / "song.csv").write_text("x0,target\n1.5,2001\n2.5,1999\n")
        assert catalogue.verify(tmp_path, ["uci/song"])[0].status == "unchecked"


class TestFetch:
    def test_one_failure_does_not_stop_the_others(self, tmp_path, monkeypatch):
        small = uci.UCISet(2, 1, "song", None, uci.parse_target_first, None)
        monkeypatch.setitem(uci.SETS, "song", small)

        def download(url):
            if url == "song":
                return b"2001,1.5\n1999,2.5\n"
            raise DataError(f"{url}: download failed")

        monkeypatch.setattr(uci, "download_bytes", download)
        reported = []
        outcomes = catalogue.fetch(["uci/wine", "uci/song"], tmp_path, reported.append)
        assert [(o.name, o.status) for o in outcomes] == [
            ("uci/wine", "failed"),
            ("uci/song", "fetched"),
        ]
        assert reported == ["uci/wine", "uci/song"]
        assert catalogue.fetch(["uci/song"], tmp_path)[0].status == "present"
        assert not (tmp_path / "uci" / "wine.csv").exists()

    def test_a_group_stands_for_all_its_sets(self, tmp_path, monkeypatch):
        def offline(*what):
            raise DataError("offline")

        monkeypatch.setattr(uci, "download_bytes", offline)
        monkeypatch.setattr(images, "_download", offline)
        of_uci, of_images = [f"uci/{name}" for name in uci.SETS], list(images.SETS)
        for chosen, names in (
            (["uci"], of_uci),
            (["images"], of_images),
            (None, of_uci + of_images),
        ):
            outcomes = catalogue.fetch(chosen, tmp_path)
            assert [(o.name, o.message) for o in outcomes] == [(name, "offline") for name in names]

    def test_what_has_to_be_downloaded_by_hand_says_where(self, tmp_path):
        (outcome,) = catalogue.fetch(["imagenet"], tmp_path)
        assert outcome.status == "failed"
        assert outcome.message == (
            f"{tmp_path / 'imagenet' / 'train'}: no such folder; imagenet has to be downloaded by "
            "hand from image-net.org"
        )

    def test_an_unknown_name_is_an_error_before_anything_is_downloaded(self, tmp_path, monkeypatch):
        monkeypatch.setattr(uci, "download_bytes", lambda url: pytest.fail("downloaded"))
        with pytest.raises(UsageError, match=r"Did you mean 'uci/wine'\?"):
            catalogue.fetch(["uci/yacht", "uci/wien"], tmp_path)


def test_loading_data_does_not_import_torch():
    code = (
        "import sys; from uqbench.datasets import catalogue; "
        "catalogue.load_problem_data('sklearn/digits', task='classification', "
        "split=(0.7, 0.15, 0.15), seed=0, standardise=True); "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
