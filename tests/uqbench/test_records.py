import json
import math
from dataclasses import replace

import pytest

from uqbench.errors import DataError, UsageError
from uqbench.records import SCHEMA_VERSION, Cost, Identity, Outcome, Record, RecordFile, encode


def record(key: str = "k1", **changes) -> Record:
    identity = Identity(
        suite="s",
        problem="p",
        fingerprint="f",
        split=(0.7, 0.15, 0.15),
        network={"hidden": [50]},
        map_checkpoint="m",
        method="nuqls",
        settings={"gamma": 0.1, "solver": None, "widths": [1, 2]},
        seed=0,
        dtype="float64",
        quick=False,
        training={"task": "regression"},
    )
    outcome = Outcome(
        metrics={"rmse": 0.1 + 0.2, "nll": 1e-300},
        ood={"held-out": {"ood_auc": 0.5}},
        tuned={"scale": 2.0},
        grid_size=3,
        sizes={"train": 5},
        class_names=("cat", "dög"),
    )
    made = Record(key=key, identity=identity, status="ok", outcome=outcome, cost=Cost(1, 2, 3, 4))
    return replace(made, **changes)


def test_a_record_reads_back_as_it_was_written(tmp_path):
    file = RecordFile(tmp_path)
    written = record(provenance={"packages": {"torch": "2"}, "gpu": None})
    file.append(written)
    assert file.read() == [written]


def test_numbers_that_json_lacks_are_strict_json_and_read_back_as_numbers(tmp_path):
    file = RecordFile(tmp_path)
    metrics = {"nan": math.nan, "up": math.inf, "down": -math.inf}
    file.append(record(outcome=Outcome(metrics=metrics, ood={"x": metrics}, tuned=metrics)))

    def refuse(text):
        raise AssertionError(f"{text} is not JSON")

    json.loads(file.path.read_text(), parse_constant=refuse)
    read = file.read()[0]
    for values in (read.outcome.metrics, read.outcome.ood["x"], read.outcome.tuned):
        assert math.isnan(values["nan"])
        assert (values["up"], values["down"]) == (math.inf, -math.inf)
    assert math.isnan(replace(read.cost, fit_seconds=math.nan).fit_seconds)


def test_an_undefined_cost_is_nan_and_an_empty_setting_stays_empty(tmp_path):
    file = RecordFile(tmp_path)
    file.append(record(cost=Cost()))
    read = file.read()[0]
    assert math.isnan(read.cost.map_seconds)
    assert read.identity.settings["solver"] is None


def test_no_file_means_no_records(tmp_path):
    assert RecordFile(tmp_path / "nothing").read() == []


def test_the_newest_record_of_a_key_counts(tmp_path):
    file = RecordFile(tmp_path)
    for key, status in (("a", "failed"), ("b", "ok"), ("a", "ok")):
        file.append(record(key, status=status))
    assert [(r.key, r.status) for r in file.read()] == [("a", "ok"), ("b", "ok")]


def test_every_cut_of_the_last_line_leaves_the_others_readable_and_appendable(tmp_path):
    file = RecordFile(tmp_path)
    file.append(record("a"))
    start = file.path.stat().st_size
    file.append(record("b"))
    whole = file.path.read_bytes()
    for length in [*range(start, len(whole), 97), len(whole) - 2]:
        file.path.write_bytes(whole[:length])
        assert [r.key for r in file.read()] == ["a"]
        file.append(record("c"))
        assert [r.key for r in file.read()] == ["a", "c"]


def test_a_last_line_that_lacks_its_newline_only_is_kept(tmp_path):
    file = RecordFile(tmp_path)
    file.path.write_text(encode(record("a")))
    assert [r.key for r in file.read()] == ["a"]
    file.append(record("b"))
    assert [r.key for r in file.read()] == ["a", "b"]


def test_removing_an_incomplete_line_is_said(tmp_path, caplog):
    file = RecordFile(tmp_path)
    file.path.write_text('{"key": "a", "ide')
    file.append(record("b"))
    assert "removed an incomplete last line" in caplog.text


@pytest.mark.parametrize("line", ["{nonsense", "[]", '"text"', '{"schema": 1}', "\0\0\0"])
def test_a_corrupt_line_in_the_middle_is_an_error_with_file_and_line(tmp_path, line):
    file = RecordFile(tmp_path)
    file.path.write_text(f"{encode(record('a'))}\n{line}\n{encode(record('b'))}\n")
    with pytest.raises(DataError, match=r"records\.jsonl: line 2: not a record"):
        file.read()


def test_a_record_of_a_newer_schema_asks_for_an_upgrade(tmp_path):
    file = RecordFile(tmp_path)
    file.append(record(schema=SCHEMA_VERSION + 1))
    with pytest.raises(DataError, match=r"line 1: written by a newer uqbench .*Upgrade"):
        file.read()


def test_a_second_command_in_the_same_folder_is_refused(tmp_path):
    with (
        RecordFile(tmp_path).locked(),
        pytest.raises(UsageError, match="another run is writing"),
        RecordFile(tmp_path).locked(),
    ):
        pass
    with RecordFile(tmp_path).locked():
        pass


def test_a_folder_that_cannot_be_made_is_an_error_that_names_it(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="file/run: cannot be written"):
        RecordFile(tmp_path / "file" / "run").locked().__enter__()


def test_the_plan_of_the_last_command_is_kept(tmp_path):
    file = RecordFile(tmp_path)
    assert file.planned() == []
    file.write_plan(["a", "b"])
    file.write_plan(["c"])
    assert file.planned() == ["c"]


def test_a_full_disk_is_an_error_that_names_the_file_and_keeps_what_is_there(tmp_path, monkeypatch):
    file = RecordFile(tmp_path)
    file.append(record())
    before = file.path.read_bytes()

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(DataError, match=r"records\.jsonl: cannot be written: No space left"):
        file.append(record())
    assert file.path.read_bytes().startswith(before)
