"""Problems and suites: typed, validated objects read from one TOML file per suite.

A suite file holds ``description``, ``include`` (problems defined in other suites), ``shared``
(values that every problem of the file starts from) and ``problems``, keyed by the problem's name::

    description = "UCI regression"

    [shared]
    task = "regression"
    network = { kind = "mlp", hidden = [50], activation = "tanh" }
    training = { optimizer = "adam", lr = 1e-2, epochs = 100 }

    [problems."uci/energy"]
    dataset = "uci/energy"
    network = { hidden = [150] }
    methods.nuqls = { epochs = 150 }
"""

from __future__ import annotations

import hashlib
import json
import math
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

from pydantic import Field, PositiveFloat, PositiveInt, TypeAdapter, ValidationError
from pydantic import NonNegativeFloat as NonNegative

from uqbench.errors import UsageError
from uqbench.method import Task
from uqbench.seeds import derive_seed
from uqbench.suggestions import did_you_mean

if TYPE_CHECKING:
    from uqbench.datasets.arrays import PreparedData
    from uqbench.datasets.image_problems import ImageParts

_FORBID_UNKNOWN_KEYS = {"extra": "forbid"}

Fraction = Annotated[float, Field(gt=0, lt=1)]


_OPTIONS_OF = {
    "hidden": ("mlp",),
    "activation": ("mlp", "lenet"),
    "depth": ("wrn",),
    "widen": ("wrn",),
    "bias": ("mlp",),
    "parameterisation": ("mlp",),
}
"""Fields of a network that only these kinds have."""


@dataclass(frozen=True)
class NetworkSpec:
    """The architecture and its initialisation.

    kind: a builder of :mod:`uqbench.architectures`.
    hidden: widths of an ``mlp``'s hidden layers. activation: of an ``mlp`` or a ``lenet``.
    depth, widen: of a ``wrn``.
    weight_init, bias_init: of linear and convolution layers; ``default`` is torch's own,
    ``standard_normal`` draws from N(0, 1).
    bias: whether the linear layers of an ``mlp`` have biases.
    parameterisation: of an ``mlp``, see :func:`uqbench.architectures.mlp`.
    weights: a file with the state of a network that somebody has trained, which is the MAP network
    of every seed: nothing is trained for post-hoc methods. A plain name is that of a file in the
    data root's ``weights``; see :mod:`uqbench.datasets.weights`.
    """

    __pydantic_config__ = _FORBID_UNKNOWN_KEYS
    kind: Literal[
        "mlp",
        "lenet",
        "lenet5",
        "resnet9",
        "resnet20",
        "resnet32",
        "resnet50",
        "resnet50_imagenet",
        "wrn",
    ] = "mlp"
    hidden: tuple[PositiveInt, ...] = (50,)
    activation: Literal["tanh", "relu", "silu", "gelu", "sigmoid"] = "tanh"
    depth: PositiveInt = 10
    widen: PositiveInt = 1
    weight_init: Literal[
        "default", "xavier_normal", "xavier_uniform", "kaiming_normal", "standard_normal"
    ] = "default"
    bias_init: Literal["default", "zeros", "standard_normal"] = "default"
    bias: bool = True
    parameterisation: Literal["standard", "ntk", "ntk_relu"] = "standard"
    weights: str | None = None

    def __post_init__(self) -> None:
        for name in self.unused_fields:
            if getattr(self, name) != getattr(NetworkSpec, name):
                raise ValueError(f"{name} is no option of kind '{self.kind}'")

    @property
    def unused_fields(self) -> tuple[str, ...]:
        """Fields that mean nothing to the kind; they have their defaults."""
        return tuple(name for name, kinds in _OPTIONS_OF.items() if self.kind not in kinds)

    def identity(self) -> dict[str, Any]:
        """All fields, ``weights`` by the file's name: the MAP network's id is of its content."""
        parts = asdict(self)
        for part, usual in (("bias", True), ("parameterisation", "standard")):
            if parts[part] == usual:  # as in records made before there was a choice
                del parts[part]
        weights = parts.pop("weights")
        return parts if weights is None else parts | {"weights": Path(weights).name}


@dataclass(frozen=True)
class Recipe:
    """How a network is trained.

    lr: step size; epochs: passes over the training split; batch_size: rows per step (0: all);
    weight_decay: L2 coefficient added to the gradient, as in torch; momentum: of SGD, which
    ``nesterov`` makes Nesterov's.
    schedule: ``poly`` is lr * (1 - t/total)^0.5 with total = ``poly_total`` * epochs,
    ``cosine`` is annealing to 0 over the epochs; both step once per epoch.
    augment: what is done at random to each training image, see :mod:`uqbench.augmentation`.
    """

    __pydantic_config__ = _FORBID_UNKNOWN_KEYS
    optimizer: Literal["adam", "sgd"] = "adam"
    lr: PositiveFloat = 1e-2
    epochs: PositiveInt = 100
    batch_size: Annotated[int, Field(ge=0)] = 200
    weight_decay: NonNegative = 0.0
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    nesterov: bool = False
    schedule: Literal["none", "poly", "cosine"] = "none"
    poly_total: PositiveFloat = 10.0
    augment: tuple[Literal["crop", "flip"], ...] = ()

    def __post_init__(self) -> None:
        if self.nesterov and not (self.optimizer == "sgd" and self.momentum):
            raise ValueError("nesterov needs optimizer = 'sgd' and a momentum")

    def identity(self) -> dict[str, Any]:
        """All fields, ``nesterov`` if it is set: records are older than it."""
        parts = asdict(self)
        if not self.nesterov:
            del parts["nesterov"]
        return parts


@dataclass(frozen=True)
class Normalisation:
    """Mean and standard deviation of each channel on the scale in which the largest pixel is 1."""

    __pydantic_config__ = _FORBID_UNKNOWN_KEYS
    mean: tuple[float, ...]
    std: tuple[PositiveFloat, ...]

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.std):
            raise ValueError("mean and std must have a number for each channel")


@dataclass(frozen=True)
class Subset:
    """The most images of each part (``ood``: of each OoD set); those that are kept are drawn."""

    __pydantic_config__ = _FORBID_UNKNOWN_KEYS
    train: PositiveInt
    validation: PositiveInt
    test: PositiveInt
    ood: PositiveInt


QUICK_SUBSET = Subset(train=8000, validation=500, test=1000, ood=1000)


@dataclass(frozen=True)
class Problem:
    """A data set with its splits, a network, a training recipe, and per-method settings.

    dataset: a name that ``uqbench data list`` shows, ``file:PATH`` for a table of one's own, or
    ``images:PATH`` for a folder of images of one's own.
    predict_batch: rows per call of ``Posterior.predict``.

    Of tables:
    target: the column to predict, for ``file:PATH`` alone.
    split: fractions of rows for training, test and validation.
    held_out_classes: classes (of the original labels) kept out of training; their rows are the
    OoD set ``held-out``.

    Of images, which have official training and test parts:
    validation: the fraction of the training part to draw for validation, or the data set's part
    that serves: ``val``, or ``test`` where the paper did so.
    ood: names of OoD sets, see :func:`uqbench.datasets.image_problems.image_parts`.
    subset: use some of the images only.
    image_size: height and width in pixels of ``images:PATH`` (default: their most common size).
    normalisation: what to standardise by in place of the training part's statistics: the constants
    that ``network.weights`` were trained with.
    """

    __pydantic_config__ = _FORBID_UNKNOWN_KEYS
    name: str
    dataset: str
    task: Task
    network: NetworkSpec = field(default_factory=NetworkSpec)
    training: Recipe = field(default_factory=Recipe)
    split: tuple[Fraction, Fraction, Fraction] = (0.70, 0.15, 0.15)
    standardise: bool = True
    held_out_classes: tuple[int | str, ...] = ()
    methods: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    dtype: Literal["float32", "float64"] = "float64"
    predict_batch: PositiveInt = 1000
    description: str = ""
    target: str | None = None
    validation: float | str | None = None
    ood: tuple[str, ...] = ()
    subset: Subset | None = None
    image_size: PositiveInt | None = None
    normalisation: Normalisation | None = None

    def __post_init__(self) -> None:
        if abs(sum(self.split) - 1) > 1e-9:
            raise ValueError(f"split must sum to 1, got {list(self.split)}")
        if self.held_out_classes and self.task is not Task.CLASSIFICATION:
            raise ValueError("held_out_classes needs task = 'classification'")
        if self.validation not in (None, "val", "test") and not _is_fraction(self.validation):
            raise ValueError(
                'validation must be a fraction of the training part, "val" or "test", got '
                f"{self.validation!r}"
            )
        if self.normalisation is not None and not self.standardise:
            raise ValueError("normalisation needs standardise = true")
        if self.of_images and self.task is not Task.CLASSIFICATION:
            raise ValueError("validation is of images, which need task = 'classification'")
        kind = "tables, not of images" if self.of_images else "images, which need validation"
        for name in self.unused_fields:
            if name != "split" and getattr(self, name) not in (None, ()):
                raise ValueError(f"{name} is of {kind}")

    @property
    def of_images(self) -> bool:
        """Whether the data set is one of images, not a table."""
        return self.validation is not None

    @property
    def unused_fields(self) -> tuple[str, ...]:
        """Fields that are of tables if this is of images, or the other way round."""
        return _OF_TABLES if self.of_images else _OF_IMAGES

    @property
    def of_own_data(self) -> bool:
        """Whether the data are somebody's own, which no name of a data set tells about."""
        return self.dataset.startswith(("file:", "images:"))

    def training_identity(self) -> dict[str, Any]:
        """All of the problem that the MAP network depends on, besides the data and the seed."""
        parts = asdict(self)
        for part in ("methods", "predict_batch", "description", *self.unused_fields):
            del parts[part]
        parts.pop("ood", None)
        if self.normalisation is None:
            parts.pop("normalisation", None)
        own = {"network": self.network.identity(), "training": self.training.identity()}
        return parts | own

    def quick(self) -> Problem:
        """The same problem with a tenth of the epochs, to try things out; never published.

        The ``epochs`` that the problem gives to its methods are cut as well, and images to
        ``QUICK_SUBSET`` unless the problem has a subset of its own.
        """
        methods = {
            name: {**settings, "epochs": _tenth(settings["epochs"])}
            if _is_count(settings.get("epochs"))
            else settings
            for name, settings in self.methods.items()
        }
        training = replace(self.training, epochs=_tenth(self.training.epochs))
        subset = self.subset or (QUICK_SUBSET if self.of_images else None)
        parts = [self.description, "quick: a tenth of the epochs"]
        return replace(
            self,
            training=training,
            methods=methods,
            subset=subset,
            description="; ".join(filter(None, parts)),
        )


_OF_TABLES = ("target", "split", "held_out_classes")
_OF_IMAGES = ("validation", "ood", "subset", "image_size", "normalisation")


def _is_fraction(value: Any) -> bool:
    return isinstance(value, float) and 0 < value < 1


def _tenth(epochs: int) -> int:
    return max(epochs // 10, 1)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


@dataclass(frozen=True)
class Suite:
    """A named list of problems."""

    name: str
    description: str
    problems: tuple[Problem, ...]


@dataclass(frozen=True)
class _SuiteFile:
    """The TOML file as written; problems are validated after ``shared`` is merged in."""

    __pydantic_config__ = _FORBID_UNKNOWN_KEYS
    description: str = ""
    include: tuple[str, ...] = ()
    shared: dict[str, Any] = field(default_factory=dict)
    problems: dict[str, dict[str, Any]] = field(default_factory=dict)


def validated(kind: type, values: Mapping[str, Any], where: str) -> Any:
    """Build ``kind`` from ``values``; raise a :class:`UsageError` that names the place and key."""
    unbounded = getattr(kind, "unbounded", ())
    _require_finite({k: v for k, v in values.items() if k not in unbounded}, where)
    try:
        return _validator(kind).validate_python(dict(values))
    except ValidationError as error:
        first = error.errors()[0]
        loc = first["loc"]
        branch = len(loc) > 1 and loc[-1] in _BRANCHES
        key = ".".join(map(str, loc[:-1] if branch else loc))
        place = f"{where}: {key}" if key else where
        if first["type"] == "unexpected_keyword_argument":
            hint = did_you_mean(str(first["loc"][-1]), _known_keys(kind, first["loc"][:-1]))
            raise UsageError(f"{place}: unknown key.{hint}") from None
        message = first["msg"].removeprefix("Value error, ")
        seen = "" if first["type"] in {"value_error", "missing"} else f", got {first['input']!r}"
        raise UsageError(f"{place}: {message}{seen}") from None


_BRANCHES = ("int", "float", "str")
"""What pydantic adds to the place of a value that may be of several types."""


_validator = cache(TypeAdapter)  # which takes longer to make than many methods to fit


def _require_finite(value: Any, where: str, key: str = "") -> None:
    """Refuse NaN and infinity, which no setting takes but those that a method says may be inf."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            _require_finite(item, where, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list | tuple):
        for item in value:
            _require_finite(item, where, key)
    elif isinstance(value, float) and not math.isfinite(value):
        if math.isinf(value) and "methods" in key.split("."):
            return  # of a suite: judged when the method is built
        raise UsageError(f"{where}: {key}: must be a finite number, got {value}")


def _known_keys(kind: Any, tables: tuple[str | int, ...]) -> list[str]:
    """Keys of the dataclass that is found by going down these tables; none if they are free."""
    for table in tables:
        kind = get_type_hints(kind).get(table) if is_dataclass(kind) else None
    return [key.name for key in fields(kind)] if is_dataclass(kind) else []


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``base`` updated by ``over``, tables merged key by key."""
    result = dict(base)
    for key, value in over.items():
        old = result.get(key)
        both_tables = isinstance(old, Mapping) and isinstance(value, Mapping)
        result[key] = merged(old, value) if both_tables else value
    return result


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file; a syntax error names the file and the line."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file") from None
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path}: {error}") from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise UsageError(f"{path}: line {line}: not UTF-8; save the file as UTF-8") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None


def suite_names() -> list[str]:
    """Names of the suites that come with uqbench."""
    return sorted(path.stem for path in _suite_folder().iterdir() if path.suffix == ".toml")


def _suite_folder() -> Path:
    return Path(str(resources.files("uqbench.datasets"))) / "suites"


def _suite_path(name: str) -> Path:
    if name.endswith(".toml"):
        return Path(name)
    if name not in suite_names():
        raise UsageError(f"no suite named '{name}'.{did_you_mean(name, suite_names())}")
    return _suite_folder() / f"{name}.toml"


def load_suite(name: str) -> Suite:
    """Read a suite by its name, or from a path that ends in ``.toml``."""
    path = _suite_path(name)
    file = validated(_SuiteFile, read_toml(path), str(path))
    known = {} if not file.include else all_problems(skip=path.stem)
    problems = []
    for included in file.include:
        if included not in known:
            hint = did_you_mean(included, known)
            raise UsageError(f"{path}: include: no problem named '{included}'.{hint}")
        problems.append(known[included])
    problems += _defined(path, file)
    if not problems:
        raise UsageError(f"{path}: the suite has no problems")
    return Suite(path.stem, file.description, tuple(problems))


def all_problems(skip: str = "") -> dict[str, Problem]:
    """All problems of the suites that come with uqbench, by name, where they are defined."""
    problems: dict[str, Problem] = {}
    for name in suite_names():
        if name == skip:
            continue
        path = _suite_path(name)
        file = validated(_SuiteFile, read_toml(path), str(path))
        problems |= {problem.name: problem for problem in _defined(path, file)}
    return problems


def defining_suites() -> dict[str, str]:
    """Problem -> the suite whose file defines it, for all that come with uqbench."""
    return {
        problem: suite
        for suite in suite_names()
        for problem in read_toml(_suite_path(suite)).get("problems", {})
    }


def _defined(path: Path, file: _SuiteFile) -> list[Problem]:
    """The file's own problems, ``shared`` merged in."""
    return [
        validated(
            Problem,
            {"name": name, **merged(file.shared, values)},
            f'{path}: problems."{name}"',
        )
        for name, values in file.problems.items()
    ]


def problem_data(
    problem: Problem, seed: int, root: str | Path | None = None, memory: int | None = None
) -> PreparedData:
    """Return the problem's data for one seed; every method of that seed gets the same.

    memory: of images, see :func:`uqbench.datasets.image_problems.prepare_images`.
    """
    if problem.of_images:
        from uqbench.datasets.image_problems import prepare_images

        parts = _image_parts(problem, seed, root)
        return prepare_images(parts, problem.standardise, problem.normalisation, memory)
    from uqbench.datasets.catalogue import load_problem_data

    return load_problem_data(
        problem.dataset,
        task=problem.task,
        split=problem.split,
        seed=derive_seed(problem.name, seed, "split"),
        standardise=problem.standardise,
        held_out_classes=problem.held_out_classes,
        root=root,
        target=problem.target,
    )


def data_fingerprint(problem: Problem, seed: int, root: str | Path | None = None) -> str:
    """Return the fingerprint of :func:`problem_data`, and raise what it would raise.

    No pixel of an image is normalised for it.
    """
    if problem.of_images:
        return _image_parts(problem, seed, root).fingerprint
    return problem_data(problem, seed, root).fingerprint


def network_sides(
    problem: Problem, seed: int, root: str | Path | None = None
) -> tuple[tuple[int, ...], int]:
    """Return the shape of one input of the problem's network and its number of outputs."""
    if problem.of_images:
        train = _image_parts(problem, seed, root).train
        return train.shape, len(train.class_names)
    data = problem_data(problem, seed, root)
    return data.train.inputs.shape[1:], data.num_classes or 1


def _image_parts(problem: Problem, seed: int, root: str | Path | None) -> ImageParts:
    from uqbench.datasets.image_problems import image_parts
    from uqbench.datasets.root import data_root

    return image_parts(
        problem.dataset,
        validation=problem.validation,
        seed=derive_seed(problem.name, seed, "split"),
        root=data_root(root),
        ood=problem.ood,
        subset=problem.subset,
        image_size=problem.image_size,
    )


def digest(value: Any) -> str:
    """sha256 of a JSON-like value, independent of the order of keys; 64 hex digits."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=True)
    return hashlib.sha256(text.encode()).hexdigest()
