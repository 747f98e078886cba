"""The same weights in the form that each peer wants, made from one GGUF file.

    python -m benchmarks.peers.prepare peers --llama-quantize PROGRAM --optimum-cli PROGRAM

makes, in the folder ``peers`` (what is there already stays as it is):

    file.gguf                                  the file itself
    q4_0.gguf, q8_0.gguf, bfloat16.gguf        llama.cpp's, by llama-quantize
    hf, hf-endless                             a transformers folder in bfloat16; the second without an end
                                               token, for servers that can't be told to go on after it
    openvino-int8, openvino-int4               by optimum-intel, from hf
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from engine.weights.source import resolve

_FORMATS = (("q4_0", "Q4_0"), ("q8_0", "Q8_0"), ("bfloat16", "BF16"))
_OPENVINO = (
    ("int8", ("--weight-format", "int8")),
    # Its default of 128 inputs a group does not divide SmolLM2's width.
    ("int4", ("--weight-format", "int4", "--group-size", "64", "--ratio", "1.0")),
)


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
        _make(folder / "hf", partial(_transformers, source.path))
        _make(folder / "hf-endless", partial(_endless, folder / "hf"))
        for name, kind in _FORMATS if options.llama_quantize else ():
            _make(folder / f"{name}.gguf", partial(_llama, options.llama_quantize, kind, file))
        for name, flags in _OPENVINO if options.optimum_cli else ():
            export = partial(_openvino, options.optimum_cli, flags, folder / "hf")
            _make(folder / f"openvino-{name}", export)
    except subprocess.CalledProcessError as error:
        print(f"benchmarks.peers.prepare: {error}", file=sys.stderr)
        return 1
    return 0


def _make(target: Path, make: Callable[[Path], None]) -> None:
    """Let ``make`` write ``target``, unless it is there; what is made halfway is never taken for whole."""
    if target.exists():
        return
    unfinished = target.with_name(f"unfinished-{target.name}")
    shutil.rmtree(unfinished, ignore_errors=True)
    make(unfinished)
    unfinished.rename(target)


def _transformers(file: Path, folder: Path) -> None:
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
    folder.mkdir()
    for entry in source.iterdir():
        if entry.name in ("config.json", "generation_config.json"):
            _write(folder / entry.name, _read(entry) | {"eos_token_id": None})
        else:
            (folder / entry.name).symlink_to(entry.resolve())


def _llama(program: Path, kind: str, file: Path, made: Path) -> None:
    subprocess.run([program, "--allow-requantize", file, made, kind], check=True)


def _openvino(program: Path, flags: Sequence[str], source: Path, folder: Path) -> None:
    export = ["export", "openvino", "--task", "text-generation-with-past", *flags]
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
