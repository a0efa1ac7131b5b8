"""Methods by name: entry points of the group ``uqbench.methods``, and plug-in files.

Names are listed without importing anything; one lookup imports one module.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import re
import sys
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, fields
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from uqbench.errors import UQBenchError, UsageError
from uqbench.formatting import printable
from uqbench.method import Method
from uqbench.suggestions import did_you_mean

GROUP = "uqbench.methods"
BUILT_IN = "uqbench"
"""The source of uqbench's own methods; which version of them, a record's commit says."""


class Settings(dict[str, Any]):
    """Settings of one method, with the place that they come from, for error messages."""

    def __init__(self, values: Mapping[str, Any], source: str) -> None:
        super().__init__(values)
        self.source = source


@dataclass(frozen=True)
class _Plugin:
    """A method that a plug-in file defines. source: as :func:`method_source` returns it."""

    path: Path
    source: str
    method: type[Method]


# Plug-ins are the process's own: the command line and each worker load the files they are given.
_plugins: dict[str, _Plugin] = {}


def method_names() -> list[str]:
    """Names of all methods that are installed or loaded from plug-ins; imports none of them."""
    return sorted({*_installed(), *_plugins})


def method_title(name: str) -> str:
    """Return the first line of the docstring of a method's file; "" if there is none.

    Of a file with several methods, that of the class. It is read without importing the file: all of
    them, just to list them, would take seconds.
    """
    check_method_name(name)
    if name in _plugins:
        path, attribute = _plugins[name].path, _plugins[name].method.__name__
        several = sum(plugin.path == path for plugin in _plugins.values()) > 1
    else:
        entry = _installed()[name]
        attribute = entry.attr
        several = sum(one.module == entry.module for one in _installed().values()) > 1
        try:
            path = Path(find_spec(entry.module).origin)  # imports the package around the file
        except (Exception, SystemExit):  # of that package; who uses the method is told
            return ""
    return _title(path, attribute, several)


def check_method_name(name: str) -> None:
    """Raise a :class:`UsageError` with a suggestion if there is no such method."""
    known = method_names()
    if name not in known:
        raise UsageError(f"no method named '{name}'.{did_you_mean(name, known)}")


def find_method(name: str) -> type[Method]:
    """Return the class registered under ``name``, importing its module alone."""
    check_method_name(name)
    if name in _plugins:
        return _plugins[name].method
    entry = _installed()[name]
    where = f"method '{name}' ({_place(entry)})"
    try:
        target = import_module(entry.module)
        for attribute in entry.attr.split("."):
            target = getattr(target, attribute)
    except (Exception, SystemExit) as error:
        raise UsageError(f"{where} cannot be imported: {_first_line(error)}") from error
    _check_class(target, where)
    return target


def method_source(name: str) -> str:
    """Return whose code a method is, and in which version; empty if that is not known.

    ``uqbench``; of another package ``NAME VERSION``; of a plug-in ``FILE.py sha256:DIGEST``, the
    digest of the bytes that were loaded. What the file imports is not in it.
    """
    check_method_name(name)
    if name in _plugins:
        return _plugins[name].source
    package = _installed()[name].dist
    if package is None:
        return ""
    return BUILT_IN if package.name == BUILT_IN else f"{package.name} {package.version}"


def build_method(name: str, *layers: Mapping[str, Any]) -> Method:
    """Return the method with its defaults overridden by ``layers``; later layers win.

    A layer may be :class:`Settings`, whose source the error of a wrong setting then names.
    """
    method = find_method(name)
    known = setting_names(method)
    for layer in layers:
        for setting in layer:
            if setting not in known:
                hint = did_you_mean(setting, known)
                raise UsageError(f"{_where(name, layer)}: {name} has no setting '{setting}'.{hint}")
    try:
        return _validated(name, method, layers)
    except UsageError as last:
        # The layer at fault is the one from which on no stack of layers is valid.
        fault = last
        for count in range(len(layers) - 1, 0, -1):
            try:
                _validated(name, method, layers[:count])
                break
            except UsageError as error:
                fault = error
        raise fault from None


def setting_names(method: type[Method]) -> list[str]:
    """Names of a method's settings, in the order of definition."""
    return [field.name for field in fields(method) if field.init]


def load_plugins(paths: Iterable[str | Path]) -> None:
    """Register the methods that each file defines. A file that is loaded already is left alone.

    A method's name is its class variable ``name``, else the class's name in snake case. Classes
    whose names start with an underscore are not methods.
    """
    for path in map(Path, paths):
        _load_plugin(path.expanduser().resolve())


def _title(path: Path, class_name: str, several: bool) -> str:
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return ""
    classes = [one for one in tree.body if isinstance(one, ast.ClassDef) and one.name == class_name]
    of_file, *of_class = (ast.get_docstring(one) or "" for one in (tree, *classes))
    of_class = next(iter(of_class), "")
    text = of_class or of_file if several else of_file or of_class
    return printable(text.partition("\n")[0])


def _validated(name: str, method: type[Method], layers: tuple[Mapping[str, Any], ...]) -> Method:
    # pydantic takes a fifth of a second to import; listing names must not wait for it
    from pydantic import PydanticUserError

    from uqbench.problems import validated

    values = {key: value for layer in layers for key, value in layer.items()}
    where = _where(name, layers[-1]) if layers else f"method '{name}'"
    try:
        return validated(method, values, where)
    except UQBenchError:
        raise
    except PydanticUserError as error:
        message = f"the type of a setting cannot be checked: {_first_line(error)}"
        raise UsageError(f"method '{name}': {message}") from None
    except Exception as error:  # of the method's own __post_init__
        raise UsageError(f"{where}: {_first_line(error)}") from error


def _where(name: str, layer: Mapping[str, Any]) -> str:
    return getattr(layer, "source", f"settings of {name}")


@cache
def _installed() -> dict[str, EntryPoint]:
    entries: dict[str, EntryPoint] = {}
    for entry in entry_points(group=GROUP):
        other = entries.setdefault(entry.name, entry)
        if other is not entry:
            raise UsageError(_duplicate(entry.name, _place(other), _place(entry)))
    return entries


def _place(entry: EntryPoint) -> str:
    package = entry.dist.name if entry.dist else "unknown"
    return f"package {package}, {entry.value}"


def _duplicate(name: str, first: str, second: str) -> str:
    return f"two methods are named '{name}': {first}; and {second}. Rename or remove one."


def _load_plugin(path: Path) -> None:
    if any(plugin.path == path for plugin in _plugins.values()):
        return
    if not path.is_file():
        found = "a folder, not a file" if path.is_dir() else "no such file"
        raise UsageError(f"--plugin {path}: {found}")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UsageError(f"--plugin {path}: cannot be read: {error.strerror}") from None
    module = _import_file(path, content)
    source = f"{path.name} sha256:{hashlib.sha256(content).hexdigest()}"
    classes = [
        value
        for value in vars(module).values()
        if inspect.isclass(value)
        and issubclass(value, Method)
        and value.__module__ == module.__name__
        and not value.__name__.startswith("_")
    ]
    if not classes:
        raise UsageError(f"{path}: the file defines no subclass of uqbench.Method")
    found: dict[str, _Plugin] = {}
    for method in dict.fromkeys(classes):
        place = f"{path}: class {method.__name__}"
        _check_class(method, place)
        name = _plugin_name(path, method)
        if name in found:
            raise UsageError(_duplicate(name, str(path), place))
        if name in _plugins:
            raise UsageError(_duplicate(name, str(_plugins[name].path), place))
        if name in _installed():
            raise UsageError(_duplicate(name, _place(_installed()[name]), place))
        found[name] = _Plugin(path, source, method)
    _plugins.update(found)


def _import_file(path: Path, content: bytes) -> ModuleType:
    if path.suffix != ".py":
        raise UsageError(f"--plugin {path}: not a Python file (its name must end in .py)")
    # A private name under which dataclass annotations resolve and instances pickle; the same in
    # every process that loads the file.
    name = f"_uqbench_plugin_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    module = ModuleType(name)
    module.__file__ = str(path)
    sys.modules[name] = module
    try:
        # not by Python's loader, whose cache may hold the file as it was within the same second
        exec(compile(content, path, "exec", dont_inherit=True), vars(module))
    except SyntaxError as error:
        del sys.modules[name]
        raise UsageError(f"{error.filename}: line {error.lineno}: {error.msg}") from error
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        frames = traceback.extract_tb(error.__traceback__)
        line = next((frame.lineno for frame in frames[::-1] if frame.filename == str(path)), None)
        place = f"{path}: line {line}" if line else str(path)
        raise UsageError(f"{place}: cannot be imported: {_first_line(error)}") from error
    return module


def _plugin_name(path: Path, method: type[Method]) -> str:
    name = vars(method).get("name")
    if name is None or "name" in setting_names(method):
        words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", method.__name__)
        return words.lower()
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z]\w*", name):
        wanted = "letters, digits and underscores"
        raise UsageError(f"{path}: class {method.__name__}: name must be {wanted}, got {name!r}")
    return name


def _check_class(target: Any, where: str) -> None:
    if not (inspect.isclass(target) and issubclass(target, Method)):
        raise UsageError(f"{where} is not a subclass of uqbench.Method")
    own = vars(target).get("__dataclass_params__")
    if own is None or not own.frozen:
        raise UsageError(f"{where} is not a frozen dataclass: write @dataclass(frozen=True) above")
    if missing := sorted(target.__abstractmethods__):
        raise UsageError(f"{where} lacks the method {missing[0]}()")
    for field in fields(target):
        if field.init and field.default is MISSING and field.default_factory is MISSING:
            raise UsageError(f"{where}: the setting '{field.name}' has no default")


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".strip().splitlines()[0].rstrip(": ")
