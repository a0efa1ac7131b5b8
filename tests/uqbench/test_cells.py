import json
from dataclasses import asdict, replace

import pytest

from uqbench import api, cells, registry
from uqbench.cells import Request, parse_setting, plan
from uqbench.errors import DataError, UsageError
from uqbench.problems import NetworkSpec, Recipe
from uqbench.registry import Settings, load_plugins

PLUGIN = """
from dataclasses import dataclass
from typing import ClassVar
from uqbench.errors import UsageError
from uqbench.method import Method, Task

@dataclass(frozen=True)
class PostHoc(Method):
    members: int = 10
    gamma: float = 0.01
    solver: str = "auto"
    widths: tuple[int, ...] = (1, 2)

    def check_task(self, task):
        if task is Task.REGRESSION and self.members == 99:
            raise UsageError("99 members make no sense")

    def fit(self, problem, data, network, context): ...

@dataclass(frozen=True)
class Standalone(Method):
    post_hoc: ClassVar[bool] = False
    def fit(self, problem, data, network, context): ...
"""

SUITE = """
[shared]
dataset = "toy/cubic"
task = "regression"
standardise = false

[problems."toy/a"]
methods.post_hoc = { members = 5, gamma = 1 }

[problems."toy/b"]
training = { epochs = 50 }
"""


@pytest.fixture(autouse=True)
def plugin(tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "_plugins", {})
    (tmp_path / "plugin.py").write_text(PLUGIN)
    load_plugins([tmp_path / "plugin.py"])


@pytest.fixture
def suite(tmp_path):
    def write(text: str = SUITE) -> str:
        path = tmp_path / "mini.toml"
        path.write_text(text)
        return str(path)

    return write


@pytest.fixture
def request_(suite):
    return Request(methods=("post_hoc", "standalone"), suite=suite(), seeds=2)


def with_settings(request, *texts: str):
    return replace(request, settings=tuple(map(parse_setting, texts)))


def test_cells_come_in_the_order_problem_seed_method(request_):
    assert [(c.problem.name, c.seed, c.method) for c in plan(request_)] == [
        (problem, seed, method)
        for problem in ("toy/a", "toy/b")
        for seed in (0, 1)
        for method in ("post_hoc", "standalone")
    ]


def test_a_method_that_is_named_twice_runs_once(request_):
    assert len(plan(replace(request_, methods=("post_hoc", "post_hoc")))) == 4


def test_settings_are_complete_and_the_command_line_beats_the_problem_beats_the_default(request_):
    first = plan(with_settings(request_, "post_hoc.gamma=0.5"))[0]
    assert first.settings == {"members": 5, "gamma": 0.5, "solver": "auto", "widths": (1, 2)}


def test_planning_again_gives_the_same_keys_and_no_two_cells_share_one(request_):
    keys = [cell.key for cell in plan(request_)]
    assert keys == [cell.key for cell in plan(request_)]
    assert len(set(keys)) == len(keys) == 8


def test_choices_that_came_later_leave_older_identities_as_they_were():
    network, recipe = NetworkSpec().identity(), Recipe(optimizer="sgd").identity()
    assert not {"bias", "parameterisation", "nesterov"} & {*network, *recipe}
    assert NetworkSpec(bias=False).identity() == {**network, "bias": False}
    assert NetworkSpec(parameterisation="ntk").identity() == {**network, "parameterisation": "ntk"}
    assert Recipe(optimizer="sgd", nesterov=True).identity() == {**recipe, "nesterov": True}


def test_an_identity_is_plain_json(request_):
    identity = asdict(plan(request_)[0].identity())
    identity["split"] = list(identity["split"])
    assert json.loads(json.dumps(identity)) == identity


def test_writing_a_default_out_does_not_change_the_key(request_):
    keys = [cell.key for cell in plan(request_)]
    assert keys == [c.key for c in plan(with_settings(request_, 'post_hoc.solver="auto"'))]
    same_number = with_settings(request_, "post_hoc.gamma=1", "post_hoc.members=5")
    assert keys[0] == plan(same_number)[0].key


@pytest.mark.parametrize(
    "line",
    [
        "training = { epochs = 51 }",
        "network = { hidden = [7] }",
        'dtype = "float32"',
        "split = [0.6, 0.2, 0.2]",
    ],
)
def test_whatever_changes_a_trained_network_changes_the_key(request_, suite, line):
    before = plan(request_)
    suite(SUITE.replace("training = { epochs = 50 }", line))
    after = plan(request_)
    same = [old.key == new.key for old, new in zip(before, after, strict=True)]
    assert same == [True] * 4 + [False] * 4


def test_a_description_does_not_change_the_key(request_, suite):
    before = [cell.key for cell in plan(request_)]
    suite(SUITE + 'description = "words"\npredict_batch = 7\n')
    assert [cell.key for cell in plan(request_)] == before


def test_post_hoc_methods_share_one_checkpoint_per_problem_and_seed(request_):
    cells = plan(replace(request_, methods=("post_hoc", "map", "standalone")))
    names = {}
    for cell in cells:
        names.setdefault((cell.problem.name, cell.seed), {})[cell.method] = cell.map_checkpoint
    assert all(n["post_hoc"] == n["map"] != "" == n["standalone"] for n in names.values())
    assert len({n["map"] for n in names.values()}) == 4


def test_quick_trains_a_tenth_and_is_another_cell(request_):
    full, quick = plan(request_)[-1], plan(replace(request_, quick=True))[-1]
    assert (full.problem.training.epochs, quick.problem.training.epochs) == (50, 5)
    assert quick.quick
    assert full.key != quick.key


def test_problems_without_a_suite_belong_to_the_suite_that_defines_them():
    cells = plan(Request(methods=("map",), problems=("toy/cubic", "sklearn/digits"), seeds=1))
    assert [(c.suite, c.problem.name) for c in cells] == [
        ("toy", "toy/cubic"),
        ("starter", "sklearn/digits"),
    ]


def test_problems_of_a_suite_can_be_picked(request_):
    assert {c.problem.name for c in plan(replace(request_, problems=("toy/b",)))} == {"toy/b"}


def test_the_default_suite_is_starter():
    cells = plan(Request(methods=("map",), seeds=1))
    assert {cell.suite for cell in cells} == {"starter"}


def test_a_table_of_ones_own_is_a_problem(tmp_path):
    path = tmp_path / "houses.csv"
    rows = "\n".join(f"{i},{i * i % 17},{i % 5}.5" for i in range(60))
    path.write_text(f"a,b,price\n{rows}\n")
    [cell] = plan(Request(methods=("map",), seeds=1, data=path, target="price"))
    assert (cell.suite, cell.problem.name, cell.problem.target) == ("houses", "houses", "price")
    (tmp_path / "elsewhere").mkdir()
    moved = path.rename(tmp_path / "elsewhere" / "houses.csv")
    [again] = plan(Request(methods=("map",), seeds=1, data=moved, target="price"))
    assert again.key == cell.key
    assert str(tmp_path) not in json.dumps(asdict(cell.identity()))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("m.s=1", 1),
        ("m.s=1e-3", 1e-3),
        ("m.s=true", True),
        ("m.s=[1, 2]", [1, 2]),
        ('m.s="quoted"', "quoted"),
        ("m.s=kron", "kron"),
        (" m.s = last layer ", "last layer"),
        ("m.s=a=b", "a=b"),
        ("m.s=1\nt=2", "1\nt=2"),
    ],
)
def test_a_setting_is_a_toml_literal_or_else_a_string(text, value):
    assert parse_setting(text) == ("m", {"s": value})


@pytest.mark.parametrize("text", ["m.s", "s=1", "m.s=", "=1", ".s=1", "m.=1", ""])
def test_a_malformed_setting_says_how_to_write_one(text):
    with pytest.raises(UsageError, match=r"must be METHOD.SETTING=VALUE, like nuqls.gamma=0.1"):
        parse_setting(text)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"methods": ()}, "no methods given"),
        ({"methods": ("nuqsl",)}, "no method named 'nuqsl'. Did you mean 'nuqls'"),
        ({"seeds": 0}, "--seeds must be at least 1, got 0"),
        ({"suite": "startr"}, "no suite named 'startr'. Did you mean 'starter'"),
        ({"suite": "no/such.toml"}, "no/such.toml: no such file"),
        ({"suite": "uci", "problems": ("uci/enrgy",)}, "Did you mean 'uci/energy'"),
        ({"suite": None, "problems": ("uci/enrgy",)}, "Did you mean 'uci/energy'"),
    ],
)
def test_a_wrong_name_is_an_error_that_suggests(request_, changes, message):
    with pytest.raises(UsageError, match=message):
        plan(replace(request_, **changes))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("map.x=1", r"^--set map.x=1: map is not among --methods$"),
        ("mpa.x=1", r"no method named 'mpa'. Did you mean 'map'"),
        ("post_hoc.gama=1", r"^--set post_hoc.gama=1: .*Did you mean 'gamma'"),
        ("post_hoc.gamma=x", r"^--set post_hoc.gamma=x: gamma: .*got 'x'"),
        ("post_hoc.members=99", r"^--set post_hoc.members=99: 99 members make no sense \(on toy/a"),
    ],
)
def test_a_wrong_setting_is_an_error_that_quotes_the_flag(request_, text, message):
    with pytest.raises(UsageError, match=message):
        plan(with_settings(request_, text))


def test_a_wrong_setting_in_a_suite_names_the_problem_and_the_method(request_, suite):
    suite(SUITE.replace("gamma = 1", "gama = 1"))
    with pytest.raises(UsageError, match=r'suite mini: problems."toy/a".methods.post_hoc: .*gama'):
        plan(request_)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("post_hoc = {", "post_hok = {", r"\.methods: no method named 'post_hok'.*'post_hoc'"),
        ("toy/cubic", "toy/cubc", r'^suite mini: problems."toy/a": no data set .*\'toy/cubic\''),
        ("= false", "= true", r'^suite mini: problems."toy/a": .*say standardise = false'),
        ("toy/cubic", "file:t.csv", r'^suite mini: problems."toy/a": file:t.csv: no target'),
        ("epochs = 50", "lr = inf", r"training.lr: must be a finite number, got inf"),
        ("gamma = 1", "gamma = nan", r"methods.post_hoc.gamma: must be a finite number, got nan"),
    ],
)
def test_a_fault_in_a_suite_names_the_suite_and_the_problem(request_, suite, old, new, message):
    suite(SUITE.replace(old, new))
    with pytest.raises(UsageError, match=message):
        plan(request_)


@pytest.mark.parametrize("value", ["inf", "-inf", "nan"])
def test_a_setting_that_is_not_finite_is_refused(request_, value):
    with pytest.raises(UsageError, match=f"gamma: must be a finite number, got {value}"):
        plan(with_settings(request_, f"post_hoc.gamma={value}"))


def test_quick_cuts_the_epochs_that_a_problem_gives_a_method(suite, tmp_path):
    text = SUITE.replace("methods.post_hoc", "methods.de = { epochs = 300 }\nmethods.post_hoc")
    request = Request(methods=("de",), suite=suite(text), seeds=1)
    assert [cell.settings["epochs"] for cell in plan(request)] == [300, None]
    quick = replace(request, quick=True)
    assert [cell.settings["epochs"] for cell in plan(quick)] == [30, None]
    asked = plan(with_settings(quick, "de.epochs=200"))
    assert [cell.settings["epochs"] for cell in asked] == [200, 200]


def test_a_wrong_setting_from_python_names_it(request_):
    layer = ("post_hoc", Settings({"gamma": None}, "setting post_hoc.gamma=None"))
    with pytest.raises(UsageError, match=r"^setting post_hoc.gamma=None: gamma: "):
        plan(replace(request_, settings=(layer,)))


def test_missing_data_is_found_before_any_work(tmp_path):
    request = Request(methods=("map",), problems=("uci/energy",), seeds=1, data_dir=tmp_path)
    with pytest.raises(DataError, match="uqbench data fetch"):
        plan(request)


def test_given_ood_sets_take_the_place_of_a_problems_own():
    asked = api.request("map", problems=["mnist/slu-mlp"], ood=["fashion-mnist", "rotated:mnist"])
    [(suite, problem)] = cells._problems(asked)
    assert suite == "images"
    assert problem.ood == ("fashion-mnist", "rotated:mnist")
    assert problem.description.endswith("; here OoD: fashion-mnist, rotated:mnist")
    [(_, unchanged)] = cells._problems(api.request("map", problems=["mnist/slu-mlp"]))
    assert unchanged.ood == ("fashion-mnist", "kmnist", "rotated:mnist")
    with pytest.raises(UsageError, match="no such folder, and no data set of that name"):
        cells._problems(api.request("map", problems=["mnist/slu-mlp"], ood=["fashon-mnist"]))
