"""The same weights in the form that each peer wants, made from one GGUF file.

    python -m benchmarks.peers.prepare peers --llama-quantize PROGRAM --optimum-cli PROGRAM

makes, in the folder ``peers`` (what is there already stays as it is):

    file.gguf                                  the file itself
    q4_0.gguf, q8_0.gguf, bfloat16.gguf        llama.cpp's, by llama-quantize
    hf, hf-endless                             a transformers folder in bfloat16; the second without an end
                                               token, for servers that can't be told to go on after it
    openvino-int8                              by optimum-intel, from hf
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from engine.weights.source import resolve

_FORMATS = (("q4_0", "Q4_0"), ("q8_0", "Q8_0"), ("bfloat16", "BF16"))


def main(argv: Sequence[str] | None = None) -> int:
    """Make what is missing and can be made with the programs given.

    Returns:
        0, or 1 if the model is no GGUF file or a program failed.
    """
    options = _parser().parse_args(argv)
    source = resolve(options.model)
    if source.kind != "gguf":
        print(f"benchmarks.peers.prepare: {options.model} is no GGUF file", file=sys.stderr)
        return 1
    folder: Path = options.folder
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "file.gguf"
    if not file.exists():
        file.symlink_to(source.path.resolve())
    try:
        _transformers(source.path, folder / "hf")
        _endless(folder / "hf", folder / "hf-endless")
        if options.llama_quantize:
            _llama(options.llama_quantize, file, folder)
        if options.optimum_cli:
            _openvino(options.optimum_cli, folder / "hf", folder / "openvino-int8")
    except subprocess.CalledProcessError as error:
        print(f"benchmarks.peers.prepare: {error}", file=sys.stderr)
        return 1
    return 0


def _transformers(file: Path, folder: Path) -> None:
    if folder.exists():
        return
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(
        file.parent,
        gguf_file=file.name,
        dtype=torch.bfloat16,
        quantization_config=GgufConfig(dequantize=True),
    )
    model.save_pretrained(folder)
    config = _read(folder / "config.json")
    config.pop("quantization_config", None)
    config["rope_theta"] = config["rope_parameters"]["rope_theta"]  # where older readers look for it
    _write(folder / "config.json", config)


def _endless(source: Path, folder: Path) -> None:
    if folder.exists():
        return
    shutil.copytree(source, folder)
    for name in ("config.json", "generation_config.json"):
        _write(folder / name, _read(folder / name) | {"eos_token_id": None})


def _llama(program: Path, file: Path, folder: Path) -> None:
    for name, kind in _FORMATS:
        made = folder / f"{name}.gguf"
        if not made.exists():
            subprocess.run([program, "--allow-requantize", file, made, kind], check=True)


def _openvino(program: Path, source: Path, folder: Path) -> None:
    if not folder.exists():
        export = ["export", "openvino", "--task", "text-generation-with-past", "--weight-format", "int8"]
        subprocess.run([program, *export, "--model", source, folder], check=True)


def _read(file: Path) -> dict[str, Any]:
    return msgspec.json.decode(file.read_bytes(), type=dict[str, Any])


def _write(file: Path, config: dict[str, Any]) -> None:
    file.write_bytes(msgspec.json.format(msgspec.json.encode(config), indent=2) + b"\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers.prepare", allow_abbrev=False)
    add = parser.add_argument
    add("folder", type=Path, help="where to put them")
    add("--model", default="smollm2-135m-instruct", help="as for tandem serve (default: %(default)s)")
    add("--llama-quantize", type=Path, metavar="PROGRAM", help="llama.cpp's; without it no GGUF is made")
    add("--optimum-cli", type=Path, metavar="PROGRAM", help="optimum-intel's; without it no OpenVINO model")
    return parser


if __name__ == "__main__":
    sys.exit(main())
