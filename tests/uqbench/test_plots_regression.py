"""Calibration curves and series of settings show what was predicted, and hide no gap."""

from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner
from scipy import stats

from uqbench.boards import boards
from uqbench.cli import main
from uqbench.errors import DataError, UsageError
from uqbench.formatting import format_mean_std
from uqbench.metrics.regression import ECE_LEVELS, regression_metrics
from uqbench.plots.style import line_legend, line_panels, log_ticks
from uqbench.records import Identity, Outcome, Record, RecordFile
from uqbench.report_pictures import pictures
from uqbench.results import Results
from uqbench.saved_predictions import (
    RegressionMoments,
    SavedPredictions,
    predictions_path,
    write_predictions,
)

TARGETS = np.array([0.1, -0.5, 1.0, -2.0])
ONES = np.ones(4)


def record(method="a", seed=0, variance=ONES, *, nll=None, status="ok", test_rows=4, **changes):
    """A cell with predictive mean 0, and its predictions."""
    values = {
        "suite": "s",
        "problem": "p",
        "fingerprint": f"data {seed}",
        "split": (0.7, 0.15, 0.15),
        "network": {},
        "map_checkpoint": "",
        "settings": {},
        "dtype": "float64",
        "quick": False,
        "training": {"task": "regression"},
    } | changes
    metrics = regression_metrics(TARGETS, np.zeros(4), variance, 1.0)
    if nll is not None:
        metrics["nll"] = nll
    outcome = Outcome(metrics=metrics, sizes={"test": test_rows}) if status == "ok" else Outcome()
    key = "-".join([method, str(seed), values["problem"], *map(str, values["settings"].values())])
    one = Record(key, Identity(method=method, seed=seed, **values), status, outcome)
    moments = RegressionMoments(np.zeros(4), np.asarray(variance, dtype=float))
    return one, SavedPredictions(TARGETS, moments)


def members(number, seed=0, nll=None, method="a", **given):
    return record(method, seed, nll=nll, settings={"members": number}, **given)


@pytest.fixture
def run(tmp_path):
    """Write records, and predictions for those that have a result; return the run's folder."""

    def write(*cells):
        folder = tmp_path / "run"
        folder.mkdir(exist_ok=True)
        for one, kept in cells:
            RecordFile(folder).append(one)
            if one.status == "ok":
                write_predictions(predictions_path(folder, one.key), kept)
        return folder

    return write


def line(axes, label):
    (found,) = [one for one in axes.lines if one.get_label() == label]
    return found


def listed(figure):
    texts = [" ".join(text.get_text().split()) for text in figure.legends[0].get_texts()]
    return dict(text.split(": ", 1) for text in texts)


# ---- calibration


def test_the_curve_is_the_share_of_points_in_each_central_interval(run):
    figure = Results.load(run(record("one"), record("four", variance=4 * ONES))).plot("calibration")
    (axes,) = figure.axes
    level, observed = line(axes, "one").get_data()
    assert len(level) >= 101
    # z(0.1) = 0.126, z(0.5) = 0.674, z(0.9) = 1.645 and z(0.96) = 2.054, against 0.1, 0.5, 1, 2
    by_hand = {0: 0, 0.05: 0, 0.1: 0.25, 0.5: 0.5, 0.9: 0.75, 0.95: 0.75, 0.96: 1, 1: 1}
    drawn = dict(zip(level.round(3), observed, strict=True))
    assert {one: drawn[one] for one in by_hand} == by_hand
    # with twice the deviation: z(0.05) = 0.063 and z(0.7) = 1.036, against 0.05, 0.25, 0.5, 1
    drawn = dict(zip(level.round(3), line(axes, "four").get_ydata(), strict=True))
    assert {one: drawn[one] for one in (0.05, 0.5, 0.7)} == {0.05: 0.25, 0.5: 0.75, 0.7: 1}


def test_the_curve_and_the_legend_agree_on_the_ece(run):
    results = Results.load(run(record("a", variance=[0.01, 0.3, 2.0, 9.0])))
    figure = results.plot("calibration")
    level, observed = line(figure.axes[0], "a").get_data()
    at = np.isin(level, ECE_LEVELS)
    assert at.sum() == 11
    ece = np.mean((observed[at] - ECE_LEVELS) ** 2)
    assert ece == pytest.approx(results.records[0].outcome.metrics["ece"], rel=1e-12)
    assert listed(figure) == {"a": f"ECE {format_mean_std(ece)[0]}"}
    diagonal = figure.axes[0].lines[0]
    assert diagonal.get_color() == "#000000"
    np.testing.assert_array_equal(*diagonal.get_data())


def test_a_method_without_a_result_is_named_beside_the_curves(run):
    failed, _ = record("b", status="failed")
    failed = replace(failed, error_type="ValueError", error_message="no $grid$ point was finite")
    figure = Results.load(run(record("a"), (failed, None))).plot("calibration")
    assert listed(figure)["b"] == "failed: ValueError: no $grid$ point was finite"
    assert len(figure.axes[0].lines) == 2
    figure.draw_without_rendering()  # a dollar sign in a message is no formula


def test_only_regressions_have_a_calibration_curve(run):
    folder = run(record("a", training={"task": "classification"}))
    with pytest.raises(UsageError, match=r"no regression has a result here\. Run one"):
        Results.load(folder).plot("calibration")
    with pytest.raises(UsageError, match="p: not a regression with a result"):
        Results.load(folder).plot("calibration", problem="p")


# ---- series of settings


def test_points_are_means_over_seeds_with_95_percent_intervals(run):
    values = {
        10: (1.0, 2.0, 4.0, 3.0, 2.5),
        2: (3.0, 3.5, 5.0, 4.0, 4.5),
        50: (1.0, 1.1, 1.2, 1.3, 0.9),
    }
    cells = [members(m, s, nll) for m, nlls in values.items() for s, nll in enumerate(nlls)]
    figure = Results.load(run(*cells)).plot("convergence")
    (axes,) = figure.axes
    x, y = line(axes, "a").get_data()
    assert x.tolist() == [2, 10, 50]
    np.testing.assert_allclose(y, [np.mean(values[m]) for m in (2, 10, 50)], rtol=1e-12)
    (path,) = axes.collections[0].get_paths()
    for m, nlls in values.items():
        ends = path.vertices[path.vertices[:, 0] == m, 1]
        low, high = stats.t.interval(0.95, 4, np.mean(nlls), stats.sem(nlls))
        assert (ends.min(), ends.max()) == pytest.approx((low, high), rel=1e-12)
    assert figure.get_suptitle() == "p: 5 seeds, bands: 95%"
    assert (axes.get_xscale(), axes.get_yscale(), axes.get_xlabel()) == ("log", "linear", "members")
    assert listed(figure) == {"a": "NLL 1.10 at 50"}


def test_fewer_than_five_seeds_are_thin_lines_and_no_interval(run):
    values = {2: (3.0, 5.0), 4: (2.0, 6.0), 8: (1.0,)}
    cells = [members(m, s, nll) for m, nlls in values.items() for s, nll in enumerate(nlls)]
    figure = Results.load(run(*cells, members(8, 1, status="oom"))).plot("convergence")
    (axes,) = figure.axes
    mean = line(axes, "a")
    assert mean.get_ydata().tolist() == [4, 4, 1]
    thin = [one for one in axes.lines if one.get_linewidth() < mean.get_linewidth() / 2]
    assert [one.get_ydata().tolist() for one in thin] == [[3, 2], [5, 6]]
    assert {tuple(one.get_xdata()) for one in thin} == {(2, 4)}
    (path,) = axes.collections[0].get_paths()
    assert set(path.vertices[:, 1]) == {4, 1}
    assert figure.get_suptitle() == "p: 2 seeds, thin: each seed"


def test_the_axes_suit_the_means_and_cut_off_what_is_far_from_them(run):
    far = (-900.0, 902.0)
    cells = [members(2, s, 2 + nll) for s, nll in enumerate(far)]
    cells += [members(4, s, 1 + nll) for s, nll in enumerate(far)]
    (axes,) = Results.load(run(*cells)).plot("convergence").axes
    low, high = axes.get_ylim()
    assert 0 < low < 2 < 3 < high < 5


def test_sev_is_the_norm_of_the_difference_to_the_gaussian_process(run):
    process = np.array([1.0, 2.0, 3.0, 4.0])
    away = {(2, 0): [3, 0, 4, 0], (2, 1): [0, 12, 16, 0], (9, 0): [0, 0.5, 0, 0], (9, 1): [2] * 4}
    away |= {(m, s): [0, 5, 0, 0] for m in (2, 9) for s in (2, 3, 4)}
    cells = [record("ntk_gp", seed, process) for seed in range(5)]
    cells += [members(m, s, 1.0, variance=process + d) for (m, s), d in away.items()]
    folder = run(*cells)
    _, axes = Results.load(folder).plot("convergence").axes
    x, y = line(axes, "a").get_data()
    assert x.tolist() == [2, 9]
    norms = np.log([[5, 20, 5, 5, 5], [0.5, 4, 5, 5, 5]])
    np.testing.assert_allclose(y, np.exp(norms.mean(axis=1)), rtol=1e-12)
    (path,) = axes.collections[0].get_paths()
    ends = path.vertices[path.vertices[:, 0] == 2, 1]
    interval = stats.t.interval(0.95, 4, norms[0].mean(), stats.sem(norms[0]))
    assert (ends.min(), ends.max()) == pytest.approx(np.exp(interval), rel=1e-12)
    _, alone = Results.load(folder).plot("convergence", seed=1).axes
    np.testing.assert_allclose(line(alone, "a").get_ydata(), [20, 4], rtol=1e-12)
    assert axes.get_yscale() == "log"


def test_the_seeds_of_a_sev_stay_together_whatever_the_order_of_the_records(run):
    cells = [record("ntk_gp", seed) for seed in (1, 0)]
    cells += [members(m, s, variance=ONES * (1 + m * (1 + s))) for m, s in [(2, 0), (2, 1)]]
    cells += [members(m, s, variance=ONES * (1 + m * (1 + s))) for m, s in [(4, 1), (4, 0)]]
    _, axes = Results.load(run(*cells)).plot("convergence").axes
    thin = [one.get_ydata().tolist() for one in axes.lines if one.get_linewidth() < 1]
    np.testing.assert_allclose(thin, [[4, 8], [8, 16]], rtol=1e-12)


def test_a_sev_of_zero_is_drawn_at_the_end_of_the_axis_which_says_so(run):
    folder = run(record("ntk_gp"), members(2, variance=ONES), members(4, variance=2 * ONES))
    figure = Results.load(folder).plot("convergence")
    np.testing.assert_allclose(line(figure.axes[1], "a").get_ydata(), [1e-12, 2], rtol=1e-9)
    assert figure.axes[1].get_ylabel().startswith("max(SEV, 1e-12)")
    figure.draw_without_rendering()


def test_sev_uses_the_seeds_that_both_have(run):
    cells = [members(m, s, variance=3 * ONES) for m in (2, 4) for s in (0, 1)]
    figure = Results.load(run(record("ntk_gp", seed=1), *cells)).plot("convergence")
    np.testing.assert_allclose(line(figure.axes[1], "a").get_ydata(), [4, 4], rtol=1e-12)
    assert listed(figure)["ntk_gp"].endswith("1 seed only")


@pytest.mark.parametrize(
    "others",
    [
        [],
        [record("ntk_gp", seed=1)],
        [record("ntk_gp", status="failed")],
        [record("ntk_gp", settings={"members": number}) for number in (1, 2)],
    ],
)
def test_without_one_gaussian_process_to_compare_with_there_is_no_sev(run, others):
    assert len(Results.load(run(members(2), members(4), *others)).plot("convergence").axes) == 1


def test_sev_needs_the_predictions(run):
    folder = run(record("ntk_gp"), members(2), members(4))
    predictions_path(folder, "a-0-p-4").unlink()
    with pytest.raises(DataError, match=r"a-0-p-4\.npz: no such file"):
        Results.load(folder).plot("convergence")


def test_infinity_is_a_dotted_level(run):
    cells = [members(2, nll=3.0), members(4, nll=2.0), members("inf", nll=1.5)]
    figure = Results.load(run(*cells)).plot("convergence")
    (axes,) = figure.axes
    assert line(axes, "a").get_xdata().tolist() == [2, 4]
    level = line(axes, "a ∞")
    assert (level.get_linestyle(), set(level.get_ydata())) == (":", {1.5})
    assert [text.get_text() for text in axes.texts] == ["∞"]
    assert listed(figure) == {"a": "NLL 1.50 at ∞"}


def test_gaps_are_open_markers_and_words(run):
    cells = [members(m, s, m + s) for m in (2, 4) for s in (0, 1) if (m, s) != (4, 1)]
    cells += [members(4, 1, status="oom"), members(8, 0, status="timeout"), members(16, 0, np.inf)]
    figure = Results.load(run(*cells)).plot("convergence")
    (axes,) = figure.axes
    np.testing.assert_array_equal(line(axes, "a").get_data(), [[2, 4], [2.5, 4]])
    (opened,) = [one for one in axes.lines if one.get_markerfacecolor() == "white"]
    np.testing.assert_array_equal(opened.get_data(), [[4], [4]])
    assert listed(figure) == {
        "a": "NLL 4.00 at 4, seeds missing at 4, none at 8 (timeout), none at 16 (NLL ∞)"
    }
    low, high = axes.get_xlim()
    assert low < 2 < 16 < high


def test_other_methods_are_levels_as_far_as_the_axis_goes(run):
    cells = [members(2, nll=3.0), members(4, nll=2.0), record("near", nll=2.5)]
    cells += [record("far", nll=1000.0), record("below", nll=-50.0), record("none", nll=np.inf)]
    figure = Results.load(run(*cells, record("b", status="failed"))).plot("convergence")
    (axes,) = figure.axes
    assert set(line(axes, "near").get_ydata()) == {2.5}
    low, high = axes.get_ylim()
    assert -50 < low < 2 < 3 < high < 5
    shown = listed(figure)
    assert shown["near"] == "NLL 2.50"
    assert shown["far"] == "NLL 1000, above the axis"
    assert shown["below"] == "NLL -50.0, below the axis"
    assert (shown["none"], shown["b"]) == ("NLL ∞", "failed")


def test_the_gaussian_process_is_a_level_over_a_wider_range_than_other_methods(run):
    cells = [members(2, nll=3.0), members(4, nll=2.0)]
    cells += [record("ntk_gp", nll=6.0), record("other", nll=6.0)]
    figure = Results.load(run(*cells)).plot("convergence")
    assert figure.axes[0].get_ylim()[1] > 6
    assert listed(figure)["ntk_gp"] == "NLL 6.00"
    cells = [members(2, nll=3.0), members(4, nll=2.0), record("other", nll=6.0)]
    figure = Results.load(run(*cells, record("ntk_gp", nll=600.0))).plot("convergence")
    assert figure.axes[0].get_ylim()[1] < 6
    assert listed(figure)["ntk_gp"] == "NLL 600, above the axis"


@pytest.mark.parametrize(
    ("nlls", "scale"), [((1, 20), "linear"), ((1, 50), "log"), ((-1, 50), "linear")]
)
def test_the_axis_of_the_nll_is_logarithmic_if_the_points_need_it(run, nlls, scale):
    cells = [members(m, s, nll) for m, nll in enumerate(nlls, 2) for s in (0, 1)]
    figure = Results.load(run(*cells)).plot("convergence")
    (axes,) = figure.axes
    assert axes.get_yscale() == scale
    low, high = axes.get_ylim()
    assert low < min(nlls) < max(nlls) < high


def test_several_methods_share_the_setting(run):
    cells = [members(m, nll=n * m, method=n * "a") for m in (2, 4) for n in (1, 2)]
    (axes,) = Results.load(run(*cells)).plot("convergence").axes
    assert line(axes, "a").get_ydata().tolist() == [2, 4]
    assert line(axes, "aa").get_ydata().tolist() == [4, 8]


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ([record("a"), record("b")], "no method has several values of a setting here. Run a"),
        ([members(2), members(4, status="skipped")], "no method has several values"),
        (
            [record(settings={"members": 2, "epochs": 5}), record(settings={"members": 4})],
            "p: a differs in epochs and members; only one setting may differ. Run each series into",
        ),
        ([members("few"), members("many")], "p: a has values of members that are no numbers"),
        ([members(True), members(False)], "p: a has values of members that are no numbers"),
        (
            [members(2), members(4), *(record("b", settings={"rank": r}) for r in (1, 2))],
            "p: methods differ in different settings: a in members, b in rank. Run each series",
        ),
        (
            [members(2, nll=1.0), members(4, status="failed"), members(8, nll=np.inf)],
            "p: two values of members must have an NLL. a: NLL 1.00 at 2, none at 4 (failed), "
            "none at 8 (NLL ∞)",
        ),
        (
            [members(2), members(4), members(2, problem="q"), members(4, problem="q")],
            "several problems can be drawn: p, q. Name one with --problem.",
        ),
    ],
)
def test_what_is_no_series_is_refused(run, cells, message):
    with pytest.raises(UsageError) as error:
        Results.load(run(*cells)).plot("convergence")
    assert message in str(error.value)


@pytest.mark.parametrize("settings", [("kron", "diag"), (1, None)])
def test_settings_that_are_no_numbers_are_levels_beside_a_series(run, settings):
    others = [
        record("b", settings={"structure": one}, nll=2.0 + n) for n, one in enumerate(settings)
    ]
    (axes,) = (
        Results.load(run(members(2, nll=2.0), members(4, nll=3.0), *others))
        .plot("convergence")
        .axes
    )
    names = [one if isinstance(one, str) else {None: "null"}.get(one, str(one)) for one in settings]
    for n, name in enumerate(names):
        assert set(line(axes, f"b (structure={name})").get_ydata()) == {2.0 + n}


@pytest.mark.parametrize("kind", ["calibration", "convergence"])
@pytest.mark.parametrize("number", [1, 15])
def test_nothing_overlaps_with_few_and_with_many_methods(
    run, kind, number, assert_nothing_overlaps
):
    cells = [record("method", settings={"b": "x" * i}, nll=1.0 + i) for i in range(number)]
    cells += [members(m, s, 4.0 / m) for m in (2, 3, 4, 100, "inf") if m != "inf" for s in (0, 1)]
    figure = Results.load(run(*cells, members("inf"), record("ntk_gp"))).plot(kind)
    assert_nothing_overlaps(figure)


@pytest.mark.parametrize(
    ("limits", "labels"),
    [
        ((0.515, 0.585), ["0.52", "0.54", "0.56", "0.58"]),
        ((0.95, 1.65), ["1", "1.2", "1.4", "1.6"]),
        ((0.15, 1.2), ["0.2", "0.3", "0.5", "1"]),
        ((3.0, 150.0), ["3", "10", "30", "100"]),
        ((1e-9, 1e-2), ["$10^{-9}$", "$10^{-7}$", "$10^{-5}$", "$10^{-3}$"]),
    ],
)
def test_a_logarithmic_axis_has_numbers_that_can_be_read(limits, labels):
    figure, (axes,) = line_panels()
    axes.set(yscale="log", ylim=limits)
    log_ticks(axes.yaxis)
    assert shown_labels(figure, axes.yaxis) >= set(labels)


@pytest.mark.parametrize(
    ("limits", "labels"),
    [
        ((1e-4, 20), {"1 ms", "10 ms", "0.1 s", "1 s", "10 s"}),
        ((0.4, 3.5), {"0.5 s", "1 s", "2 s", "3 s"}),
        ((20.0, 7300.0), {"1 min", "10 min", "1 h"}),
        ((3601.0, 40000.0), {"3 h", "10 h"}),
    ],
)
def test_an_axis_of_time_has_units(limits, labels):
    figure, (axes,) = line_panels()
    axes.set(xscale="log", xlim=limits)
    log_ticks(axes.xaxis, seconds=True)
    assert shown_labels(figure, axes.xaxis) >= labels


@pytest.mark.parametrize("seconds", [False, True])
def test_every_logarithmic_axis_has_three_numbers_and_not_too_many(seconds):
    _, (axes,) = line_panels()
    for low in np.geomspace(1e-6, 1e5, 40):
        for share in (1.001, 1.1, 1.5, 3, 10, 100, 1e4, 1e9):
            axes.set(xscale="log", xlim=(low, share * low))
            log_ticks(axes.xaxis, seconds=seconds)
            assert 3 <= len(axes.get_xticks()) <= 9, (low, share)


def shown_labels(figure, axis):
    figure.draw_without_rendering()
    assert not any(text.get_text() for text in axis.get_minorticklabels())
    return {text.get_text() for text in axis.get_majorticklabels()}


def test_a_short_legend_leaves_a_picture_as_high_as_it_is():
    figure, _ = line_panels(rows=3)
    height = figure.get_figheight()
    line_legend(figure, [(None, "a", "1.0")])
    assert figure.get_figheight() == height
    line_legend(figure, [(None, "a", "1.0")] * 100)
    assert figure.get_figheight() > height


@pytest.mark.parametrize("kind", ["calibration", "convergence"])
def test_the_command_draws_into_the_runs_folder(run, kind):
    folder = run(members(2), members(4))
    done = CliRunner().invoke(main, ["plot", str(folder), "--kind", kind])
    assert (done.exit_code, done.stderr) == (0, f"Picture: {folder / kind}.png\n")
    assert (folder / f"{kind}.png").read_bytes().startswith(b"\x89PNG")


# ---- the page


def captions(results):
    return {
        one.caption: one for board in boards(results.records) for one in pictures(results, board)
    }


def test_a_page_has_the_calibration_of_regressions_and_the_series_that_there_are(run):
    shown = captions(Results.load(run(members(2), members(4))))
    for start in ("Calibration: observed", "What becomes of methods"):
        (picture,) = [one for caption, one in shown.items() if caption.startswith(start)]
        assert picture.svg.startswith("<svg")


def test_a_page_says_nothing_of_series_where_there_are_none(run):
    shown = captions(Results.load(run(record("a"), record("b"))))
    assert not any(caption.startswith("What becomes") for caption in shown)
    shown = captions(Results.load(run(members("few"), members("many"))))
    assert not any(caption.startswith("What becomes") for caption in shown)


def test_a_single_test_point_has_no_calibration_curve_on_a_page(run):
    shown = captions(Results.load(run(record("a", test_rows=1))))
    assert not any(caption.startswith("Calibration") for caption in shown)
