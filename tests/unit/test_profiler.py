"""``tandem profile``: its arguments, its grid, how it repeats and what it writes. No model is loaded."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks.published_profiles import profiles
from configs.loader import SettingsError
from engine.profiler import grid
from engine.profiler.__main__ import main
from engine.profiler.accelerator import entry_share
from engine.profiler.arguments import parse_arguments
from engine.profiler.command import load_warning, output_path, write_whole
from engine.profiler.device_timer import copy_times
from engine.profiler.report import ProgressLine, summary
from engine.profiler.session import Session, relative_spread
from engine.profiler.surroundings import LoadMeter, host_description, processor_name
from scheduler.profile import RowTimes

ROOT = Path(__file__).resolve().parents[2]
MOST = 2**20


class HandClock:
    """Stands still unless it is moved."""

    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        return self.time


# -- arguments


def test_arguments() -> None:
    argv = [
        "m",
        "--kv-dtype",
        "int8",
        "--quantization=none",
        "--page-size=32",
        "--threads",
        "3",
        "--device",
        "cpu",
        "--seconds",
        "5",
    ]
    found = parse_arguments([*argv, "--output", "p.json", "--max-batch-tokens", "64"])
    settings = found.settings
    assert (settings.model, settings.kv_dtype, settings.page_size) == ("m", "int8", 32)
    assert settings.quantization == "none"
    assert (settings.threads, settings.max_batch_tokens, settings.dtype) == (3, 64, "auto")
    assert (found.device, found.seconds, found.output) == ("cpu", 5.0, Path("p.json"))


def test_defaults_are_those_of_serve() -> None:
    found = parse_arguments([])
    assert (found.settings.model, found.settings.page_size) == ("smollm2-135m-instruct", 16)
    assert (found.device, found.seconds, found.output) == ("emulated", 60.0, None)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--outptu", "f"], "unknown flag --outptu; did you mean --output?"),
        (["--port", "1"], "unknown flag --port"),
        (["one", "two"], "unexpected argument two; only one MODEL can be profiled"),
        (["--seconds"], "--seconds: expected one argument"),
        (["--seconds", "0"], "flag --seconds: '0' is not allowed; expected a number above 0, 86400 at most"),
        (
            ["--seconds", "nan"],
            "flag --seconds: 'nan' is not allowed; expected a number above 0, 86400 at most",
        ),
        (["--device", "cuda"], "flag --device: 'cuda' is not allowed; expected one of cpu, emulated"),
        (["--page-size", "0"], "flag --page-size: '0' is not allowed; expected a whole number from 1 to 256"),
    ],
)
def test_wrong_arguments_are_one_line_and_exit_code_2(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.startswith(f"tandem profile: {message}")
    assert captured.err.count("\n") == 1


def test_a_model_that_is_not_there_is_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["no-such-model"]) == 1
    assert capsys.readouterr().err.startswith("tandem profile: there is no model 'no-such-model'")


def test_the_command_passes_its_exit_code_on() -> None:
    command = [sys.executable, "-m", "server.cli", "profile", "--sconds", "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "tandem profile: unknown flag --sconds; did you mean --seconds?\n"


def test_wrong_arguments_load_no_torch() -> None:
    code = "import sys, engine.profiler.__main__ as it; it.main(['--x']); sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, timeout=60)


# -- the file


def test_a_file_is_replaced_only_if_it_was_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert output_path(parse_arguments(["--device", "cpu"]), "tiny") == Path("tiny-cpu.json")
    Path("tiny-cpu.json").touch()
    with pytest.raises(SettingsError, match=r"^tiny-cpu\.json is there already; --output tiny-cpu\.json"):
        output_path(parse_arguments(["--device", "cpu"]), "tiny")
    argv = ["--output", "tiny-cpu.json"]
    assert output_path(parse_arguments(argv), "tiny") == Path("tiny-cpu.json")


@pytest.mark.parametrize("name", [".", "no/such/folder.json"])
def test_what_cant_be_written_is_refused_before_measuring(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SettingsError, match="can't be written"):
        output_path(parse_arguments(["--output", name]), "tiny")


def test_a_file_is_written_whole(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_bytes(b"old")
    write_whole(path, b"new")
    assert path.read_bytes() == b"new"
    assert [each.name for each in tmp_path.iterdir()] == ["p.json"]
    with pytest.raises(SettingsError, match="can't be written: "):
        write_whole(tmp_path / "gone" / "p.json", b"")


# -- the grid


def test_the_whole_grid() -> None:
    whole = grid.make_grid(4096, MOST, MOST)
    assert (whole.rows, whole.head_rows, whole.contexts) == (grid.ROWS, grid.HEAD_ROWS, grid.CONTEXTS)
    assert (whole.decode_rows, whole.decode_tokens) == (grid.DECODE_ROWS, grid.DECODE_TOKENS)
    assert whole.most_tokens == 65536 and whole.most_sequences == 256


def test_the_grid_ends_where_model_and_machine_do() -> None:
    found = grid.make_grid(100, 2048, 5000)
    assert found.rows == (1, 2, 4, 8, 16, 32, 64, 100)
    assert found.decode_rows == (1, 4, 16, 64, 100)
    assert found.decode_tokens == (256, 1024, 4096, 5000)
    assert found.prefill_rows == (2, 16, 64, 100)
    assert found.contexts == (0, 256, 1024, 2048)
    assert grid.make_grid(512, 512, 5000).contexts == (0, 256, 512)


@pytest.mark.parametrize("rows", [1, 2, 3, 300, 512, 5000])
@pytest.mark.parametrize("tokens", [1, 700, MOST])
def test_every_axis_grows_and_has_two_points(rows: int, tokens: int) -> None:
    found = grid.make_grid(rows, 1024, tokens)
    for name in found.__slots__:
        axis = getattr(found, name)
        assert len(axis) >= 2 and all(one < other for one, other in pairwise(axis)), name
    assert found.decode_rows[-1] <= found.decode_tokens[0]
    assert grid.QUICK_ROWS[-1] <= grid.QUICK_TOKENS[0]


def test_tokens_are_shared_out_evenly() -> None:
    assert grid.shared_out(10, 4) == (3, 3, 2, 2)
    assert grid.shared_out(256, 256) == (1,) * 256


# -- rounds


def recorded(log: list[str], name: str, clock: HandClock, takes: Callable[[], float]):
    """A point that logs its visits and moves the clock on."""

    def prepare():
        log.append(name)

        def once() -> float:
            seconds = takes()
            clock.time += seconds
            return seconds

        return once

    return prepare


def test_points_are_visited_in_turn_and_the_first_visit_does_not_count() -> None:
    clock, log = HandClock(), []
    times = iter([100.0, 1.0, 3.0, 2.0])
    points = [
        recorded(log, "a", clock, lambda: next(times)),
        recorded(log, "b", clock, lambda: 5.0),
    ]
    shown: list[tuple[str, float]] = []
    session = Session(1.0, clock, lambda title, done: shown.append((title, done)))
    assert session.measure("title", 1.0, points) == [2.0, 5.0]
    assert log == ["a", "b"] * 4
    assert shown[0] == ("title", 0.0) and shown[-1] == ("title", 1.0)
    assert all(one[1] <= other[1] for one, other in pairwise(shown))


def test_rounds_go_on_while_there_is_time() -> None:
    clock, log = HandClock(), []
    session = Session(20.0, clock, lambda _title, _done: None)
    session.measure("half", 0.5, [recorded(log, "a", clock, lambda: 1.0)])
    assert clock.time == 10.0
    session.measure("other half", 0.5, [recorded(log, "b", clock, lambda: 0.01)])
    assert 25 <= log.count("b") <= 26, "there are enough samples"


def test_short_times_are_repeated_within_a_visit() -> None:
    clock, log = HandClock(), []
    calls: list[float] = []

    def takes() -> float:
        calls.append(0.001)
        return 0.001

    Session(0.0, clock, lambda _title, _done: None).measure("t", 1.0, [recorded(log, "a", clock, takes)])
    assert len(log) == 4 and len(calls) == 1 + 3 * 5


def test_tables_are_laid_out_by_rows() -> None:
    clock = HandClock()
    session = Session(0.0, clock, lambda _title, _done: None)

    def point(rows: int, tokens: int):
        return recorded([], "", clock, lambda: rows * 1000.0 + tokens)

    table = session.over_both("t", 1.0, (1, 2), (10, 20, 30), point)
    assert table.seconds == ((1010.0, 1020.0, 1030.0), (2010.0, 2020.0, 2030.0))
    over_rows = session.over_rows("t", 1.0, (1, 2), lambda rows: point(rows, 0))
    assert over_rows.seconds == (1000.0, 2000.0)


def test_spread_is_the_middle_half() -> None:
    assert relative_spread([4.0, 1.0, 3.0, 2.0, 5.0]) == pytest.approx(2 / 3)
    assert relative_spread([1.0, 1.0, 1.0, 1.0, 1.0, 900.0]) == 0.0
    assert relative_spread([0.0, 0.0]) == relative_spread([7.0]) == 0.0


# -- what is made of the medians


def test_latency_and_rate_of_copies() -> None:
    found = copy_times(1000, 30e-6, 1_001_000, 130e-6)
    assert found.bytes_per_second == pytest.approx(10e9)
    assert found.latency == pytest.approx(29.9e-6)
    assert copy_times(1000, 1e-3, 2000, 1e-3).bytes_per_second > 0, "no difference, but no error either"


def test_entry_share_is_the_median_over_common_rows() -> None:
    dense = RowTimes(rows=(1, 2, 4, 8), seconds=(1.0, 2.0, 4.0, 0.0))
    entry = RowTimes(rows=(1, 2, 4, 8, 16), seconds=(0.5, 0.4, 1.0, 1.0, 9.0))
    assert entry_share(entry, dense) == 0.25
    assert entry_share(RowTimes(rows=(1, 2), seconds=(3.0, 6.0)), dense) == 1.0


# -- the machine


def stat(root: Path, *ticks: int) -> None:
    (root / "proc").mkdir(exist_ok=True)
    (root / "proc/stat").write_text("cpu  " + " ".join(map(str, ticks)) + "\ncpu0 1 2\n")


def test_others_are_whoever_used_the_cpu_but_us(tmp_path: Path) -> None:
    stat(tmp_path, 100, 0, 0, 1000, 0, 0, 0, 0, 50, 0)
    own = iter([1.0, 3.0])
    meter = LoadMeter(tmp_path, lambda: next(own))
    stat(tmp_path, 400, 50, 50, 1500, 100, 0, 0, 0, 90, 0)  # of 1000 ticks 400 used, 200 by us
    assert meter.others() == pytest.approx(0.2)


def test_the_load_of_others_may_be_unknown(tmp_path: Path) -> None:
    assert LoadMeter(tmp_path).others() is None
    stat(tmp_path, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1)
    assert LoadMeter(tmp_path).others() is None, "no time has passed"


def test_a_busy_machine_is_warned_of() -> None:
    assert load_warning(None) == load_warning(0.0) == load_warning(0.1) == ""
    assert load_warning(0.62).startswith("other processes took 62% of the CPU time")


def test_the_host_is_described(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    assert processor_name(tmp_path) and "memory unknown" in host_description("torch", tmp_path)
    (tmp_path / "proc/cpuinfo").write_text("processor\t: 0\nmodel name\t: Fast 9000\n\nprocessor\t: 1\n")
    (tmp_path / "proc/meminfo").write_text("MemTotal:       16777216 kB\n")
    described = host_description("avx2", tmp_path)
    assert described.startswith("Fast 9000, ") and described.endswith(" 16 GiB, avx2 attention kernels")


# -- what is shown


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_one_line_on_a_terminal() -> None:
    terminal = Terminal()
    line = ProgressLine("m", terminal)
    line.update("head", 0.5)
    line.update("head", 0.6)
    line.end()
    assert terminal.getvalue() == (
        f"\rProfiling m: [{'#' * 15}{'.' * 15}]  50%, head\x1b[K"
        f"\rProfiling m: [{'#' * 18}{'.' * 12}]  60%, head\x1b[K\n"
    )


def test_progress_elsewhere_is_a_line_for_each_table() -> None:
    file = io.StringIO()
    line = ProgressLine("m", file)
    for title, done in (("head", 0.1), ("head", 0.2), ("copies", 0.9)):
        line.update(title, done)
    line.end()
    assert file.getvalue() == "Profiling m: 10%, head\nProfiling m: 90%, copies\n"


def test_summary_tells_the_rates() -> None:
    lines = dict(line.split("  ", 1) for line in summary(profiles()["t4-llama-2-7b-fp16.json"]).splitlines())
    assert lines["copies up"].strip() == "10 us, then 11.8 GB/s"
    assert "(40.0 GB/s)" in lines["attention on the CPU"]
