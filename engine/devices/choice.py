"""The device that settings ask for."""

from __future__ import annotations

from engine.devices.base import Device
from engine.devices.cpu import CpuDevice
from engine.devices.emulated import EmulatedDevice
from engine.model_error import ModelError
from scheduler.cost_model import CostModel


def make_device(kind: str, costs: CostModel | None) -> Device:
    """Open a device.

    Args:
        kind: ``cpu`` or ``emulated``; ``cuda`` has its place here.
        costs: the times that an emulated device keeps to, if any; elsewhere, how time is shared out
            among the stages of one operation.

    Raises:
        ModelError: there is no such device.
    """
    match kind:
        case "cpu":
            return CpuDevice(costs)
        case "emulated":
            return EmulatedDevice(costs)
        case "cuda":
            raise ModelError("--device cuda: this version has no CUDA device yet; use cpu or emulated")
        case _:
            raise ModelError(f"--device {kind}: unknown; use cpu or emulated")
