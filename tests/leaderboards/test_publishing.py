"""Published leaderboards: what a run becomes, and that nothing spoiled stays unnoticed.

Runs are records written by hand, on boards of small suites; nothing is trained.
"""

import csv
import io
import json
import math
import os
import shutil
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner

from uqbench import publish
from uqbench.cells import Cell
from uqbench.cli import main
from uqbench.errors import UsageError
from uqbench.formatting import compact_json
from uqbench.leaderboard import Leaderboard
from uqbench.problems import digest, load_suite
from uqbench.published_boards import board_definitions
from uqbench.records import Cost, Outcome, Record, RecordFile, encode
from uqbench.submissions import (
    ENVIRONMENT_SUFFIX,
    SUBMISSION_VERSION,
    Fault,
    csv_text,
    digest_of,
    json_schema,
    read,
    row_of,
)
from uqbench.verification import ALWAYS_DEFINED, report, verify

ROOT = Path(__file__).parents[2]
KEPT = Path(__file__).parent / "submission_versions"
BOARDS = """
[tiny]
suite = "starter"
problems = ["sklearn/diabetes", "sklearn/digits"]
seeds = 2
"""
PROBLEMS = {problem.name: problem for problem in load_suite("starter").problems}
SOURCE = f"mine.py sha256:{'a' * 64}"
CHANGED = f"mine.py sha256:{'b' * 64}"
PROVENANCE = {
    "packages": {"uqbench": "0.1.0", "torch": "2.14.1"},
    "python": "3.11.7",
    "platform": "Linux",
    "cpu": "a processor",
    "gpu": None,
    "commit": "c" * 40,
    "dirty": False,
    "method_source": SOURCE,
    "started": "2026-11-30T12:00:00+00:00",
}


def record(problem, method, seed, nll=1.0, *, status="ok", provenance=PROVENANCE, **changes):
    """A record of a suite's problem; its numbers follow from ``nll``."""
    cell = Cell(
        suite="starter",
        problem=PROBLEMS[problem],
        method=method,
        settings=changes.pop("settings", {"scale": 0.5}),
        seed=seed,
        quick=changes.pop("quick", False),
        fingerprint=digest(["data of", problem]),
        map_checkpoint=digest(["MAP of", problem, seed]),
    )
    identity = replace(cell.identity(), **changes)
    names = ALWAYS_DEFINED[PROBLEMS[problem].task.value]
    metrics = dict.fromkeys(names, 0.25) | {"nll": nll}
    ood = {}
    if problem == "sklearn/digits":
        metrics["vmsp_auc_error"] = math.nan  # as without an error
        ood = {"held-out": {"ood_auc": 0.9, "auc_roc": 0.8, "fpr95": 0.1}}
    cost = Cost(2.0, 1.0, 0.25, 0.125, repeats=3, forward_passes=10, device="cpu", threads=1)
    finished = status == "ok"
    return Record(
        key=digest(asdict(identity)),
        identity=identity,
        status=status,
        outcome=Outcome(metrics, ood, sizes={"train": 300, "test": 60}) if finished else Outcome(),
        cost=cost if finished else Cost(device="cpu"),
        error_message="" if finished else "the reason",
        provenance=provenance,
    )


def of(source):
    """The provenance of a record whose method has this source; None: of an old record."""
    known = {} if source is None else {"method_source": source}
    return {name: PROVENANCE[name] for name in PROVENANCE if name != "method_source"} | known


def cells(method="mine", nll=1.0, **changes):
    """All records that the board wants of a method."""
    return [
        record(problem, method, seed, nll + seed / 8, **changes)
        for problem in ("sklearn/diabetes", "sklearn/digits")
        for seed in range(2)
    ]


@pytest.fixture
def run(tmp_path):
    """A function that writes records to a run's folder."""
    return partial(new_run, tmp_path)


def new_run(folder, records, name="run"):
    file = RecordFile(folder / name)
    file.path.parent.mkdir()
    file.path.write_text("".join(f"{encode(one)}\n" for one in records))
    return file.path.parent


@pytest.fixture
def boards(tmp_path):
    """A folder of leaderboards without submissions."""
    return new_boards(tmp_path / "boards")


def new_boards(folder):
    folder.mkdir()
    (folder / "boards.toml").write_text(BOARDS)
    return folder


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    folder = tmp_path_factory.mktemp("published")
    ada = new_run(folder, cells("mine") + cells("other", 2.0), "ada")
    publish(ada, new_boards(folder / "boards"), who="ada")
    return folder


@pytest.fixture
def published(original, tmp_path):
    """A folder to which Ada has published two methods; her run lies beside it."""
    shutil.copytree(original, tmp_path, dirs_exist_ok=True)
    return tmp_path / "boards"


def contents(folder):
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def submission(folder, name="mine-ada"):
    return folder / "submissions" / "tiny" / f"{name}.csv"


def environment(folder, name="mine-ada"):
    return submission(folder, name).with_name(f"{name}{ENVIRONMENT_SUFFIX}")


def seal(folder, name="mine-ada", **changes):
    """Give the environment file the digest of the CSV, as somebody careful would."""
    path = environment(folder, name)
    head = json.loads(path.read_text())
    content = submission(folder, name).read_bytes()
    path.write_text(json.dumps(head | {"csv_sha256": digest_of(content)} | changes))


def table(path):
    return list(csv.DictReader(io.StringIO(path.read_text())))


def write_table(path, rows):
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def change(folder, field, value, rows=(0,), *, name="mine-ada", sealed=True):
    """Edit a field of some rows of a submission's CSV; a new field becomes a column."""
    path = submission(folder, name)
    lines = table(path)
    for number, line in enumerate(lines):
        line[field] = value if number in rows else line.get(field, "")
    write_table(path, lines)
    if sealed:
        seal(folder, name)


def faults(folder):
    return [str(fault) for fault in verify(folder)]


MINE = "submissions/tiny/mine-ada.csv"


# What is written


def test_a_run_becomes_a_submission_for_each_method_and_a_board_that_verifies(published):
    assert sorted(path.name for path in contents(published)) == [
        "boards.toml",
        "mine-ada.csv",
        "mine-ada.environment.json",
        "other-ada.csv",
        "other-ada.environment.json",
        "tiny.csv",
    ]
    assert faults(published) == []


def test_a_row_holds_all_that_makes_its_cell_this_cell(published):
    row = table(submission(published))[0]
    one = record("sklearn/diabetes", "mine", 0)
    assert (row["key"], row["fingerprint"]) == (one.key, one.identity.fingerprint)
    assert row["map_checkpoint"] == one.identity.map_checkpoint
    assert json.loads(row["settings"]) == {"scale": 0.5}
    assert json.loads(row["network"])["hidden"] == [50]
    assert (row["evaluator"], row["commit"], row["dirty"]) == ("1", "c" * 40, "false")
    assert (row["fit_seconds"], row["device"], row["nll"]) == ("1.0", "cpu", "1.0")
    assert row["method_source"] == SOURCE
    head = json.loads(environment(published).read_text())
    assert head["environments"][row["environment"]]["packages"]["torch"] == "2.14.1"


def test_what_is_read_is_what_was_published(published):
    found, complaints = read(submission(published), MINE)
    assert complaints == []
    assert csv_text(found.rows) == submission(published).read_text()
    made = [row_of(one) for one in cells()]
    assert [compact_json(row.model_dump()) for row in found.rows] == [
        compact_json(row.model_dump()) for row in made
    ]


def test_the_board_has_means_and_deviations_over_seeds_best_method_first(published):
    nll = [row for row in table(published / "tiny.csv") if row["metric"] == "nll"]
    lead = [(row["problem"], row["method"], row["mean"], row["seeds"]) for row in nll]
    assert lead == [
        ("sklearn/diabetes", "mine", "1.0625", "2"),
        ("sklearn/diabetes", "other", "2.0625", "2"),
        ("sklearn/digits", "mine", "1.0625", "2"),
        ("sklearn/digits", "other", "2.0625", "2"),
    ]
    # Sample deviation of 1 and 1 + 1/8
    assert float(nll[0]["std"]) == pytest.approx(0.125 / math.sqrt(2), rel=1e-12)
    assert {(row["who"], row["evaluator"]) for row in nll} == {("ada", "1")}


def test_the_board_has_the_numbers_of_the_runs_own_leaderboard(published):
    ours = {tuple(map(row.get, KEY)): row["mean"] for row in table(published / "tiny.csv")}
    own = csv.DictReader(
        io.StringIO(Leaderboard.of(cells("mine") + cells("other", 2.0)).render("csv"))
    )
    assert ours == {tuple(map(row.get, KEY)): row["mean"] for row in own}


KEY = ("problem", "method", "metric", "ood_set")


def test_somebody_else_s_submission_joins_the_board_and_one_s_own_is_replaced(published, run):
    publish(run(cells("third", 0.5), "bob"), published, who="bob")
    publish(run(cells("mine", 3.0, settings={"scale": 2.0}), "again"), published, who="ada")
    nll = [row for row in table(published / "tiny.csv") if row["metric"] == "nll"]
    assert [(row["method"], row["who"], row["mean"]) for row in nll[:3]] == [
        ("third", "bob", "0.5625"),
        ("other", "ada", "2.0625"),
        ("mine", "ada", "3.0625"),
    ]
    assert faults(published) == []


def test_the_same_cells_of_two_people_count_once_if_they_agree(published, run):
    publish(run(cells("mine", 1.0 + 1e-9), "bob"), published, who="bob")
    nll = [row for row in table(published / "tiny.csv") if row["metric"] == "nll"]
    assert [(row["who"], row["seeds"]) for row in nll[:1]] == [("ada+bob", "2")]
    assert faults(published) == []


@pytest.mark.parametrize(
    ("method", "source"),
    [
        ("map", "uqbench"),
        ("map", None),
        ("mine", "my-package 1.0.dev0+g12"),
        ("mine", f"my method.py sha256:{'0' * 64}"),
    ],
)
def test_the_board_shows_whose_code_each_method_is(method, source, run, boards):
    publish(run(cells("other") + cells(method, provenance=of(source))), boards, who="ada")
    assert faults(boards) == []
    shown = {(row["method"], row["method_source"]) for row in table(boards / "tiny.csv")}
    assert shown == {("other", SOURCE), (method, source or "")}


def test_two_people_s_rows_of_one_method_are_of_one_code(published, run, tmp_path):
    elsewhere = new_boards(tmp_path / "elsewhere")
    publish(run(cells(provenance=of(CHANGED)), "bob"), elsewhere, who="bob")
    with pytest.raises(UsageError, match="mine is of different code"):
        publish(tmp_path / "bob", published, who="bob")
    shutil.copytree(elsewhere / "submissions", published / "submissions", dirs_exist_ok=True)
    assert faults(published) == [
        f"{MINE} row 2 and submissions/tiny/mine-bob.csv row 2: method_source: mine is of "
        "different code, mine.py sha256:aaaaaaaaaaaa… and mine.py sha256:bbbbbbbbbbbb…; give one "
        "of them another name"
    ]


def test_older_rows_of_uqbench_s_own_method_go_with_newer_ones(run, boards):
    old, new = cells("map", provenance=of(None)), cells("map", provenance=of("uqbench"))
    publish(run([*old[:1], *new[1:]]), boards, who="ada")
    assert faults(boards) == []
    shown = {(row["problem"], row["method_source"]) for row in table(boards / "tiny.csv")}
    assert shown == {("sklearn/diabetes", "uqbench"), ("sklearn/digits", "uqbench")}


def started(time, seconds):
    """Cells of one person, which started at a time and took so long to fit."""
    ours = cells(provenance=PROVENANCE | {"started": time})
    return [replace(one, cost=replace(one.cost, fit_seconds=seconds)) for one in ours]


@pytest.mark.parametrize(
    ("times", "senders", "seconds"),
    [
        (("2026-11-30T12:00:00+00:00", "2026-11-30T12:00:01+00:00"), "zoe+ada", 1.0),
        (("2026-11-30T12:00:00+00:00", "2026-11-30T11:59:59+00:00"), "ada+zoe", 8.0),
        (("2026-11-30T12:00:00+00:00", "2026-11-30T13:59:59+02:00"), "ada+zoe", 8.0),
        (("2026-11-30T12:00:00+00:00", "2026-11-30T12:00:00+00:00"), "ada+zoe", 8.0),
    ],
)
def test_of_one_cell_of_two_people_the_costs_are_those_of_the_run_that_started_first(
    times, senders, seconds, run, boards
):
    """Whoever is published first; of runs that started together those of the first name."""
    publish(run(started(times[0], 1.0), "zoe"), boards, who="zoe")
    publish(run(started(times[1], 8.0), "ada"), boards, who="ada")
    rows = [row for row in table(boards / "tiny.csv") if row["metric"] == "fit_seconds"]
    assert {(row["who"], float(row["mean"])) for row in rows} == {(senders, seconds)}
    assert faults(boards) == []


def test_a_problem_that_a_method_does_not_cover_is_published_as_skipped(run, boards):
    records = cells()[:2] + [
        record("sklearn/digits", "mine", seed, status="skipped") for seed in range(2)
    ]
    publish(run(records), boards, who="ada")
    assert faults(boards) == []
    last = table(boards / "tiny.csv")[-1]
    assert (last["problem"], last["status"], last["reason"]) == (
        "sklearn/digits",
        "skipped",
        "skipped: the reason",
    )


def test_more_seeds_than_the_board_has_are_left_out(run, boards):
    extra = [record(problem, "mine", 2) for problem in ("sklearn/diabetes", "sklearn/digits")]
    publish(run(cells() + extra), boards, who="ada")
    assert {row["seed"] for row in table(submission(boards))} == {"0", "1"}


def test_a_problem_may_have_fewer_seeds_than_its_board(run, boards):
    definition = boards / "boards.toml"
    definition.write_text(BOARDS + 'fewer_seeds = { "sklearn/digits" = 1 }\n')
    publish(run(cells()), boards, who="ada")
    rows = [(row["problem"], row["seed"]) for row in table(submission(boards))]
    assert rows == [("sklearn/diabetes", "0"), ("sklearn/diabetes", "1"), ("sklearn/digits", "0")]
    assert verify(boards) == []
    definition.write_text(BOARDS)
    assert "sklearn/digits: lacks seed 1" in str(verify(boards)[0])


def test_quick_cells_beside_full_ones_are_left_out(run, boards):
    publish(run(cells(quick=True) + cells()), boards, who="ada")
    assert {row["quick"] for row in table(submission(boards))} == {"false"}


# What is not published


NOT_PUBLISHED = {
    "a quick run": (cells(quick=True), "a quick run"),
    "a missing seed": (cells()[:-1], "lacks sklearn/digits seed 1; run 'uqbench run --suite"),
    "a missing problem": (cells()[:2], "lacks sklearn/digits seed 0 and 1 other cell"),
    "a failed cell": (
        [*cells()[:-1], record("sklearn/digits", "mine", 1, status="failed")],
        "sklearn/digits seed 1: has no result (failed)",
    ),
    "changes that were not committed": (
        cells(provenance=PROVENANCE | {"dirty": True}),
        "dirty is true: the code differed from its commit",
    ),
    "an unknown commit": (
        cells(provenance=PROVENANCE | {"commit": None, "dirty": None}),
        "commit is null: the commit of uqbench is not known",
    ),
    "a plug-in that was changed between two cells": (
        [*cells()[:-1], *cells(provenance=of(CHANGED))[-1:]],
        "method_source: the rows are of different code, mine.py sha256:aaaa",
    ),
    "another package that was upgraded between two cells": (
        [*cells(provenance=of("mine 1.0"))[:-1], *cells(provenance=of("mine 1.1"))[-1:]],
        "different code, mine 1.0 and mine 1.1; run all again with --rerun all",
    ),
    "a plug-in whose earlier cells do not say which": (
        [*cells(provenance=of(None))[:-1], *cells()[-1:]],
        "method_source: is blank, but mine is no method of uqbench; run again with --rerun all",
    ),
    "a plug-in whose code is said to be uqbench's": (
        cells(provenance=of("uqbench")),
        "method_source: is uqbench, which has no method named mine (and 3 more rows)",
    ),
    "a plug-in whose code is said to be a library": (
        cells(provenance=of("Scikit_Learn 2.0")),
        "is Scikit_Learn 2.0, but Scikit_Learn is a library that has no methods",
    ),
    "a plug-in under the name of a method of uqbench": (
        cells("nuqls", provenance=of(f"evil.py sha256:{'0' * 64}")),
        "is evil.py sha256:000000000000…, but nuqls is a method of uqbench; name yours otherwise",
    ),
    "a name of a method of uqbench in capitals": (
        cells("NUQLS"),
        "method: nuqls, which is a method of uqbench, and NUQLS differ in case only",
    ),
    "a method's name that differs from another's in case only": (
        cells("Mine"),
        "Mine-eve.csv and submissions/tiny/mine-ada.csv: method: Mine and mine differ in case only",
    ),
    "a plug-in whose name is a formula": (
        cells(provenance=of(f"=1+1.py sha256:{'a' * 64}")),
        "method_source is '=1+1.py sha256:",
    ),
    "old metrics": (cells(evaluator=0), "evaluator is 0"),
    "two settings": (cells() + cells(settings={}), "there are two results"),
    "a recipe that is not the suite's": (cells(dtype="float32"), "dtype: is not that of"),
    "a problem of no board": ([record("toy/cubic", "mine", 0)], "no board has these problems"),
    "a script for a name": (cells("<script>"), "a method's name is a letter"),
}


@pytest.mark.parametrize("what", NOT_PUBLISHED)
def test_it_is_refused_with_the_reason_and_nothing_is_written(what, run, published):
    records, reason = NOT_PUBLISHED[what]
    before = contents(published)
    arguments = ["publish", str(run(records)), "--to", str(published), "--who", "eve"]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 2
    assert reason in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert contents(published) == before


def test_all_reasons_are_said_at_once(run, boards):
    unknown = cells(provenance=PROVENANCE | {"commit": None, "dirty": None})[:3]
    failed = [record("sklearn/diabetes", method, 0, status="failed") for method in ("a", "b")]
    with pytest.raises(UsageError) as refusal:
        publish(run(unknown + failed), boards, who="ada")
    commit, missing, result, others = str(refusal.value).splitlines()
    assert commit.startswith("not published on tiny: mine: sklearn/diabetes seed 0: commit is null")
    assert commit.endswith(" (and 2 more cells).")
    assert missing.startswith(
        "not published on tiny: mine: the run is incomplete, it lacks sklearn"
    )
    assert result == (
        "not published on tiny: a: sklearn/diabetes seed 0: has no result (failed); run it again "
        "with --rerun failed (and 1 more cell)."
    )
    assert others.startswith("not published on tiny: a, b: the run is incomplete, it lacks sklearn")
    assert "--methods a,b --seeds 2'" in others


def test_of_many_reasons_five_lines_are_said(run, boards):
    records = cells()
    for position, one in enumerate(("rmse", "mace", "crps", "width95", "nll")):
        records[0].outcome.metrics[one] = -1.0 if position < 4 else math.nan
    records[2].outcome.ood["held-out"]["fpr95"] = 2.0
    incomplete = [record("sklearn/digits", "other", 0)]
    failed = record("sklearn/digits", "third", 0, status="failed")
    changed = cells("fourth", provenance=PROVENANCE | {"dirty": True})
    records = [*records, *incomplete, failed, *changed, *cells("fifth", quick=True)]
    done = publishing(run(records), boards)
    assert len(done) == 5
    assert done[-1] == "And 3 more reasons."


def publishing(run, boards):
    with pytest.raises(UsageError) as refusal:
        publish(run, boards, who="ada")
    return str(refusal.value).splitlines()


def test_a_problem_of_another_suite_is_told_from_the_board_s(run, boards):
    toy = [record("sklearn/digits", "mine", seed, suite="toy") for seed in range(2)]
    (line,) = publishing(run(toy, "toy"), boards)
    assert line == (
        "nothing to publish: the run has sklearn/digits of suite toy; board tiny wants suite "
        "starter (--suite starter)."
    )
    (line,) = publishing(run(cells()[:2] + toy, "half"), boards)
    assert "it lacks sklearn/digits seed 0 and 1 other cell (of suite starter; that of" in line


@pytest.mark.parametrize("who", ["../eve", "<b>", "", "a b", "=1+1"])
def test_a_sender_s_name_that_is_no_file_name_is_refused(who, run, boards):
    with pytest.raises(UsageError, match="--who"):
        publish(run(cells()), boards, who=who)


def test_a_folder_without_definitions_of_boards_is_refused(run, tmp_path):
    with pytest.raises(UsageError, match="no leaderboards here"):
        publish(run(cells()), tmp_path / "nowhere", who="ada")


def test_a_submission_beside_a_spoiled_one_waits_until_that_is_mended(published, run):
    change(published, "nll", "NaN")
    with pytest.raises(UsageError, match=r"mine-ada\.csv: row 2, nll: is NaN"):
        publish(run(cells("third"), "bob"), published, who="bob")
    publish(published.parent / "ada", published, who="ada")
    assert faults(published) == []


def test_files_are_whole_where_writing_ends_early_and_the_same_command_completes_them(
    published, run, monkeypatch
):
    before = contents(published)
    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", _fail_for("tiny.csv"))
        with pytest.raises(UsageError, match="cannot be written"):
            publish(run(cells("third"), "bob"), published, who="bob")
    after = contents(published)
    assert {path: after[path] for path in before} == before
    (stale,) = faults(published)
    assert stale.startswith("tiny.csv: row 26: is of 'sklearn/diabetes regression other")
    publish(published.parent / "bob", published, who="bob")
    assert faults(published) == []


def _fail_for(name, real=os.replace):
    def replace_unless(source, target):
        if Path(target).name == name:
            raise OSError(28, "No space left on device")
        real(source, target)

    return replace_unless


# Spoiled submissions: what verification says of them


def test_an_edited_number_shows_in_the_digest_and_on_the_board(published):
    change(published, "nll", "0.5", sealed=False)
    digest_fault, *others = faults(published)
    assert digest_fault.startswith("submissions/tiny/mine-ada.environment.json: csv_sha256: is not")
    assert "tiny.csv: row 4, mean: is '1.0625', the submissions give '0.8125'" in others
    seal(published)
    assert faults(published) == others


def test_faults_of_one_row_that_are_alike_are_one_line():
    found = [Fault("a.csv", f"is -{n}, must be 0 or more", f"sizes.{n}", 2) for n in (1, 2, 3)]
    assert report(found) == ["a.csv: row 2, sizes.1: is -1, must be 0 or more (and 2 more like it)"]


def test_an_edited_board_is_not_what_the_submissions_give(published):
    rows = table(published / "tiny.csv")
    rows[2]["mean"] = "0.1"
    write_table(published / "tiny.csv", rows)
    assert faults(published) == ["tiny.csv: row 4, mean: is '0.1', the submissions give '1.0625'"]


@pytest.mark.parametrize("content", [b"", b"\xff", b'"' + b"x" * 200_000, b"a,b\n1,2\n"])
def test_what_is_no_board_is_a_fault_and_no_crash(published, content):
    (published / "tiny.csv").write_bytes(content)
    (fault,) = faults(published)
    assert fault.startswith("tiny.csv")


def test_a_missing_seed_is_named(published):
    path = submission(published)
    write_table(path, table(path)[:-1])
    seal(published)
    assert f"{MINE}: seed: sklearn/digits: lacks seed 1" in faults(published)


def test_one_key_with_two_numbers_is_named_with_both_places(published, run, tmp_path):
    elsewhere = new_boards(tmp_path / "elsewhere")
    publish(run(cells("mine", 1.5), "bob"), elsewhere, who="bob")
    shutil.copytree(elsewhere / "submissions", published / "submissions", dirs_exist_ok=True)
    expected = (
        f"{MINE} row 2 and submissions/tiny/mine-bob.csv row 2: key: one cell has two results: "
        "nll is 1 and 1.5; a board has one, so leave the method out (--methods)"
    )
    assert report(verify(published)) == [f"{expected} (and 3 more rows)"]
    with pytest.raises(UsageError, match="one cell has two results"):
        publish(tmp_path / "bob", published, who="bob")


def test_of_three_results_of_one_cell_the_odd_one_is_named(published, run, tmp_path):
    publish(run(cells(), "abe"), published, who="abe")
    elsewhere = new_boards(tmp_path / "elsewhere")
    publish(run(cells("mine", 1.5), "aaa"), elsewhere, who="aaa")
    shutil.copytree(elsewhere / "submissions", published / "submissions", dirs_exist_ok=True)
    (line,) = report(verify(published))
    assert line.startswith(
        "submissions/tiny/mine-aaa.csv row 2 and submissions/tiny/mine-abe.csv row 2: key: one cell"
    )
    assert "nll is 1.5 and 1; " in line


@pytest.mark.parametrize(("factor", "accepted"), [(1 + 5e-5, True), (1 + 3e-4, False)])
def test_two_runs_of_one_cell_may_differ_by_rounding(published, run, tmp_path, factor, accepted):
    again = run(cells("mine", 1.0), "bob")
    records = RecordFile(again).read()
    for one in records:
        one.outcome.metrics["nll"] *= factor
    publish_again = partial(publish, new_run(tmp_path, records, "again"), published, who="bob")
    if accepted:
        publish_again()
        assert faults(published) == []
    else:
        with pytest.raises(UsageError, match="nll is"):
            publish_again()


def test_a_row_that_is_there_twice_is_named(published):
    path = submission(published)
    rows = table(path)
    write_table(path, [*rows, rows[0]])
    seal(published)
    assert faults(published) == [f"{MINE}: row 6, seed: is of sklearn/diabetes seed 0, as row 2 is"]


def test_other_data_than_the_other_submissions_have_are_named(published, run, tmp_path):
    elsewhere = new_boards(tmp_path / "elsewhere")
    publish(run(cells("third", fingerprint="f" * 64), "bob"), elsewhere, who="bob")
    shutil.copytree(elsewhere / "submissions", published / "submissions", dirs_exist_ok=True)
    (line,) = report(verify(published))
    assert line.endswith("problem and seed are the same (and 3 more rows)")
    assert line.startswith(
        f"{MINE} row 2 and submissions/tiny/third-bob.csv row 2: fingerprint: "
        f"{digest(['data of', 'sklearn/diabetes'])[:12]} and ffffffffffff, but"
    )
    with pytest.raises(UsageError, match="fingerprint"):
        publish(tmp_path / "bob", published, who="bob")


def test_a_changed_fingerprint_does_not_fit_the_key(published):
    change(published, "fingerprint", "f" * 64)
    expected = f"{MINE}: row 2, key: is not the digest of the row's identity: one of the two was"
    assert any(line.startswith(expected) for line in faults(published))


SPOILED = {
    "a quick run": ("quick", "true", "quick: is true: a quick run trains for a tenth"),
    "changes that were not committed": ("dirty", "true", "dirty: is true: the code differed"),
    "unknown changes": ("dirty", "null", "dirty: is null: the code differed"),
    "an unknown commit": ("commit", "", "commit: is '': the commit of uqbench is not known"),
    "an unknown metric": ("nlll", "1.0", "nlll: no metric named 'nlll'. Did you mean 'nll'?"),
    "a metric of another task": ("accuracy", "1.0", "accuracy: is no metric of regression"),
    "an OoD set that the problem lacks": ("ood:x:fpr95", "1.0", "ood:x: sklearn/diabetes has no"),
    "NaN where a number is due": ("rmse", "NaN", "rmse: is NaN, must be a number"),
    "no number where one is due": ("rmse", "", "rmse: is missing, must be a number"),
    "text where a number is due": ("rmse", "low", "rmse: is 'low': not JSON"),
    "true where a number is due": ("rmse", "true", "rmse: is 'true': not a number"),
    "a number of 400 digits": ("rmse", "9" * 400, "rmse: is larger than any number"),
    "settings that are nested too deeply": ("settings", "[" * 990 + "]" * 990, "settings: is '[["),
    "an RMSE below 0": ("rmse", "-1.0", "rmse: is -1, must be 0 or more"),
    "more than all targets in an interval": (
        "coverage95",
        "7.0",
        "coverage95: is 7, must be 0 to 1",
    ),
    "an ECE of classification for one of regression": (
        "ece",
        "0.3",
        "ece: is 0.3, must be 0 to 0.2591",
    ),
    "no number where one was tuned": ("tuned", '{"a": NaN}', "tuned.a: is nan, must be a finite"),
    "fewer rows than none": ("sizes", '{"test": -1}', "sizes.test: is -1: "),
    "no threads": ("threads", "0", "threads: is 0, must be 1 or more"),
    "no timed prediction": ("repeats", "0", "repeats: is 0, must be 1 or more"),
    "a negative time": ("map_seconds", "-1.0", "map_seconds: is -1.0, must be 0 or more"),
    "a start in the future": (
        "started",
        "2091-01-01T00:00:00+00:00",
        "started: is 2091-01-01T00:00:00+00:00, which is in the future",
    ),
    "a start that is no time": (
        "started",
        "2026-99-99T00:00:00+00:00",
        "started: is '2026-99-99T00:00:00+00:00': a time is like 2026-11-30T12",
    ),
    "a script that was tuned": ("tuned", '{"<script>": 1}', "tuned.<script>.[key]: is '<script>'"),
    "a script for a setting": ("settings", '{"<b>": 1}', "settings: is {'<b>': 1}: names and"),
    "a script in a setting": ("settings", '{"a": [{"b": "<b>"}]}', "settings: is {'a': [{'b"),
    "a script for a part": ("sizes", '{"<b>": 1}', "sizes.<b>.[key]: is '<b>'"),
    "a script for a reason": ("reason", "<b>", "reason: is '<b>'"),
    "another method's code": (
        "method_source",
        "torch 2.0",
        "method_source: is torch 2.0, but torch",
    ),
    "no code": ("method_source", "", "method_source: is blank, but mine is no method of uqbench"),
    "no time": ("fit_seconds", "NaN", "fit_seconds: is nan, must be 0 or more"),
    "old metrics": ("evaluator", "2", "evaluator: is 2, must be 1; run again with this uqbench"),
    "another recipe": ("training", "{}", "training: is not that of sklearn/diabetes"),
    "a script in a method's name": (
        "method",
        "<script>alert(1)</script>",
        "method: is '<script>alert(1)</script>': a method's name is",
    ),
    "a hash that is none": ("method_source", "a.py sha256:abc", "method_source: is 'a.py sha256:"),
    "a file without a hash": (
        "method_source",
        "a.py 1.0",
        "method_source: is a.py 1.0, but a file",
    ),
    "a package without a version": ("method_source", "a b", "method_source: is 'a b'"),
    "a path": ("method_source", SOURCE.replace("mine", "../a"), "method_source: is '../a.py sha"),
    "markup": ("method_source", SOURCE.replace("mine", "<b>"), "method_source: is '<b>.py sha256:"),
    "a formula of a spreadsheet": ("reason", "=1+1", "reason: is '=1+1': String should match"),
    "a problem that is not on the board": ("problem", "x", "problem: x is not on the board"),
    "a seed that is not on the board": ("seed", "7", "seed: is 7, the board has the seeds 0 to 1"),
    "a field of nobody": ("environment", "f" * 12, "environment: ffffffffffff is not in"),
    "an escape sequence": ("device", "\x1b[2J", "device: is '\\x1b[2J'"),
}


@pytest.mark.parametrize("what", SPOILED)
def test_verification_names_file_row_and_field_of(what, published):
    field, value, complaint = SPOILED[what]
    change(published, field, value)
    found = faults(published)
    assert any(line.startswith(f"{MINE}: row 2, {complaint}") for line in found), found
    assert all(line.isprintable() for line in found)


def test_a_number_on_an_ood_set_has_a_range_too(published):
    change(published, "ood:held-out:ood_auc", "3.0", rows=(2,))
    change(published, "accuracy", "1.5", rows=(3,))
    change(published, "nll", "-0.1", rows=(3,))
    assert faults(published) == [
        f"{MINE}: row 4, ood:held-out:ood_auc: is 3, must be 0 to 1",
        f"{MINE}: row 5, nll: is -0.1, must be 0 to 744.4",
        f"{MINE}: row 5, accuracy: is 1.5, must be 0 to 1",
    ]


def test_a_number_may_be_outside_its_range_by_rounding_or_have_none(run, boards):
    records = cells()
    records[0].outcome.metrics.update(nll=-40.0, coverage95=1 + 1e-9, rmse=math.inf)
    publish(run(records), boards, who="ada")
    assert faults(boards) == []


def test_a_column_that_is_markup_is_refused_even_if_it_is_empty(published):
    change(published, "<b>", "", rows=())
    assert faults(published) == [f"{MINE}: row 1, <b>: is no name of a column"]


def test_the_reason_of_a_skipped_cell_may_quote_code(run, boards):
    records = cells()[:2] + [
        replace(record("sklearn/digits", "mine", seed, status="skipped"), error_message="<lambda>")
        for seed in range(2)
    ]
    publish(run(records), boards, who="ada")
    assert table(submission(boards))[2]["reason"] == "‹lambda›"
    assert faults(boards) == []


def test_a_spoiled_row_is_not_held_against_other_submissions_nor_the_board(published):
    """The row of the second seed is that of the first with another seed's number."""
    rows = table(submission(published))
    rows[1] = rows[0] | {"seed": "1"}
    write_table(submission(published), rows)
    seal(published)
    assert faults(published) == [
        f"{MINE}: row 3, key: is not the digest of the row's identity: one of the two was changed"
    ]


def test_verification_names_a_submission_of_two_versions_of_a_method(published):
    change(published, "method_source", CHANGED, rows=(1,))
    assert (
        f"{MINE}: method_source: the rows are of different code, mine.py sha256:aaaaaaaaaaaa… and "
        "mine.py sha256:bbbbbbbbbbbb…; run all again with --rerun all"
    ) in faults(published)


@pytest.mark.parametrize(
    ("version", "complaint"),
    [
        (0, "is 0, this uqbench reads 1 to 2; publish the run again"),
        (99, "is 99, this uqbench reads up to 2; upgrade uqbench"),
        (True, "is True, this uqbench reads 1 to 2"),
        ("<b>", "is '<b>', this uqbench reads 1 to 2"),
    ],
)
def test_a_schema_that_nobody_knows_is_refused(published, version, complaint):
    seal(published, schema_version=version)
    expected = f"submissions/tiny/mine-ada.environment.json: schema_version: {complaint}"
    assert faults(published)[0].startswith(expected)


def test_an_undefined_metric_is_no_fault_where_a_group_may_be_empty(published):
    assert table(submission(published))[2]["vmsp_auc_error"] == "NaN"
    assert faults(published) == []


def test_a_script_in_both_files_and_their_names_is_refused(published):
    for path in (submission(published), environment(published)):
        name = path.name.replace("mine", "<b>")
        path.with_name(name).write_text(path.read_text().replace("mine", "<b>"))
        path.unlink()
    found = faults(published)
    assert any("<b>-ada.environment.json: method: is '<b>': a method's name is" in f for f in found)


def test_files_that_are_no_submission_and_links_are_named(published, tmp_path):
    home = published / "submissions" / "tiny"
    (home / "notes.txt").touch()
    (home / "lone.environment.json").write_text("{}")
    (home / "link.csv").symlink_to(submission(published))
    (published / "submissions" / "unknown").mkdir()
    (published / "other.csv").touch()
    assert faults(published) == [
        "other.csv: is no board of boards.toml",
        "submissions/tiny/link.csv: is not a plain file",
        "submissions/tiny/lone.environment.json: has no lone.csv beside it",
        "submissions/tiny/notes.txt: is no file of a submission",
        "submissions/unknown: is not the folder of a board of boards.toml",
    ]


def test_a_lost_table_is_named_alone(published):
    submission(published).unlink()
    assert faults(published) == [
        "submissions/tiny/mine-ada.environment.json: has no mine-ada.csv beside it"
    ]


def test_a_row_of_another_suite_has_no_other_fault(published):
    change(published, "suite", "toy")
    assert faults(published) == [f"{MINE}: row 2, suite: is toy, must be starter"]


def test_a_submission_under_another_s_name_is_named(published):
    for path in (submission(published), environment(published)):
        path.rename(path.with_name(path.name.replace("ada", "bob")))
    assert faults(published) == [
        "submissions/tiny/mine-bob.csv: holds what belongs into submissions/tiny/mine-ada.csv"
    ]


@pytest.mark.parametrize("methods", ["mine", "third"])
def test_two_senders_whose_names_differ_in_case_only_are_refused(methods, published, run, tmp_path):
    """Of whatever methods: some file systems take the names of their files for the same."""
    elsewhere = new_boards(tmp_path / "elsewhere")
    publish(run(cells(methods), "again"), elsewhere, who="ADA")
    with pytest.raises(UsageError, match="differ in case only"):
        publish(tmp_path / "again", published, who="ADA")
    shutil.copytree(elsewhere / "submissions", published / "submissions", dirs_exist_ok=True)
    assert sum("differ in case only; use another name" in line for line in faults(published)) == 1


@pytest.mark.parametrize(
    "content", [b"", b"\xff\xfe", b'a,"b\n1', b"seed,seed\n1,1\n", b"x\n1,2\n"]
)
def test_what_is_no_table_is_a_fault_and_no_crash(published, content):
    submission(published).write_bytes(content)
    seal(published)
    assert faults(published)[0].startswith(MINE)


@pytest.mark.parametrize("content", ["", "[]", "{}", "[" * 100_000, '{"schema_version": true}'])
def test_what_is_no_environment_file_is_a_fault_and_no_crash(published, content):
    environment(published).write_text(content)
    assert faults(published)[0].startswith("submissions/tiny/mine-ada.environment.json")


def test_windows_newlines_change_nothing(published):
    for path in contents(published):
        path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert faults(published) == []


def test_the_exit_status_says_whether_all_is_well(published):
    arguments = ["leaderboard", "--verify", str(published)]
    done = CliRunner().invoke(main, arguments)
    assert (done.exit_code, done.output) == (
        0,
        f"{published}: 2 submissions on 1 board, no faults\n",
    )
    (published / "tiny.csv").unlink()
    done = CliRunner().invoke(main, arguments)
    assert (done.exit_code, done.output) == (
        1,
        f"tiny.csv: is missing; 'uqbench publish' writes it\n{published}: 1 fault in 1 file\n",
    )
    assert CliRunner().invoke(main, [*arguments, "runs/x"]).exit_code == 2


def test_many_faults_of_a_kind_are_one_line_and_all_are_counted(published):
    rows = range(4)
    change(published, "rmse", "-1.0", rows=(0, 1))
    change(published, "fit_seconds", "-1.0", rows=rows)
    change(published, "nll", "NaN", rows=rows)
    done = CliRunner().invoke(main, ["leaderboard", "--verify", str(published)])
    assert done.output.splitlines() == [
        f"{MINE}: row 2, rmse: is -1, must be 0 or more (and 1 more row)",
        f"{MINE}: row 2, nll: is NaN, must be a number (and 3 more rows)",
        f"{MINE}: row 2, fit_seconds: is -1.0, must be 0 or more (and 3 more rows)",
        f"{published}: 10 faults in 1 file",
    ]


def test_two_submissions_whose_files_were_swapped_are_two_lines(published):
    for path in (submission, environment):
        one, other = path(published), path(published, "other-ada")
        texts = one.read_bytes(), other.read_bytes()
        one.write_bytes(texts[1])
        other.write_bytes(texts[0])
    assert faults(published) == [
        f"{MINE}: holds what belongs into submissions/tiny/other-ada.csv",
        f"submissions/tiny/other-ada.csv: holds what belongs into {MINE}",
    ]


# Definitions and the schema


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (BOARDS.replace("tiny", "paper"), "not a name for a board"),
        (BOARDS.replace('"starter"', '"nothing"'), "no suite named 'nothing'"),
        (BOARDS.replace("digits", "nothing"), "suite starter has no 'sklearn/nothing'"),
        (BOARDS + BOARDS.replace("tiny", "twice"), "is on tiny already"),
        (BOARDS.replace("seeds = 2", "seeds = 0"), r"tiny\.seeds"),
        (BOARDS + "fewer_seeds = { toy = 1 }", r"tiny\.fewer_seeds: 'toy' is not on the board"),
        ("[tiny", "boards.toml"),
    ],
)
def test_wrong_definitions_of_boards_are_refused(boards, text, complaint):
    (boards / "boards.toml").write_text(text)
    with pytest.raises(UsageError, match=complaint):
        board_definitions(boards)


def test_the_json_schema_in_the_folder_is_that_of_the_code():
    assert (ROOT / "leaderboards" / "schema.json").read_text("utf-8") == json_schema()


def test_the_json_schema_has_the_ranges_of_the_metrics():
    row = json.loads(json_schema())["$defs"]["Row"]["properties"]
    metrics = row["metrics"]["properties"]
    (on_set,) = row["ood"]["patternProperties"].values()
    assert metrics["accuracy"] == {"type": "number", "minimum": 0, "maximum": 1}
    assert metrics["rmse"] == {"type": "number", "minimum": 0}
    assert metrics["nll"] == {"type": "number"}  # of regression it has no limits
    assert on_set["properties"]["ood_auc"]["maximum"] == 1
    assert "ood_auc" not in metrics


@pytest.mark.parametrize("version", range(1, SUBMISSION_VERSION + 1))
def test_submissions_of_every_version_stay_readable(version):
    """Files that were published when the version was the newest; they are never written again."""
    path = KEPT / str(version) / "tiny" / "mine-ada.csv"
    found, complaints = read(path, "tiny/mine-ada.csv")
    assert complaints == []
    assert [(row.problem, row.seed, row.metrics["nll"]) for row in found.rows] == [
        ("sklearn/diabetes", 0, 1.0),
        ("sklearn/diabetes", 1, 1.125),
        ("sklearn/digits", 0, 1.0),
        ("sklearn/digits", 1, 1.125),
    ]
    assert {row.method_source for row in found.rows} == {"" if version == 1 else SOURCE}


def test_a_submission_of_version_1_stays_on_its_board_as_of_unknown_source(boards, run):
    publish(run(cells("map", provenance=of(None))), boards, who="ada")
    path = submission(boards, "map-ada")
    rows = table(path)
    write_table(path, [{k: v for k, v in row.items() if k != "method_source"} for row in rows])
    seal(boards, "map-ada", schema_version=1)
    before = contents(boards / "submissions")
    publish(run(cells("other", 2.0), "bob"), boards, who="bob")
    assert faults(boards) == []
    assert before.items() <= contents(boards / "submissions").items()
    shown = {(row["method"], row["method_source"]) for row in table(boards / "tiny.csv")}
    assert shown == {("map", ""), ("other", SOURCE)}


def test_a_submission_of_version_1_has_no_column_of_version_2(published):
    seal(published, schema_version=1)
    assert faults(published)[0] == f"{MINE}: row 1, method_source: is no field of this version"


def test_the_schema_s_description_names_every_field():
    text = (ROOT / "docs" / "leaderboard-schema.md").read_text("utf-8")
    schema = json.loads(json_schema())
    names = [*schema["properties"], *schema["$defs"]["Row"]["properties"]]
    names += schema["$defs"]["Environment"]["properties"]
    assert [name for name in names if f"`{name}`" not in text] == []


def test_the_published_leaderboards_verify():
    assert faults(ROOT / "leaderboards") == []
