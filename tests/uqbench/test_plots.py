"""Pictures: what is drawn is what the methods predicted, and what cannot be drawn is said."""

from dataclasses import replace

import matplotlib
import numpy as np
import pytest
from click.testing import CliRunner
from matplotlib.figure import Figure

import uqbench
from uqbench import plots
from uqbench.cli import main
from uqbench.datasets.synthetic import toy_cubic
from uqbench.errors import DataError, UQBenchError, UsageError
from uqbench.records import Identity, Outcome, Record, RecordFile
from uqbench.results import Results
from uqbench.saved_predictions import (
    Curve,
    RegressionMoments,
    SavedPredictions,
    predictions_path,
    write_predictions,
)
from uqbench.seeds import derive_seed

GRID = np.linspace(-6, 6, 61)


def record(method="map", seed=0, problem="toy/cubic", status="ok", error="", **changes):
    data = toy_cubic(derive_seed(problem, seed, "split"))
    identity = Identity(
        suite="toy",
        problem=problem,
        fingerprint=data.fingerprint,
        split=(0.7, 0.15, 0.15),
        network={},
        map_checkpoint="",
        method=method,
        settings={},
        seed=seed,
        dtype="float64",
        quick=False,
        training={"task": "regression", "standardise": False},
    )
    identity = replace(identity, **changes)
    return Record(
        key="-".join([method, str(seed), problem, *map(str, identity.settings.values())]).replace(
            "/", "_"
        ),
        identity=identity,
        status=status,
        outcome=Outcome(metrics={"nll": 1.0}) if status == "ok" else Outcome(),
        error_type="ValueError" if error else "",
        error_message=error,
    )


def predictions(one, mean=0.0, variance=1.0, curve=True):
    """A straight line with a variance that grows to the right."""
    data = toy_cubic(derive_seed(one.identity.problem, one.identity.seed, "split"))
    n = len(data.test)
    drawn = Curve(
        inputs=GRID,
        mean=GRID + mean,
        variance=variance * np.exp(GRID),
        train_inputs=data.train.inputs[:, 0],
        train_targets=data.train.targets,
        test_inputs=data.test.inputs[:, 0],
    )
    moments = RegressionMoments(np.zeros(n), np.ones(n))
    return SavedPredictions(data.test.targets, moments, curve=drawn if curve else None)


@pytest.fixture
def run(tmp_path):
    """Write records, and predictions for those that have a result; return the run's folder."""

    def write(*records, **given):
        folder = tmp_path / "run"
        folder.mkdir(exist_ok=True)
        for one in records:
            RecordFile(folder).append(one)
            if one.status == "ok":
                write_predictions(predictions_path(folder, one.key), predictions(one, **given))
        return folder

    return write


def panels(figure):
    return {axes.get_title(): axes for axes in figure.axes}


def line(axes, label):
    (found,) = [one for one in axes.lines if one.get_label() == label]
    return found.get_data()


def band(axes):
    """The lowest and the highest y of the band at each x of the grid."""
    (collection,) = axes.collections
    (path,) = collection.get_paths()
    at = [path.vertices[np.isclose(path.vertices[:, 0], x), 1] for x in GRID]
    return np.array([y.min() for y in at]), np.array([y.max() for y in at])


def test_the_band_is_the_mean_and_three_standard_deviations(run):
    figure = Results.load(run(record("a"), variance=4.0)).plot("toy")
    axes = panels(figure)["a"]
    lower, upper = band(axes)
    deviation = 2 * np.exp(GRID / 2)
    np.testing.assert_allclose(lower, GRID - 3 * deviation, rtol=1e-12)
    np.testing.assert_allclose(upper, GRID + 3 * deviation, rtol=1e-12)
    np.testing.assert_array_equal(line(axes, "mean"), [GRID, GRID])


def test_the_training_points_and_the_true_function_are_drawn(run):
    axes = panels(Results.load(run(record("a", seed=3))).plot("toy"))["a"]
    train = toy_cubic(derive_seed("toy/cubic", 3, "split")).train
    np.testing.assert_array_equal(
        line(axes, "training points"), [train.inputs[:, 0], train.targets]
    )
    x, y = line(axes, "true function")
    assert (x.min(), x.max()) == (-6, 6)
    np.testing.assert_allclose(y, x * x * x, rtol=1e-12)


def test_a_picture_of_other_data_has_no_true_function(run):
    axes = panels(Results.load(run(record("a", fingerprint="another"))).plot("toy"))["a"]
    assert {one.get_label() for one in axes.lines} == {"mean", "training points"}
    targets = toy_cubic(derive_seed("toy/cubic", 0, "split")).train.targets
    low, high = axes.get_ylim()
    assert low < targets.min() < targets.max() < high


@pytest.mark.parametrize("size", [1e-6, 1e300])
def test_bands_of_any_size_leave_the_common_axes_as_they_are(run, tmp_path, size):
    folder = run(record("small"))
    figure = Results.load(run(record("huge"), mean=-size, variance=size)).plot("toy")
    assert folder.exists()
    for axes in figure.axes:
        assert axes.get_xlim() == (-6, 6)
        low, high = axes.get_ylim()
        assert low == -high
        assert 216 < high < 300
    lower, upper = band(panels(figure)["huge"])
    assert np.abs([lower, upper]).max() < 1e4
    plots.write(figure, tmp_path / "huge.svg")


@pytest.mark.parametrize("suffix", plots.SUFFIXES)
def test_the_same_picture_gives_the_same_bytes(tmp_path, suffix):
    def drawn(name: str) -> bytes:
        figure = Figure()
        axes = figure.add_subplot()
        axes.plot([0, 1], [0, 2], label="line")
        axes.fill_between([0, 1], [0, 1], [1, 2])
        plots.write(figure, tmp_path / f"{name}{suffix}")
        return (tmp_path / f"{name}{suffix}").read_bytes()

    assert drawn("one") == drawn("other")


def test_there_is_one_panel_for_each_method_in_the_order_of_the_run(run):
    results = Results.load(
        run(
            record("b"),
            record("a", settings={"members": 5, "gamma": 1.0}),
            record("c", status="failed", error="no $grid$ point was finite"),
            record("a", settings={"members": 10, "gamma": 1.0}),
            record("d", status="timeout"),
            record("e", seed=1),
        )
    )
    figure = results.plot("toy")
    titles = [axes.get_title() for axes in figure.axes]
    assert titles == ["b", "a (members=5)", "c", "a (members=10)", "d", "e"]
    texts = {
        title: " ".join(text.get_text() for text in axes.texts).replace("\n", " ")
        for title, axes in panels(figure).items()
        if axes.texts
    }
    assert texts == {
        "c": "failed: ValueError: no $grid$ point was finite",
        "d": "timeout",
        "e": "not run",
    }
    figure.draw_without_rendering()  # a dollar sign in a message is no formula


@pytest.mark.parametrize("number", [1, 3, 4, 5, 16])
def test_panels_fill_a_grid_and_do_not_overlap(run, number):
    label = "x" * 60
    methods = [record("m", settings={"s": f"{i} {label}"}) for i in range(number)]
    figure = Results.load(run(*methods)).plot("toy")
    figure.draw_without_rendering()
    assert len(figure.axes) == number
    boxes = [axes.get_tightbbox() for axes in figure.axes]
    boxes += [legend.get_tightbbox() for legend in figure.legends]
    page = figure.bbox
    for position, box in enumerate(boxes):
        assert page.x0 <= box.x0 < box.x1 <= page.x1
        assert page.y0 <= box.y0 < box.y1 <= page.y1
        assert not any(box.overlaps(other) for other in boxes[position + 1 :])
    columns = {round(axes.get_position().x0, 3) for axes in figure.axes}
    rows = {round(axes.get_position().y0, 3) for axes in figure.axes}
    assert len(columns) * (len(rows) - 1) < number <= len(columns) * len(rows)


def test_the_lowest_seed_is_drawn_unless_another_is_asked_for(run):
    folder = run(record("a", seed=2), record("a", seed=1))
    assert Results.load(folder).plot("toy").get_suptitle() == "toy/cubic: seed 1"
    assert Results.load(folder).plot("toy", seed=2).get_suptitle() == "toy/cubic: seed 2"
    with pytest.raises(UsageError, match="no seed 7 in these results; there is 1, 2"):
        Results.load(folder).plot("toy", seed=7)


def test_a_quick_run_says_so_and_gives_way_to_a_full_one(run):
    quick = replace(record("a", quick=True), key="quick")
    assert "QUICK RUN" in Results.load(run(quick)).plot("toy").get_suptitle()
    figure = Results.load(run(record("b"))).plot("toy")
    assert "QUICK" not in figure.get_suptitle()
    assert list(panels(figure)) == ["b"]


def test_one_of_several_problems_is_drawn_by_its_name(run):
    results = Results.load(run(record("a"), record("a", problem="toy/other")))
    with pytest.raises(UsageError, match=r"toy/cubic, toy/other\. Name one with --problem"):
        results.plot("toy")
    assert results.plot("toy", problem="toy/other").get_suptitle().startswith("toy/other")
    with pytest.raises(UsageError, match=r"no problem named 'toy/othr' here\. Did you mean"):
        results.plot("toy", problem="toy/othr")


def test_a_run_without_a_regression_on_one_feature_is_refused(run):
    results = Results.load(run(record("a"), curve=False))
    with pytest.raises(UsageError, match="no regression on one feature has a result here"):
        results.plot("toy")
    with pytest.raises(UsageError, match="toy/cubic: not a regression on one feature"):
        results.plot("toy", problem="toy/cubic")


def test_problems_without_a_curve_are_passed_over(run):
    folder = run(record("a"))
    run(record("a", problem="uci/energy"), curve=False)
    lost = record("a", problem="uci/yacht")
    run(lost)
    predictions_path(folder, lost.key).unlink()
    run(record("a", problem="digits", training={"task": "classification"}), curve=False)
    assert Results.load(folder).plot("toy").get_suptitle() == "toy/cubic: seed 0"


def test_a_problem_of_which_nothing_has_a_result_is_refused(run):
    results = Results.load(run(record("a", status="failed", error="boom")))
    with pytest.raises(UsageError, match="no regression on one feature has a result"):
        results.plot("toy")
    results = Results.load(run(record("a", seed=1)))
    with pytest.raises(UsageError, match="toy/cubic: no method has a result with seed 0"):
        results.plot("toy")


def test_missing_predictions_name_the_file_and_the_remedy(run):
    one, other = record("a"), record("b")
    folder = run(one, other)
    for lost in (other, one):
        predictions_path(folder, lost.key).unlink()
        with pytest.raises(DataError, match=rf"{lost.key}\.npz: no such file.*--rerun all"):
            Results.load(folder).plot("toy")


def test_results_that_cannot_be_compared_are_not_drawn_side_by_side(run):
    results = Results.load(run(record("a"), record("b", network={"hidden": [3]})))
    with pytest.raises(UQBenchError, match="differ in network"):
        results.plot("toy")


def test_records_without_a_folder_have_no_predictions(run):
    results = Results([record("a"), record("b", status="failed", error="boom")])
    with pytest.raises(DataError, match=r"toy/cubic a seed 0: .* not read from a run's folder"):
        results.predictions(results.records[0])
    with pytest.raises(DataError, match=r"toy/cubic b seed 0: .* no result \(failed\)"):
        results.predictions(results.records[1])


@pytest.mark.parametrize(
    ("name", "start"), [("a.png", b"\x89PNG"), ("a.PDF", b"%PDF"), ("new/a.svg", b"<?xml")]
)
def test_the_suffix_says_what_is_written(run, tmp_path, name, start):
    settings = dict(matplotlib.rcParams)
    Results.load(run(record("a"))).plot("toy", tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(start)
    assert dict(matplotlib.rcParams) == settings


def test_the_command_draws_into_the_runs_folder(run):
    folder = run(record("a"), record("a", seed=1))
    done = CliRunner().invoke(main, ["plot", str(folder), "--kind", "toy", "--seed", "1"])
    assert (done.exit_code, done.stdout) == (0, "")
    assert done.stderr == f"Picture: {folder / 'toy.png'}\n"
    assert (folder / "toy.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--kind", "toys"), "toys"),
        (("--kind", "toy", "--out", "toy.gif"), "toy.gif: unknown suffix '.gif' for a picture"),
        (("--kind", "toy", "--out", ""), "it is empty"),
        (("--kind", "toy", "--out", "file/toy.png"), "file/toy.png: cannot be written"),
        (("--kind", "toy", "--seed", "7"), "no seed 7"),
        (("--kind", "toy", "--seed", "-1"), "--seed"),
        (("--kind", "toy", "--problem", "toy/cubik"), "Did you mean 'toy/cubic'?"),
        ((), "--kind"),
    ],
)
def test_a_picture_that_cannot_be_drawn_is_one_line_and_leaves_nothing(
    run, tmp_path, monkeypatch, arguments, message
):
    monkeypatch.chdir(tmp_path)
    folder = run(record("a"))
    (tmp_path / "file").touch()
    before = sorted(tmp_path.rglob("*"))
    done = CliRunner().invoke(main, ["plot", str(folder), *arguments])
    assert done.exit_code == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before


def test_an_unknown_kind_is_a_usage_error_in_python(run):
    with pytest.raises(UsageError, match=r"no kind of picture named 'toi'\. Did you mean 'toy'"):
        Results.load(run(record("a"))).plot("toi")


def test_a_run_can_be_drawn(tmp_path):
    results = uqbench.run(
        "map,base", problems="toy/cubic", seeds=1, quick=True, device="cpu", out=tmp_path
    )
    figure = results.plot("toy", tmp_path / "toy.png")
    assert list(panels(figure)) == ["map", "base"]
    assert "skipped: base is defined for classification" in panels(figure)["base"].texts[
        0
    ].get_text().replace("\n", " ")
    data = toy_cubic(derive_seed("toy/cubic", 0, "split"))
    x, _ = line(panels(figure)["map"], "mean")
    np.testing.assert_allclose([x.min(), x.max()], [data.test.inputs.min(), data.test.inputs.max()])
