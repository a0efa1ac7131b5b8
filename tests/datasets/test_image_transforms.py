"""Images turned and made to fit, against Pillow and a naive rotation."""

import numpy as np
import pytest
from PIL import Image

from uqbench.datasets.arrays import Images
from uqbench.datasets.image_transforms import ROTATIONS, fitted, rotated


def held(shape, name="a"):
    pixels = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    return Images.held(name, pixels, np.zeros(len(pixels), np.int64))


def naive_rotation(image, degrees):
    """Each pixel looks up where it comes from; outside of the image is 0. NaN: between two."""
    height, width = image.shape
    angle = np.deg2rad(degrees)
    turned = np.zeros_like(image, dtype=float)
    for i in range(height):
        for j in range(width):
            down, right = i - (height - 1) / 2, j - (width - 1) / 2
            x = np.cos(angle) * right - np.sin(angle) * down + (width - 1) / 2
            y = np.sin(angle) * right + np.cos(angle) * down + (height - 1) / 2
            if min(abs(x % 1 - 0.5), abs(y % 1 - 0.5)) < 1e-3:
                turned[i, j] = np.nan
            elif -0.5 < x < width - 0.5 and -0.5 < y < height - 0.5:
                turned[i, j] = image[round(y), round(x)]
    return turned


class TestRotation:
    @pytest.mark.parametrize(("degrees", "quarters"), [(90, 1), (180, 2), (270, 3)])
    def test_quarter_turns_are_exact(self, degrees, quarters):
        images = held((3, 3, 9, 9))
        turned = rotated(images, degrees).pixels()
        np.testing.assert_array_equal(turned, np.rot90(images.pixels(), quarters, axes=(2, 3)))

    def test_half_a_turn_flips_both_axes_of_any_image(self):
        images = held((2, 1, 6, 9))
        turned = rotated(images, 180).pixels()
        np.testing.assert_array_equal(turned, images.pixels()[:, :, ::-1, ::-1])

    @pytest.mark.parametrize("degrees", [15, 45, 165])
    def test_other_angles_take_the_nearest_pixel_and_so_no_new_shade(self, degrees):
        images = held((2, 1, 13, 12))
        turned = rotated(images, degrees).pixels()[:, 0]
        wanted = np.stack([naive_rotation(image, degrees) for image in images.pixels()[:, 0]])
        known = ~np.isnan(wanted)
        assert known.mean() > 0.9
        np.testing.assert_array_equal(turned[known], wanted[known])

    def test_the_papers_angles_are_twelve(self):
        assert ROTATIONS == (15, 30, 45, 60, 75, 90, 105, 120, 135, 150, 165, 180)

    def test_they_are_told_apart_by_name(self):
        assert rotated(held((1, 1, 4, 4), "mnist"), 15).name == "rotated:mnist:15"


class TestFitting:
    def test_a_constant_image_stays_constant(self):
        images = Images.held("a", np.full((2, 1, 28, 28), 77, np.uint8), np.zeros(2, np.int64))
        found, _ = fitted(images, (3, 32, 40))
        assert found.pixels().shape == (2, 3, 32, 40)
        assert (found.pixels() == 77).all()

    @pytest.mark.parametrize("size", [(32, 32), (14, 20)])
    def test_sizes_change_as_pillow_changes_them(self, size):
        images = held((3, 1, 28, 28))
        found, _ = fitted(images, (1, *size))
        wanted = [
            np.asarray(Image.fromarray(image).resize(size[::-1], Image.Resampling.BILINEAR))
            for image in images.pixels()[:, 0]
        ]
        np.testing.assert_allclose(found.pixels()[:, 0].astype(int), wanted, atol=1)

    def test_grey_is_repeated_and_rgb_becomes_luma(self):
        grey, rgb = held((2, 1, 5, 5)), held((2, 3, 5, 5))
        as_rgb = fitted(grey, (3, 5, 5))[0].pixels()
        np.testing.assert_array_equal(as_rgb, np.repeat(grey.pixels(), 3, axis=1))
        as_grey = fitted(rgb, (1, 5, 5))[0].pixels()[:, 0].astype(int)
        wanted = [
            np.asarray(Image.fromarray(image.transpose(1, 2, 0)).convert("L"))
            for image in rgb.pixels()
        ]
        np.testing.assert_allclose(as_grey, wanted, atol=1)  # its weights are rounded

    @pytest.mark.parametrize(
        ("shape", "done"),
        [
            ((1, 28, 28), ""),
            ((1, 32, 32), "resized to 32 x 32 pixels"),
            ((3, 28, 28), "converted to RGB"),
            ((3, 32, 40), "resized to 32 x 40 pixels, converted to RGB"),
        ],
    )
    def test_what_was_done_is_said(self, shape, done):
        found, said = fitted(held((1, 1, 28, 28)), shape)
        assert said == done
        assert found.shape == shape
        assert fitted(held((1, 3, 8, 8)), (1, 8, 8))[1] == "converted to grey"

    def test_more_images_than_are_changed_at_a_time_keep_their_order(self):
        pixels = np.arange(2500, dtype=np.int64) % 251
        images = Images.held(
            "a",
            np.broadcast_to(pixels.astype(np.uint8)[:, None, None, None], (2500, 1, 2, 2)).copy(),
            np.zeros(2500, np.int64),
        )
        rows = np.arange(2400, 100, -1)
        np.testing.assert_array_equal(
            fitted(images, (1, 4, 4))[0].take(rows).pixels()[:, 0, 3, 3], pixels[rows]
        )
