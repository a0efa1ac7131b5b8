"""The suites that come with uqbench, and how a fault in a suite file is named."""

import numpy as np
import pytest

from uqbench.datasets import catalogue
from uqbench.errors import UsageError
from uqbench.method import Task
from uqbench.problems import all_problems, load_suite, suite_names


def problems(suite):
    return {problem.name: problem for problem in load_suite(suite).problems}


class TestShippedSuites:
    @pytest.mark.parametrize("name", suite_names())
    def test_every_suite_reads_and_its_data_sets_exist(self, name):
        suite = load_suite(name)
        assert suite.description
        tasks = {entry.name: entry.task for entry in catalogue.entries()}
        for problem in suite.problems:
            assert tasks[problem.dataset] is problem.task
            assert problem.description

    def test_the_starter_suite_needs_no_download(self):
        found = problems("starter")
        assert list(found) == ["toy/cubic", "sklearn/diabetes", "sklearn/digits"]
        status = {entry.name: entry.status for entry in catalogue.entries()}
        for problem in found.values():
            assert status[problem.dataset] == "bundled"
            data = catalogue.load_problem_data(
                problem.dataset,
                task=problem.task,
                split=problem.split,
                seed=0,
                standardise=problem.standardise,
                held_out_classes=problem.held_out_classes,
            )
            assert len(data.train)
        assert found["sklearn/digits"].held_out_classes == (8, 9)

    def test_the_toy_problem_is_that_of_figure_1(self):
        problem = problems("toy")["toy/cubic"]
        recipe = problem.training
        assert problem.network.hidden == (50,)
        assert problem.network.activation == "silu"
        assert not problem.standardise
        assert (recipe.optimizer, recipe.lr, recipe.epochs) == ("adam", 1e-3, 10000)
        assert (recipe.schedule, recipe.poly_total, recipe.batch_size) == ("poly", 1.0, 0)
        assert problem.methods["nuqls"]["gamma"] == 5
        assert problem.methods["de"]["lr"] == 0.05

    def test_the_convergence_suite_has_the_networks_of_figure_2(self):
        found = problems("convergence")
        networks = {name: (p.network.activation, p.network.hidden) for name, p in found.items()}
        assert networks == {
            "convergence/tanh-20": ("tanh", (20,)),
            "convergence/relu-20": ("relu", (20,)),
            "convergence/relu-20-20": ("relu", (20, 20)),
            "convergence/tanh-80": ("tanh", (80,)),
        }
        for problem in found.values():
            recipe = problem.training
            assert (problem.network.parameterisation, problem.network.bias) == ("ntk", False)
            assert (recipe.lr, recipe.epochs, recipe.nesterov) == (0.1, 5000, True)
            assert (problem.methods["nuqls"]["lr"], problem.methods["nuqls"]["gamma"]) == (0.1, 1)

    def test_the_intervals_have_the_sizes_of_tables_3_and_4(self):
        found = problems("intervals")
        widths = {name: problem.network.hidden for name, problem in found.items()}
        assert widths == {
            "intervals/d2-n128": (128,),
            "intervals/d4-n256": (256,),
            "intervals/d8-n512": (512,),
            "intervals/d16-n128": (128,),
            "intervals/d2-n128-wide": (32 * 128,),
            "intervals/d4-n256-wide": (32 * 256,),
        }
        for name, problem in found.items():
            recipe = problem.training
            expected = (0.01, 80) if name.endswith("wide") else (0.5, 1000)
            assert (recipe.lr, recipe.epochs) == expected
            assert (recipe.optimizer, recipe.momentum, recipe.batch_size) == ("sgd", 0, 0)
            assert problem.dataset.endswith(name.split("/")[1].removesuffix("-wide"))
            assert problem.methods["nuqls"]["inflation"] == 1.5

    def test_the_uci_suite_has_the_nine_problems_with_the_shared_settings(self):
        found = problems("uci")
        assert len(found) == 9
        for problem in found.values():
            assert problem.task is Task.REGRESSION
            assert problem.split == (0.70, 0.15, 0.15)
            assert problem.standardise
            assert problem.dtype == "float64"
            assert problem.network.activation == "tanh"
            assert problem.network.weight_init == "xavier_normal"
            assert problem.network.bias_init == "standard_normal"
            assert problem.training.batch_size == 200
            assert problem.training.momentum == 0.9
            assert problem.training.poly_total == 10
            assert problem.methods["nuqls"]["members"] == 10
            assert problem.methods["nuqls"]["gamma"] == 0.01
            for grid in ("noise_grid", "prior_grid"):
                np.testing.assert_allclose(problem.methods["lla"][grid], np.logspace(-2, 2, 10))

    @pytest.mark.parametrize(
        ("name", "hidden", "training", "nuqls", "de"),
        [
            ("energy", (150,), ("adam", 1500, 1e-5, "poly"), (1e-2, 150), (1e-3, 1500, "none")),
            ("concrete", (150,), ("adam", 1000, 1e-5, "poly"), (1e-2, 100), (1e-3, 300, "none")),
            ("kin8nm", (100, 100), ("sgd", 500, 1e-5, "none"), (1e-2, 50), (1e-2, 100, "cosine")),
            ("naval", (150, 150), ("sgd", 150, 1e-4, "none"), (1e-2, 15), (1e-3, 100, "none")),
            ("ccpp", (100, 100), ("adam", 100, 1e-5, "poly"), (1e-2, 10), (1e-2, 100, "none")),
            ("wine", (100,), ("sgd", 100, 1e-4, "none"), (1e-2, 10), (1e-2, 100, "none")),
            ("yacht", (100,), ("adam", 1000, 1e-5, "poly"), (1e-2, 100), (1e-2, 1000, "cosine")),
            (
                "protein",
                (150, 200, 150),
                ("sgd", 250, 1e-4, "none"),
                (1e-2, 25),
                (1e-2, 250, "none"),
            ),
            (
                "song",
                (1000, 1000, 500, 50),
                ("sgd", 50, 0, "none"),
                (1e-3, 10),
                (1e-2, 50, "none"),
            ),
        ],
    )
    def test_a_uci_recipe_is_that_of_table_12(self, name, hidden, training, nuqls, de):
        problem = problems("uci")[f"uci/{name}"]
        recipe, methods = problem.training, problem.methods
        assert problem.network.hidden == hidden
        assert recipe.lr == 1e-2
        assert training == (recipe.optimizer, recipe.epochs, recipe.weight_decay, recipe.schedule)
        assert nuqls == (methods["nuqls"]["lr"], methods["nuqls"]["epochs"])
        assert de == tuple(methods["de"][key] for key in ("lr", "epochs", "schedule"))
        assert methods["de"]["optimizer"] == "adam"
        structures = {"protein": "kron", "song": "diag"}
        assert methods["lla"]["structure"] == structures.get(name, "full")
        assert methods["nuqls"].get("solver") == ("minibatch" if name == "song" else None)

    def test_an_included_problem_is_the_one_that_it_names(self):
        assert problems("starter")["toy/cubic"] == all_problems()["toy/cubic"]


@pytest.fixture
def write(tmp_path):
    def write_suite(text):
        path = tmp_path / "mine.toml"
        path.write_text(text)
        return path

    return write_suite


def message(path):
    """The error's text after the file's name."""
    with pytest.raises(UsageError) as caught:
        load_suite(str(path))
    text = str(caught.value)
    assert text.startswith(f"{path}: ")
    assert "\n" not in text
    return text.removeprefix(f"{path}: ")


GOOD = '[problems.mine]\ndataset = "uci/wine"\ntask = "regression"\n'


class TestSuiteFiles:
    def test_a_suite_of_ones_own_reads_from_its_path(self, write):
        suite = load_suite(str(write(GOOD)))
        assert suite.name == "mine"
        assert [problem.dataset for problem in suite.problems] == ["uci/wine"]

    def test_a_problem_overrides_shared_values_key_by_key(self, write):
        path = write(
            "[shared]\n"
            "training = { lr = 0.5, epochs = 7 }\n"
            "methods.de = { members = 4, lr = 0.5 }\n"
            + GOOD
            + "training = { epochs = 9 }\nmethods.de = { lr = 0.25 }\n"
        )
        (problem,) = load_suite(str(path)).problems
        assert (problem.training.lr, problem.training.epochs) == (0.5, 9)
        assert problem.methods["de"] == {"members": 4, "lr": 0.25}

    @pytest.mark.parametrize(
        ("addition", "complaint"),
        [
            ("datset = 1", "datset: unknown key. Did you mean 'dataset'?"),
            (
                "network = { hiden = [5] }",
                "network.hiden: unknown key. Did you mean 'hidden'?",
            ),
            (
                "training = { weightdecay = 1.0 }",
                "training.weightdecay: unknown key. Did you mean 'weight_decay'?",
            ),
            (
                'training = { lr = "fast" }',
                "training.lr: Input should be a valid number, unable to parse string as a number, "
                "got 'fast'",
            ),
            ("training = { lr = -1.0 }", "training.lr: Input should be greater than 0, got -1.0"),
            (
                'training = { epochs = "10" }\nnetwork = { hidden = [5, 0] }',
                "network.hidden.1: Input should be greater than 0, got 0",
            ),
            (
                "network = 5",
                "network: Input should be a dictionary or an instance of NetworkSpec, got 5",
            ),
            ("split = [0.5, 0.2, 0.2]", "split must sum to 1, got [0.5, 0.2, 0.2]"),
            (
                "held_out_classes = [1]",
                "held_out_classes needs task = 'classification'",
            ),
        ],
    )
    def test_a_faulty_key_is_named_with_its_problem(self, write, addition, complaint):
        found = message(write(f"{GOOD}{addition}\n"))
        assert found == f'problems."mine": {complaint}'

    def test_a_wrong_task_lists_the_right_ones(self, write):
        found = message(write(GOOD.replace("regression", "ranking")))
        assert found == (
            "problems.\"mine\": task: Input should be 'regression' or 'classification', "
            "got 'ranking'"
        )

    def test_a_missing_key_is_named(self, write):
        found = message(write('[problems.mine]\ndataset = "uci/wine"\n'))
        assert found.startswith('problems."mine": task: ')

    def test_an_unknown_key_at_the_top_is_named(self, write):
        found = message(write(f'incude = ["toy/cubic"]\n{GOOD}'))
        assert found == "incude: unknown key. Did you mean 'include'?"

    def test_a_wrong_type_at_the_top_is_named(self, write):
        found = message(write(f'include = "toy/cubic"\n{GOOD}'))
        assert found.startswith("include: ")
        assert found.endswith("got 'toy/cubic'")

    def test_an_unknown_include_is_named_and_suggested(self, write):
        found = message(write('include = ["uci/enregy"]\n'))
        assert found == ("include: no problem named 'uci/enregy'. Did you mean 'uci/energy'?")

    def test_a_suite_without_problems_is_an_error(self, write):
        assert message(write('description = "nothing"\n')) == "the suite has no problems"

    def test_a_syntax_error_names_the_line(self, write):
        assert "line 2" in message(write('description = "x"\n[problems\n'))

    def test_a_missing_file_is_an_error(self, tmp_path):
        assert message(tmp_path / "none.toml") == "no such file"

    def test_an_unknown_suite_is_suggested(self):
        with pytest.raises(UsageError, match=r"no suite named 'uic'\. Did you mean 'uci'\?"):
            load_suite("uic")
