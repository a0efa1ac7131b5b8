"""One symmetric matrix with many shifts: A + μI for a grid of μ, by one reduction of A.

Householder reflectors bring A to QTQᵀ with T block tridiagonal. Each A + μI is then as cheap as
T + μI, whose Cholesky factor has two blocks in a row.

Eigenvalues would make it a division, but a full eigendecomposition costs as much as 9 (n = 700) to
16 (n = 3,000) Cholesky factorisations of A (MKL, one thread), for which a grid of ten has one for
each μ. This reduction costs 3 to 4, as nearly all of it is large matrix products (Bischof, Lang &
Sun 2000, the first of their two stages). ``benchmarks/laplace_grids.py`` compares the three.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

BLOCK = 64
"""Rows of a block of T: enough for fast matrix products, few enough for cheap factors."""


class BlockTridiagonal:
    """A = QTQᵀ for a symmetric matrix A (n, n), positive semi-definite for what needs T + μI.

    Takes n²/2 numbers, and 1.5 n² while it is made.

    matrix: A; it is overwritten.
    """

    def __init__(self, matrix: Tensor) -> None:
        n = len(matrix)
        self._diagonal: list[Tensor] = []
        self._below: list[Tensor] = []
        self._reflectors: list[tuple[Tensor, Tensor]] = []
        """V (m, b) and T (b, b) of each H = I − VTVᵀ, which acts on the last m coordinates."""
        for start in range(0, n, BLOCK):
            stop = min(start + BLOCK, n)
            self._diagonal.append(matrix[start:stop, start:stop].clone())
            if stop == n:
                break
            panel, rest = matrix[stop:, start:stop], matrix[stop:, stop:]
            if n - stop > BLOCK:
                panel = self._reflect(panel, rest)
            self._below.append(panel.clone())

    def _reflect(self, panel: Tensor, rest: Tensor) -> Tensor:
        """Replace ``rest`` by HᵀRH, where H has zeros below the block R of HᵀP that is returned."""
        packed, scales = torch.geqrf(panel)
        vectors = packed.tril(-1)
        vectors.diagonal().fill_(1)
        # the compact WY form (Schreiber & Van Loan 1989): H_1 ⋯ H_b = I − VTVᵀ
        scaled = scales.unsqueeze(1) * (vectors.mT @ vectors).triu(1)
        compact = torch.linalg.solve_triangular(
            scaled, torch.diag(scales), upper=True, unitriangular=True
        )
        # HᵀRH = R − VWᵀ − WVᵀ with W = Y − ½VTᵀVᵀY, Y = RVT
        image = rest @ vectors @ compact
        image -= 0.5 * vectors @ (compact.mT @ (vectors.mT @ image))
        left, right = torch.cat([vectors, image], 1), torch.cat([image, vectors], 1)
        rest.addmm_(left, right.mT, alpha=-1)
        self._reflectors.append((vectors, compact))
        return packed[: len(scales)].triu()

    def rotated(self, rows: Tensor) -> Tensor:
        """X Q for rows X (R, n)."""
        rows = rows.clone()
        for vectors, compact in self._reflectors:
            last = rows[:, -len(vectors) :]
            last.addmm_(last @ vectors @ compact, vectors.mT, alpha=-1)
        return rows

    def rotated_back(self, rows: Tensor) -> Tensor:
        """X Qᵀ for rows X (R, n)."""
        rows = rows.clone()
        for vectors, compact in reversed(self._reflectors):
            last = rows[:, -len(vectors) :]
            last.addmm_(last @ vectors @ compact.mT, vectors.mT, alpha=-1)
        return rows

    def quadratic_forms(self, rows: Tensor, shifts: Tensor, *, diagonal: bool = False) -> Tensor:
        """X(A + μI)⁻¹Xᵀ for each μ of ``shifts`` (G,) and each block X of ``rows`` (N, C, n).

        Returns (G, N, C, C), or with ``diagonal`` their diagonals (G, N, C); NaN where A + μI is
        not positive definite.
        """
        n, outputs, _ = rows.shape
        columns = self.rotated(rows.flatten(0, 1)).mT.contiguous()
        root = _CholeskyRoot(self, shifts)
        total = 0
        for solved in root.forward(columns):
            if diagonal:
                total = total + solved.square().sum(1)
                continue
            blocks = solved.view(len(shifts), -1, n, outputs).permute(0, 2, 3, 1)
            total = total + blocks @ blocks.mT
        return total.view(len(shifts), n, outputs) if diagonal else total

    def solve(self, rows: Tensor, shift: float) -> Tensor:
        """X(A + μI)⁻¹ for rows X (R, n)."""
        root = _CholeskyRoot(self, rows.new_tensor([shift]))
        solved = torch.cat(list(root.forward(self.rotated(rows).mT)), 1)
        return self.rotated_back(root.backward(solved)[0].mT.contiguous())

    def root_solve(self, rows: Tensor, shift: float) -> Tensor:
        """XR with RᵀR = (A + μI)⁻¹, for rows X (R, n): of unit normals, draws with that inverse."""
        root = _CholeskyRoot(self, rows.new_tensor([shift]))
        return self.rotated_back(root.backward(rows.mT.unsqueeze(0))[0].mT.contiguous())


class _CholeskyRoot:
    """L with LLᵀ = T + μI for G shifts μ at a time; NaN where it is not positive definite."""

    def __init__(self, matrix: BlockTridiagonal, shifts: Tensor) -> None:
        self._diagonal: list[Tensor] = []
        self._below: list[Tensor] = []
        for index, block in enumerate(matrix._diagonal):
            square = block.expand(len(shifts), -1, -1).clone()
            square.diagonal(dim1=1, dim2=2).add_(shifts.unsqueeze(1))
            if index:
                square -= self._below[-1] @ self._below[-1].mT
            factor, failed = torch.linalg.cholesky_ex(square)
            factor[failed > 0] = torch.nan
            self._diagonal.append(factor)
            if index < len(matrix._below):
                below = matrix._below[index].expand(len(shifts), -1, -1)
                self._below.append(
                    torch.linalg.solve_triangular(factor.mT, below, upper=True, left=False)
                )

    def forward(self, columns: Tensor) -> Iterator[Tensor]:
        """Yield L⁻¹X for X (n, R) by blocks of rows, (G, b, R)."""
        solved, start = None, 0
        for index, factor in enumerate(self._diagonal):
            block = columns[start : start + factor.shape[1]].expand(len(factor), -1, -1)
            if solved is not None:
                block = torch.baddbmm(block, self._below[index - 1], solved, alpha=-1)
            solved = torch.linalg.solve_triangular(factor, block, upper=False)
            start += factor.shape[1]
            yield solved

    def backward(self, columns: Tensor) -> Tensor:
        """L⁻ᵀX for X (G, n, R)."""
        parts: list[Tensor] = []
        stop = columns.shape[1]
        for index in range(len(self._diagonal) - 1, -1, -1):
            factor = self._diagonal[index]
            block = columns[:, stop - factor.shape[1] : stop]
            if parts:
                block = torch.baddbmm(block, self._below[index].mT, parts[-1], alpha=-1)
            parts.append(torch.linalg.solve_triangular(factor.mT, block, upper=True))
            stop -= factor.shape[1]
        return torch.cat(parts[::-1], 1)
