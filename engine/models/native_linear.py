"""Matrices laid out for the native kernels, as torch sees them: the readable side of the native step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from engine.kernels.matrices import Workspace
from engine.models.layers import HeldWeights

if TYPE_CHECKING:
    from engine.kernels import _native


class NativeLinear:
    """x W^T + b, multiplied by native kernels. Callers in several threads take turns."""

    def __init__(
        self,
        matrix: _native.Matrix,
        bias: Tensor | None,
        pool: _native.ThreadPool,
        workspace: Workspace,
        elements: Mapping[str, int],
    ) -> None:
        """A map by one matrix.

        Args:
            matrix: laid out.
            bias: float32, [out].
            pool: whose threads multiply.
            workspace: of the model's matrices.
            elements: how many of the matrix are in which format.
        """
        self.matrix = matrix
        self.bias = bias
        self.held = HeldWeights(matrix, matrix.bytes, elements)
        self._pool = pool
        self._workspace = workspace

    def __call__(self, x: Tensor) -> Tensor:
        """[rows, in] to [rows, out], of the same type."""
        rows = x.float().contiguous()
        outputs = self.matrix.outputs
        product = torch.empty(len(rows), outputs)
        self.matrix.apply(
            self._workspace.rows,
            rows.data_ptr(),
            len(rows),
            rows.shape[1],
            product.data_ptr(),
            outputs,
            0 if self.bias is None else self.bias.data_ptr(),
            self._pool,
        )
        return product.to(x.dtype)


class NativeEmbedding:
    """Rows of a native matrix, dequantised when they are looked up."""

    def __init__(self, matrix: _native.Matrix, dtype: torch.dtype, elements: Mapping[str, int]) -> None:
        """``dtype`` is the compute type."""
        self.matrix = matrix
        self.held = HeldWeights(matrix, matrix.bytes, elements)
        self._dtype = dtype

    def __call__(self, token_ids: Tensor) -> Tensor:
        """[rows] of token ids to [rows, hidden]."""
        ids = token_ids.contiguous()
        embedded = torch.empty(len(ids), self.matrix.inputs)
        self.matrix.rows(ids.data_ptr(), len(ids), embedded.data_ptr())
        return embedded.to(self._dtype)
