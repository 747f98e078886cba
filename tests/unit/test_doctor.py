"""``tandem doctor``: facts from fake /proc and /sys trees, advice from facts, a look at this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from engine import kernels as native_package
from engine.doctor import advice, libraries, machine, report
from engine.doctor.__main__ import main
from engine.doctor.examine import examine
from engine.doctor.facts import (
    Bandwidth,
    Facts,
    Gpu,
    Gpus,
    Kernels,
    Memory,
    NumaNode,
    Processor,
    Torch,
)

ROOT = Path(__file__).resolve().parents[2]
MIB = 2**20

SOUND = Facts(
    kernels=Kernels(instruction_sets=("avx512", "avx2", "scalar"), auto="avx512"),
    processor=Processor(
        threads=8, usable_cores=8, online_cpus=16, online_cores=8, quota="unlimited", load_average=16.0
    ),
    numa_nodes=(NumaNode(node=0, cpus="0-7", usable_cpus=8), NumaNode(node=1, cpus="8-15", usable_cpus=0)),
    memory=Memory(
        total=64 << 30, free=60 << 30, swap_total=0, swap_free=0, huge_pages="madvise", lock_limit=8 * MIB
    ),
    bandwidth=Bandwidth(bytes_read=512 * MIB, one_thread=15.6e9, all_threads=88.25e9),
    gpus=Gpus(usable=(), device_files=(), torch_cuda=None),
    torch=Torch(version="2.13.0+cpu", threads=4, capabilities=("amx_bf16", "avx2"), auto_dtype="bfloat16"),
)
UNKNOWN = Facts(
    kernels=Kernels(instruction_sets=None, auto="torch"),
    processor=Processor(
        threads=1, usable_cores=None, online_cpus=None, online_cores=None, quota=None, load_average=None
    ),
    numa_nodes=None,
    memory=Memory(total=None, free=None, swap_total=None, swap_free=None, huge_pages=None, lock_limit=None),
    bandwidth=None,
    gpus=Gpus(usable=(), device_files=(), torch_cuda=None),
    torch=Torch(version="2", threads=1, capabilities=(), auto_dtype="float32"),
)
H200 = Gpus(
    usable=(Gpu(name="NVIDIA H200", memory=139 << 30),), device_files=("/dev/nvidia0",), torch_cuda="13.0"
)


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n")
    return root


def changed(part: str, **values: object) -> Facts:
    """The sound machine with some facts of one part replaced."""
    return msgspec.structs.replace(SOUND, **{part: msgspec.structs.replace(getattr(SOUND, part), **values)})


# -- facts


def test_cpu_lists() -> None:
    assert machine.cpu_list("0-3,8,10-11") == {0, 1, 2, 3, 8, 10, 11}
    assert machine.cpu_list("") == frozenset()


def test_processor_counts_cpus_and_the_cores_they_share(tmp_path: Path) -> None:
    siblings = {0: "0,4", 1: "1,5", 2: "2", 3: "3", 4: "0,4", 5: "1,5"}
    cpu = "sys/devices/system/cpu"
    write(tmp_path, {f"{cpu}/cpu{n}/topology/thread_siblings_list": text for n, text in siblings.items()})
    write(tmp_path, {f"{cpu}/online": "0-5", "proc/loadavg": "3.25 2.00 1.00 2/345 6789"})
    found = machine.processor(tmp_path, {0, 2, 4})
    assert found == Processor(
        threads=3, usable_cores=2, online_cpus=6, online_cores=4, quota=None, load_average=3.25
    )


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({}, None),
        ({"cpuset.cpus": "0-3"}, None),
        ({"cgroup.controllers": "cpu io memory"}, "unlimited"),
        ({"cpu.max": "max 100000"}, "unlimited"),
        ({"cpu.max": "150000 100000"}, 1.5),
        ({"cpu.max": "nonsense"}, None),
        ({"cgroup.controllers": "cpu", "user/shell/cpu.max": "max 100000"}, "unlimited"),
        ({"user/cpu.max": "max 100000", "user/shell/cpu.max": "250000 50000"}, 5.0),
        ({"user/cpu.max": "200000 100000", "user/shell/cpu.max": "250000 50000"}, 2.0),
        ({"cgroup.controllers": "cpu", "user/other/cpu.max": "100000 100000"}, "unlimited"),
    ],
)
def test_the_quota_is_the_least_of_the_groups_around_the_process(
    files: dict[str, str], quota: float | str | None, tmp_path: Path
) -> None:
    write(tmp_path, {"proc/self/cgroup": "4:memory:/elsewhere\n0::/user/shell"})
    write(tmp_path, {f"sys/fs/cgroup/{name}": text for name, text in files.items()})
    assert machine.cpu_quota(tmp_path) == quota


def test_numa_nodes_and_their_cpus(tmp_path: Path) -> None:
    node = "sys/devices/system/node"
    write(
        tmp_path,
        {f"{node}/online": "0-2,4", f"{node}/node0/cpulist": "0-3,8", f"{node}/node1/cpulist": "4-7"},
    )
    write(tmp_path, {f"{node}/node2/cpulist": ""})
    assert machine.numa_nodes(tmp_path, {0, 8, 4}) == (
        NumaNode(node=0, cpus="0-3,8", usable_cpus=2),
        NumaNode(node=1, cpus="4-7", usable_cpus=1),
        NumaNode(node=2, cpus="", usable_cpus=0),
        NumaNode(node=4, cpus=None, usable_cpus=0),
    )


@pytest.mark.parametrize(("limit", "expected"), [("8388608", 8 * MIB), ("unlimited", "unlimited")])
def test_memory_and_its_limits(limit: str, expected: int | str, tmp_path: Path) -> None:
    sizes = (
        "MemTotal:  1024 kB",
        "MemAvailable:  512 kB",
        "SwapTotal: 8 kB",
        "SwapFree: 4 kB",
        "HugePages: 3",
    )
    limits = ("Max processes  9  9  processes", f"Max locked memory  {limit}  unlimited  bytes")
    write(
        tmp_path,
        {
            "proc/meminfo": "\n".join(sizes),
            "proc/self/limits": "\n".join(limits),
            "sys/kernel/mm/transparent_hugepage/enabled": "always madvise [never]",
        },
    )
    assert machine.memory(tmp_path) == Memory(
        total=MIB, free=MIB // 2, swap_total=8192, swap_free=4096, huge_pages="never", lock_limit=expected
    )


def test_device_files_are_only_gpus(tmp_path: Path) -> None:
    write(tmp_path, {f"dev/{name}": "" for name in ("nvidia1", "nvidia0", "nvidiactl", "nvidia-uvm", "null")})
    assert machine.nvidia_device_files(tmp_path) == ("/dev/nvidia0", "/dev/nvidia1")


def test_what_is_missing_is_unknown(tmp_path: Path) -> None:
    found = examine(MIB, tmp_path / "nowhere")
    assert found.processor == msgspec.structs.replace(UNKNOWN.processor, threads=found.processor.threads)
    assert (found.memory, found.numa_nodes) == (UNKNOWN.memory, None)
    assert found.gpus.device_files == ()


def test_files_that_say_something_else_are_unknown(tmp_path: Path) -> None:
    files = (
        "devices/system/cpu/online",
        "devices/system/node/online",
        "kernel/mm/transparent_hugepage/enabled",
    )
    write(tmp_path, {f"sys/{name}": "?" for name in files})
    write(tmp_path, {f"proc/{name}": "?" for name in ("meminfo", "loadavg", "self/limits", "self/cgroup")})
    assert machine.processor(tmp_path, {0}) == UNKNOWN.processor
    assert (machine.memory(tmp_path), machine.numa_nodes(tmp_path, {0})) == (UNKNOWN.memory, None)


def test_without_the_native_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(native_package, "_native", raising=False)
    monkeypatch.setitem(sys.modules, "engine.kernels._native", None)
    found = libraries.kernels()
    assert found == UNKNOWN.kernels
    assert libraries.bandwidth(found, 2, 512 * MIB, None) is None


@pytest.mark.parametrize(
    ("most", "free", "read"),
    [(8 * MIB, None, 8), (8 * MIB, 16 * MIB, 4), (8 * MIB, 0, 2), (5 * MIB, None, 4)],
)
def test_bandwidth_reads_no_more_than_a_quarter_of_free_memory(
    most: int, free: int | None, read: int
) -> None:
    pytest.importorskip("engine.kernels._native")
    measured = libraries.bandwidth(libraries.kernels(), 1, most, free)
    assert measured is not None
    assert measured.bytes_read == read * MIB
    assert measured.one_thread == measured.all_threads > 0


# -- advice


@pytest.mark.parametrize("facts", [SOUND, msgspec.structs.replace(UNKNOWN, kernels=SOUND.kernels)])
def test_no_advice_where_nothing_is_wrong_or_nothing_known(facts: Facts) -> None:
    assert advice.advise(facts) == ()
    assert report.to_text(facts, ()).endswith("\nnothing to improve")


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (changed("kernels", instruction_sets=None, auto="torch"), "install a C++ compiler"),
        (changed("processor", quota=2.5), "tandem serve --threads 2."),
        (changed("processor", quota=0.5), "tandem serve --threads 1."),
        (changed("processor", quota=2.5, usable_cores=4), "tandem serve --threads 2."),
        (changed("processor", quota=0.5, threads=1, usable_cores=1), "raise its quota."),
        (changed("processor", usable_cores=4), "try tandem serve --threads 4."),
        (changed("processor", load_average=16.5), "load average is 16.5 on 16 CPUs"),
        (changed("processor", load_average=8.5, online_cpus=None), "load average is 8.5 on 8 CPUs"),
        (
            msgspec.structs.replace(
                SOUND,
                numa_nodes=tuple(NumaNode(node=n, cpus="", usable_cpus=n * 2) for n in range(3)),
            ),
            "numactl --cpunodebind=2 --membind=2 tandem serve.",
        ),
        (changed("memory", huge_pages="never"), "echo madvise"),
        (changed("gpus", device_files=("/dev/nvidia0",)), "This torch has no CUDA"),
        (changed("gpus", device_files=("/dev/nvidia0",), torch_cuda="13.0"), "NVIDIA driver for CUDA 13.0"),
        (msgspec.structs.replace(SOUND, gpus=H200), "Only 8 MiB of memory may be locked"),
    ],
)
def test_each_case_has_its_one_advice(facts: Facts, words: str) -> None:
    (sentence,) = advice.advise(facts)
    assert words in sentence
    assert report.to_text(facts, (sentence,)).endswith(f"\n* {sentence}")


@pytest.mark.parametrize(
    "facts",
    [
        changed("processor", quota=8.0),
        changed("memory", huge_pages="always"),
        msgspec.structs.replace(changed("memory", lock_limit="unlimited"), gpus=H200),
    ],
)
def test_what_is_enough_needs_no_advice(facts: Facts) -> None:
    assert advice.advise(facts) == ()


# -- report


@pytest.mark.parametrize("facts", [SOUND, UNKNOWN, msgspec.structs.replace(SOUND, gpus=H200)])
def test_json_holds_the_same_facts(facts: Facts) -> None:
    text = report.to_json(facts, ("Buy memory.",))
    assert msgspec.json.decode(text, type=Facts) == facts
    assert json.loads(text).keys() == {*Facts.__struct_fields__, "advice"}
    assert json.loads(text)["advice"] == ["Buy memory."]


def test_text_holds_the_same_facts() -> None:
    facts = msgspec.structs.replace(changed("processor", quota=2.5), gpus=H200)
    lines = report.to_text(facts, ()).splitlines()
    column = lines[0].index("avx512")
    shown = {line[:column].strip(): line[column:] for line in lines[: lines.index("")]}
    assert shown == {
        "instruction sets": "avx512, avx2, scalar (fastest first)",
        "--cpu-kernels auto": "avx512",
        "threads": "8, on 8 physical cores",
        "CPUs online": "16, on 8 physical cores",
        "CPU quota": "2.5 CPUs",
        "load average": "16.0",
        "NUMA node 0": "CPUs 0-7; 8 usable",
        "NUMA node 1": "CPUs 8-15; 0 usable",
        "memory": "64.0 GiB, 60.0 GiB free",
        "swap": "none",
        "huge pages": "madvise",
        "lockable memory": "8 MiB",
        "memory bandwidth": "15.6 GB/s with one thread, 88.2 GB/s with 8 (reading 512 MiB)",
        "GPU": "NVIDIA H200, 139.0 GiB",
        "torch's CUDA": "13.0",
        "torch": "2.13.0+cpu, 4 threads by default",
        "CPU capabilities": "amx_bf16, avx2",
        "--dtype auto": "bfloat16",
    }


def test_text_names_what_is_unknown_or_not_there() -> None:
    lines = [" ".join(line.split()) for line in report.to_text(UNKNOWN, ()).splitlines()]
    for line in (
        "instruction sets no native library",
        "CPU quota unknown",
        "NUMA nodes unknown",
        "memory unknown, unknown free",
        "huge pages unknown",
        "memory bandwidth not measured without the native library",
        "GPU none",
    ):
        assert line in lines
    there = report.to_text(changed("gpus", device_files=("/dev/nvidia0",)), ())
    assert "/dev/nvidia0; torch can't use it" in there


# -- the command


@pytest.mark.parametrize("argument", ["--jsn", "--bandwidth-mib=0", "--bandwidth-mib=x", "model"])
def test_wrong_arguments_are_usage_errors(argument: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main([argument])
    assert end.value.code == 2
    assert "usage: tandem doctor" in capsys.readouterr().err


def test_the_command_examines_this_machine() -> None:
    command = [sys.executable, "-m", "server.cli", "doctor", "--json", "--bandwidth-mib", "16"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=True)
    found = msgspec.json.decode(done.stdout, type=Facts)
    assert found.processor.threads == len(os.sched_getaffinity(0))
    assert found.kernels == libraries.kernels()
    assert (found.bandwidth is None) == (found.kernels.instruction_sets is None)
    if found.bandwidth is not None:
        assert min(found.bandwidth.one_thread, found.bandwidth.all_threads) > 0
    assert json.loads(done.stdout)["advice"] == list(advice.advise(found))


def test_the_command_passes_its_exit_code_on() -> None:
    command = [sys.executable, "-m", "server.cli", "doctor", "--jsn"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 2
    assert "unrecognized arguments: --jsn" in done.stderr
