"""The command line: what it says, what it returns, and that it stays light."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import server
from configs.loader import SettingsError, options
from server import cli

ROOT = Path(__file__).resolve().parents[2]


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"tandem {server.__version__}\n"


def test_help_names_every_command_on_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(f"\n  {command} " in out for command in cli.COMMANDS)


def test_no_command_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and "usage: tandem" in captured.err


def test_serve_help_explains_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(["serve", "--help"])
    assert end.value.code == 0
    words = " ".join(capsys.readouterr().out.split())
    for option in options():
        assert (option.flag if option.name != "model" else "MODEL") in words
        assert option.description.split()[-1] in words
    assert "--no-prefix-caching" in words


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["srve"], "tandem: unknown command srve; did you mean serve?"),
        (["serve", "--prot", "80"], "tandem serve: unknown flag --prot; did you mean --port?"),
        (["serve", "--prot=80"], "tandem serve: unknown flag --prot; did you mean --port?"),
        (["serve", "--no-threads"], "tandem serve: unknown flag --no-threads; did you mean --threads?"),
        (["serve", "--por", "80"], "tandem serve: unknown flag --por; did you mean --port?"),
        (["serve", "--xyzzy"], "tandem serve: unknown flag --xyzzy"),
        (["serve", "-p", "80"], "tandem serve: unknown flag -p; did you mean --port?"),
        (["serve", "--model", "m"], "tandem serve: the model is given without a flag: tandem serve MODEL"),
        (["serve", "one", "two"], "tandem serve: unexpected argument two; only one MODEL can be served"),
        (["serve", "--port"], "tandem serve: --port: expected one argument"),
        (
            ["serve", "--threads", "-1"],
            "tandem serve: flag --threads: '-1' is not allowed; expected a whole number from 1 to 1024",
        ),
    ],
)
def test_errors_are_one_line_and_exit_code_2(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(argv) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err == message + "\n"


def test_arguments_become_settings(tmp_path: Path) -> None:
    config = tmp_path / "c.yaml"
    config.write_text("max_running: 7")
    argv = ["--port", "81", "--no-prefix-caching", "--config", str(config), "my/model", "--host-kv-pages=9"]
    loaded, print_config = cli.parse_serve_arguments(argv, {"TANDEM_THREADS": "2"})
    settings = loaded.settings
    assert (settings.port, settings.max_running, settings.threads) == (81, 7, 2)
    assert (settings.model, settings.host_kv_pages, settings.prefix_caching) == ("my/model", 9, False)
    assert not print_config


def test_config_file_from_the_environment(tmp_path: Path) -> None:
    here, there = tmp_path / "here.yaml", tmp_path / "there.yaml"
    here.write_text("port: 1")
    there.write_text("port: 2")
    environment = {"TANDEM_CONFIG": str(there)}
    assert cli.parse_serve_arguments([], environment)[0].settings.port == 2
    assert cli.parse_serve_arguments(["--config", str(here)], environment)[0].settings.port == 1
    with pytest.raises(SettingsError, match="can't read"):
        cli.parse_serve_arguments(["--config", str(tmp_path)], {})


def test_print_config_starts_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TANDEM_LOG_LEVEL", "debug")
    assert cli.main(["serve", "--print-config", "--port", "81", "m"]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert 'model: "m" # argument MODEL' in lines
    assert "port: 81 # flag --port" in lines
    assert 'log_level: "debug" # environment TANDEM_LOG_LEVEL' in lines
    assert len(lines) == len(options())


@pytest.mark.parametrize(
    ("command", "module"), [("chat", "server.client.chat"), ("bench", "server.client.bench.main")]
)
def test_other_commands_get_their_own_arguments(
    command: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[str]] = []

    def run(argv: list[str]) -> int:
        seen.append(argv)
        return 7

    monkeypatch.setattr(importlib.import_module(module), "run", run)
    assert cli.main([command, "--url", "x"]) == 7
    assert seen == [["--url", "x"]]


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    command = [sys.executable, "-m", "server.cli", "serve", "--print-config"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 0


@pytest.mark.parametrize(
    "argv", [["--help"], ["--version"], ["serve", "--help"], ["serve", "--print-config"]]
)
def test_nothing_heavy_is_imported_for_help(argv: list[str]) -> None:
    script = (
        "import sys\nfrom server.cli import main\n"
        f"try:\n    code = main({argv!r})\nexcept SystemExit as end:\n    code = end.code\n"
        "heavy = {'torch', 'numpy', 'fastapi', 'pydantic', 'uvicorn', 'tokenizers', 'asyncio'}\n"
        "print(*heavy & set(sys.modules), file=sys.stderr)\nsys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stderr.strip() == ""
