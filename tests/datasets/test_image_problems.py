"""The images of a problem: parts, OoD sets, normalisation."""

import numpy as np
import pytest
from PIL import Image

from uqbench.datasets import images
from uqbench.datasets.arrays import Images
from uqbench.datasets.image_inputs import ImageInputs, channel_statistics
from uqbench.datasets.image_problems import image_memory, image_parts, prepare_images
from uqbench.errors import DataError, UsageError
from uqbench.method import Task
from uqbench.problems import (
    QUICK_SUBSET,
    Normalisation,
    Problem,
    Subset,
    data_fingerprint,
    problem_data,
)

SIZES = {"train": 60, "test": 40}


def noise(name, part, shape, rows):
    random = np.random.default_rng(len(name) + 7 * len(part))
    pixels = random.integers(0, 256, (rows, *shape), dtype=np.uint8)
    return Images.held(f"{name}", pixels, np.arange(rows) % 10, tuple("0123456789"), f"/{name}")


@pytest.fixture(autouse=True)
def small_sets(monkeypatch):
    """Every set of torchvision's holds a few images of noise."""
    held = {
        (name, part): noise(name, part, known.shape, SIZES[part])
        for name, known in images.SETS.items()
        for part in images.PARTS
    }
    monkeypatch.setattr(images, "load", lambda name, part, root: held[name, part])
    return held


def parts(dataset="mnist", tmp_path="/", **settings):
    settings = {"validation": 0.25, "seed": 1, "root": tmp_path, **settings}
    return image_parts(dataset, **settings)


def problem(**settings):
    settings = {"dataset": "mnist", "task": Task.CLASSIFICATION, "validation": 0.25, **settings}
    return Problem(name="p", **settings)


class TestParts:
    def test_a_fraction_of_the_training_part_is_for_validation(self, small_sets):
        found = parts()
        assert (len(found.train), len(found.validation), len(found.test)) == (45, 15, 40)
        both = np.concatenate([found.train.pixels(), found.validation.pixels()])
        original = small_sets["mnist", "train"].pixels()
        assert {image.tobytes() for image in both} == {image.tobytes() for image in original}
        for image, label in zip(found.validation.pixels(), found.validation.targets, strict=True):
            (row,) = np.flatnonzero((original == image).all((1, 2, 3)))
            assert label == row % 10

    def test_another_seed_draws_others(self):
        first, again, other = (parts(seed=seed).validation.pixels() for seed in (1, 1, 2))
        np.testing.assert_array_equal(first, again)
        assert not np.array_equal(first, other)

    def test_the_test_part_may_serve(self):
        found = parts(validation="test")
        assert found.validation is found.test
        assert len(found.train) == 60

    def test_a_validation_part_that_is_missing_is_an_error(self):
        with pytest.raises(UsageError, match="mnist: has no validation part; give validation a"):
            parts(validation="val")

    def test_too_few_images_for_a_fraction_are_an_error(self):
        with pytest.raises(DataError, match=r"^/mnist: 60 images are too few to take 0\.001"):
            parts(validation=0.001)

    def test_a_class_that_validation_would_take_whole_is_an_error(self, monkeypatch):
        one = noise("mnist", "train", (1, 28, 28), 60)
        lone = Images.held("mnist", one.pixels(), np.array([0, *[1] * 59]), ("a", "b"), "/mnist")
        monkeypatch.setattr(images, "load", lambda name, part, root: lone)
        seed = next(s for s in range(99) if 0 in np.random.default_rng(s).permutation(60)[:15])
        with pytest.raises(DataError, match=r"^/mnist: class 'a' has only 1 images, and all of"):
            parts(seed=seed)

    def test_a_subset_has_at_most_so_many_of_each(self):
        found = parts(ood=["fashion-mnist"], subset=Subset(train=20, validation=99, test=10, ood=5))
        sizes = [len(found.train), len(found.validation), len(found.test)]
        assert sizes == [20, 15, 10]
        assert len(found.ood["fashion-mnist"]) == 5
        # the split is that of the whole
        whole = {image.tobytes() for image in parts().train.pixels()}
        assert {image.tobytes() for image in found.train.pixels()} < whole

    @pytest.mark.parametrize("name", ["mnits", "imagenet-o"])
    def test_what_cannot_be_trained_on_is_an_error(self, name):
        wanted = "Did you mean 'mnist'" if name == "mnits" else "has no training part"
        with pytest.raises(UsageError, match=wanted):
            parts(name)

    def test_a_size_is_for_folders_alone(self):
        with pytest.raises(UsageError, match="image_size is for images:PATH"):
            parts(image_size=8)


class TestOod:
    def test_the_test_part_is_taken_in_the_problems_shape(self, small_sets):
        found = parts(ood=["fashion-mnist", "cifar-10"])
        np.testing.assert_array_equal(
            found.ood["fashion-mnist"].pixels(), small_sets["fashion-mnist", "test"].pixels()
        )
        assert found.ood["cifar-10"].pixels().shape == (40, 1, 28, 28)
        assert found.conversions == {"cifar-10": "resized to 28 x 28 pixels, converted to grey"}

    def test_rotated_stands_for_twelve_angles(self, small_sets):
        found = parts(ood=["rotated:mnist"])
        assert list(found.ood) == [f"rotated:mnist:{angle}" for angle in range(15, 181, 15)]
        half_a_turn = found.ood["rotated:mnist:180"].pixels()
        original = small_sets["mnist", "test"].pixels()
        np.testing.assert_array_equal(half_a_turn, original[:, :, ::-1, ::-1])

    def test_a_rotated_set_is_made_to_fit_as_well(self):
        found = parts(ood=["rotated:cifar-10:22.5"])
        assert found.ood["rotated:cifar-10:22.5"].pixels().shape == (40, 1, 28, 28)

    @pytest.mark.parametrize(
        ("name", "wanted"),
        [
            ("mnits", r"ood: no images named 'mnits'\. Did you mean 'mnist'"),
            ("rotated:mnits", r"ood: no images named 'rotated:mnits:15'\. Did you mean 'mnist'"),
            ("rotated:mnist:x", "'rotated:mnist:x': the angle must be between 0 and 360 degrees"),
            ("rotated:mnist:0", "'rotated:mnist:0': the angle must be between 0 and 360 degrees"),
        ],
    )
    def test_an_unknown_name_is_an_error(self, name, wanted):
        with pytest.raises(UsageError, match=wanted):
            parts(ood=[name])

    def test_folders_are_called_by_their_name_and_two_of_a_name_by_their_path(self, tmp_path):
        for place in ("a", "b"):
            (tmp_path / place / "noise").mkdir(parents=True)
            Image.new("L", (28, 28)).save(tmp_path / place / "noise" / "0.png")
        first, second = (f"images:{tmp_path / place / 'noise'}" for place in ("a", "b"))
        assert list(parts(ood=[first, second]).ood) == ["noise", second]
        assert list(parts(ood=[first, first, "kmnist", "kmnist"]).ood) == ["noise", "kmnist"]

    @pytest.mark.parametrize("place", ["", "own", "own/train", "own/val", "own/test/a", "link"])
    def test_images_of_the_data_set_itself_are_refused(self, tmp_path, place):
        for file in ("train/a/0", "train/b/0", "val/a/0", "test/a/0", "ood/0"):
            path = tmp_path / "own" / f"{file}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("L", (20, 20)).save(path)
        (tmp_path / "link").symlink_to(tmp_path / "own" / "test")
        own = f"images:{tmp_path / 'own'}"
        assert list(parts(own, validation="val", ood=[f"{own}/ood"]).ood) == ["ood"]
        message = f"^ood: {tmp_path / place}: holds images of the data set itself"
        with pytest.raises(UsageError, match=message):
            parts(own, validation="val", ood=[f"images:{tmp_path / place}"])

    def test_the_data_set_by_its_name_is_refused_but_not_turned(self):
        assert len(parts(ood=["rotated:mnist:90"]).ood) == 1
        with pytest.raises(UsageError, match=r"^ood: mnist: holds images of the data set itself"):
            parts(ood=["mnist"])


class TestNormalisation:
    def test_statistics_are_those_of_each_channel_on_the_scale_of_1(self):
        pixels = np.random.default_rng(0).integers(0, 200, (50, 3, 32, 32), dtype=np.uint8)
        pixels[:, 2] = 9
        mean, std = channel_statistics(Images.held("x", pixels, np.zeros(50)))
        values = pixels / 255
        np.testing.assert_allclose(mean, values.mean((0, 2, 3)), rtol=1e-12)
        np.testing.assert_allclose(std[:2], values.std((0, 2, 3))[:2], rtol=1e-12)
        assert std[2] == 1  # nothing to divide by

    def test_all_parts_get_the_statistics_of_the_training_part(self):
        chosen = parts("cifar-10", ood=["mnist"])
        data = prepare_images(chosen)
        train = chosen.train.pixels() / 255
        mean, std = (f(train, (0, 2, 3), keepdims=True) for f in (np.mean, np.std))
        for found, of in (
            (data.train.inputs, chosen.train),
            (data.validation.inputs, chosen.validation),
            (data.test.inputs, chosen.test),
            (data.ood["mnist"], chosen.ood["mnist"]),
        ):
            assert found.dtype == np.float32
            np.testing.assert_allclose(found, (of.pixels() / 255 - mean) / std, atol=2e-6)
        assert data.ood_conversions == {"mnist": "resized to 32 x 32 pixels, converted to RGB"}
        assert data.num_classes == 10

    def test_pixels_may_stay_between_0_and_1(self):
        chosen = parts()
        data = prepare_images(chosen, standardise=False)
        np.testing.assert_allclose(data.test.inputs, chosen.test.pixels() / 255, atol=1e-6)

    def test_constants_of_the_problem_take_the_place_of_statistics(self):
        chosen = parts("cifar-10")
        constants = Normalisation(mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6))
        data = prepare_images(chosen, normalisation=constants)
        mean, std = (np.reshape(c, (3, 1, 1)) for c in (constants.mean, constants.std))
        wanted = (chosen.test.pixels() / 255 - mean) / std
        np.testing.assert_allclose(data.test.inputs, wanted, atol=2e-6)

    def test_constants_for_other_channels_are_an_error(self):
        constants = Normalisation(mean=(0.1, 0.2), std=(0.4, 0.5))
        with pytest.raises(UsageError, match="normalisation is of 2 channels, but the images of"):
            prepare_images(parts("cifar-10"), normalisation=constants)

    def test_a_test_part_that_serves_for_validation_is_in_memory_once(self):
        data = prepare_images(parts(validation="test"))
        assert data.validation.inputs is data.test.inputs


class TestMemory:
    """CIFAR-10 with 45 images for training, 15 for validation and 40 for the test."""

    IMAGE = 3 * 32 * 32 * 4

    def held(self, images, monkeypatch, **settings):
        monkeypatch.setenv("UQBENCH_IMAGE_MEMORY", str(images * self.IMAGE))
        data = prepare_images(parts("cifar-10", ood=["mnist"]), **settings)
        inputs = {"train": data.train, "validation": data.validation, "test": data.test}
        inputs = {name: part.inputs for name, part in inputs.items()} | data.ood
        return {name for name, one in inputs.items() if isinstance(one, np.ndarray)}

    @pytest.mark.parametrize(
        ("images", "held"),
        [
            (140, {"train", "validation", "test", "mnist"}),
            (139, {"validation", "test", "mnist"}),
            (94, {"validation", "test"}),
            (15, {"validation"}),
            (14, set()),
        ],
    )
    def test_the_smallest_parts_are_held_while_they_fit_together(self, images, held, monkeypatch):
        assert self.held(images, monkeypatch) == held

    def test_what_a_device_can_take_counts_as_well(self, monkeypatch):
        assert self.held(140, monkeypatch, memory=15 * self.IMAGE) == {"validation"}

    def test_inputs_are_the_same_held_or_not(self, monkeypatch):
        chosen = parts("cifar-10", ood=["mnist"])
        held = prepare_images(chosen)
        monkeypatch.setenv("UQBENCH_IMAGE_MEMORY", "0")
        lazy = prepare_images(chosen)
        for one, other in (
            (lazy.train.inputs, held.train.inputs),
            (lazy.ood["mnist"], held.ood["mnist"]),
        ):
            assert isinstance(one, ImageInputs)
            assert (one.shape, one.nbytes) == (other.shape, other.nbytes)
            rows = np.array([7, 0, 7, len(one) - 1])
            np.testing.assert_array_equal(one.begin(rows)(), other[rows])

    def test_half_of_the_free_memory_is_the_default(self, monkeypatch):
        import psutil

        monkeypatch.delenv("UQBENCH_IMAGE_MEMORY", raising=False)
        assert 0 < image_memory() <= psutil.virtual_memory().total / 2

    @pytest.mark.parametrize("stated", ["8GB", "inf", "nan", "-1", " "])
    def test_a_limit_that_is_no_number_is_an_error(self, stated, monkeypatch):
        monkeypatch.setenv("UQBENCH_IMAGE_MEMORY", stated)
        with pytest.raises(UsageError, match=r"^\$UQBENCH_IMAGE_MEMORY must be a number of bytes"):
            image_memory()


class TestProblems:
    def test_the_data_are_those_of_the_problems_fields(self):
        data = problem_data(problem(ood=("kmnist",)), seed=0)
        assert data.train.inputs.shape == (45, 1, 28, 28)
        assert list(data.ood) == ["kmnist"]
        assert data.fingerprint == data_fingerprint(problem(ood=("kmnist",)), seed=3)

    def test_the_fingerprint_is_of_all_data_sets(self):
        prints = [
            data_fingerprint(problem(**settings), seed=0)
            for settings in (
                {},
                {"dataset": "kmnist"},
                {"ood": ("kmnist",)},
                {"ood": ("fashion-mnist",)},
                {"ood": ("rotated:kmnist:15",)},
                {"ood": ("rotated:kmnist:30",)},
                {"ood": ("kmnist", "fashion-mnist")},
                {"validation": "test"},
            )
        ]
        assert len(set(prints)) == len(prints)

    def test_quick_takes_a_subset_which_is_part_of_the_identity(self):
        quick = problem().quick()
        assert quick.subset == QUICK_SUBSET
        assert quick.training_identity()["subset"]["train"] == QUICK_SUBSET.train
        assert quick.training_identity() != problem().training_identity()
        own = Subset(train=3, validation=3, test=3, ood=3)
        assert problem(subset=own).quick().subset == own

    def test_quick_leaves_tables_whole(self):
        table = Problem(name="p", dataset="sklearn/digits", task=Task.CLASSIFICATION)
        assert table.quick().subset is None

    def test_the_identity_has_no_fields_of_the_other_kind(self):
        table = Problem(name="p", dataset="sklearn/digits", task=Task.CLASSIFICATION)
        assert "split" in table.training_identity()
        assert "split" not in problem().training_identity()
        assert not {"validation", "subset", "ood"} & set(table.training_identity())

    @pytest.mark.parametrize(
        ("settings", "complaint"),
        [
            ({"held_out_classes": (1,)}, "held_out_classes is of tables, not of images"),
            ({"target": "a"}, "target is of tables, not of images"),
            ({"task": Task.REGRESSION}, "validation is of images, which need task"),
            ({"validation": "tset"}, r"validation must be a fraction of the .*, got 'tset'"),
            ({"validation": 1.0}, r"validation must be a fraction of the training part, .* got 1"),
            ({"validation": None, "ood": ("mnist",)}, "ood is of images, which need validation"),
            (
                {"standardise": False, "normalisation": Normalisation((0.5,), (0.5,))},
                "normalisation needs standardise = true",
            ),
        ],
    )
    def test_fields_that_make_no_sense_are_refused(self, settings, complaint):
        with pytest.raises(ValueError, match=complaint):
            problem(**settings)

    def test_images_without_validation_are_an_error_that_says_what_to_give(self):
        with pytest.raises(UsageError, match="mnist: images need validation: a fraction of"):
            problem_data(problem(validation=None), seed=0)

    def test_a_table_with_validation_is_an_error(self):
        with pytest.raises(UsageError, match="no images named 'uci/wine'"):
            problem_data(problem(dataset="uci/wine"), seed=0)
