"""The project's own modules, their syntax trees and what they import."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("server", "engine", "scheduler", "configs")


@dataclass(frozen=True)
class Module:
    """One Python file."""

    name: str
    path: Path
    tree: ast.Module

    @property
    def package(self) -> str:
        """The room it belongs to."""
        return self.name.partition(".")[0]


def modules() -> dict[str, Module]:
    """Every module of the four packages, by dotted name."""
    found = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            found[name] = Module(name, path, ast.parse(path.read_text(), str(path)))
    return found


def imports(module: Module) -> Iterator[str]:
    """Dotted names a module imports anywhere, lazily and for type checking too."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module.path}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def internal_imports(module: Module, known: dict[str, Module]) -> set[str]:
    """The project's modules that ``module`` imports."""
    found = set()
    for name in imports(module):
        while name and name not in known:
            name = name.rpartition(".")[0]
        if name and name != module.name:
            found.add(name)
    return found
