"""Random changes of training images that keep their class, on tensors held in memory."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Generator, Tensor
from torch.nn.functional import pad

PADDING = 4


def augmented(images: Tensor, kinds: Sequence[str], generator: Generator) -> Tensor:
    """Return changed copies of images (B, C, H, W); every image is changed on its own.

    kinds: ``crop``, a window of the image's size at a random place of the image padded by 4 zeros
    (the mean, where images are normalised) on every side; ``flip``, left to right with probability
    ½ (He et al. 2016). generator: of the CPU.
    """
    for kind in kinds:
        images = {"crop": _cropped, "flip": _flipped}[kind](images, generator)
    return images


def _cropped(images: Tensor, generator: Generator) -> Tensor:
    count, _, height, width = images.shape
    padded = pad(images, (PADDING,) * 4)
    offsets = torch.randint(2 * PADDING + 1, (2, count, 1), generator=generator)
    rows, columns = (
        (offset + torch.arange(side)).to(images.device)
        for offset, side in zip(offsets, (height, width), strict=True)
    )
    each = torch.arange(count, device=images.device)
    # advanced indices around the channels' slice put their own axes first
    taken = padded[each[:, None, None], :, rows[:, :, None], columns[:, None, :]]
    return taken.permute(0, 3, 1, 2).contiguous()


def _flipped(images: Tensor, generator: Generator) -> Tensor:
    chosen = torch.rand(len(images), generator=generator) < 0.5
    return torch.where(chosen.to(images.device).view(-1, 1, 1, 1), images.flip(-1), images)
