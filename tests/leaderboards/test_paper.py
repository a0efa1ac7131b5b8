"""The paper's numbers as data: copied faithfully, under names that uqbench has."""

import importlib.util
import math
from pathlib import Path

import pytest

from uqbench.metrics import METRICS
from uqbench.paper import TITLES, explanations, paper_numbers
from uqbench.problems import all_problems
from uqbench.registry import method_names

ROOT = Path(__file__).parents[2]
OTHER_SYSTEMS = {"pnc", "slu", "ella", "sampling_lla", "valla"}


@pytest.fixture(scope="module")
def numbers():
    return {(n.table, n.problem, n.printed_method, n.metric, n.ood_set): n for n in paper_numbers()}


def test_the_files_are_what_the_transcripts_give(paper, tmp_path):
    path = ROOT / "docs" / "paper_numbers.py"
    spec = importlib.util.spec_from_file_location("paper_numbers_script", path)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    script.transcribe(paper, tmp_path)
    written = {path.name: path.read_text("utf-8") for path in tmp_path.iterdir()}
    committed = (ROOT / "leaderboards" / "paper").glob("table*.csv")
    assert written == {path.name: path.read_text("utf-8") for path in committed}


def test_every_number_of_the_tables_is_there_once(numbers):
    assert len(numbers) == len(paper_numbers()) == 574
    assert {key[0] for key in numbers} == set(TITLES)


def test_numbers_are_as_printed_with_what_makes_them_our_metric(numbers):
    nll = numbers["table1", "uci/energy", "NUQLS", "nll", ""]
    assert (nll.mean, nll.std, nll.seeds, nll.decimals) == (-2.4, 0.209, 10, 3)
    assert nll.value == pytest.approx(-2.4 + 0.5 * math.log(2 * math.pi), abs=1e-15)
    auc = numbers["table2", "fashion-mnist/lenet5", "NUQLS", "auc_roc", "mnist"]
    assert (auc.value, auc.std, auc.seeds) == (0.870, 0.006, 5)
    assert numbers["table2", "mnist/lenet5", "LLA*", "nll", ""].offset == 0
    time = numbers["table9", "uci/song", "LLA-D", "post_hoc_seconds", ""]
    assert (time.method, time.mean, time.is_time) == ("lla", 210.429, True)
    rotated = numbers["table5", "mnist/slu-mlp", "NUQLS", "logit_var_auc", "rotated:mnist"]
    assert (rotated.mean, rotated.std) == (0.74, 0.01)
    median = numbers["table10", "fashion-mnist/resnet9", "LLA", "vmsp_id_correct_median", ""]
    assert (median.method, median.mean, median.decimals) == ("lla_last", 9.02e-10, 12)


def test_a_std_printed_as_zero_is_one_unit_of_the_last_digit(numbers):
    ece = numbers["table1", "uci/kin8nm", "NUQLS", "ece", ""]
    assert (ece.std, ece.yardstick) == (0, pytest.approx(0.001))
    assert numbers["table1", "uci/kin8nm", "NUQLS", "rmse", ""].yardstick == 0.005
    assert math.isnan(numbers["table7", "cifar-10/resnet20", "NUQLS", "nll", ""].yardstick)


def test_the_misprint_of_table_2_is_the_only_std_that_is_not_as_printed(numbers):
    accuracy = numbers["table2", "fashion-mnist/lenet5", "MAP", "accuracy", ""]
    assert (accuracy.std, accuracy.note) == (0.003, "std misprinted as 0.3")
    assert [n for n in numbers.values() if "misprint" in n.note] == [accuracy]


def test_every_number_has_a_problem_a_method_and_a_metric_of_ours(numbers):
    problems, methods = all_problems(), {*method_names(), *OTHER_SYSTEMS}
    for number in numbers.values():
        assert number.problem in problems
        assert number.method in methods
        if number.is_time:
            continue
        assert number.metric in METRICS
        assert METRICS[number.metric].per_ood == bool(number.ood_set)
        if number.ood_set:
            assert number.ood_set in problems[number.problem].ood


def test_every_explanation_is_a_sentence_with_an_experiment_and_covers_a_number(numbers):
    for one in explanations():
        assert one.because.endswith(".")
        assert one.evidence.endswith(".")
        assert any(one.covers(n, one.settings, "worse") for n in numbers.values())


def test_an_explanation_covers_only_what_its_patterns_and_settings_name(numbers):
    (lla,) = [one for one in explanations() if one.methods == ("lla",)]
    ece = numbers["table1", "uci/energy", "LLA", "ece", ""]
    assert lla.covers(ece, {"observation_noise": True, "samples": 10}, "worse")
    assert not lla.covers(ece, {"observation_noise": False}, "worse")
    assert not lla.covers(ece, {}, "worse")
    rmse = numbers["table1", "uci/energy", "LLA", "rmse", ""]
    assert not lla.covers(rmse, {"observation_noise": True}, "worse")
