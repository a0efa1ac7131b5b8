"""Pictures of classifications show the saved predictions, agree with records, hide nothing."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner
from matplotlib.colors import same_color
from scipy import stats
from scipy.integrate import trapezoid
from sklearn.metrics import roc_curve

from uqbench import plots
from uqbench.cells import Request, plan
from uqbench.cli import main
from uqbench.errors import DataError, UsageError
from uqbench.evaluator import evaluate_cell
from uqbench.formatting import format_mean_std
from uqbench.metrics.classification import classification_metrics
from uqbench.metrics.detection import ood_metrics
from uqbench.metrics.vmsp import vmsp_metrics, vmsp_ood_metrics
from uqbench.plots import draw
from uqbench.plots.style import line_styles
from uqbench.plots.violin import picture
from uqbench.records import Identity, Outcome, Record, RecordFile
from uqbench.results import Results
from uqbench.saved_predictions import (
    ClassificationSummary,
    SavedPredictions,
    predictions_path,
    read_predictions,
    write_predictions,
)
from uqbench.vmsp_values import VMSPGroups, read_vmsp

SINGLE = ("violin", "risk-coverage", "ood-roc")
KINDS = ("reliability", *SINGLE)
NAN = float("nan")


def record(method="a", seed=0, problem="digits", status="ok", error="", **changes):
    identity = Identity(
        suite="starter",
        problem=problem,
        fingerprint="f",
        split=(0.7, 0.15, 0.15),
        network={},
        map_checkpoint="",
        method=method,
        settings={},
        seed=seed,
        dtype="float64",
        quick=False,
        training={"task": "classification"},
    )
    identity = replace(identity, **changes)
    key = "-".join([method, str(seed), problem, *map(str, identity.settings.values())])
    return Record(
        key=key.replace("/", "_"),
        identity=identity,
        status=status,
        error_type="ValueError" if error else "",
        error_message=error,
    )


def moments(generator, signal, labels, members=10, classes=4):
    """Mean and variance over members of softmax probabilities that favour the labels."""
    logits = generator.normal(size=(members, len(labels), classes))
    logits += signal * np.eye(classes)[labels] * generator.gamma(2, size=(len(labels), 1))
    softmax = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    return softmax.mean(0), softmax.var(0, ddof=1) if members > 1 else None


def finished(one, ood=("held-out",), signal=2.0, members=10, correct=False):
    """Random predictions of a cell, and its record with their metrics."""
    generator = np.random.default_rng([one.identity.seed, *one.key.encode()])
    labels = generator.integers(4, size=120)
    inside = moments(generator, 50 if correct else signal, labels, members)
    outside = {
        name: moments(generator, 0.3, generator.integers(4, size=90), members) for name in ood
    }
    test = ClassificationSummary.of(*inside, None)
    kept = SavedPredictions(
        labels, test, {name: ClassificationSummary.of(*two, None) for name, two in outside.items()}
    )
    outcome = Outcome(
        metrics=classification_metrics(inside[0], labels, inside[1]),
        ood={name: ood_metrics(inside[0], two[0]) for name, two in outside.items()},
    )
    return replace(one, outcome=outcome), kept


@pytest.fixture
def run(tmp_path):
    """Write records, and predictions for those that have a result; return the run's folder."""

    def write(*records, **given):
        folder = tmp_path / "run"
        folder.mkdir(exist_ok=True)
        for one in records:
            if one.status == "ok":
                one, kept = finished(one, **given)
                write_predictions(predictions_path(folder, one.key), kept)
            RecordFile(folder).append(one)
        return folder

    return write


def saved(folder, key):
    return read_predictions(predictions_path(folder, key))


def outcome(folder, key):
    return next(one.outcome for one in RecordFile(folder).read() if one.key == key)


def groups_of(kept, ood="held-out"):
    right = kept.test.predicted == kept.targets
    return [kept.test.vmsp[right], kept.test.vmsp[~right], kept.ood[ood].vmsp]


def names(axes):
    return [label.get_text() for label in axes.get_xticklabels()]


def drawn(axes, group):
    """(x, median) and outline of each violin of a group, from left to right."""
    (lines,) = [one for one in axes.collections if one.get_label() == group]
    medians = [(segment[:, 0].mean(), segment[0, 1]) for segment in lines.get_segments()]
    bodies = [one for one in axes.collections if one.get_gid() == group]
    return medians, [body.get_paths()[0].vertices for body in bodies]


def texts(figure):
    """All that is written in a picture, its lines unwrapped."""
    parts = [figure.get_suptitle()]
    for axes in figure.axes:
        parts += [axes.get_title(), axes.get_xlabel(), *(text.get_text() for text in axes.texts)]
    for legend in figure.legends:
        parts += [text.get_text() for text in legend.get_texts()]
    return " ".join(" ".join(parts).split())


# ---- violins


def test_each_method_has_three_violins_with_the_medians_of_its_groups(run):
    folder = run(record("base"), record("b"), record("a"))
    (axes,) = Results.load(folder).plot("violin").axes
    assert names(axes) == ["b", "a", "base"]
    shapes = {group: drawn(axes, group) for group in ("id_correct", "id_incorrect", "ood")}
    for place, key in enumerate(["b-0-digits", "a-0-digits", "base-0-digits"]):
        at = [medians[place][0] for medians, _ in shapes.values()]
        assert np.allclose(np.diff(at), np.diff(at)[0])
        assert at[1] == pytest.approx(place)
        for (medians, bodies), values in zip(
            shapes.values(), groups_of(saved(folder, key)), strict=True
        ):
            assert medians[place][1] == np.median(values)
            assert bodies[place][:, 1].min() == pytest.approx(values.min(), rel=1e-12)
            assert bodies[place][:, 1].max() == pytest.approx(values.max(), rel=1e-12)


def test_a_violin_is_as_wide_as_the_gaussian_kernel_density(run):
    folder = run(record("a"))
    (axes,) = Results.load(folder).plot("violin").axes
    values = groups_of(saved(folder, "a-0-digits"))[2]
    ((centre, _),), (outline,) = drawn(axes, "ood")
    right = outline[outline[:, 0] > centre]
    density = stats.gaussian_kde(values)(right[:, 1])
    half_widths = right[:, 0] - centre
    np.testing.assert_allclose(half_widths / half_widths.max(), density / density.max(), rtol=2e-3)


def test_no_two_violins_overlap():
    values = dict.fromkeys("abc", VMSPGroups(*np.random.default_rng(0).random((3, 50)) / 2))
    (axes,) = picture(values, "title").axes
    spans = sorted(
        (outline[:, 0].min(), outline[:, 0].max())
        for group in ("id_correct", "id_incorrect", "ood")
        for outline in drawn(axes, group)[1]
    )
    assert len(spans) == 9
    assert all(left[1] < right[0] for left, right in itertools.pairwise(spans))


def test_the_axis_is_linear_unless_a_logarithmic_one_is_asked_for(run):
    folder = run(record("a"), record("b"))
    linear, log = (Results.load(folder).plot("violin", log=one).axes[0] for one in (False, True))
    assert (linear.get_yscale(), log.get_yscale()) == ("linear", "log")
    values = groups_of(saved(folder, "a-0-digits"))[0]
    ((_, median), _), (outline, _) = drawn(log, "id_correct")
    assert median == pytest.approx(np.median(values))
    assert outline[:, 1].max() == pytest.approx(values.max(), rel=1e-12)


@pytest.mark.parametrize(("share", "scale"), [(0.1, "linear"), (0.001, "log"), (0, "linear")])
def test_a_page_has_a_logarithmic_axis_where_a_methods_violins_would_be_flat(run, share, scale):
    folder = run(record("a"), record("b"))
    path = predictions_path(folder, "b-0-digits")
    kept = read_predictions(path)
    groups = {"test": kept.test, **kept.ood}
    scaled = {name: replace(one, vmsp=share * one.vmsp) for name, one in groups.items()}
    write_predictions(path, replace(kept, test=scaled.pop("test"), ood=scaled))
    (axes,) = draw("violin", Results.load(folder), log="auto").axes
    assert axes.get_yscale() == scale


def test_a_logarithmic_axis_shows_zeros_at_its_end_and_says_so():
    tiny = np.array([0, 0, 1e-30, 1e-4, 1e-3])
    (axes,) = picture({"a": VMSPGroups(tiny, tiny[3:], tiny[3:])}, "", log=True).axes
    ((_, median),), (outline,) = drawn(axes, "id_correct")
    assert median == pytest.approx(1e-20)
    assert outline[:, 1].min() == pytest.approx(1e-20)
    assert axes.get_ylabel() == "max(VMSP, 1e-20)"
    (axes,) = picture({"a": VMSPGroups(tiny[3:], tiny[3:], tiny[3:])}, "", log=True).axes
    assert axes.get_ylabel() == "VMSP"


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("values", [[0.0], [0.0, 0.0], [0.25] * 3, [1e-200, 3e-200, 1e-199]])
def test_groups_without_a_spread_are_drawn(values, log):
    group = np.array(values)
    figure = picture({"a": VMSPGroups(group, group, group)}, "", log=log)
    ((_, median),), _ = drawn(figure.axes[0], "ood")
    assert median == pytest.approx(max(np.median(group), 1e-20) if log else np.median(group))
    figure.draw_without_rendering()


def test_a_group_without_points_is_said_to_have_none(run):
    folder = run(record("a"), correct=True)
    run(record("b"))
    figure = Results.load(folder).plot("violin")
    (axes,) = figure.axes
    ((x, _),), _ = drawn(axes, "id_incorrect")
    assert x == 1
    (text,) = axes.texts
    assert (text.get_text(), text.get_position()[0]) == ("no points", 0)
    run(record("b"), correct=True)
    assert len(Results.load(folder).plot("violin").axes[0].texts) == 2


def test_a_long_title_stays_on_the_page():
    group = np.array([0.1, 0.2])
    figure = picture({"a": VMSPGroups(group, group, group)}, "rotated:fashion-mnist:15 " * 5)
    figure.draw_without_rendering()
    box = figure.get_tightbbox().transformed(figure.dpi_scale_trans)
    assert 0 <= box.x0 < box.x1 <= figure.bbox.x1
    assert 0 <= box.y0 < box.y1 <= figure.bbox.y1


def test_methods_without_vmsp_are_named_and_the_others_drawn(run):
    folder = run(record("map"), members=1)
    run(
        record("a"),
        record("b", status="failed", error="no $grid$ point was finite"),
        record("c", status="skipped", error="not for classification"),
        record("d", status="timeout"),
        record("e", seed=1),
    )
    figure = Results.load(folder).plot("violin")
    assert names(figure.axes[0]) == ["a"]
    assert " ".join(figure.axes[0].get_xlabel().split()) == (
        "Not shown: map (one sample, which has no VMSP); b (failed: ValueError: no $grid$ point "
        "was finite); c (skipped: not for classification); d (timeout); e (not run)"
    )
    figure.draw_without_rendering()  # a dollar sign in a message is no formula


def test_a_run_in_which_nothing_has_vmsp_is_refused(run):
    folder = run(record("map"), members=1)
    with pytest.raises(UsageError, match=r"digits: nothing has VMSP: map \(one sample"):
        Results.load(folder).plot("violin")


@pytest.mark.parametrize("number", [1, 2, 12])
@pytest.mark.parametrize("kind", SINGLE)
def test_nothing_overlaps_with_few_and_with_many_methods(
    run, kind, number, assert_nothing_overlaps
):
    methods = [record("method", settings={"gamma": 0.25 * i, "b": "x" * i}) for i in range(number)]
    folder = run(*methods, record("base"), record("c", status="failed", error="boom " * 30))
    figure = Results.load(folder).plot(kind)
    assert_nothing_overlaps(figure)


def test_many_methods_stand_in_rows_on_one_scale(run):
    methods = [record(f"m{i}") for i in range(11)]
    folder = run(record("base"), *methods)
    upper, lower = Results.load(folder).plot("violin").axes
    assert names(upper) == [f"m{i}" for i in range(6)]
    assert names(lower) == [*(f"m{i}" for i in range(6, 11)), "base"]
    assert upper.get_ylim() == lower.get_ylim()
    assert upper.get_xlim() == lower.get_xlim()
    for place, name in enumerate(names(lower)):
        for group, values in zip(
            ("id_correct", "id_incorrect", "ood"),
            groups_of(saved(folder, f"{name}-0-digits")),
            strict=True,
        ):
            assert drawn(lower, group)[0][place][1] == np.median(values)
            assert values.max() < lower.get_ylim()[1]


# ---- OoD sets


@pytest.mark.parametrize("kind", ["violin", "ood-roc"])
def test_of_several_ood_sets_one_must_be_named(run, kind):
    folder = run(record("a"), ood=("mnist", "rotated:15"))
    results = Results.load(folder)
    with pytest.raises(UsageError, match=r"digits: several OoD sets: mnist, rotated:15\. Name one"):
        results.plot(kind)
    with pytest.raises(UsageError, match=r"no OoD set named 'mnits' in .*Did you mean 'mnist'\?"):
        results.plot(kind, ood="mnits")
    figure = results.plot(kind, ood="rotated:15")
    assert "digits: seed 0, OoD rotated:15" in texts(figure)
    if kind == "violin":
        ((_, median),), _ = drawn(figure.axes[0], "ood")
        assert median == np.median(saved(folder, "a-0-digits").ood["rotated:15"].vmsp)


def test_a_method_that_lacks_the_ood_set_is_named(run):
    folder = run(record("a"), ood=("mnist",))
    run(record("b"), ood=("svhn",))
    results = Results.load(folder)
    assert "Not shown: b (not evaluated on mnist)" in texts(results.plot("violin", ood="mnist"))
    assert listed(results.plot("ood-roc", ood="mnist"))["b"] == "not evaluated on mnist"


def test_without_an_ood_set_there_are_two_violins_and_no_roc(run):
    folder = run(record("a"), ood=())
    results = Results.load(folder)
    figure = results.plot("violin")
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        "ID correct",
        "ID incorrect",
    ]
    assert figure.get_suptitle() == "digits: seed 0"
    (((left, _),), _), (((right, _),), _) = (
        drawn(figure.axes[0], group) for group in ("id_correct", "id_incorrect")
    )
    assert left == -right < 0
    with pytest.raises(UsageError, match="digits: has no OoD set"):
        results.plot("ood-roc")
    with pytest.raises(UsageError, match=r"no OoD set named 'mnist' in these results. There is no"):
        results.plot("violin", ood="mnist")


# ---- reliability


def test_reliability_shows_accuracy_confidence_and_count_of_each_bin(run):
    folder = run(record("a"))
    (axes,) = Results.load(folder).plot("reliability").axes
    kept = saved(folder, "a-0-digits")
    right, confidence = kept.test.predicted == kept.targets, kept.test.confidence
    expected = {}
    for number in range(10):
        inside = (confidence > number / 10) & (confidence <= (number + 1) / 10)
        if inside.any():
            middle = number / 10 + 0.05
            expected[middle] = (right[inside].mean(), confidence[inside].mean(), inside.sum())
    bars = {bar.get_x() + bar.get_width() / 2: bar.get_height() for bar in axes.patches}
    np.testing.assert_allclose(list(bars), list(expected), rtol=1e-12)
    accuracy, mean_confidence, counts = np.transpose(list(expected.values()))
    np.testing.assert_allclose(list(bars.values()), accuracy, rtol=1e-12)
    (dots,) = [one for one in axes.lines if one.get_marker() == "o"]
    np.testing.assert_allclose(dots.get_data(), [mean_confidence, accuracy], rtol=1e-12)
    (top,) = axes.child_axes
    assert [label.get_text() for label in top.get_xticklabels()] == [f"{n:.0f}" for n in counts]


def test_the_gaps_of_a_reliability_diagram_add_up_to_the_records_ece(run):
    folder = run(record("a"))
    (axes,) = Results.load(folder).plot("reliability").axes
    (gaps,) = [one for one in axes.collections if one.get_label() == "gap"]
    lengths = [abs(segment[1, 1] - segment[0, 1]) for segment in gaps.get_segments()]
    counts = [int(label.get_text()) for label in axes.child_axes[0].get_xticklabels()]
    ece = outcome(folder, "a-0-digits").metrics["ece"]
    assert np.dot(lengths, counts) / 120 == pytest.approx(ece, rel=1e-10)
    assert axes.texts[0].get_text() == f"ECE {format_mean_std(ece)[0]}"


def test_a_reliability_panel_without_a_result_says_why(run):
    folder = run(
        record("base"),
        record("b", status="failed", error="boom"),
        record("a", settings={"s": 1}),
        record("a", settings={"s": 2}),
    )
    figure = Results.load(folder).plot("reliability")
    panels = {axes.get_title(): axes for axes in figure.axes}
    assert list(panels) == ["b", "a (s=1)", "a (s=2)", "base"]
    assert [text.get_text() for text in panels["b"].texts] == ["failed: ValueError: boom"]
    assert not panels["b"].patches


def test_twelve_reliability_panels_do_not_overlap(run):
    folder = run(*(record("m", settings={"s": i}) for i in range(12)))
    figure = Results.load(folder).plot("reliability")
    figure.draw_without_rendering()
    boxes = [axes.get_tightbbox() for axes in figure.axes]
    boxes += [legend.get_tightbbox() for legend in figure.legends]
    assert not any(one.overlaps(other) for one, other in itertools.combinations(boxes, 2))


# ---- curves


def listed(figure):
    """What the legend says of each line, by the method's label."""
    (legend,) = figure.legends
    lines = (" ".join(text.get_text().split()) for text in legend.get_texts())
    return dict(line.split(": ", 1) for line in lines)


def curves(figure):
    lines = figure.axes[0].lines
    return {one.get_label(): one for one in lines if not one.get_label().startswith("_")}


def test_a_risk_coverage_curve_is_the_error_rate_of_the_most_confident(run):
    folder = run(record("a"), record("b"))
    figure = Results.load(folder).plot("risk-coverage")
    for method in ("a", "b"):
        kept = saved(folder, f"{method}-0-digits")
        order = np.argsort(-kept.test.confidence)
        wrong = (kept.test.predicted != kept.targets)[order]
        coverage, risk = curves(figure)[method].get_data()
        expected = [wrong[: k + 1].mean() for k in range(len(wrong))]
        np.testing.assert_allclose(risk, expected, rtol=1e-12)
        np.testing.assert_allclose(coverage, np.arange(1, 121) / 120)
        aurc = outcome(folder, f"{method}-0-digits").metrics["aurc"]
        assert risk.mean() == pytest.approx(aurc, rel=1e-12)
        assert listed(figure)[method] == f"AURC {format_mean_std(aurc)[0]}"


def test_base_does_not_stretch_the_risk_coverage_axis_and_is_said_to_be_above_it(run):
    folder = run(record("base"), signal=0)
    run(record("a"), record("b", status="crashed"), signal=1)
    figure = Results.load(folder).plot("risk-coverage")
    (axes,) = figure.axes
    low, high = axes.get_ylim()
    _, risk = curves(figure)["a"].get_data()
    assert low == 0
    assert high == pytest.approx(1.08 * risk[5:].max())
    assert list(listed(figure)) == ["a", "b", "base"]
    assert listed(figure)["base"].endswith("above the axis")
    assert "above" not in listed(figure)["a"]
    assert listed(figure)["b"] == "crashed"


def test_the_axis_suits_base_where_it_is_alone(run):
    figure = Results.load(run(record("base"), signal=0)).plot("risk-coverage")
    _, risk = curves(figure)["base"].get_data()
    assert figure.axes[0].get_ylim()[1] == pytest.approx(1.08 * risk[5:].max())
    assert "above" not in listed(figure)["base"]


def test_a_method_without_errors_has_a_risk_coverage_curve_at_zero(run):
    figure = Results.load(run(record("a"), correct=True)).plot("risk-coverage")
    assert not curves(figure)["a"].get_ydata().any()
    assert figure.axes[0].get_ylim() == (0, 1)


def test_an_ood_roc_is_that_of_the_entropy_and_encloses_the_records_auc(run):
    folder = run(record("base"), record("b", status="failed", error="boom"), record("a"))
    figure = Results.load(folder).plot("ood-roc")
    assert list(listed(figure)) == ["b", "a", "base"]
    assert listed(figure)["b"] == "failed: ValueError: boom"
    for method in ("a", "base"):
        kept = saved(folder, f"{method}-0-digits")
        scores = np.concatenate([kept.ood["held-out"].entropy, kept.test.entropy])
        labels = [1] * 90 + [0] * 120
        false, true, _ = roc_curve(labels, scores, drop_intermediate=False)
        x, y = curves(figure)[method].get_data()
        np.testing.assert_allclose(x, false, atol=1e-15)
        np.testing.assert_allclose(y, true, atol=1e-15)
        auc = outcome(folder, f"{method}-0-digits").ood["held-out"]["ood_auc"]
        assert trapezoid(y, x) == pytest.approx(auc, abs=1e-6)  # entropies are kept as float32
        assert listed(figure)[method] == f"AUROC {auc:.3f}"


def test_28_lines_can_be_told_apart_and_keep_their_look_beside_a_failure(run):
    looks = list(itertools.islice(line_styles(), 28))
    assert len({(one["color"], one["linestyle"]) for one in looks}) == 28
    folder = run(record("a", status="failed"), record("b"))
    (line,) = curves(Results.load(folder).plot("risk-coverage")).values()
    assert same_color(line.get_color(), looks[1]["color"])


# ---- what is chosen


@pytest.mark.parametrize("kind", KINDS)
def test_the_lowest_seed_is_drawn_unless_another_is_asked_for(run, kind):
    results = Results.load(run(record("a", seed=2), record("a", seed=1)))
    assert "digits: seed 1" in texts(results.plot(kind))
    assert "digits: seed 2" in texts(results.plot(kind, seed=2))
    with pytest.raises(UsageError, match="no seed 7 in these results; there is 1, 2"):
        results.plot(kind, seed=7)


@pytest.mark.parametrize("kind", KINDS)
def test_one_of_several_classifications_is_drawn_by_its_name(run, kind):
    regression = record("a", problem="energy", training={"task": "regression"})
    results = Results.load(run(record("a"), record("a", problem="wine"), regression))
    with pytest.raises(UsageError, match=r"digits, wine\. Name one with --problem"):
        results.plot(kind)
    assert "wine: seed 0" in texts(results.plot(kind, problem="wine"))
    with pytest.raises(UsageError, match="energy: not a classification with a result"):
        results.plot(kind, problem="energy")
    with pytest.raises(UsageError, match=r"no problem named 'wines' here\. Did you mean 'wine'"):
        results.plot(kind, problem="wines")


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_without_a_classification_that_has_a_result_is_refused(run, kind):
    results = Results.load(run(record("a", status="failed", error="boom")))
    with pytest.raises(UsageError, match="no classification has a result here"):
        results.plot(kind)


def test_missing_predictions_name_the_file_and_the_remedy(run):
    folder = run(record("a"))
    predictions_path(folder, "a-0-digits").unlink()
    for kind in KINDS:
        with pytest.raises(DataError, match=r"a-0-digits\.npz: no such file.*--rerun all"):
            Results.load(folder).plot(kind)


def test_a_quick_run_says_so(run):
    results = Results.load(run(record("a", quick=True)))
    assert results.plot("violin").get_suptitle() == "digits: QUICK RUN, seed 0, OoD held-out"


@pytest.mark.parametrize(
    ("kind", "option", "has"),
    [
        ("toy", {"ood": "mnist"}, "--ood: a picture of kind toy has no .*violin, ood-roc has"),
        ("reliability", {"log": True}, "--log: a picture of kind reliability has .*; violin has"),
        ("ood-roc", {"log": True}, "--log"),
        ("risk-coverage", {"ood": "mnist"}, "--ood"),
    ],
)
def test_an_option_of_another_kind_is_refused(run, kind, option, has):
    with pytest.raises(UsageError, match=has):
        Results.load(run(record("a"))).plot(kind, **option)


@pytest.mark.parametrize("kind", KINDS)
def test_the_command_draws_each_kind(run, tmp_path, kind):
    folder = run(record("a"), record("base"))
    name, start = {
        "violin": ("a.png", b"\x89PNG"),
        "reliability": ("a.svg", b"<?xml"),
        "risk-coverage": ("a.pdf", b"%PDF"),
        "ood-roc": ("a.svg", b"<?xml"),
    }[kind]
    out = str(tmp_path / name)
    done = CliRunner().invoke(main, ["plot", str(folder), "--kind", kind, "--out", out])
    assert (done.exit_code, done.stdout) == (0, "")
    assert done.stderr == f"Picture: {out}\n"
    assert (tmp_path / name).read_bytes().startswith(start)


def test_every_kind_is_in_the_commands_help():
    shown = CliRunner().invoke(main, ["plot", "--help"]).stdout
    for kind in plots.KINDS:
        assert f"\n  {kind} " in shown


# ---- VMSP values from a file


def arrays(**changes):
    generator = np.random.default_rng(3)
    values = {
        f"{method}/{group}": scale * generator.random(size)
        for method, scale in (("BASE", 0.05), ("NUQLS", 0.3))
        for group, size in (("id_correct", 40), ("id_incorrect", 11), ("ood", 30))
    }
    values |= {key.replace("__", "/"): value for key, value in changes.items()}
    return {key: value for key, value in values.items() if value is not None}


def plot_file(*arguments):
    return CliRunner().invoke(main, ["plot", *arguments])


def test_the_file_is_drawn_and_its_statistics_are_the_metrics(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    values = arrays()
    np.savez("mine.npz", **values)
    done = plot_file("--vmsp", "mine.npz")
    assert (done.exit_code, done.stderr) == (0, "Picture: mine.png\n")
    assert (tmp_path / "mine.png").read_bytes().startswith(b"\x89PNG")
    heading, *rows, footnote = done.stdout.splitlines()
    assert " ".join(heading.split()) == "method group count median skew 25% 75% AUROC"
    assert [row.split()[0] for row in rows] == ["NUQLS"] * 3 + ["BASE"] * 3
    assert footnote == "▿: worse than BASE, which knows nothing."
    for row in rows:
        method, group, count, *numbers = row.split()
        own = [values[f"{method}/{one}"] for one in ("id_correct", "id_incorrect", "ood")]
        expected = vmsp_metrics(*own[:2]) | vmsp_ood_metrics(own[0], own[2])
        assert int(count) == expected[f"vmsp_{group}_count"]
        wanted = [expected[f"vmsp_{group}_{key}"] for key in ("median", "skew", "q25", "q75")]
        wanted += {
            "id_incorrect": [expected["vmsp_auc_error"]],
            "ood": [expected["vmsp_auc_ood"]],
        }.get(group, [])
        shown = [number.rstrip("▿") for number in numbers if number != "–"]
        assert shown == [f"{number:#.4g}" for number in wanted]


def test_what_is_worse_than_base_is_marked(tmp_path):
    worse = {"id_correct": [0.1, 0.3, 0.4], "id_incorrect": [0.0, 0.0, 0.02], "ood": [0.1, 0.3]}
    base = {"id_correct": [0.1, 0.2, 0.4], "id_incorrect": [0.0, 0.01, 0.02], "ood": [0.1, 0.3]}
    methods = {"worse": worse, "base": base}
    path = tmp_path / "a.npz"
    np.savez(path, **{f"{m}/{g}": v for m, groups in methods.items() for g, v in groups.items()})
    out = tmp_path / "a.svg"
    table = plot_file("--vmsp", str(path), "--out", str(out)).stdout.splitlines()
    marked = {
        row.split()[1]: [number for number in row.split() if "▿" in number] for row in table[1:4]
    }
    assert marked["id_correct"] == ["0.3000▿", f"{stats.skew(worse['id_correct']):.4f}▿"]
    assert marked["id_incorrect"] == ["0.000▿", f"{stats.skew(worse['id_incorrect']):.4f}▿"]
    assert "▿" not in "".join(table[4:7])
    assert out.read_bytes().startswith(b"<?xml")


def test_the_figure_of_a_file_has_its_name_and_its_medians(tmp_path):
    values = arrays()
    np.savez(tmp_path / "a.npz", **values)
    (axes,) = picture(read_vmsp(tmp_path / "a.npz"), "a").axes
    assert names(axes) == ["NUQLS", "BASE"]
    medians, _ = drawn(axes, "id_incorrect")
    assert [median for _, median in medians] == [
        np.median(values[f"{method}/id_incorrect"]) for method in ("NUQLS", "BASE")
    ]


def test_a_name_with_control_characters_stays_on_its_line(tmp_path):
    path = tmp_path / "a.npz"
    groups = ("id_correct", "id_incorrect", "ood")
    np.savez(path, **{f"new\nline/{group}": np.array([0.1]) for group in groups})
    rows = plot_file("--vmsp", str(path), "--out", str(tmp_path / "a.png")).stdout.splitlines()
    assert [row[:8] for row in rows] == ["method  ", *["new line"] * 3]


def test_float32_integers_and_slashes_in_names_are_read(tmp_path):
    path = tmp_path / "a.npz"
    one = np.array([0, 0], dtype=np.int8), np.array([0.25, 0.5], np.float32), np.array([0.5])
    np.savez(path, **dict(zip(["x/y/id_correct", "x/y/id_incorrect", "x/y/ood"], one, strict=True)))
    (groups,) = read_vmsp(path).values()
    assert [values.dtype for values in groups.groups.values()] == [np.float64] * 3
    assert list(read_vmsp(path)) == ["x/y"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"NUQLS__ood": None}, "no array 'NUQLS/ood' beside the others of NUQLS"),
        ({"NUQLS__ood": ["a", "b"]}, "'NUQLS/ood' holds no real numbers but <U1"),
        ({"NUQLS__ood": [1j]}, "'NUQLS/ood' holds no real numbers but complex128"),
        ({"NUQLS__ood": [True]}, "'NUQLS/ood' holds no real numbers but bool"),
        ({"NUQLS__ood": np.array([None])}, "'NUQLS/ood': cannot be read"),
        (
            {"BASE__id_correct": [0.1, NAN]},
            "'BASE/id_correct': VMSP lies in [0, 0.5], but value 1 is nan",
        ),
        (
            {"BASE__id_correct": [-1e-9]},
            "'BASE/id_correct': VMSP lies in [0, 0.5], but value 0 is -1e-09",
        ),
        ({"BASE__id_correct": [0.1, 0.2, 0.51]}, "but value 2 is 0.51"),
        ({"BASE__id_correct": [np.inf]}, "but value 0 is inf"),
        ({"BASE__id_correct": []}, "'BASE/id_correct' is empty"),
        ({"BASE__id_correct": [[0.1, 0.2]]}, "'BASE/id_correct' must have shape (n,), one value"),
        ({"BASE__id_correct": 0.1}, "'BASE/id_correct' must have shape (n,)"),
        ({"BASE__correct": [0.1]}, "'BASE/correct' is none of METHOD/id_correct"),
        ({"ood": [0.1]}, "'ood' is none of METHOD/id_correct"),
    ],
)
def test_a_bad_array_is_one_line_that_names_file_and_array(tmp_path, changes, message):
    path = tmp_path / "mine.npz"
    np.savez(path, **arrays(**changes))
    done = plot_file("--vmsp", str(path), "--out", str(tmp_path / "a.png"))
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith(f"Error: {path}: ")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "a.png").exists()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("none.npz", None, "no such file"),
        ("folder.npz", "folder", "not a file"),
        ("text.npz", b"median,skew\n", "cannot be read. It must be an .npz file"),
        ("empty.npz", b"", "cannot be read. It must be an .npz file"),
        ("cut.npz", "cut", "cannot be read. It must be an .npz file"),
        ("array.npz", "array", "cannot be read. It must be an .npz file"),
        ("nothing.npz", "nothing", "holds no arrays"),
    ],
)
def test_a_file_of_another_kind_is_one_line(tmp_path, name, content, message):
    path = tmp_path / name
    if content == "folder":
        path.mkdir()
    elif content == "nothing":
        np.savez(path)
    elif content == "array":
        with path.open("wb") as file:
            np.save(file, np.ones(3))
    elif content == "cut":
        np.savez(path, **arrays())
        path.write_bytes(path.read_bytes()[:900])
    elif content is not None:
        path.write_bytes(content)
    done = plot_file("--vmsp", str(path), "--out", str(tmp_path / "a.png"))
    assert done.exit_code == 2
    assert done.stderr.startswith(f"Error: {path}: ")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "name either the folder of a RUN or --vmsp FILE.npz, and not both"),
        (("run", "--vmsp", "a.npz"), "and not both"),
        (("run",), "--kind: say what to draw: toy, calibration"),
        (("--vmsp", "a.npz", "--kind", "toy"), "--kind toy: only for a picture of a RUN"),
        (("--vmsp", "a.npz", "--seed", "0"), "--seed: only for a picture of a RUN"),
        (("--vmsp", "a.npz", "--ood", "mnist"), "--ood: only for a picture of a RUN"),
        (("--vmsp", "a.npz", "--problem", "x"), "--problem: only for a picture of a RUN"),
        (("--vmsp", "a.npz", "--out", "a.gif"), "a.gif: unknown suffix '.gif'"),
        (("--kind", "violin"), "name either the folder of a RUN or --vmsp"),
    ],
)
def test_a_run_and_a_file_are_alternatives(tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    np.savez("a.npz", **arrays())
    done = plot_file(*arguments)
    assert done.exit_code == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["a.npz"]
    assert plot_file("--vmsp", "a.npz", "--kind", "violin", "--log").exit_code == 0


# ---- a real run


def test_what_the_evaluator_keeps_can_be_drawn(tmp_path):
    request = Request(("map", "base"), problems=("sklearn/digits",), seeds=1, quick=True)
    for cell in plan(request):
        kept = []
        measured, cost, _ = evaluate_cell(cell, cache_dir=tmp_path, keep=kept.append)
        write_predictions(predictions_path(tmp_path, cell.key), kept[0])
        RecordFile(tmp_path).append(Record(cell.key, cell.identity(), "ok", measured, cost))
    results = Results.load(tmp_path)
    (axes,) = results.plot("violin", tmp_path / "violin.png").axes
    assert names(axes) == ["base"]
    assert "map (one sample, which has no VMSP)" in axes.get_xlabel()
    frame = results.frame.set_index("method")
    for group, column in (
        ("id_correct", "vmsp_id_correct_median"),
        ("id_incorrect", "vmsp_id_incorrect_median"),
        ("ood", "ood:held-out:vmsp_ood_median"),
    ):
        ((_, median),), _ = drawn(axes, group)
        assert median == pytest.approx(frame.loc["base", column], rel=1e-12)
    figure = results.plot("ood-roc")
    for method, line in curves(figure).items():
        area = trapezoid(line.get_ydata(), line.get_xdata())
        assert area == pytest.approx(frame.loc[method, "ood:held-out:ood_auc"], abs=1e-6)
