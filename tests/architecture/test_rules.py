"""The rules of docs/architecture.md that a program can check."""

from __future__ import annotations

import ast
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter

import msgspec
import pytest

import configs.settings
import scheduler.messages
import scheduler.plan
import scheduler.types
from tests.architecture.source_tree import ROOT, Module, imports, internal_imports, modules

MODULES = modules()
EACH = pytest.mark.parametrize("module", MODULES.values(), ids=MODULES.keys())

MAY_IMPORT = {
    "configs": {"configs"},
    "scheduler": {"scheduler"},
    "engine": {"engine", "scheduler", "configs"},
    "server": {"server", "engine", "scheduler", "configs"},
}
PURE = {
    "__future__",
    "bisect",
    "collections",
    "dataclasses",
    "enum",
    "heapq",
    "itertools",
    "math",
    "typing",
    "msgspec",
    "scheduler",
}
PROCESS_EDGES = {"engine.process", "server.lifecycle", "server.http.middleware"}
"""Where the last resort may catch everything, to tell the other side before the process goes on or ends."""


@EACH
def test_rooms_know_only_the_rooms_below(module: Module):
    rooms = {name.partition(".")[0] for name in internal_imports(module, MODULES)}
    assert rooms <= MAY_IMPORT[module.package]


def test_there_are_no_import_cycles():
    graph = {name: internal_imports(module, MODULES) for name, module in MODULES.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"import cycle: {' -> '.join(error.args[1])}")


def test_packages_do_not_depend_on_each_other_both_ways():
    graph: dict[str, set[str]] = {}
    for name, module in MODULES.items():
        mine = package_of(name)
        graph.setdefault(mine, set()).update(
            {package_of(one) for one in internal_imports(module, MODULES)} - {mine}
        )
    inner = {one: {other for other in others if "." in other} for one, others in graph.items() if "." in one}
    try:
        TopologicalSorter(inner).prepare()
    except CycleError as error:
        pytest.fail(f"package cycle: {' -> '.join(error.args[1])}")


def package_of(name: str) -> str:
    """The part of its room that a module belongs to, or the room itself."""
    inner = ".".join(name.split(".")[:2])
    return inner if inner in MODULES and MODULES[inner].path.name == "__init__.py" else name.partition(".")[0]


@EACH
def test_scheduler_is_pure(module: Module):
    if module.package != "scheduler":
        return
    for name in imports(module):
        top = name.partition(".")[0]
        assert top in PURE, f"imports {name}: time, chance and the world are arguments"


@pytest.mark.parametrize(
    "start",
    ["import server.lifecycle", "import server.app", "import server.cli", "import scheduler.iteration_loop"],
)
def test_server_and_scheduler_load_no_torch(start: str):
    code = f"{start}; import sys; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=60)


def test_the_command_line_starts_light():
    code = "import server.cli, sys; sys.exit(bool({'fastapi', 'pydantic', 'numpy'} & set(sys.modules)))"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=60)


@pytest.mark.parametrize(
    "module",
    [scheduler.types, scheduler.messages, scheduler.plan, configs.settings],
    ids=lambda m: m.__name__,
)
def test_what_crosses_a_border_is_frozen(module):
    structs = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, msgspec.Struct) and value is not msgspec.Struct
    ]
    assert structs
    for struct in structs:
        assert struct.__struct_config__.frozen, f"{struct.__name__} can be changed"


@EACH
def test_files_and_functions_are_short(module: Module):
    assert len(module.path.read_text().splitlines()) <= 400, "split by idea"
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            assert node.end_lineno - node.lineno < 60, f"{node.name} is too long"


@EACH
def test_no_broad_except_outside_the_process_edges(module: Module):
    if module.name in PROCESS_EDGES:
        return
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ExceptHandler):
            caught = ast.unparse(node.type) if node.type is not None else "everything"
            assert caught not in {"everything", "Exception", "BaseException"}, f"line {node.lineno}"


@EACH
def test_no_mutable_state_in_modules(module: Module):
    for node in module.tree.body:
        value = getattr(node, "value", None) if isinstance(node, ast.Assign | ast.AnnAssign) else None
        names = ast.unparse(node).partition("=")[0]
        if "__all__" in names:
            continue
        mutable = isinstance(value, ast.Dict | ast.List | ast.Set | ast.DictComp | ast.ListComp | ast.SetComp)
        made = isinstance(value, ast.Call) and ast.unparse(value.func) in {
            "dict",
            "list",
            "set",
            "defaultdict",
        }
        assert not mutable and not made, f"line {node.lineno}: freeze it (tuple, frozenset, MappingProxyType)"


@EACH
def test_no_assert_answers_a_user(module: Module):
    for node in ast.walk(module.tree):
        assert not isinstance(node, ast.Assert), f"line {node.lineno}: raise an exception with a message"
