"""Tables 10 and 11 of the paper from the authors' own values, digit for digit, and BASE."""

import csv
from decimal import Decimal

import numpy as np
import pytest
from scipy import stats

from uqbench.methods.base import RandomBaseline
from uqbench.metrics.vmsp import skew, vmsp, vmsp_summary
from uqbench.vmsp_values import read_vmsp, statistics_table

RAW_FILES = {
    ("resnet50", "cifar-100"): "resnet50_cifar-100.npz",
    ("resnet9", "fashion-mnist"): "resnet9_fashion-mnist.npz",
    ("wrn-34-1", "fashion-mnist"): "wrn_fashion-mnist_be.npz",
}

# Entries that the raw values do not give: what is printed, and what the raw values round to.

# BASE of Table 10's ResNet9 and of Table 11's WRN print the same three skews, 1.01, 1.11 and 1.11:
# one draw stands in both rows, and it is the draw of neither file. The file of the ResNet9 is the
# draw of Table 11's ResNet9, whose skews it gives. (The WRN file's OoD skew is 1.11 as well.)
ANOTHER_DRAW_OF_BASE = {
    ("table10", "resnet9", "BASE", "id_correct", "skew"): ("1.01", "0.93"),
    ("table10", "resnet9", "BASE", "id_incorrect", "skew"): ("1.11", "1.15"),
    ("table10", "resnet9", "BASE", "ood", "skew"): ("1.11", "1.05"),
    ("table11", "wrn-34-1", "BASE", "id_correct", "skew"): ("1.01", "1.03"),
    ("table11", "wrn-34-1", "BASE", "id_incorrect", "skew"): ("1.11", "1.13"),
}
# The raw median is 0.02063; nearly every median of BASE is printed as 0.020.
ROUNDED_TO_WHAT_BASE_SHOULD_BE = {
    ("table10", "resnet9", "BASE", "id_correct", "median"): ("0.020", "0.021"),
    ("table11", "resnet9", "BASE", "id_correct", "median"): ("0.020", "0.021"),
}
# The WRN file was made for BatchEnsemble, and holds another run of NUQLS. Its members are nearly
# one-hot: a VMSP of 0.1 says that one of ten dissents, 0.178 that two do.
ANOTHER_RUN_OF_NUQLS = {
    ("table11", "wrn-34-1", "NUQLS", "id_incorrect", "median"): ("0.178", "0.100"),
    ("table11", "wrn-34-1", "NUQLS", "ood", "median"): ("0.173", "0.100"),
    ("table11", "wrn-34-1", "NUQLS", "id_correct", "skew"): ("3.1", "4.4"),
    ("table11", "wrn-34-1", "NUQLS", "id_incorrect", "skew"): ("-0.342", "0.334"),
    ("table11", "wrn-34-1", "NUQLS", "ood", "skew"): ("-0.0875", "0.4033"),
}
# The paper took the lower of the two middle values of an even number, as torch.median does.
LOWER_MEDIANS = {
    ("table10", "resnet9", "MC", "id_correct", "median"): ("5.05e-7", "5.06e-7"),
    ("table10", "resnet50", "DE", "id_correct", "median"): ("8.73e-4", "8.76e-4"),
    ("table11", "wrn-34-1", "BE", "id_correct", "median"): ("8.31e-5", "8.32e-5"),
}
OTHER_VALUES = ANOTHER_DRAW_OF_BASE | ROUNDED_TO_WHAT_BASE_SHOULD_BE | ANOTHER_RUN_OF_NUQLS


@pytest.fixture(scope="module")
def entries(paper):
    """(table, model, method, group, statistic) -> printed number and raw values."""
    raw = {key: read_vmsp(paper / "vmsp_raw" / name) for key, name in RAW_FILES.items()}
    found = {}
    with (paper / "vmsp.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            methods = raw.get((row["model"], row["id_dataset"]), {})
            if row["method"] in methods:
                key = [row[name] for name in ("table", "model", "method", "group", "statistic")]
                found[tuple(key)] = row["value"], methods[row["method"]].groups[row["group"]]
    assert len(found) == 102
    return found


def differences(entries, of):
    """Entries whose printed number is not that of the raw values, rounded to as many digits."""
    found = {}
    for key, (text, values) in entries.items():
        printed = Decimal(text)
        digits = Decimal(1).scaleb(printed.as_tuple().exponent)
        rounded = Decimal(of(key[-1], values)).quantize(digits)
        if rounded != printed:
            found[key] = printed, rounded
    return found


def as_decimals(exceptions):
    return {key: tuple(map(Decimal, pair)) for key, pair in exceptions.items()}


def test_the_metrics_give_every_printed_digit_but_for_known_exceptions(entries):
    found = differences(entries, lambda statistic, values: vmsp_summary(values)[statistic])
    assert found == as_decimals(OTHER_VALUES | LOWER_MEDIANS)


def test_with_lower_medians_only_entries_of_other_values_differ(entries):
    def of(statistic, values):
        return skew(values) if statistic == "skew" else np.sort(values)[(len(values) - 1) // 2]

    assert differences(entries, of) == as_decimals(OTHER_VALUES)


def test_what_is_worse_than_base_is_what_the_paper_prints_in_grey(paper):
    """Table 10, ResNet9 on FashionMNIST."""
    values = read_vmsp(paper / "vmsp_raw" / "resnet9_fashion-mnist.npz")
    heading, *rows = statistics_table(values)
    worse = {
        (method, group, heading[column])
        for method, group, *numbers in rows
        for column, number in enumerate(numbers, start=2)
        if "▿" in number
    }
    assert worse == {
        ("MC", "id_incorrect", "median"),
        ("MC", "id_incorrect", "skew"),
        ("MC", "ood", "median"),
        ("MC", "ood", "skew"),
        ("LLA", "id_incorrect", "median"),
        ("LLA", "id_incorrect", "skew"),
        ("LLA", "ood", "median"),
    }


@pytest.fixture(scope="module")
def base_values(truths):
    """VMSP of the method ``base`` with 10 classes, 10,000 points."""
    data = truths.classification_data()
    arguments = (truths.problem(data.task), data, truths.mlp(3, 3), truths.context())
    prediction = RandomBaseline(classes=10).fit(*arguments).predict(truths.rows(10_000, 3, 0))
    return vmsp(prediction.probabilities.numpy(), prediction.variance.numpy())


def test_base_has_the_median_and_the_skew_of_the_tables(base_values):
    summary = vmsp_summary(base_values)
    assert summary["count"] == 10_000
    assert summary["median"] == pytest.approx(0.0200, abs=0.0005)
    assert summary["skew"] == pytest.approx(1.07, abs=0.08)


def test_base_has_the_distribution_of_the_authors_base(base_values, paper):
    for name in RAW_FILES.values():
        groups = read_vmsp(paper / "vmsp_raw" / name)["BASE"].groups
        theirs = np.concatenate([groups["id_correct"], groups["id_incorrect"]])
        for values in (theirs, groups["ood"]):
            assert stats.ks_2samp(base_values, values).pvalue > 0.01
