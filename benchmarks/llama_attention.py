"""llama.cpp's decode attention on a CPU, ``ggml_flash_attn_ext`` alone, on benchmarks.attention's shapes.

It needs llama-cpp-python, in an environment of its own, built for the processor it runs on:

    python -m venv LLAMA
    CMAKE_ARGS="-DGGML_NATIVE=ON -DLLAMA_BUILD_TOOLS=OFF" LLAMA/bin/pip install llama-cpp-python psutil
    LLAMA/bin/python -m benchmarks.llama_attention

Each sequence has one query. Keys and values are F16 and lie head by head without gaps, not in pages, which
flatters ggml; there is no mask. Layers are taken in turn, over more memory than caches hold, and GB/s count
each key and value once. ggml's plan, threads and memory are made beforehand: only its compute call is timed.
Before that, small cases are compared with numpy in float64.

ggml sums F16 values in F16. Built for AVX512-FP16 it does so 128 elements at a time and the rest one by one,
so that a head size of 64 is slow; ``-DGGML_NATIVE=OFF -DGGML_AVX512=ON`` builds it without.
"""

from __future__ import annotations

import argparse
import ctypes
import sys
import time
from collections.abc import Callable, Iterator
from ctypes import c_bool, c_char_p, c_float, c_int, c_int64, c_size_t, c_void_p
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import cycle
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.machine import LoadMeter, description

MEMORY = 768 * 2**20
"""Bytes of KV that the layers of a case are taken from, so that none is still in a cache."""
CALL_BYTES = 32 * 2**20
"""Bytes that one call reads, about: short contexts come in more rows."""
SHAPES = {"MHA": (8, 1, 128), "GQA 3": (3, 3, 64), "GQA 4": (8, 4, 128), "GQA 8": (4, 8, 128)}
"""KV heads, query heads of each, head size: all three constants as in benchmarks.attention."""
F32, F16 = 0, 1
"""ggml's numbers of the types."""
ROUNDING = 2.0**-11
"""The largest relative error of one rounding to F16."""


class InitParams(ctypes.Structure):
    """What ``ggml_init`` takes."""

    _fields_ = (("mem_size", c_size_t), ("mem_buffer", c_void_p), ("no_alloc", c_bool))


class ComputePlan(ctypes.Structure):
    """What ``ggml_graph_plan`` gives; the rest of it is ggml's own."""

    _fields_ = (("work_size", c_size_t), ("work_data", c_void_p), ("rest", c_int64 * 16))


FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "ggml_commit": (c_char_p, ()),
    "ggml_cpu_has_avx512": (c_int, ()),
    "ggml_init": (c_void_p, (InitParams,)),
    "ggml_free": (None, (c_void_p,)),
    "ggml_new_tensor_4d": (c_void_p, (c_void_p, c_int, c_int64, c_int64, c_int64, c_int64)),
    "ggml_get_data": (c_void_p, (c_void_p,)),
    "ggml_nbytes": (c_size_t, (c_void_p,)),
    "ggml_flash_attn_ext": (c_void_p, (*[c_void_p] * 5, *[c_float] * 3)),
    "ggml_new_graph_custom": (c_void_p, (c_void_p, c_size_t, c_bool)),
    "ggml_build_forward_expand": (None, (c_void_p, c_void_p)),
    "ggml_threadpool_params_init": (None, (c_void_p, c_int)),
    "ggml_threadpool_new": (c_void_p, (c_void_p,)),
    "ggml_threadpool_free": (None, (c_void_p,)),
    "ggml_graph_plan": (ComputePlan, (c_void_p, c_int, c_void_p)),
    "ggml_graph_compute": (c_int, (c_void_p, ctypes.POINTER(ComputePlan))),
}
"""Results and arguments of all that is called."""


@dataclass(frozen=True, slots=True)
class Case:
    """A decode batch of rows of one length."""

    shape: str
    context: int
    rows: int

    @property
    def heads(self) -> int:
        """Query heads."""
        kv_heads, group, _ = SHAPES[self.shape]
        return kv_heads * group

    @property
    def bytes_read(self) -> int:
        kv_heads, _, dim = SHAPES[self.shape]
        return 2 * 2 * kv_heads * dim * self.context * self.rows


class Attention:
    """Layers of one case in ggml: the same queries, keys and values of their own."""

    def __init__(self, ggml: ctypes.CDLL, case: Case, layers: int) -> None:
        kv_heads, _, dim = SHAPES[case.shape]
        self._ggml = ggml
        self._q_shape = (case.rows, case.heads, 1, dim)
        self._kv_shape = (case.rows, kv_heads, case.context, dim)
        out_bytes = 4 * case.rows * case.heads * dim
        memory = layers * (case.bytes_read + out_bytes + 2**16) + out_bytes + 2**20
        self._context = ggml.ggml_init(InitParams(memory, None, False))
        if not self._context:
            raise MemoryError(f"ggml gave no {memory} bytes")
        self._q = self._tensor(F32, self._q_shape)
        self._k = [self._tensor(F16, self._kv_shape) for _ in range(layers)]
        self._v = [self._tensor(F16, self._kv_shape) for _ in range(layers)]
        self._out = [
            ggml.ggml_flash_attn_ext(self._context, self._q, k, v, None, dim**-0.5, 0.0, 0.0)
            for k, v in zip(self._k, self._v, strict=True)
        ]
        self.graphs = [self._graph(out) for out in self._out]
        self._fill()

    def __enter__(self) -> Attention:
        return self

    def __exit__(self, *error: object) -> None:
        self._ggml.ggml_free(self._context)

    def tensors(self, layer: int) -> list[NDArray[Any]]:
        """Queries, keys, values and outputs, each (row, head, position, head size)."""
        return [
            self._values(self._q, np.float32).reshape(self._q_shape),
            self._values(self._k[layer], np.float16).reshape(self._kv_shape),
            self._values(self._v[layer], np.float16).reshape(self._kv_shape),
            self._values(self._out[layer], np.float32).reshape(self._q_shape),
        ]

    def _tensor(self, kind: int, shape: tuple[int, ...]) -> int:
        """``shape`` is in numpy's order, the reverse of ggml's."""
        tensor: int = self._ggml.ggml_new_tensor_4d(self._context, kind, *reversed(shape))
        return tensor

    def _graph(self, out: int) -> int:
        graph: int = self._ggml.ggml_new_graph_custom(self._context, 8, False)
        self._ggml.ggml_build_forward_expand(graph, out)
        return graph

    def _values(self, tensor: int, dtype: type[np.generic]) -> NDArray[Any]:
        size = self._ggml.ggml_nbytes(tensor)
        memory = (ctypes.c_uint8 * size).from_address(self._ggml.ggml_get_data(tensor))
        return np.frombuffer(memory, dtype=dtype)

    def _fill(self) -> None:
        """Normal numbers, repeated where there are many. Zeroing the outputs makes their memory exist."""
        random = np.random.default_rng(0)
        queries = self._values(self._q, np.float32)
        queries[:] = random.standard_normal(queries.size)
        few = random.standard_normal(1_000_003).astype(np.float16)
        for tensor in (*self._k, *self._v):
            values = self._values(tensor, np.float16)
            values[:] = np.resize(np.roll(few, int(random.integers(few.size))), values.size)
        for tensor in self._out:
            self._values(tensor, np.float32).fill(0.0)


class Computer:
    """Computes graphs of one shape on threads that stay."""

    def __init__(self, ggml: ctypes.CDLL, threads: int, graph: int) -> None:
        self._ggml = ggml
        params = ctypes.create_string_buffer(2**14)  # more than ggml's structure has
        ggml.ggml_threadpool_params_init(params, threads)
        self._pool = ggml.ggml_threadpool_new(params)
        self._plan: ComputePlan = ggml.ggml_graph_plan(graph, threads, self._pool)
        self._work = ctypes.create_string_buffer(max(1, self._plan.work_size))
        self._plan.work_data = ctypes.addressof(self._work)
        self._plan_pointer = ctypes.pointer(self._plan)

    def __call__(self, graph: int) -> None:
        if self._ggml.ggml_graph_compute(graph, self._plan_pointer) != 0:
            raise RuntimeError("ggml_graph_compute failed")

    def close(self) -> None:
        self._ggml.ggml_threadpool_free(self._pool)


def load() -> ctypes.CDLL | None:
    """ggml's CPU backend, with ggml itself, out of the installed llama-cpp-python; it isn't imported."""
    package = find_spec("llama_cpp")
    if package is None or package.origin is None:
        return None
    libraries = sorted((Path(package.origin).parent / "lib").glob("*ggml-cpu.*"))
    if not libraries:
        return None
    ggml = ctypes.CDLL(str(libraries[0]))
    for name, (result, arguments) in FUNCTIONS.items():
        function = getattr(ggml, name)
        function.restype, function.argtypes = result, arguments
    return ggml


def check(ggml: ctypes.CDLL, case: Case, threads: int) -> float:
    """Compare with float64; the largest error, in parts of what rounding to F16 explains.

    ggml rounds the queries to F16, and a head's sum of values after each key. Such errors add up like a
    random walk: each is evenly distributed up to ``ROUNDING`` of a sum that grows steadily, which makes a
    third of ``ROUNDING`` times the root of the keys. Five such deviations are allowed.
    """
    with Attention(ggml, case, 1) as attention:
        computer = Computer(ggml, threads, attention.graphs[0])
        computer(attention.graphs[0])
        computer.close()
        q, k, v, out = (tensor.astype(np.float64) for tensor in attention.tensors(0))
    group = SHAPES[case.shape][1]
    k, v = k.repeat(group, axis=1), v.repeat(group, axis=1)
    q = q.astype(np.float16).astype(np.float64)
    scores = q @ k.swapaxes(2, 3) * q.shape[-1] ** -0.5
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    explained = 5 / 3 * case.context**0.5 * ROUNDING * (weights @ np.abs(v))
    error = float(np.max(np.abs(out - weights @ v) / explained))
    if not error <= 1:
        raise ArithmeticError(f"{case} on {threads} threads: {error:.1f} times the error that F16 explains")
    return error


def decode_cases(shapes: list[str], contexts: list[int]) -> Iterator[Case]:
    """Batches that each read about ``CALL_BYTES``."""
    for shape in shapes:
        for context in contexts:
            one = Case(shape, context, 1)
            yield Case(shape, context, max(1, min(64, round(CALL_BYTES / one.bytes_read))))


def median_seconds(call: Callable[[], None], seconds: float) -> float:
    """Of at least five calls, after one that isn't counted."""
    call()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 5:
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return median(times)


def measure(ggml: ctypes.CDLL, case: Case, threads: int, seconds: float) -> str:
    """One row of the table."""
    layers = max(2, -(-MEMORY // case.bytes_read))
    with Attention(ggml, case, layers) as attention:
        computer = Computer(ggml, threads, attention.graphs[0])
        turns = cycle(attention.graphs)
        meter = LoadMeter()
        taken = median_seconds(lambda: computer(next(turns)), seconds)
        load = meter.read()
        computer.close()
    return (
        f"| {case.shape} | {case.context} | {case.rows} | {threads} | {taken * 1e6:.0f} | "
        f"{case.bytes_read / taken / 1e9:.1f} | {load.others:.0%} | {load.load_average:.1f} |"
    )


def main() -> int:
    """Check, measure and print one table."""
    options = _parser().parse_args()
    ggml = load()
    if ggml is None:
        print("There is no llama-cpp-python with ggml's CPU library in this environment.", file=sys.stderr)
        return 1
    shapes = options.shapes.split(",")
    threads = [int(count) for count in options.threads.split(",")]
    small = [Case(shape, context, rows) for shape in shapes for context, rows in ((100, 3), (700, 1))]
    error = max(check(ggml, case, count) for count in threads for case in small)
    print(f"Machine: {description('llama-cpp-python', 'numpy')}")
    print(f"ggml {ggml.ggml_commit().decode()}, AVX-512: {'yes' if ggml.ggml_cpu_has_avx512() else 'no'}")
    print(f"Repeat: python -m benchmarks.llama_attention {' '.join(sys.argv[1:])}")
    print(f"Largest error: {error:.2f} of what rounding to F16 explains\n")
    print("| shape | context | rows | threads | us | GB/s | others' CPU | load average |")
    print("|---" * 8 + "|")
    for count in threads:
        for case in decode_cases(shapes, [int(context) for context in options.contexts.split(",")]):
            print(measure(ggml, case, count, options.seconds), flush=True)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.llama_attention", allow_abbrev=False)
    add = parser.add_argument
    add("--threads", default="1,2", help="default: %(default)s")
    add("--shapes", default=",".join(SHAPES), help="default: %(default)s")
    add("--contexts", default="256,1024,8192", help="default: %(default)s")
    add("--seconds", type=float, default=0.4, help="for each case (default: %(default)s)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
