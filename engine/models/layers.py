"""The pieces every decoder is made of: norms, linear maps and the gated MLP.

Plain objects that hold tensors; nothing is trained, so nothing is registered anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.models.config import ModelConfig


class LinearMap(Protocol):
    """A matrix, and perhaps a bias: [rows, in] to [rows, out]."""

    @property
    def held(self) -> HeldWeights:
        """The matrix, for those who count."""

    def __call__(self, x: Tensor) -> Tensor:
        """X W^T + b."""


_PACK_FOR_ROWS = 16
"""oneDNN asks for a row count when it lays out a weight. On the CPUs measured the layouts for 1, 16
and 64 rows were equally fast at every row count, so any will do."""


class RMSNorm:
    """x / rms(x) * weight over the last dimension (arXiv 1910.07467), in float32 inside."""

    def __init__(self, weight: Tensor, eps: float) -> None:
        """``weight`` is float32, [width]."""
        self.weight = weight
        self.eps = eps
        self._shape = weight.shape

    def __call__(self, x: Tensor) -> Tensor:
        """[..., width] to the same shape and type."""
        return F.rms_norm(x.float(), self._shape, self.weight, self.eps).to(x.dtype)


class HeadNorm:
    """RMSNorm over each query and key head, with one weight for queries and one for keys."""

    def __init__(self, query: Tensor, key: Tensor, config: ModelConfig) -> None:
        """``query`` and ``key`` are float32, [head_dim]."""
        rows = [query.expand(config.num_heads, -1), key.expand(config.num_kv_heads, -1)]
        self.weight = torch.cat(rows)
        """[num_heads + num_kv_heads, head_dim]."""
        self.eps = config.rms_norm_eps

    def apply_(self, qk: Tensor) -> None:
        """Normalise [rows, num_heads + num_kv_heads, head_dim] in place."""
        qk.copy_(F.rms_norm(qk.float(), qk.shape[-1:], None, self.eps) * self.weight)


class HeldWeights(NamedTuple):
    """A matrix in memory."""

    owner: object
    """Whoever holds the same one names the same object."""
    nbytes: int
    elements: Mapping[str, int]
    """How many are in which format: a compute type, or GGUF's name of a packed one."""


def held_tensor(weight: Tensor) -> HeldWeights:
    """Of a plain tensor."""
    return HeldWeights(weight, weight.nbytes, {dtype_name(weight.dtype): weight.numel()})


def dtype_name(dtype: torch.dtype) -> str:
    """Without ``torch.``."""
    return str(dtype).removeprefix("torch.")


class DenseLinear:
    """x W^T + b on the weight as it is."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        """``weight`` is [out, in], ``bias`` [out]."""
        self.weight = weight
        self.bias = bias

    @property
    def held(self) -> HeldWeights:
        """The weight."""
        return held_tensor(self.weight)

    def __call__(self, x: Tensor) -> Tensor:
        """[rows, in] to [rows, out]."""
        return F.linear(x, self.weight, self.bias)


class PackedLinear:
    """x W^T + b on a weight laid out once for oneDNN, which else does so in every call.

    Holds the packed weight only. 1.2 to 1.4 times as fast as ``F.linear`` in bfloat16 with up to 16 rows.
    Rows are padded to a few counts: oneDNN compiles, and keeps, some half a megabyte of code for each one.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        """``weight`` is [out, in], ``bias`` [out]."""
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight, _PACK_FOR_ROWS)
        """Opaque to all but oneDNN."""
        self.bias = bias
        self.held = HeldWeights(self, weight.nbytes, {dtype_name(weight.dtype): weight.numel()})
        self._multiply = torch.ops.mkldnn._linear_pointwise.default

    def __call__(self, x: Tensor) -> Tensor:
        """[rows, in] to [rows, out]."""
        rows = len(x)
        padded = padded_rows(rows)
        if padded == rows:
            return cast(Tensor, self._multiply(x, self.weight, self.bias, "none", [], ""))
        x = F.pad(x, (0, 0, 0, padded - rows))
        return cast(Tensor, self._multiply(x, self.weight, self.bias, "none", [], ""))[:rows]


def padded_rows(rows: int) -> int:
    """The least of 1 .. 8, then steps of 4 to 32, 8 to 64 and 32 from there, that is not below ``rows``."""
    if rows <= 8:
        return rows
    step = 4 if rows <= 32 else 8 if rows <= 64 else 32
    return -(-rows // step) * step


def packing_helps(dtype: torch.dtype) -> bool:
    """Whether this build and CPU multiply packed weights of ``dtype``.

    Only bfloat16: in float32 MKL's plain product was faster for single rows, and it is the oracle's.
    Only x86, where it was measured.
    """
    if dtype != torch.bfloat16 or torch.cpu.get_capabilities().get("architecture") != "x86_64":
        return False
    built_in = hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
    return built_in and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def make_linear(weight: Tensor, bias: Tensor | None = None) -> LinearMap:
    """The fastest linear map for ``weight`` [out, in] on this machine."""
    if packing_helps(weight.dtype):
        return PackedLinear(weight, bias)
    return DenseLinear(weight, bias)


def _gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


def activation(name: str) -> Callable[[Tensor], Tensor]:
    """The function a ``ModelConfig.hidden_activation`` names.

    Raises:
        ValueError: the name is unknown.
    """
    match name:
        case "silu":
            return F.silu
        case "gelu_tanh":
            return _gelu_tanh
    raise ValueError(f"unknown activation {name!r}")


class GatedMLP:
    """down(act(gate(x)) * up(x)), gate and up in one product (arXiv 2002.05202)."""

    def __init__(self, gate_up: LinearMap, down: LinearMap, act: Callable[[Tensor], Tensor]) -> None:
        """``gate_up`` gives the gate's outputs, then the other half's."""
        self._gate_up = gate_up
        self._down = down
        self._act = act

    def __call__(self, x: Tensor) -> Tensor:
        """[rows, hidden] to the same shape."""
        gate, up = self._gate_up(x).chunk(2, dim=-1)
        return self._down(self._act(gate) * up)
