"""Inputs that are read batch by batch: the tensor they stand for, reading ahead, and methods."""

import threading
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from uqbench import evaluator
from uqbench.cells import Cell
from uqbench.datasets import image_folders
from uqbench.datasets.arrays import Images
from uqbench.datasets.image_inputs import ImageInputs
from uqbench.errors import DataError, UnsupportedError
from uqbench.evaluator import evaluate_cell
from uqbench.linearised import linearise
from uqbench.method import Task
from uqbench.problems import NetworkSpec, Problem, Recipe, data_fingerprint
from uqbench.streamed import StreamedInputs, gathered, in_batches, rows_per_batch

ROWS, SHAPE = 23, (3, 4, 5)


def source(rows=ROWS, shape=SHAPE, read=None):
    pixels = np.random.default_rng(0).integers(0, 256, (rows, *shape), dtype=np.uint8)
    images = Images.held("noise", pixels, np.arange(rows) % 2)
    if read is not None:
        images = replace(images, read=read(images.read))
    return ImageInputs(images, np.array([0.4, 0.5, 0.6]), np.array([0.1, 0.2, 0.3]))


def streamed(dtype=torch.float32, **settings):
    return StreamedInputs(source(**settings), dtype, torch.device("cpu"))


@pytest.fixture
def tensor():
    return torch.from_numpy(source().held())


class TestTensor:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_it_describes_itself_as_the_tensor_does(self, tensor, dtype):
        inputs, tensor = streamed(dtype), tensor.to(dtype)
        for name in ("shape", "ndim", "dtype", "device", "nbytes"):
            assert getattr(inputs, name) == getattr(tensor, name)
        assert len(inputs) == len(tensor)
        assert inputs.element_size() == tensor.element_size()

    @pytest.mark.parametrize(
        "rows",
        [
            slice(None),
            slice(3, 9),
            slice(-2, None),
            slice(20, 99),
            slice(5, 5),
            torch.tensor([4, 0, 22]),
            torch.tensor([7, 7, -1, 7]),
            torch.tensor([[1, 2, 3], [3, 9, 1]]),
            torch.tensor([], dtype=torch.int64),
        ],
    )
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_rows_are_those_of_the_tensor(self, tensor, rows, dtype):
        found = streamed(dtype)[rows]
        torch.testing.assert_close(found, tensor.to(dtype)[rows], rtol=0, atol=0)

    @pytest.mark.parametrize("size", [1, 5, 23, 100])
    def test_it_splits_as_the_tensor_does_and_as_often_as_one_likes(self, tensor, size):
        batches = streamed().split(size)
        for _ in range(2):
            assert len(batches) == len(tensor.split(size))
            for found, wanted in zip(batches, tensor.split(size), strict=True):
                torch.testing.assert_close(found, wanted, rtol=0, atol=0)

    def test_a_row_that_recurs_is_read_once(self):
        seen = []

        def read(original):
            return lambda rows: seen.extend(rows) or original(rows)

        streamed(read=read)[torch.tensor([[3, 1], [1, 3]])]
        assert sorted(seen) == [1, 3]

    @pytest.mark.parametrize(
        "use",
        [
            lambda inputs: inputs.to(torch.float64),
            lambda inputs: inputs.expand(2, *inputs.shape),
            lambda inputs: torch.cat([inputs, inputs]),
            lambda inputs: torch.nn.Flatten()(inputs),
            lambda inputs: torch.nn.Conv2d(3, 1, 1)(inputs),
            lambda inputs: linearise(torch.nn.Conv2d(3, 1, 1).eval(), inputs),
        ],
    )
    def test_whatever_needs_all_inputs_at_once_is_refused_in_one_line(self, use):
        with pytest.raises(UnsupportedError, match="needs all inputs at once") as caught:
            use(streamed())
        assert "\n" not in str(caught.value)

    def test_a_misspelt_name_is_an_attribute_error(self):
        with pytest.raises(AttributeError, match="no attribute 'shpae'"):
            streamed().shpae  # noqa: B018

    def test_batches_are_bounded_in_rows_and_in_bytes(self, tensor):
        assert rows_per_batch(tensor) == 1000
        assert rows_per_batch(streamed(rows=2, shape=(3, 224, 224))) == 111
        assert rows_per_batch(tensor[:0]) == 1
        assert [len(batch) for batch in in_batches(tensor)] == [ROWS]


class TestReadingAhead:
    BATCHES = (slice(0, 6), torch.tensor([5, 2, 22]), slice(6, 7))

    @pytest.mark.parametrize("kind", [streamed, lambda: torch.from_numpy(source().held())])
    def test_batches_come_in_their_order(self, tensor, kind):
        for found, rows in zip(gathered(kind(), self.BATCHES), self.BATCHES, strict=True):
            torch.testing.assert_close(found, tensor[rows], rtol=0, atol=0)

    def test_the_next_batch_is_read_while_one_is_used_and_no_further_one(self):
        begun = {rows: threading.Event() for rows in (0, 1, 2)}

        def read(original):
            return lambda rows: begun[rows[0]].set() or original(rows)

        batches = gathered(streamed(read=read), [slice(i, i + 1) for i in range(3)])
        next(batches)
        assert begun[1].wait(timeout=10)
        assert not begun[2].is_set()

    def test_an_image_that_cannot_be_read_stops_it_where_its_batch_is_used(self):
        def read(original):
            def fail_at_7(rows):
                if 7 in rows:
                    raise DataError("7.png: cannot be read")
                return original(rows)

            return fail_at_7

        batches = iter(streamed(read=read).split(5))
        assert len(next(batches)) == 5
        with pytest.raises(DataError, match=r"^7\.png: cannot be read$"):
            next(batches)

    def test_memory_is_that_of_a_few_batches(self):
        shape, size = (3, 64, 64), 8
        pixels = np.zeros((1, *shape), np.uint8)
        images = Images("", shape, np.zeros(400), lambda rows: pixels.repeat(len(rows), 0), "")
        inputs = ImageInputs(images, np.zeros(1), np.ones(1))
        inputs = StreamedInputs(inputs, torch.float32, torch.device("cpu"))
        tracemalloc.start()
        try:
            for batch in inputs.split(size):
                assert len(batch) == size
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        batch = inputs.nbytes * size / len(inputs)
        assert batch < peak < 5 * batch


SETTINGS = {
    "map": {},
    "nuqls": {"members": 2, "epochs": 2, "batch_size": 8, "lr": 1e-2, "gamma": 0.1},
    "enuqls": {"members": 2, "epochs": 1, "batch_size": 8, "lr": 1e-2, "networks": 2},
    "lla_last": {"samples": 10},
    "mc_dropout": {"samples": 5},
    "swag": {"epochs": 2, "samples": 2, "lr": 1e-3, "weight_decay_grid": [0.0, 1e-3]},
    "sgld": {"epochs": 2, "samples": 2, "batch_size": 8, "noise_factor": 0.01},
    "de": {"members": 2},
    "be": {"members": 2},
    "bde": {"members": 2, "scale_grid": [1.0]},
    "sngp": {"random_features": 16, "samples": 10},
    "vi": {"samples": 2},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Dark and light images of 8 x 8 pixels in RGB: 20 for training, 14 for the test; 6 others."""
    root = tmp_path_factory.mktemp("images")
    random = np.random.default_rng(0)
    for place, level, number in (
        ("own/train/dark", 0, 10),
        ("own/train/light", 40, 10),
        ("own/test/dark", 0, 7),
        ("own/test/light", 40, 7),
        ("other", 100, 6),
    ):
        (root / place).mkdir(parents=True)
        for i in range(number):
            pixels = random.integers(level, level + 150, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / place / f"{i}.png")
    return root


@pytest.fixture
def problem(folder):
    return Problem(
        name="own",
        dataset=f"images:{folder / 'own'}",
        task=Task.CLASSIFICATION,
        network=NetworkSpec(kind="wrn"),
        training=Recipe(optimizer="sgd", lr=1e-2, epochs=2, batch_size=8, augment=("flip",)),
        validation=0.25,
        ood=(f"images:{folder / 'other'}",),
        dtype="float32",
        predict_batch=4,
    )


def evaluated(problem, method, tmp_path):
    cell = Cell(
        suite="own",
        problem=problem,
        method=method,
        settings=SETTINGS.get(method, {}),
        seed=0,
        quick=False,
        fingerprint=data_fingerprint(problem, 0),
        map_checkpoint="map",
    )
    return evaluate_cell(cell, cache_dir=tmp_path)


def numbers(outcome):
    (of_ood,) = outcome.ood.values()
    return dict(outcome.metrics) | {f"ood {name}": value for name, value in of_ood.items()}


class TestMethods:
    @pytest.mark.parametrize("method", SETTINGS)
    def test_results_are_those_of_inputs_in_memory(self, problem, method, tmp_path, monkeypatch):
        if method == "vi":  # which refuses batch normalisation
            problem = replace(problem, network=NetworkSpec(kind="mlp"))
        held, _, _ = evaluated(problem, method, tmp_path)
        monkeypatch.setenv("UQBENCH_IMAGE_MEMORY", "0")
        found, cost, _ = evaluated(problem, method, tmp_path)
        assert held.streamed == ()
        assert found.streamed == ("train", "validation", "test", "ood:other")
        assert cost.predict_seconds > 0
        wanted = pytest.approx(numbers(held), rel=1e-4, abs=1e-6, nan_ok=True)
        assert numbers(found) == wanted
        assert found.tuned == pytest.approx(held.tuned, rel=1e-4)

    def test_some_parts_may_be_held(self, problem, tmp_path, monkeypatch):
        monkeypatch.setenv("UQBENCH_IMAGE_MEMORY", str(11 * 8 * 8 * 3 * 4))
        assert evaluated(problem, "map", tmp_path)[0].streamed == ("train", "test")

    @pytest.mark.parametrize(
        ("method", "settings"),
        [("nuqls", {}), ("ntk_gp", {}), ("lla", {"structure": "full"}), ("de", {"batch_size": 0})],
    )
    def test_a_method_that_needs_all_inputs_at_once_says_so(
        self, problem, method, settings, tmp_path, monkeypatch
    ):
        monkeypatch.setenv("UQBENCH_IMAGE_MEMORY", "0")
        monkeypatch.setitem(SETTINGS, method, settings)
        with pytest.raises(UnsupportedError) as caught:
            evaluated(problem, method, tmp_path)
        assert "\n" not in str(caught.value)

    def test_prediction_is_timed_on_batches_that_are_held(self, problem, tmp_path, monkeypatch):
        monkeypatch.setenv("UQBENCH_IMAGE_MEMORY", "0")
        assert "timed" not in evaluated(problem, "map", tmp_path)[0].sizes
        monkeypatch.setattr(evaluator, "TIMED_BYTES", 9 * 8 * 8 * 3 * 4)
        assert evaluated(problem, "map", tmp_path)[0].sizes["timed"] == 8

    def test_an_image_that_becomes_unreadable_is_named(
        self, folder, problem, tmp_path, monkeypatch
    ):
        monkeypatch.setenv("UQBENCH_IMAGE_MEMORY", "0")
        monkeypatch.setattr(image_folders, "HELD_BYTES", 0)
        image_folders._read_parts.cache_clear()
        file = folder / "own" / "test" / "light" / "3.png"
        content = file.read_bytes()
        evaluated(problem, "map", tmp_path)
        # the headers, names and sizes stay as they were
        file.write_bytes(content[:100] + bytes(len(content) - 100))
        try:
            with pytest.raises(DataError, match=f"^{file}: cannot be read as an image") as caught:
                evaluated(problem, "map", tmp_path)
        finally:
            file.write_bytes(content)
        assert "\n" not in str(caught.value)
