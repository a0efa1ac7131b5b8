"""A folder of images of one's own: its problem, its run, and what is wrong with it."""

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from uqbench import api
from uqbench.cells import plan
from uqbench.cli import main
from uqbench.errors import UsageError
from uqbench.evaluator import evaluate_cell
from uqbench.own_images import image_recipe, network_for, ood_name, own_images_problem
from uqbench.problems import QUICK_SUBSET
from uqbench.records import Record, decode, encode
from uqbench.registry import build_method
from uqbench.saved_predictions import SavedPredictions


def write(folder: Path, number: int, size=(20, 20), mode="L", level=0, seed=0) -> None:
    """Images of noise around a grey level."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(seed)
    for i in range(number):
        pixels = random.integers(level, level + 100, size, dtype=np.uint8)
        Image.fromarray(pixels).convert(mode).save(folder / f"{i}.png")


@pytest.fixture
def folder(tmp_path):
    """Dark and light images, 12 of each for training and 5 for the test."""
    for part, number in (("train", 12), ("test", 5)):
        for seed, name in enumerate(("dark", "light")):
            write(tmp_path / "walls" / part / name, number, level=100 * seed, seed=seed)
    write(tmp_path / "noise", 4, size=(30, 10), mode="RGB", level=50)
    return tmp_path / "walls"


class TestProblem:
    @pytest.mark.parametrize(
        ("shape", "number", "kind"),
        [
            ((1, 8, 8), 100, "mlp"),
            ((3, 40, 12), 100, "mlp"),
            ((1, 28, 28), 50_000, "lenet"),
            ((3, 32, 32), 9_999, "lenet"),
            ((3, 32, 32), 10_000, "resnet9"),
            ((1, 65, 64), 100, "resnet50_imagenet"),
        ],
    )
    def test_the_network_suits_the_images(self, shape, number, kind):
        assert network_for(shape, number).kind == kind

    @pytest.mark.parametrize(
        ("number", "epochs"), [(1, 50), (600, 50), (1667, 18), (3000, 10), (50_000, 10)]
    )
    def test_training_takes_about_three_hundred_steps(self, number, epochs):
        recipe = image_recipe(number)
        assert (recipe.epochs, recipe.batch_size, recipe.lr) == (epochs, 100, 1e-3)

    def test_it_says_on_one_line_what_was_read_and_chosen(self, folder):
        assert own_images_problem(folder).description == (
            "classification of 2 classes (dark, light), walls: 24 train, 10 test images of 20 x 20 "
            "pixels in grey; lenet, trained in float32 by adam (lr 0.001, cosine schedule, weight "
            "decay 0.0001) for 50 epochs in batches of 100"
        )

    def test_a_folders_name_is_made_printable(self, folder):
        strange = folder.rename(folder.parent / "new\nline \x1b[31mred")
        assert own_images_problem(strange).name == "new line [31mred"

    def test_a_folder_for_validation_serves_for_it(self, folder):
        assert own_images_problem(folder).validation == 1 / 6
        write(folder / "val" / "dark", 2)
        assert own_images_problem(folder).validation == "val"

    def test_ood_sets_are_folders_or_names(self, folder, monkeypatch):
        monkeypatch.chdir(folder.parent)
        assert ood_name("noise") == f"images:{folder.parent / 'noise'}"
        for name in ("mnist", "rotated:mnist:15", f"images:{folder}"):
            assert ood_name(name) == name
        (folder.parent / "mnist").mkdir()
        assert ood_name("./mnist") == f"images:{folder.parent / 'mnist'}"
        with pytest.raises(UsageError, match=r"--ood fashion: no such folder, and no data set"):
            ood_name("fashion")

    def test_methods_accept_its_settings(self, folder):
        for method, settings in own_images_problem(folder).methods.items():
            build_method(method, settings)

    def test_a_quick_run_takes_a_subset(self, folder):
        request = api.request("map", images=folder, quick=True, seeds=1)
        (cell,) = plan(request)
        assert cell.problem.subset == QUICK_SUBSET


class TestRun:
    def test_a_cell_is_evaluated_with_its_ood_sets(self, folder, tmp_path):
        request = api.request(
            "nuqls,map", images=folder, ood=folder.parent / "noise", image_size=16, seeds=1
        )
        kept: list[SavedPredictions] = []
        for cell in plan(request):
            outcome, _, _ = evaluate_cell(cell, cache_dir=tmp_path, keep=kept.append)
            assert outcome.sizes == {"train": 20, "validation": 4, "test": 10, "ood:noise": 4}
            assert outcome.class_names == ("dark", "light")
            assert outcome.metrics["accuracy"] == 1
            assert 0 <= outcome.ood["noise"]["ood_auc"] <= 1
            read_back = decode(encode(Record(cell.key, cell.identity(), "ok", outcome)))
            assert read_back.identity.split == ()
            assert read_back.outcome.ood_conversions == {
                "noise": "resized to 16 x 16 pixels, converted to grey"
            }
        assert kept[0].ood["noise"].confidence.shape == (4,)

    def test_the_identity_names_no_path_and_follows_the_data(self, folder):
        def cell(**settings):
            return plan(api.request("map", images=folder, seeds=1, **settings))[0]

        identity = cell(ood=folder.parent / "noise").identity()
        assert str(folder.parent) not in json.dumps(vars(identity))
        assert identity.split == ()
        assert identity.training["validation"] == 1 / 6
        keys = {cell().key, cell(ood=folder.parent / "noise").key, cell(image_size=16).key}
        write(folder / "test" / "dark", 6)
        assert cell().key not in keys
        assert len(keys) == 3

    def test_a_folder_that_moved_is_the_same_data(self, folder):
        before = plan(api.request("map", images=folder, seeds=1))[0].key
        (folder.parent / "elsewhere").mkdir()
        moved = folder.rename(folder.parent / "elsewhere" / "walls")
        assert plan(api.request("map", images=moved, seeds=1))[0].key == before


class TestCommandLine:
    def run(self, *arguments):
        return CliRunner().invoke(main, ["run", "--methods", "map", "--device", "cpu", *arguments])

    def test_a_dry_run_says_what_would_be_done(self, folder, monkeypatch):
        monkeypatch.chdir(folder.parent)
        result = self.run("--images", "walls", "--ood", "noise", "--seeds", "1", "--dry-run")
        assert result.exit_code == 0
        lines = result.stdout.splitlines()
        assert lines[0].startswith("walls: classification of 2 classes (dark, light), walls: 24")
        assert lines[1:] == [
            "walls map seed 0: to run",
            "1 cell, 0 with a record in runs/walls",
        ]

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (("--images", "walls", "--data", "a.csv", "--target", "y"), "give either images of"),
            (("--images", "walls", "--suite", "uci"), "give either images of your own (--images)"),
            (("--ood", "noise"), "--ood is for problems of images, which toy/cubic is not"),
            (("--data", "a.csv", "--target", "y", "--ood", "noise"), "--data is a table"),
            (("--image-size", "8"), "--image-size is for images of your own: give --images"),
            (("--images", "walls", "--image-size", "0"), "at least 1; got '0'"),
            (("--images", "walls", "--ood", ""), "--ood"),
        ],
    )
    def test_options_that_do_not_fit_together_are_errors(
        self, folder, monkeypatch, arguments, message
    ):
        monkeypatch.chdir(folder.parent)
        result = self.run(*arguments)
        assert result.exit_code == 2
        assert message in result.stderr

    def test_a_limit_of_memory_that_is_none_ends_the_run_before_it_starts(
        self, folder, monkeypatch
    ):
        monkeypatch.setenv("UQBENCH_IMAGE_MEMORY", "8 GB")
        with pytest.raises(UsageError, match=r"^\$UQBENCH_IMAGE_MEMORY must be a number of bytes"):
            plan(api.request("map", images=folder))

    def test_what_is_wrong_with_a_folder_ends_the_run_before_it_starts(self, folder, monkeypatch):
        monkeypatch.chdir(folder.parent)
        (folder / "train" / "dark" / "0.png").write_bytes(b"no image")
        result = self.run("--images", "walls")
        assert result.exit_code == 2
        assert result.stderr.splitlines()[-1] == (
            f"Error: {folder / 'train' / 'dark' / '0.png'}: cannot be read as an image (its format "
            "is unknown); repair or remove it"
        )
        assert not Path("runs").exists()
