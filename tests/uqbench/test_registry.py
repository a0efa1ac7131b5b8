import hashlib
import inspect
import os
import pickle
import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest

from uqbench import registry
from uqbench.errors import UsageError
from uqbench.registry import (
    Settings,
    build_method,
    find_method,
    load_plugins,
    method_names,
    method_title,
)

HEADER = """
from __future__ import annotations
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal
from pydantic import Field
from uqbench.method import Method
"""

GOOD = (
    HEADER
    + """
@dataclass(frozen=True)
class MyNUQLS2(Method):
    members: Annotated[int, Field(ge=2)] = 10
    gamma: float = 0.01
    solver: Literal["auto", "exact"] = "auto"
    widths: tuple[int, ...] = (1,)
    broken: bool = False

    def __post_init__(self):
        if self.broken:
            len(5)
        if self.solver == "exact" and self.members > 20:
            raise ValueError("exact allows 20 members at most")

    def fit(self, problem, data, network, context): ...

@dataclass(frozen=True)
class Named(Method):
    name: ClassVar[str] = "another_name"
    def fit(self, problem, data, network, context): ...

@dataclass(frozen=True)
class _Base(Method):
    pass
"""
)


@pytest.fixture(autouse=True)
def no_plugins(monkeypatch):
    monkeypatch.setattr(registry, "_plugins", {})
    yield
    registry._installed.cache_clear()


@pytest.fixture
def plugin(tmp_path):
    def write(source: str, name: str = "plugin.py"):
        path = tmp_path / name
        path.write_text(source)
        return path

    return write


def entry_points(monkeypatch, *entries: tuple[str, str]) -> None:
    found = [EntryPoint(name, value, registry.GROUP) for name, value in entries]
    monkeypatch.setattr(registry, "entry_points", lambda group: found)
    registry._installed.cache_clear()


def test_the_built_in_methods_are_listed_by_name():
    assert {"map", "base", "nuqls", "de", "lla"} <= set(method_names())


def test_listing_names_imports_no_method_and_no_torch():
    code = (
        "import sys; from uqbench.registry import method_names; method_names(); "
        "heavy = {'torch', 'numpy', 'pydantic', 'pandas', 'rich', 'uqbench.methods'}; "
        "sys.exit(str(heavy & set(sys.modules)) if heavy & set(sys.modules) else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_listing_titles_imports_no_torch():
    code = (
        "import sys; from uqbench.registry import method_names, method_title; "
        "assert all(map(method_title, method_names())); "
        "heavy = {'torch', 'numpy', 'pydantic', 'pandas', 'rich'} & set(sys.modules); "
        "sys.exit(str(heavy) if heavy else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_title_is_the_first_line_of_the_file_or_of_one_of_its_several_classes():
    of_file = inspect.getdoc(inspect.getmodule(find_method("nuqls")))
    assert method_title("nuqls") == of_file.splitlines()[0]
    for name in ("lla", "lla_last"):
        assert method_title(name) == inspect.getdoc(find_method(name)).splitlines()[0]


def test_a_plugin_has_a_title_if_it_has_a_docstring(plugin):
    documented = 'class Named(Method):\n    """Knows\\tall.\n\n    More."""\n'
    path = plugin(GOOD.replace("class Named(Method):\n", documented))
    load_plugins([path])
    assert method_title("another_name") == "Knows all."
    assert method_title("my_nuqls2") == ""
    only = "@dataclass(frozen=True)\nclass Only(Method):\n    def fit(self, *given): ...\n"
    load_plugins([plugin(f'"""What it is."""\n{HEADER}{only}', "only.py")])
    assert method_title("only") == "What it is."


@pytest.mark.parametrize("value", ["nowhere.inside:A", "nowhere:A", "math:sin"])
def test_a_method_whose_file_tells_nothing_has_no_title(monkeypatch, value):
    entry_points(monkeypatch, ("broken", value))
    assert method_title("broken") == ""


def test_a_plugin_registers_its_methods_by_class_variable_or_snake_case(plugin):
    load_plugins([plugin(GOOD)])
    assert {"my_nuqls2", "another_name"} <= set(method_names())
    assert find_method("my_nuqls2").__name__ == "MyNUQLS2"


def test_loading_a_plugin_twice_changes_nothing(plugin):
    path = plugin(GOOD)
    load_plugins([path])
    load_plugins([path, str(path)])
    assert method_names().count("another_name") == 1


def test_a_plugins_method_pickles(plugin):
    load_plugins([plugin(GOOD)])
    method = build_method("my_nuqls2", {"gamma": 2})
    assert pickle.loads(pickle.dumps(method)) == method


def test_later_layers_of_settings_win_and_values_get_their_type(plugin):
    load_plugins([plugin(GOOD)])
    method = build_method("my_nuqls2", {"gamma": 1, "members": 3}, {"gamma": 2, "widths": [4, 5]})
    assert (method.members, method.gamma, method.widths) == (3, 2.0, (4, 5))
    assert isinstance(method.gamma, float)


def test_an_unknown_setting_names_its_source_and_suggests(plugin):
    load_plugins([plugin(GOOD)])
    with pytest.raises(UsageError, match=r"^--set my_nuqls2.gama=1: .*Did you mean 'gamma'\?$"):
        build_method("my_nuqls2", Settings({"gama": 1}, "--set my_nuqls2.gama=1"))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"members": 1}, "members: .*greater than or equal to 2, got 1"),
        ({"gamma": "abc"}, "gamma: .*valid number.*got 'abc'"),
        ({"solver": "fast"}, "solver: .*'auto' or 'exact'.*got 'fast'"),
        ({"broken": True}, "TypeError: object of type 'int' has no len"),
        ({"solver": "exact", "members": 30}, "exact allows 20 members at most"),
    ],
)
def test_a_wrong_value_names_its_own_layer_the_setting_and_the_value(plugin, values, message):
    load_plugins([plugin(GOOD)])
    layers = (Settings({"gamma": 1}, "below"), Settings(values, "here"), Settings({}, "above"))
    with pytest.raises(UsageError, match=f"^here: {message}"):
        build_method("my_nuqls2", *layers)


def test_a_setting_of_several_types_is_named_without_them():
    with pytest.raises(UsageError, match=r"^settings of nuqls: members: Input should be .*'many'$"):
        build_method("nuqls", {"members": "many"})


def test_a_wrong_value_that_a_later_layer_replaces_does_no_harm(plugin):
    load_plugins([plugin(GOOD)])
    assert build_method("my_nuqls2", {"members": 1}, {"members": 2}).members == 2


def test_a_misspelt_method_gets_a_suggestion():
    with pytest.raises(UsageError, match=r"no method named 'nuqsl'\. Did you mean 'nuqls'\?"):
        find_method("nuqsl")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("x = 1\ndef broken(:\n", r"plugin\.py: line 2: invalid syntax"),
        ("\n\nimport no_such_module\n", r"plugin\.py: line 3: cannot be imported: ModuleNotFound"),
        ("import sys; sys.exit(3)\n", r"plugin\.py: line 1: cannot be imported: SystemExit: 3"),
        ("\n1/0\n", r"plugin\.py: line 2: cannot be imported: ZeroDivisionError"),
        ("x = 1\n", "defines no subclass of uqbench.Method"),
        (HEADER, "defines no subclass of uqbench.Method"),
        (
            HEADER + "class A(Method):\n    x: int = 1\n    def fit(self, *a): ...\n",
            r"class A is not a frozen dataclass: write @dataclass\(frozen=True\)",
        ),
        (
            HEADER + "@dataclass\nclass A(Method):\n    def fit(self, *a): ...\n",
            "line 7: cannot be imported: TypeError: cannot inherit non-frozen dataclass",
        ),
        (HEADER + "@dataclass(frozen=True)\nclass A(Method): ...\n", r"A lacks the method fit\(\)"),
        (
            HEADER + "@dataclass(frozen=True)\nclass A(Method):\n    x: int\n"
            "    def fit(self, *a): ...\n",
            "class A: the setting 'x' has no default",
        ),
        (
            HEADER + "@dataclass(frozen=True)\nclass A(Method):\n    name: ClassVar[str] = 'a.b'\n"
            "    def fit(self, *a): ...\n",
            "class A: name must be letters, digits and underscores, got 'a.b'",
        ),
    ],
)
def test_a_broken_plugin_is_one_clear_line(plugin, source, message):
    with pytest.raises(UsageError, match=message) as caught:
        load_plugins([plugin(source)])
    assert "\n" not in str(caught.value)
    assert registry._plugins == {}


def test_a_setting_whose_type_cannot_be_checked_is_said(plugin):
    source = "class Odd: ...\n@dataclass(frozen=True)\nclass A(Method):\n    x: Odd = None\n"
    load_plugins([plugin(HEADER + source + "    def fit(self, *a): ...\n")])
    with pytest.raises(UsageError, match="method 'a': the type of a setting cannot be checked"):
        build_method("a")


def test_a_missing_plugin_file_is_an_error(tmp_path):
    with pytest.raises(UsageError, match=r"--plugin .*nowhere.py: no such file"):
        load_plugins([tmp_path / "nowhere.py"])


def test_a_plugin_with_a_built_in_name_is_refused_and_both_sources_are_named(plugin):
    source = "@dataclass(frozen=True)\nclass NUQLS(Method):\n    def fit(self, *a): ...\n"
    with pytest.raises(UsageError, match=r"named 'nuqls': package uqbench, .*plugin\.py: class"):
        load_plugins([plugin(HEADER + source)])


def test_two_plugins_with_one_name_are_refused(plugin):
    source = HEADER + "@dataclass(frozen=True)\nclass A(Method):\n    def fit(self, *a): ...\n"
    with pytest.raises(UsageError, match=r"named 'a': .*one\.py; and .*two\.py"):
        load_plugins([plugin(source, "one.py"), plugin(source, "two.py")])


def test_two_packages_with_one_name_are_refused(monkeypatch):
    entry_points(monkeypatch, ("x", "one:A"), ("x", "two:B"))
    with pytest.raises(UsageError, match=r"two methods are named 'x': .*one:A; and .*two:B"):
        method_names()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("no_such_module:A", "cannot be imported: ModuleNotFoundError"),
        ("json:NoSuchName", "cannot be imported: AttributeError"),
        ("json:JSONDecoder", "is not a subclass of uqbench.Method"),
        ("json:dumps", "is not a subclass of uqbench.Method"),
    ],
)
def test_a_broken_entry_point_is_one_clear_line(monkeypatch, value, message):
    entry_points(monkeypatch, ("broken", value), ("fine", "json:dumps"))
    assert method_names() == ["broken", "fine"]
    with pytest.raises(UsageError, match=f"method 'broken' .*{message}") as caught:
        find_method("broken")
    assert "\n" not in str(caught.value)


# Whose code a method is


def sha256(path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_the_source_of_a_plugin_is_its_name_without_folder_and_the_hash_of_its_bytes(plugin):
    path = plugin(GOOD.replace("\n", "\r\n"), "my file.py")
    load_plugins([path])
    for name in ("my_nuqls2", "another_name"):
        assert registry.method_source(name) == f"my file.py sha256:{sha256(path)}"


def test_the_source_is_of_the_bytes_that_were_loaded_and_not_of_a_later_edit(plugin):
    path = plugin(GOOD)
    loaded = sha256(path)
    load_plugins([path])
    plugin(GOOD + "\n")
    load_plugins([path])
    assert registry.method_source("another_name") == f"plugin.py sha256:{loaded}"


def test_an_edit_within_the_same_second_and_of_the_same_length_is_loaded(plugin, monkeypatch):
    """Python's own cache of bytecode, which knows time and length alone, would hide it."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    for gamma in ("0.01", "0.02"):
        monkeypatch.setattr(registry, "_plugins", {})
        path = plugin(GOOD.replace("gamma: float = 0.01", f"gamma: float = {gamma}"))
        os.utime(path, (1, 1))
        load_plugins([path])
        assert build_method("my_nuqls2").gamma == float(gamma)
        assert registry.method_source("my_nuqls2") == f"plugin.py sha256:{sha256(path)}"


def test_the_source_of_a_package_is_its_name_and_version(tmp_path, monkeypatch):
    info = tmp_path / "my_package-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text(f"[{registry.GROUP}]\nmine = my_package:Mine\n")
    monkeypatch.syspath_prepend(tmp_path)
    registry._installed.cache_clear()
    assert registry.method_source("mine") == "my-package 1.2"
    assert registry.method_source("nuqls") == "uqbench"


def test_a_method_of_no_known_package_has_no_source(monkeypatch):
    entry_points(monkeypatch, ("stray", "json:dumps"))
    assert registry.method_source("stray") == ""
