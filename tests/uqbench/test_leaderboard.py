"""The leaderboard: hand-made records with means, deviations and marks worked out by hand."""

import csv
import io
import json
import math
import re
from dataclasses import replace

import pytest
from rich.console import Console

from uqbench.boards import Column, boards
from uqbench.errors import UQBenchError, UsageError
from uqbench.formatting import format_interval, format_mean_std, format_seconds
from uqbench.leaderboard import Leaderboard
from uqbench.records import Cost, Identity, Outcome, Record
from uqbench.statistics import bootstrap_interval

NAN = float("nan")


def record(method="a", seed=0, nll=None, *, status="ok", error=("", ""), ood=None, **changes):
    """A record of ``uci/energy``; ``nll`` or ``metrics`` are its numbers, the rest its identity."""
    metrics = changes.pop("metrics", {} if nll is None else {"nll": nll, "rmse": nll + 10})
    cost = changes.pop(
        "cost", Cost(map_seconds=8.0, fit_seconds=1.0, tune_seconds=0.5, predict_seconds=0.25)
    )
    sizes = changes.pop("sizes", {"train": 700, "test": 150})
    values = {
        "suite": "uci",
        "problem": "uci/energy",
        "fingerprint": "f" * 64,
        "split": (0.7, 0.15, 0.15),
        "network": {"hidden": [150]},
        "map_checkpoint": f"map {seed}",
        "settings": {},
        "dtype": "float64",
        "quick": False,
        "training": {"task": "classification" if "accuracy" in metrics else "regression"},
        **changes,
    }
    identity = Identity(method=method, seed=seed, **values)
    return Record(
        key=f"{identity}",
        identity=identity,
        status=status,
        outcome=Outcome(metrics=metrics, ood=ood or {}, sizes=sizes),
        cost=cost if status == "ok" else Cost(),
        error_type=error[0],
        error_message=error[1],
    )


def seeds_of(method, values, **changes):
    return [record(method, seed, value, **changes) for seed, value in enumerate(values)]


def only_board(records):
    (board,) = boards(records)
    return board


def rows_of(records):
    return {row.label: row for row in only_board(records).rows}


def marks(records, metric="nll"):
    rows = rows_of(records)
    return {label: row.metrics[Column(metric)].mark for label, row in rows.items()}


def table(records, width=120):
    return Leaderboard.of(records).render("table", width=width)


def csv_rows(records):
    return list(csv.DictReader(io.StringIO(Leaderboard.of(records).render("csv"))))


# Aggregation


def test_numbers_are_the_mean_and_the_sample_deviation_over_seeds():
    number = rows_of(seeds_of("a", [1.0, 2.0, 3.0]))["a"].metrics[Column("nll")]
    assert (number.mean, number.std, number.seeds) == (2.0, 1.0, 3)


def test_one_seed_has_no_deviation_and_the_legend_says_why():
    records = seeds_of("a", [1.0]) + seeds_of("b", [2.0])
    assert math.isnan(rows_of(records)["a"].metrics[Column("nll")].std)
    text = table(records)
    assert "±" not in text
    assert "one seed allows no test" in text


def test_rows_are_in_the_order_of_their_mean_nll():
    records = seeds_of("a", [3.0, 3.0]) + seeds_of("b", [-1.0, 1.0]) + seeds_of("c", [1.0, 1.5])
    assert list(rows_of(records)) == ["b", "c", "a"]


def test_an_infinite_or_undefined_nll_comes_after_the_finite_ones():
    records = seeds_of("a", [NAN, NAN]) + seeds_of("b", [math.inf, 1.0]) + seeds_of("c", [9.0, 9.0])
    assert list(rows_of(records)) == ["c", "b", "a"]


def test_problems_have_boards_of_their_own_in_the_order_of_appearance():
    records = seeds_of("a", [1.0]) + seeds_of("a", [1.0], problem="uci/boston")
    assert [board.problem for board in boards(records)] == ["uci/energy", "uci/boston"]


def test_the_last_record_of_a_cell_counts():
    records = [record("a", 0, 1.0, suite="uci"), record("a", 0, 2.0, suite="starter")]
    row = rows_of(records)["a"]
    assert row.metrics[Column("nll")].values == (2.0,)
    assert only_board(records).suite == "uci+starter"


def test_two_settings_of_a_method_are_two_rows_named_by_what_differs():
    first = seeds_of("nuqls", [1.0, 2.0], settings={"gamma": 0.01, "samples": 10})
    second = seeds_of("nuqls", [3.0, 4.0], settings={"gamma": 0.1, "samples": 10})
    other = seeds_of("lla", [5.0, 6.0], settings={"gamma": 7})
    rows = rows_of([*first, *second, *other])
    assert list(rows) == ["nuqls (gamma=0.01)", "nuqls (gamma=0.1)", "lla"]
    assert rows["nuqls (gamma=0.1)"].metrics[Column("nll")].mean == 3.5


def test_a_setting_that_one_of_the_rows_lacks_is_called_unset():
    records = seeds_of("a", [1.0]) + seeds_of("a", [2.0], settings={"kind": "kron"})
    assert list(rows_of(records)) == ["a (kind unset)", "a (kind=kron)"]


def test_times_are_summed_per_seed():
    cost = {"fit_seconds": 1.0, "tune_seconds": 0.5, "predict_seconds": 0.25}
    records = [
        record("a", 0, 1.0, cost=Cost(map_seconds=8.0, **cost)),
        record("a", 1, 1.0, cost=Cost(map_seconds=10.0, **cost)),
    ]
    spent = rows_of(records)["a"].cost
    assert spent["post_hoc_seconds"].values == (1.75, 1.75)
    assert spent["total_seconds"].values == (9.75, 11.75)
    assert spent["total_seconds"].std == pytest.approx(math.sqrt(2))


def test_a_method_that_trains_its_own_networks_has_no_post_hoc_time():
    cost = Cost(fit_seconds=100.0, tune_seconds=0.0, predict_seconds=1.0)
    spent = rows_of([record("de", 0, 1.0, cost=cost, map_checkpoint="")])["de"].cost
    assert spent["total_seconds"].mean == 101.0
    assert math.isnan(spent["post_hoc_seconds"].mean)


# Best and equal best


def test_what_is_not_significantly_worse_than_the_best_is_equal_best():
    # differences to the best: b ±1 around 0.1 (p near 1), c exactly 5 (p = 0)
    best = [1.0, 2.0, 3.0, 4.0]
    records = [
        *seeds_of("a", best),
        *seeds_of("b", [value + d for value, d in zip(best, (1.1, -0.9, 1.1, -0.9), strict=True)]),
        *seeds_of("c", [value + 5 for value in best]),
    ]
    assert marks(records) == {"a": "best", "b": "equal best", "c": ""}


def test_the_test_is_corrected_for_overlapping_training_sets():
    # Differences 0.5, 1, 1.5 of mean 1 and variance 1/4. Uncorrected: t = 1/sqrt(1/12) = 3.46 with
    # 2 degrees of freedom, p = 0.074; for 6 seeds of the same kind the variance is 1/5 and
    # t = 1/sqrt((1/6) / 5) = 5.48, p = 0.003. With test/train = 4: t = 1/sqrt(4.1667/5) = 1.1.
    worse = [0.5, 1.0, 1.5, 0.5, 1.0, 1.5]
    for sizes, mark in (({}, ""), ({"train": 100, "test": 400}, "equal best")):
        records = seeds_of("a", [0.0] * 6, sizes=sizes) + seeds_of("b", worse, sizes=sizes)
        assert marks(records) == {"a": "best", "b": mark}


def test_higher_is_better_for_accuracy_and_closer_to_nominal_for_coverage():
    accuracy = [record(m, 0, metrics={"accuracy": a}) for m, a in (("a", 0.9), ("b", 0.8))]
    assert marks(accuracy, "accuracy") == {"a": "best", "b": ""}
    values = (("a", 1.0), ("b", 0.94), ("c", 0.90))
    coverage = [record(m, 0, metrics={"coverage95": v}) for m, v in values]
    assert marks(coverage, "coverage95") == {"a": "", "b": "best", "c": ""}


def test_a_metric_that_only_describes_has_no_best():
    records = [record(m, 0, metrics={"sharpness": v}) for m, v in (("a", 1.0), ("b", 2.0))]
    assert set(marks(records, "sharpness").values()) == {""}


def test_nobody_is_best_among_one():
    assert marks(seeds_of("a", [1.0, 2.0])) == {"a": ""}


# Missing seeds, failures, skipped cells


def test_a_method_that_lacks_a_seed_is_incomplete_below_the_others_and_never_best():
    records = seeds_of("a", [5.0, 6.0]) + seeds_of("b", [4.0, 7.5]) + seeds_of("c", [-9.0])
    board = only_board(records)
    assert [(row.label, row.status) for row in board.rows] == [
        ("a", "complete"),
        ("b", "complete"),
        ("c", "incomplete"),
    ]
    assert marks(records) == {"a": "best", "b": "equal best", "c": ""}
    text = table(records)
    assert re.search(r"^c +1/2 ", text, re.MULTILINE)
    assert "c: incomplete, 1/2 seeds; seed 1 not run" in text


def test_the_full_set_of_seeds_is_what_any_method_attempted():
    records = [*seeds_of("a", [1.0]), record("b", 3, status="failed", error=("E", "boom"))]
    assert only_board(records).seeds == (0, 3)
    assert rows_of(records)["a"].status == "incomplete"


def test_nothing_is_best_while_only_one_method_is_complete():
    records = seeds_of("a", [5.0, 6.0]) + seeds_of("b", [4.0])
    assert marks(records) == {"a": "", "b": ""}


def test_a_method_that_failed_on_some_seeds_is_incomplete_with_the_reasons():
    failed = {"status": "failed", "error": ("DivergenceError", "loss is nan\nTraceback ...")}
    records = [
        *seeds_of("a", [1.0, 2.0, 3.0, 4.0]),
        record("b", 0, 1.0),
        record("b", 1, **failed),
        record("b", 2, **failed),
        record("b", 3, status="timeout", error=("TimeoutError", "no result after 2 h")),
    ]
    assert only_board(records).notes == [
        (
            "b",
            "incomplete, 1/4 seeds; seeds 1, 2 failed: DivergenceError: loss is nan; "
            "seed 3 timeout: no result after 2 h",
        )
    ]


def test_a_method_that_failed_on_all_seeds_shows_status_and_shortened_reason():
    error = ("RuntimeError", "\n\x1b[31mbad " + "x" * 500 + "\nsecond line")
    records = [
        *seeds_of("a", [1.0, 2.0]),
        *[record("b", seed, status="failed", error=error) for seed in (0, 1)],
    ]
    text = table(records)
    assert re.search(r"^b +failed +–", text, re.MULTILINE)
    ((label, note),) = only_board(records).notes
    assert label == "b"
    assert note.startswith("failed: RuntimeError: [31mbad xxx")
    assert note.endswith("x…")
    assert len(note) < 200
    assert "\x1b" not in text
    assert "second line" not in text


def test_a_skipped_method_is_a_note_below_the_table():
    skip = {"status": "skipped", "error": ("UnsupportedError", "regression only")}
    records = [*seeds_of("a", [1.0]), record("b", 0, **skip)]
    lines = table(records).splitlines()
    assert "  b: skipped: regression only" in lines
    assert not any(line.startswith("b ") for line in lines)


def test_a_problem_on_which_everything_failed_still_renders():
    records = [record("a", 0, status="oom", error=("OutOfMemory", "the system ran out of memory"))]
    for format in ("table", "md", "csv"):
        text = Leaderboard.of(records).render(format)
        assert "oom" in text
        assert "the system ran out of memory" in text


def test_no_records_render_to_a_line_that_says_so():
    assert Leaderboard.of([]).render("table") == "No records.\n"
    assert Leaderboard.of([]).render("md").strip() == "No records."
    assert len(Leaderboard.of([]).render("csv").splitlines()) == 1


def test_a_metric_undefined_on_one_seed_says_on_how_many_it_is_defined_and_is_not_best():
    eces = {"a": [NAN, 0.2, 0.4], "b": [0.5, 0.6, 0.8], "c": [0.5, 0.6, 0.8]}
    records = [
        record(method, seed, metrics={"nll": 1.0 + seed, "ece": ece})
        for method, values in eces.items()
        for seed, ece in enumerate(values)
    ]
    assert rows_of(records)["a"].metrics[Column("ece")].mean == pytest.approx(0.3)
    assert marks(records, "ece") == {"a": "", "b": "best", "c": "best"}
    text = table(records)
    assert "0.300 ± 0.141 (2)" in text
    assert "defined on n seeds only" in text


def test_nan_and_infinity_are_shown_as_symbols():
    records = seeds_of("a", [1.0, 2.0]) + seeds_of("b", [math.inf, 1.0])
    records += [record("c", seed, metrics={"nll": 2.0 + seed, "rmse": NAN}) for seed in (0, 1)]
    for format in ("table", "md"):
        text = Leaderboard.of(records).render(format)
        assert "∞" in text
        assert "–" in text
        assert "nan" not in text.lower().replace("nanos", "")
        assert not re.search(r"\binf\b", text)


def test_a_column_without_any_value_is_left_out_of_the_table():
    metrics = {"accuracy": 0.9, "nll": 0.3, "vmsp_auc_error": NAN}
    text = table([record("map", 0, metrics=metrics)])
    assert "Accuracy" in text
    assert "VMSP" not in text


def test_a_vmsp_value_that_is_worse_than_that_of_base_is_marked():
    def vmsp(method, error, correct):
        metrics = {"accuracy": 0.9, "nll": 1.0}
        return record(
            method,
            metrics={**metrics, "vmsp_auc_error": error, "vmsp_id_correct_median": correct},
            map_checkpoint="",
        )

    rows = [vmsp("base", 0.5, 0.02), vmsp("a", 0.4, 0.01), vmsp("b", 0.5, 0.03)]
    text = table(rows)
    assert "0.400▿" in text
    assert "0.0300▿" in text
    assert text.count("▿") == 3  # the two, and the legend
    assert "▿: worse than BASE, which knows nothing." in text
    assert "▿" in Leaderboard.of(rows).render("md")
    marked = [row["metric"] for row in csv_rows(rows) if row["worse_than_base"] == "True"]
    assert marked == ["vmsp_auc_error", "vmsp_id_correct_median"]
    assert "▿" not in table(rows[1:])


def test_the_legend_says_on_how_many_seeds_the_test_rests():
    def legend(seeds):
        return table(seeds_of("a", range(seeds)) + seeds_of("b", range(seeds)), width=400)

    assert "over 3 seeds; lowest NLL first" in legend(3)
    assert "not significantly worse on 3 seeds: corrected resampled t-test" in legend(3)
    assert "with so few seeds, only large differences are significant" in legend(3)
    assert "so few seeds" not in legend(10)


def test_a_board_says_how_many_rows_it_is_measured_on_and_what_coverage_should_be():
    text = table([record("a", 0, metrics={"coverage95": 0.9}, sizes={"train": 7, "test": 2})])
    assert "regression, 1 seed, 2 test rows, suite uci" in text
    assert "→ 0.95" in text
    assert re.search(r"^a +1 +0.900", text, re.MULTILINE)


def test_a_regression_on_one_test_point_shows_its_interval():
    metrics = {"rmse": 0.1, "nll": 1.0, "mean_prediction": 0.2, "coverage90": 1.0, "width90": 0.3}
    interval = ["nll", "mean_prediction", "coverage90", "width90"]
    for count, expected in ((2, ["rmse", "nll"]), (1, interval)):
        board = only_board([record(metrics=metrics, sizes={"train": 7, "test": count})])
        assert [column.metric for column in board.columns] == expected


# What may not be compared


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"evaluator": 2}, ("evaluator version", "1 (a, seed 0)", "2 (b, seed 0)")),
        ({"fingerprint": "e" * 64}, ("data fingerprint", "fffff", "eeeee")),
        ({"network": {"hidden": [50]}}, ("network", '{"hidden":[150]}', '{"hidden":[50]}')),
        ({"split": (0.8, 0.1, 0.1)}, ("split", "[0.7,0.15,0.15]", "[0.8,0.1,0.1]")),
        ({"map_checkpoint": "other"}, ("MAP network", "map 0", "other")),
        ({"dtype": "float32"}, ("dtype", "float64", "float32")),
        ({"training": {"task": "regression", "lr": 1}}, ("training", '{"lr":null}', '{"lr":1}')),
    ],
)
def test_results_that_differ_in_more_than_the_method_are_refused_by_name(changes, named):
    with pytest.raises(UQBenchError) as caught:
        boards([record("a", 0, 1.0), record("b", 0, 2.0, **changes)])
    for part in ("uci/energy", *named):
        assert part in str(caught.value)


def test_data_that_change_between_seeds_are_refused_unless_every_seed_has_its_own():
    generated = [record("a", seed, 1.0, fingerprint=f"data {seed}") for seed in range(3)]
    assert only_board(generated).rows[0].status == "complete"
    with pytest.raises(UQBenchError, match="data fingerprint"):
        boards([*generated, record("a", 3, 1.0, fingerprint="data 0")])


def test_failed_cells_of_another_evaluator_do_not_forbid_the_comparison():
    old = record("b", 0, status="failed", error=("E", "boom"), evaluator=0)
    assert only_board([record("a", 0, 1.0), old]).rows[0].label == "a"


def test_quick_runs_have_a_board_of_their_own_whose_title_says_so():
    records = seeds_of("a", [1.0]) + seeds_of("a", [2.0], quick=True)
    full, quick = boards(records)
    assert "QUICK" not in full.title
    assert "QUICK RUN" in quick.title
    assert "QUICK RUN" in Leaderboard((quick,)).render("md")
    assert {row["quick"] for row in csv_rows(records)} == {"False", "True"}


# Renderings


def realistic(seeds=5):
    records = []
    for seed in range(seeds):
        for rank, method in enumerate(("nuqls", "lla", "de", "swag", "a_method_with_a_long_name")):
            wiggle = 1 + 0.07 * math.sin(3 * seed + rank)
            metrics = {
                "rmse": 0.047 * wiggle + 0.05 * rank,
                "nll": -2.4 * wiggle + rank,
                "ece": 0.0003 * wiggle,
                "crps": 0.026 * wiggle,
                "coverage95": 0.95 * wiggle,
                "sharpness": 0.04,
            }
            cost = Cost(8.4 * wiggle, 0.1 * wiggle, 0.01, 0.002)
            records.append(record(method, seed, metrics=metrics, cost=cost))
            metrics = {
                "accuracy": 0.98 * wiggle,
                "nll": 0.05 * wiggle,
                "ece": 0.004 * wiggle,
                "brier": 0.02 * wiggle,
                "vmsp_auc_error": 0.9 * wiggle,
                "vmsp_id_correct_median": 4.76e-15 * wiggle,
                "vmsp_id_incorrect_median": 0.02 * wiggle,
            }
            ood = {"ood_auc": 0.9 * wiggle, "vmsp_auc_ood": 0.9, "vmsp_ood_median": 0.03 * wiggle}
            records.append(
                record(
                    method, seed, metrics=metrics, ood={"svhn": ood}, problem="digits", cost=cost
                )
            )
    return records


@pytest.mark.parametrize("width", [80, 120, 200])
def test_the_table_fits_its_width_and_shows_every_number_whole(width):
    records = realistic()
    text = table(records, width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    for board in boards(records):
        for row in board.rows:
            for column in board.columns:
                number = row.metrics[column]
                for part in format_mean_std(number.mean, number.std):
                    assert part in text


def test_a_regression_board_of_five_seeds_is_one_table_at_120_columns():
    records = [
        one
        for one in realistic()
        if one.identity.problem == "uci/energy" and len(one.identity.method) < 10
    ]
    rules = re.findall(r"^─+$", table(records, 120), re.MULTILINE)
    assert len(rules) == 1


def test_the_best_are_bold_on_a_terminal_and_starred_where_bold_cannot_be_seen():
    records = seeds_of("a", [1.0, 2.0]) + seeds_of("b", [8.0, 9.0])
    plain = table(records)
    assert "1.50 ± 0.71*" in plain
    assert "8.50 ± 0.71*" not in plain
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, color_system="standard", width=120)
    console.print(Leaderboard.of(records))
    assert re.search(r"\x1b\[1m *1\.50 ± 0\.71", file.getvalue())
    assert "*" not in file.getvalue()
    assert "**1.50 ± 0.71**" in Leaderboard.of(records).render("md")


def test_times_measured_on_a_shared_device_are_marked():
    shared = Cost(8.0, 1.0, 0.5, 0.25, timing_valid=False)
    text = table([record("a", 0, 1.0), record("b", 0, 2.0, cost=shared)])
    assert re.search(r"^a .*9\.75 s +1\.75 s$", text, re.MULTILINE)
    assert re.search(r"^b .*9\.75 s† +1\.75 s†$", text, re.MULTILINE)
    assert "†: timed while other jobs shared the device." in text


HOSTILE = "[red]a|b*c*\n<script>`x`\x1b[0m\u202e :smile: [/nothing]"


def test_hostile_names_and_errors_neither_break_a_table_nor_become_markup():
    records = [
        record(HOSTILE, 0, 1.0, problem=HOSTILE),
        record("b", 0, status="failed", error=("E", HOSTILE), problem=HOSTILE),
    ]
    text = table(records)
    assert "[red]a|b*c*" in text.replace("\n", "")
    assert "\x1b" not in text
    assert "\u202e" not in text
    (row,) = re.findall(r"^\| \\\[red.*", Leaderboard.of(records).render("md"), re.MULTILINE)
    assert r"\[red\]a\|b\*c\* \<script\>\`x\`" in row
    header = re.search(r"^\| method.*", Leaderboard.of(records).render("md"), re.MULTILINE)
    unescaped = r"(?<!\\)\|"
    assert len(re.findall(unescaped, row)) == len(re.findall(unescaped, header.group()))
    assert {line["method"] for line in csv_rows(records)} == {HOSTILE, "b"}


def test_the_csv_has_one_row_per_number_with_full_precision():
    records = seeds_of("a", [1.0, 2.0], settings={"gamma": 0.1})
    rows = {row["metric"]: row for row in csv_rows(records)}
    nll = rows["nll"]
    assert nll["suite"] == "uci"
    assert nll["problem"] == "uci/energy"
    assert nll["method"] == "a"
    assert json.loads(nll["settings"]) == {"gamma": 0.1}
    assert float(nll["mean"]) == 1.5
    assert float(nll["std"]) == math.sqrt(0.5)
    assert (nll["seeds"], nll["seeds_planned"], nll["status"]) == ("2", "2", "complete")
    assert float(rows["total_seconds"]["mean"]) == 9.75
    assert float(rows["map_seconds"]["mean"]) == 8.0


def test_the_csv_has_the_interval_of_a_mean_where_the_seeds_suffice():
    values = [1.0, 2.0, 4.0, 8.0, 9.0, NAN]
    records = [record("a", s, metrics={"nll": v, "crps": v}) for s, v in enumerate(values)]
    records += [record("b", s, metrics={"nll": 1.0, "crps": s or NAN}) for s in range(5)]
    rows = {(row["method"], row["metric"]): row for row in csv_rows(records)}
    low, high = bootstrap_interval(values[:5])
    assert low < 4.8 < high
    for metric in ("nll", "crps"):
        row = rows["a", metric]
        assert (float(row["ci95_low"]), float(row["ci95_high"])) == (low, high)
    for metric in ("nll", "crps", "fit_seconds"):  # equal values, four values, equal values
        assert rows["b", metric]["ci95_low"] == rows["b", metric]["ci95_high"] == ""


def test_tables_without_intervals_do_not_compute_them(monkeypatch):
    board = Leaderboard.of(seeds_of("a", [1.0, 2.0, 3.0, 4.0, 6.0]))
    monkeypatch.delattr("uqbench.statistics.bootstrap_interval")
    for format in ("table", "md"):
        assert "3.20 ± 1.92" in board.render(format)
    assert not any("ci95_low" in row for row in board.tidy_rows(intervals=False))
    with pytest.raises(ImportError):
        board.render("csv")


def test_the_csv_marks_best_and_incomplete_and_keeps_failures():
    records = [
        *seeds_of("a", [1.0, 2.0]),
        *seeds_of("b", [5.0, 6.0]),
        *seeds_of("c", [0.0]),
        record("d", 0, status="failed", error=("E", "boom")),
    ]
    rows = csv_rows(records)
    nll = {row["method"]: row for row in rows if row["metric"] == "nll"}
    assert {method: row["mark"] for method, row in nll.items()} == {"a": "best", "b": "", "c": ""}
    assert (nll["c"]["status"], nll["c"]["seeds"], nll["c"]["seeds_planned"]) == (
        "incomplete",
        "1",
        "2",
    )
    assert nll["c"]["std"] == ""
    (failed,) = [row for row in rows if row["method"] == "d"]
    assert (failed["metric"], failed["seeds"]) == ("", "0")
    assert failed["reason"] == "0/2 seeds; seed 0 failed: E: boom; seed 1 not run"


def test_rotated_sets_are_averaged_over_the_angles_of_each_seed():
    """Miani et al. 2024 and the paper's Table 5."""
    records = []
    for seed, aurocs in enumerate([(0.5, 0.8), (0.7, 0.9)]):
        angles = zip(("rotated:mnist:15", "rotated:mnist:180"), aurocs, strict=True)
        ood = {name: {"ood_auc": auroc} for name, auroc in angles} | {"kmnist": {"ood_auc": 0.6}}
        records.append(record("a", seed, metrics={"accuracy": 0.9, "nll": 0.3}, ood=ood))
    board = only_board(records)
    assert [column.ood_set for column in board.columns if column.ood_set] == [
        "rotated:mnist",
        "kmnist",
    ]
    averaged = board.rows[0].metrics[Column("ood_auc", "rotated:mnist")]
    assert averaged.values == pytest.approx((0.65, 0.8))
    rows = {row["ood_set"]: float(row["mean"]) for row in csv_rows(records) if row["ood_set"]}
    assert rows == {
        "rotated:mnist": pytest.approx(0.725),
        "rotated:mnist:15": pytest.approx(0.6),
        "rotated:mnist:180": pytest.approx(0.85),
        "kmnist": pytest.approx(0.6),
    }


def test_a_set_at_one_angle_is_shown_as_that():
    ood = {"rotated:mnist:45": {"ood_auc": 0.9}}
    board = only_board([record("a", 0, metrics={"accuracy": 0.9}, ood=ood)])
    assert Column("ood_auc", "rotated:mnist:45") in board.columns
    assert {column.ood_set for column in board.rows[0].metrics} == {"", "rotated:mnist:45"}


def test_ood_metrics_have_a_column_per_ood_set():
    ood = {"svhn": {"ood_auc": 0.9}, "kmnist": {"ood_auc": 0.8}}
    records = [record("a", 0, metrics={"accuracy": 0.9, "nll": 0.3}, ood=ood)]
    assert only_board(records).columns[2:] == (
        Column("ood_auc", "svhn"),
        Column("ood_auc", "kmnist"),
    )
    rows = [row for row in csv_rows(records) if row["metric"] == "ood_auc"]
    assert [(row["ood_set"], float(row["mean"])) for row in rows] == [
        ("svhn", 0.9),
        ("kmnist", 0.8),
    ]


def test_an_unknown_format_and_an_unknown_suffix_are_usage_errors(tmp_path):
    board = Leaderboard.of(seeds_of("a", [1.0]))
    with pytest.raises(UsageError, match=r"no leaderboard format named 'cvs'\. Did you mean 'csv'"):
        board.render("cvs")
    with pytest.raises(UsageError, match=r"board\.xlsx: unknown suffix '\.xlsx'"):
        board.write(tmp_path / "board.xlsx")


@pytest.mark.parametrize(("name", "format"), [("a.csv", "csv"), ("a.md", "md"), ("a.txt", "table")])
def test_writing_takes_the_format_from_the_suffix(tmp_path, name, format):
    board = Leaderboard.of(seeds_of("a", [1.0, 2.0]))
    path = tmp_path / "new folder" / name
    board.write(path)
    assert path.read_text(encoding="utf-8") == board.render(format)
    assert [other.name for other in path.parent.iterdir()] == [name]


def test_a_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "board.csv"
    path.write_text("old")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(UsageError, match=r"board\.csv: cannot be written: No space left on device"):
        Leaderboard.of(seeds_of("a", [1.0])).write(path)
    assert path.read_text() == "old"
    assert [other.name for other in tmp_path.iterdir()] == ["board.csv"]


# Numbers


@pytest.mark.parametrize(
    ("mean", "std", "expected"),
    [
        (0.047, 0.006, ("0.0470", "0.0060")),
        (-2.4, 0.209, ("-2.40", "0.21")),
        (0.00031, 0.00019, ("0.0003", "0.0002")),
        (0.971234, 0.000012, ("0.97123", "0.00001")),
        (0.9712, 0.0, ("0.971", "0.000")),
        (4.76e-15, 2.1e-15, ("4.76e-15", "2.1e-15")),
        (-0.00001, 0.3, ("0.00", "0.30")),
        (12345.6, 234.5, ("12346", "234")),
        (1.3e12, 4e11, ("1.30e12", "4.0e11")),
        (0.0, 0.0, ("0", "0")),
        (1.234, NAN, ("1.23", "")),
        (NAN, NAN, ("–", "")),
        (math.inf, NAN, ("∞", "")),
        (-math.inf, NAN, ("-∞", "")),
    ],
)
def test_the_digits_of_a_number_follow_its_deviation(mean, std, expected):
    assert format_mean_std(mean, std) == expected


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.9712, 0.9835, "0.9712 to 0.9835"),
        (0.95, 1.05, "0.950 to 1.050"),
        (-2.41, -1.87, "-2.41 to -1.87"),
        (-0.3, 12.0, "-0.3 to 12.0"),
        (1234.5, 1434.5, "1234 to 1434"),
        (0.000021, 0.000034, "2.10e-5 to 3.40e-5"),
        (NAN, NAN, "–"),
    ],
)
def test_both_ends_of_an_interval_have_the_same_decimals(low, high, expected):
    assert format_interval(low, high) == expected


@pytest.mark.parametrize(
    ("mean", "std", "expected"),
    [
        (0.151, NAN, "0.15 s"),
        (0.0123, NAN, "0.012 s"),
        (0.00002, 0.00001, "<0.001 s"),
        (0.0, NAN, "0 s"),
        (1.234, NAN, "1.23 s"),
        (12.34, 0.41, "12.3 ± 0.4 s"),
        (59.97, NAN, "1 m 00 s"),
        (250.4, NAN, "4 m 10 s"),
        (250.4, 12.2, "4 m 10 s ± 12 s"),
        (7500.0, NAN, "2 h 05 m"),
        (3599.9, NAN, "1 h 00 m"),
        (NAN, NAN, "–"),
        (math.inf, NAN, "∞"),
    ],
)
def test_durations_are_written_for_people(mean, std, expected):
    assert format_seconds(mean, std) == expected


def test_a_record_without_timings_shows_a_dash_for_them():
    untimed = replace(record("a", 0, 1.0), cost=Cost())
    assert re.search(r"^a .* – +–$", table([untimed]), re.MULTILINE)


def test_overlap_of_training_splits_is_corrected_for_only_where_they_overlap():
    """Differences 2, 2.1, 2.2: t = 2.1/(0.1 √(1/3 + r)) with r = n_test/n_train = 100 or 0.

    With 2 degrees of freedom p is 0.17 for r = 100 and 0.0008 for r = 0.
    """
    sizes = {"train": 7, "test": 700}
    values = {"a": [0.0, 0.0, 0.0], "b": [2.0, 2.1, 2.2]}

    def found(fingerprints):
        return marks(
            [
                record(method, seed, value, sizes=sizes, fingerprint=fingerprints[seed])
                for method in values
                for seed, value in enumerate(values[method])
            ]
        )

    assert found(["one"] * 3) == {"a": "best", "b": "equal best"}
    assert found(["one", "two", "three"]) == {"a": "best", "b": ""}
