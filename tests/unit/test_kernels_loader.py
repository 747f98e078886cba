"""Which kernels the engine gets, and what happens where there are none."""

from __future__ import annotations

import sys

import pytest

from engine.kernels import _native
from engine.kernels.loader import load_kernels
from engine.model_error import ModelError


@pytest.fixture
def not_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "engine.kernels._native", None)
    monkeypatch.delattr("engine.kernels._native", raising=False)


def test_the_fastest_by_default() -> None:
    kernels = load_kernels("auto", 2)
    assert kernels is not None
    assert kernels.instruction_set == _native.instruction_sets()[0]
    assert kernels.pool.threads == 2


@pytest.mark.parametrize("name", _native.instruction_sets())
def test_any_set_of_this_processor(name: str) -> None:
    kernels = load_kernels(name, 1)
    assert kernels is not None and kernels.instruction_set == name


def test_a_set_of_another_processor_is_refused() -> None:
    foreign = "neon" if "neon" not in _native.instruction_sets() else "avx2"
    with pytest.raises(ModelError, match=f"no {foreign} kernels for this processor; it has .*scalar"):
        load_kernels(foreign, 1)


def test_torch_loads_nothing(not_built: None, caplog: pytest.LogCaptureFixture) -> None:
    assert load_kernels("torch", 1) is None
    assert not caplog.records


def test_without_a_compiler_torch_takes_over_with_one_warning(
    not_built: None, caplog: pytest.LogCaptureFixture
) -> None:
    assert load_kernels("auto", 1) is None
    (record,) = caplog.records
    assert record.levelname == "WARNING" and "without a C++ compiler" in record.message


def test_without_a_compiler_a_named_set_is_refused(not_built: None) -> None:
    with pytest.raises(ModelError, match="without a C\\+\\+ compiler"):
        load_kernels("scalar", 1)
