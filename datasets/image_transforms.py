"""Images turned, or made to fit another data set's shape; as uint8, before any normalisation."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from uqbench.datasets.arrays import Images, Shape

ROTATIONS = tuple(range(15, 181, 15))
"""Degrees of the paper's rotated test sets (Appendix I.6.2)."""
_CHUNK = 1000


def rotated(images: Images, degrees: float) -> Images:
    """The images turned counter-clockwise about their centre.

    Each pixel is that of the nearest place in the image, or 0 outside of it, as in the code behind
    the NUQLS paper (torchvision's default): interpolation would blur and dim all angles but the
    multiples of 90 degrees, which are exact for square images.
    """

    def turn(pixels: np.ndarray) -> np.ndarray:
        import torch
        from torchvision.transforms import InterpolationMode
        from torchvision.transforms.functional import rotate

        turned = rotate(torch.from_numpy(pixels), degrees, InterpolationMode.NEAREST)
        return turned.numpy()

    name = f"rotated:{images.name}:{degrees:g}"
    return images.mapped(name, images.shape, _in_chunks(turn))


def fitted(images: Images, shape: Shape) -> tuple[Images, str]:
    """The images with the channels and the size of ``shape``, and what was done ("" if nothing).

    Sizes change by bilinear interpolation with antialiasing. Grey becomes RGB by repetition, RGB
    becomes grey by luma (ITU-R BT.601: 0.299 R + 0.587 G + 0.114 B).
    """
    done = conversion(shape, images.shape[1:] != shape[1:], images.shape[0] != shape[0])
    if not done:
        return images, ""

    def fit(pixels: np.ndarray) -> np.ndarray:
        return _resized(_recoloured(pixels, shape[0]), shape[1:])

    return images.mapped(images.name, shape, _in_chunks(fit)), done


def conversion(shape: Shape, resized: bool, recoloured: bool) -> str:
    """How records name what was done to make images fit ``shape``."""
    parts = [f"resized to {shape[1]} x {shape[2]} pixels"] if resized else []
    if recoloured:
        parts.append(f"converted to {'grey' if shape[0] == 1 else 'RGB'}")
    return ", ".join(parts)


def _resized(pixels: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    import torch
    from torchvision.transforms import InterpolationMode
    from torchvision.transforms.functional import resize

    if pixels.shape[2:] == size:
        return pixels
    images = torch.from_numpy(pixels)
    return resize(images, list(size), InterpolationMode.BILINEAR, antialias=True).numpy()


def _recoloured(pixels: np.ndarray, channels: int) -> np.ndarray:
    if pixels.shape[1] == channels:
        return pixels
    if channels == 3:
        return np.repeat(pixels, 3, axis=1)
    luma = np.einsum("c,nchw->nhw", np.array([0.299, 0.587, 0.114]), pixels)
    return np.rint(luma).astype(np.uint8)[:, None]


def _in_chunks(change: Callable[[np.ndarray], np.ndarray]) -> Callable[[np.ndarray], np.ndarray]:
    """The same change, some images at a time: what it computes in floats stays small."""

    def changed(pixels: np.ndarray) -> np.ndarray:
        parts = [change(pixels[i : i + _CHUNK]) for i in range(0, len(pixels), _CHUNK)]
        return np.concatenate(parts)

    return changed
