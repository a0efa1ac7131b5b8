"""Folders of image files: what counts as an image, and what is wrong with a folder."""

import os
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from uqbench.datasets import image_folders
from uqbench.datasets.image_folders import (
    load_folder,
    load_imagenet,
    load_imagenet_o,
    load_ood_folder,
)
from uqbench.errors import DataError, UsageError


def write(path: Path, size=(20, 20), mode="RGB", seed=0, **settings) -> np.ndarray:
    """Write an image of noise; return its pixels, (H, W) or (H, W, 3). size: height, width."""
    path.parent.mkdir(parents=True, exist_ok=True)
    shape = size if mode == "L" else (*size, 3)
    pixels = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    Image.fromarray(pixels).save(path, **settings)
    return pixels


@pytest.fixture
def folder(tmp_path):
    """Two classes with three images for training and two for the test, in PNG."""
    root = tmp_path / "pets"
    for part, number in (("train", 3), ("test", 2)):
        for seed, name in enumerate(("cat", "dog")):
            for i in range(number):
                write(root / part / name / f"{i}.png", seed=10 * i + seed)
    return root


def complaint(path, **settings):
    """The error's text, which is one line."""
    with pytest.raises(DataError) as caught:
        load_folder(path, **settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


class TestOwnFolder:
    def test_pixels_and_classes_are_those_of_the_files(self, folder):
        parts = load_folder(folder)
        assert list(parts) == ["train", "test"]
        train = parts["train"]
        assert train.class_names == ("cat", "dog")
        assert train.targets.tolist() == [0, 0, 0, 1, 1, 1]
        for row, file in enumerate(sorted((folder / "train").rglob("*.png"))):
            pixels = np.asarray(Image.open(file)).transpose(2, 0, 1)
            np.testing.assert_array_equal(train.pixels()[row], pixels)

    def test_classes_are_matched_by_name(self, folder):
        (folder / "test" / "cat").rename(folder / "elsewhere")
        assert load_folder(folder)["test"].targets.tolist() == [1, 1]

    @pytest.mark.parametrize("name", ["val", "valid", "validation"])
    def test_a_folder_for_validation_is_a_part(self, folder, name):
        write(folder / name / "dog" / "a.bmp")
        assert load_folder(folder)["val"].targets.tolist() == [1]

    def test_other_files_and_hidden_ones_are_ignored(self, folder):
        before = load_folder(folder)
        for place in (folder, folder / "train", folder / "train" / "cat"):
            for name in ("Thumbs.db", ".DS_Store", "._0.png", "notes.txt"):
                (place / name).write_bytes(b"no image")
        (folder / "train" / ".git").mkdir()
        after = load_folder(folder)
        assert {n: p.fingerprint for n, p in after.items()} == {
            n: p.fingerprint for n, p in before.items()
        }

    @pytest.mark.parametrize("suffix", ["jpg", "JPEG", "gif", "bmp", "tiff", "webp", "ppm"])
    def test_any_format_is_read(self, folder, suffix):
        write(folder / "train" / "cat" / f"x.{suffix}")
        assert len(load_folder(folder)["train"]) == 7

    def test_images_in_folders_inside_a_class_belong_to_it(self, folder):
        write(folder / "train" / "dog" / "more" / "deep" / "x.png")
        assert load_folder(folder)["train"].targets.tolist() == [0, 0, 0, 1, 1, 1, 1]

    def test_images_are_grey_if_all_of_them_are(self, folder):
        for file in folder.rglob("*.png"):
            write(file, mode="L")
        assert load_folder(folder)["train"].shape == (1, 20, 20)
        write(folder / "test" / "cat" / "colour.png")
        assert load_folder(folder)["train"].shape == (3, 20, 20)

    def test_images_of_16_bits_keep_their_upper_8(self, folder):
        for file in folder.rglob("*.png"):
            pixels = np.arange(400, dtype=np.uint16).reshape(20, 20) * 160
            Image.fromarray(pixels).save(file)
        found = load_folder(folder)["train"]
        assert found.shape == (1, 20, 20)
        np.testing.assert_array_equal(found.pixels()[0, 0], pixels >> 8)

    def test_mixed_sizes_become_the_most_common_one(self, folder):
        write(folder / "train" / "cat" / "large.png", size=(40, 40), seed=5)
        write(folder / "test" / "dog" / "wide.png", size=(20, 60), seed=6)
        parts = load_folder(folder)
        assert {part.shape for part in parts.values()} == {(3, 20, 20)}
        large = Image.open(folder / "train" / "cat" / "large.png")
        wanted = np.asarray(large.resize((20, 20), Image.Resampling.BILINEAR)).transpose(2, 0, 1)
        np.testing.assert_array_equal(parts["train"].pixels()[3], wanted)
        wide = np.asarray(Image.open(folder / "test" / "dog" / "wide.png"))
        np.testing.assert_array_equal(  # it covers the size already: the middle is kept
            parts["test"].pixels()[-1], wide[:, 20:40].transpose(2, 0, 1)
        )

    def test_a_stated_size_is_that_of_all(self, folder):
        assert load_folder(folder, side=8)["test"].shape == (3, 8, 8)

    def test_the_orientation_that_a_camera_noted_is_followed(self, folder):
        file = folder / "train" / "cat" / "camera.png"
        pixels = write(file, seed=3)
        exif = Image.Exif()
        exif[0x0112] = 6  # to be turned a quarter clockwise
        Image.fromarray(pixels).save(file, exif=exif)
        turned = np.rot90(pixels, -1).transpose(2, 0, 1)
        np.testing.assert_array_equal(load_folder(folder)["train"].pixels()[3], turned)

    def test_the_most_common_size_is_that_of_the_turned_images(self, folder):
        exif = Image.Exif()
        exif[0x0112] = 6
        for file in (folder / "train").rglob("*.png"):
            pixels = write(file, size=(20, 40))
            Image.fromarray(pixels).save(file, exif=exif)
        train = load_folder(folder)["train"]
        assert train.shape == (3, 40, 20)
        np.testing.assert_array_equal(train.pixels()[-1], np.rot90(pixels, -1).transpose(2, 0, 1))

    def test_links_are_followed_and_no_folder_is_read_twice(self, folder, tmp_path):
        write(tmp_path / "elsewhere" / "x.png")
        cat = folder / "train" / "cat"
        (cat / "linked.png").symlink_to(folder / "test" / "cat" / "0.png")
        (cat / "more").symlink_to(tmp_path / "elsewhere")
        (cat / "same").symlink_to(tmp_path / "elsewhere")
        (cat / "loop").symlink_to(cat)
        (folder / "train" / "owl").symlink_to(tmp_path / "elsewhere")
        assert load_folder(folder)["train"].targets.tolist() == [*[0] * 5, *[1] * 3, 2]

    def test_images_are_read_once_until_a_file_changes(self, folder):
        first = load_folder(folder)["train"]
        assert load_folder(folder)["train"] is first
        write(folder / "train" / "cat" / "0.png", seed=99, size=(20, 21))
        assert load_folder(folder)["train"] is not first


class TestFaults:
    def test_a_folder_that_does_not_exist(self, tmp_path):
        assert complaint(tmp_path / "none") == f"{tmp_path / 'none'}: no such folder"

    def test_a_file_in_place_of_a_folder(self, tmp_path):
        (tmp_path / "a.zip").write_bytes(b"")
        assert complaint(tmp_path / "a.zip") == f"{tmp_path / 'a.zip'}: is a file; give a folder"

    @pytest.mark.parametrize("part", ["train", "test"])
    def test_a_part_that_is_missing(self, folder, part):
        (folder / part).rename(folder / "other")
        assert complaint(folder).startswith(f"{folder}: has no folder '{part}'; it needs train/")

    def test_a_part_without_classes(self, folder):
        for file in (folder / "test").rglob("*.png"):
            file.unlink()
        for name in ("cat", "dog"):
            (folder / "test" / name).rmdir()
        assert complaint(folder).startswith(f"{folder / 'test'}: holds no folders")

    def test_images_outside_of_classes(self, folder):
        write(folder / "train" / "stray.png")
        stray, train = folder / "train" / "stray.png", folder / "train"
        assert (
            complaint(folder) == f"{stray}: lies outside of the folders of the classes in {train}"
        )

    def test_a_class_without_images(self, folder):
        (folder / "train" / "empty").mkdir()
        (folder / "train" / "empty" / "notes.txt").write_text("none yet")
        assert complaint(folder).startswith(f"{folder / 'train' / 'empty'}: holds no images")

    def test_a_link_to_a_file_that_is_gone(self, folder):
        link = folder / "test" / "dog" / "gone.png"
        link.symlink_to(folder / "nothing.png")
        assert complaint(folder) == f"{link}: cannot be read (No such file or directory)"

    def test_a_class_whose_name_is_not_text(self, folder):
        try:
            os.mkdir(os.fsencode(folder / "train") + b"/c\xff")
        except OSError:
            pytest.skip("this file system takes UTF-8 names alone")
        assert complaint(folder) == (
            f"{folder / 'train'}: the name of the folder 'c\\udcff' is not UTF-8; rename it"
        )

    def test_a_single_class(self, folder):
        for part in ("train", "test"):
            (folder / part / "dog").rename(folder / part / ".dog")
        assert complaint(folder) == (
            f"{folder / 'train'}: has a single class, 'cat'; there is nothing to tell apart"
        )

    @pytest.mark.parametrize("part", ["test", "val"])
    def test_a_class_that_training_lacks(self, folder, part):
        write(folder / part / "bird" / "0.png")
        assert complaint(folder) == (
            f"{folder / part / 'bird'}: training has no class 'bird' (no such folder in "
            f"{folder / 'train'})"
        )

    def test_a_file_that_is_no_image(self, folder):
        file = folder / "test" / "cat" / "bad.jpg"
        file.write_bytes(b"<html>not found</html>")
        assert complaint(folder) == (
            f"{file}: cannot be read as an image (its format is unknown); repair or remove it"
        )

    @pytest.mark.parametrize("suffix", ["png", "jpg"])
    def test_a_truncated_image(self, folder, suffix):
        file = folder / "train" / "dog" / f"cut.{suffix}"
        write(file, size=(64, 64))
        file.write_bytes(file.read_bytes()[:-1000])
        assert complaint(folder).startswith(f"{file}: cannot be read as an image (")

    def test_an_image_that_may_not_be_read(self, folder, monkeypatch):
        def refuse(path):
            raise PermissionError(13, "Permission denied", str(path))

        monkeypatch.setattr(Image, "open", refuse)
        assert re.fullmatch(
            rf"{folder}/train/\w+/\d\.png: cannot be read as an image \(Permission denied\); "
            "repair or remove it",
            complaint(folder),
        )

    def test_a_size_that_no_image_has(self, folder):
        with pytest.raises(UsageError, match=r"^image_size must be at most 4096 pixels, got 5000$"):
            load_folder(folder, 5000)

    def test_an_image_whose_range_is_not_known(self, folder):
        file = folder / "train" / "dog" / "float.tiff"
        Image.fromarray(np.zeros((20, 20), np.float32)).save(file)
        assert complaint(folder).startswith(f"{file}: has pixels of 32 bits")


class TestManyImages:
    """More pixels than are held: read when they are asked for."""

    @pytest.fixture
    def many(self, folder, monkeypatch):
        monkeypatch.setattr(image_folders, "HELD_BYTES", 10 * 3 * 20 * 20 - 1)
        return folder

    def test_their_pixels_are_those_of_the_files(self, many, monkeypatch):
        write(many / "train" / "cat" / "large.png", size=(40, 50), seed=5)
        lazy = load_folder(many)
        monkeypatch.setattr(image_folders, "HELD_BYTES", 2**30)
        image_folders._read_parts.cache_clear()
        held = load_folder(many)
        for part, images in lazy.items():
            np.testing.assert_array_equal(images.pixels(), held[part].pixels())
            np.testing.assert_array_equal(images.targets, held[part].targets)

    def test_a_file_is_read_when_its_row_is_asked_for(self, many):
        train = load_folder(many)["train"]
        file = many / "train" / "dog" / "0.png"
        file.write_bytes(file.read_bytes()[:-100])
        assert train.read(np.array([0, 5])).shape == (2, 3, 20, 20)
        with pytest.raises(DataError, match=f"^{file}: cannot be read as an image"):
            train.read(np.array([3]))

    def test_a_file_that_vanishes_is_named(self, many):
        train = load_folder(many)["train"]
        file = many / "train" / "dog" / "0.png"
        file.unlink()
        with pytest.raises(DataError) as caught:
            train.read(np.array([3]))
        assert str(caught.value) == f"{file}: no such file any more; restore it, or run again"

    def test_a_file_that_is_no_image_is_found_at_once(self, many):
        file = many / "test" / "cat" / "bad.jpg"
        file.write_bytes(b"<html>not found</html>")
        assert complaint(many).startswith(f"{file}: cannot be read as an image (its format is")

    def test_the_fingerprint_is_of_names_and_sizes(self, many):
        def fingerprint(part="train"):
            return load_folder(many)[part].fingerprint

        before = fingerprint()
        assert fingerprint("test") != before
        file = many / "train" / "dog" / "0.png"
        file.rename(file.with_name("9.png"))
        renamed = fingerprint()
        file.with_name("9.png").write_bytes(file.with_name("1.png").read_bytes() + b" ")
        assert len({before, renamed, fingerprint()}) == 3

    def test_a_folder_of_ood_images_as_well(self, tmp_path, monkeypatch):
        pixels = write(tmp_path / "a.png", size=(8, 8), mode="L")
        write(tmp_path / "b.png", size=(30, 10))
        monkeypatch.setattr(image_folders, "HELD_BYTES", 0)
        images, done = load_ood_folder(tmp_path, (3, 8, 8))
        assert done == "resized to 8 x 8 pixels, converted to RGB"
        np.testing.assert_array_equal(images.read(np.array([0]))[0], [pixels] * 3)


class TestOodFolder:
    def test_all_images_below_it_are_taken_in_the_shape_asked_for(self, tmp_path):
        pixels = write(tmp_path / "x" / "a.png", size=(8, 8), mode="L")
        write(tmp_path / "x" / "y" / "b.jpg", size=(30, 10))
        (tmp_path / "x" / "Thumbs.db").write_bytes(b"")
        images, done = load_ood_folder(tmp_path / "x", (3, 8, 8))
        assert images.pixels().shape == (2, 3, 8, 8)
        np.testing.assert_array_equal(images.pixels()[0], [pixels] * 3)
        assert done == "resized to 8 x 8 pixels, converted to RGB"

    def test_nothing_is_said_if_nothing_was_done(self, tmp_path):
        write(tmp_path / "a.png", size=(8, 8))
        assert load_ood_folder(tmp_path, (3, 8, 8))[1] == ""

    def test_a_folder_without_images_is_an_error(self, tmp_path):
        (tmp_path / "notes.txt").write_text("")
        with pytest.raises(DataError, match=f"^{tmp_path}: holds no images"):
            load_ood_folder(tmp_path, (3, 8, 8))


class TestImageNet:
    @pytest.fixture
    def root(self, tmp_path):
        for seed, (part, name) in enumerate(
            (part, name) for part in ("train", "val") for name in ("n01", "n02")
        ):
            write(tmp_path / "imagenet" / part / name / "a.JPEG", size=(300, 400), seed=seed)
        write(tmp_path / "imagenet-o" / "n09" / "o.JPEG", size=(256, 256), mode="L")
        return tmp_path

    def test_the_centre_of_the_scaled_image_is_kept(self, root):
        images = load_imagenet("test", root)
        assert images.class_names == ("n01", "n02")
        assert images.targets.tolist() == [0, 1]
        file = Image.open(root / "imagenet" / "val" / "n02" / "a.JPEG")
        scaled = np.asarray(file.resize((341, 256), Image.Resampling.BILINEAR))
        left = round((341 - 224) / 2)
        wanted = scaled[16:240, left : left + 224].transpose(2, 0, 1)
        np.testing.assert_array_equal(images.read(np.array([1]))[0], wanted)

    def test_hidden_folders_are_no_classes(self, root):
        (root / "imagenet" / "train" / ".cache").mkdir()
        images = load_imagenet("train", root)
        assert images.class_names == ("n01", "n02")
        assert images.targets.tolist() == [0, 1]

    def test_only_the_images_asked_for_are_read(self, root):
        (root / "imagenet" / "train" / "n02" / "a.JPEG").write_bytes(b"damaged")
        images = load_imagenet("train", root)
        assert images.read(np.array([0])).shape == (1, 3, 224, 224)
        with pytest.raises(DataError, match=r"n02/a.JPEG: cannot be read as an image"):
            images.read(np.array([1]))

    def test_imagenet_o_has_classes_of_its_own(self, root):
        images = load_imagenet_o(root)
        assert images.pixels().shape == (1, 3, 224, 224)

    def test_where_to_get_them_is_said(self, tmp_path):
        with pytest.raises(DataError, match=r"by hand from image-net\.org"):
            load_imagenet("train", tmp_path)
        with pytest.raises(DataError, match=r"by hand from github\.com/hendrycks"):
            load_imagenet_o(tmp_path)

    def test_the_fingerprint_follows_the_files(self, root):
        image_folders._imagenet.cache_clear()
        before = load_imagenet("train", root).fingerprint
        image_folders._imagenet.cache_clear()
        write(root / "imagenet" / "train" / "n01" / "b.JPEG")
        assert load_imagenet("train", root).fingerprint != before
