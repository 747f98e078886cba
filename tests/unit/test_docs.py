"""The reference pages against the code: nothing is missing in them, and nothing in them is gone."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from fastapi import FastAPI
from prometheus_client import Metric
from pydantic.fields import FieldInfo

from configs.loader import CONFIG_VARIABLE, ENVIRONMENT_PREFIX, Option, describe, load_settings, options
from scheduler.messages import EngineFacts
from server.app import create_app
from server.daemon.http_server import KEEP_ALIVE
from server.engine_client.protocol import EngineState
from server.http.body import BODY_SECONDS, MAX_DEPTH, PIECE_SECONDS
from server.http.uvicorn_protocol import HEADER_SECONDS, MAX_HEADER_BYTES, MAX_PIPELINED
from server.schemas import chat, completions, responses
from server.schemas import options as shared
from server.schemas.base import Body
from server.services import Services
from tests.server.fakes import FakeEngine, make_services

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
API, CONFIGURATION, METRICS = (ROOT / "docs" / f"{name}.md" for name in ("api", "configuration", "metrics"))

CODE_ARGUMENT = {"bad_request": 1, "refusal": 0, "always": 1, "but_not": 1, "_later": 1, "_not_offered": 0}
"""Which argument is an error's code, by function."""
CODES_PUT_TOGETHER = {
    *(f"{kind}_{end}_value" for kind in ("integer", "decimal") for end in ("above_max", "below_min")),
    *(f"{kind}_above_max_length" for kind in ("array", "object")),
}
"""By server/schemas/parsing.py, out of parts."""


def section(page: Path, heading: str) -> str:
    """What stands below a heading, up to the next one of any level."""
    found = re.split(rf"^#+ {re.escape(heading)}$", page.read_text(), flags=re.MULTILINE)
    assert len(found) == 2, f"{page.name} has no heading {heading!r}, or several"
    return re.split(r"^#+ ", found[1], maxsplit=1, flags=re.MULTILINE)[0]


def rows(markdown: str) -> list[list[str]]:
    """The cells of every table row but the heads."""
    lines = [line.strip() for line in markdown.splitlines()]
    tables = [line for line in lines if line.startswith("|")]
    heads = {tables[index - 1] for index, line in enumerate(tables) if set(line) <= set("|- ")}
    body = [line for line in tables if line not in heads and not set(line) <= set("|- ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in body]


def words(text: str) -> list[str]:
    """Everything in backticks."""
    return re.findall(r"`([^`]+)`", text)


def keyed(table: list[list[str]], column: int = 0) -> dict[str, list[str]]:
    """Rows by the first word in backticks of a column; each has to be there once."""
    keys = [words(row[column])[0] for row in table]
    assert len(set(keys)) == len(keys), f"twice: {[key for key in keys if keys.count(key) > 1]}"
    return dict(zip(keys, table, strict=True))


# -- configuration.md


def option_rows() -> dict[str, list[str]]:
    return keyed(rows(section(CONFIGURATION, "Options")), column=2)


def test_the_options_are_those_of_the_settings() -> None:
    assert list(option_rows()) == [option.name for option in options()]


@pytest.mark.parametrize("option", options(), ids=lambda option: option.name)
def test_an_option_is_described_as_it_is(option: Option) -> None:
    flag, variable, _, allowed, default, meaning = option_rows()[option.name]
    if option.name == "model":
        assert words(flag) == ["MODEL"]
    else:
        assert words(flag) == [option.flag, *([option.off_flag] if option.is_boolean else [])]
    assert words(variable) == [option.variable]
    assert allowed == option.allowed
    if option.default is None:
        assert default.startswith("unset: ")
    else:
        shown = (
            option.default
            if isinstance(option.default, str)
            else msgspec.json.encode(option.default).decode()
        )
        assert default == f"`{shown}`"
    assert meaning


@pytest.mark.parametrize("page", [API, CONFIGURATION, METRICS], ids=lambda page: page.name)
def test_no_page_names_a_flag_or_variable_there_is_not(page: Path) -> None:
    known = {name for option in options() for name in (option.flag, option.off_flag, option.variable)}
    known |= {"--config", "--print-config", "--help", "--version", CONFIG_VARIABLE}
    known |= {"TANDEM_SERVICE_HOST", "--json"}  # Kubernetes', curl's
    shown = re.sub(
        r"^```\n.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE
    )  # what was printed
    named = set(re.findall(rf"(?<![\w-])--[a-z][a-z-]+|{ENVIRONMENT_PREFIX}[A-Z_]+", shown))
    assert named <= known


def test_the_example_file_can_be_loaded(tmp_path: Path) -> None:
    example = re.search(r"```yaml\n(.*?)```", section(CONFIGURATION, "Examples"), re.DOTALL)
    assert example is not None
    (tmp_path / "tandem.yaml").write_text(example[1])
    assert "tandem.yaml: max_queue" in describe(load_settings({}, {}, tmp_path / "tandem.yaml"))


def test_the_engines_facts_are_all_there() -> None:
    table = rows(section(CONFIGURATION, "What is learnt by probing"))
    facts = [fact for row in table for fact in words(row[0])]
    assert sorted(facts) == sorted(EngineFacts.__struct_fields__)


# -- metrics.md


@pytest.fixture
def services() -> Services:
    return make_services(FakeEngine())


@pytest.fixture
def app(services: Services) -> FastAPI:
    return create_app(services)


@pytest.fixture
def families(services: Services, app: FastAPI) -> dict[str, Metric]:
    """Every metric family under the name that queries use, each with samples."""
    assert app
    labels = ("/health", "GET", "200")
    services.metrics.http_requests.labels(*labels)
    services.metrics.http_seconds.labels(*labels)
    exported = services.metrics.registry.collect()
    return {family.name + "_total" * (family.type == "counter"): family for family in exported}


def test_the_metrics_are_those_exported(families: dict[str, Metric]) -> None:
    assert sorted(keyed(rows(METRICS.read_text()))) == sorted(families)


def test_a_metric_is_described_as_it_is(families: dict[str, Metric]) -> None:
    for name, (_, kind, labels, meaning) in keyed(rows(METRICS.read_text())).items():
        family = families[name]
        assert kind.split(",")[0] == family.type, name
        assert labels == labels_cell(family), name
        bounds = [float(one.labels["le"]) for one in family.samples if one.labels.get("le", "+Inf") != "+Inf"]
        if bounds:
            assert kind == f"histogram, {min(bounds):g} … {max(bounds):.0f}", name
        assert meaning


def labels_cell(family: Metric) -> str:
    """Label names, and the values of those that have a fixed few; in the code's order."""
    cell = []
    for label in family.samples[0].labels:
        if label == "le":
            continue
        values = dict.fromkeys(sample.labels[label] for sample in family.samples)
        if label in {"model_name", "endpoint"} or family.name.startswith("tandem_http_"):
            cell.append(f"`{label}`")
        else:
            cell.append(f"`{label}`: " + ", ".join(f"`{value}`" for value in values))
    return ", ".join(cell)


def test_queries_use_metrics_that_are_exported(families: dict[str, Metric]) -> None:
    known = {*families, *(f"{name}_{part}" for name in families for part in ("bucket", "sum", "count"))}
    assert set(re.findall(r"tandem_\w+", METRICS.read_text())) <= known


# -- api.md


def field_rows(heading: str) -> dict[str, list[str]]:
    return keyed(rows(section(API, heading)))


@pytest.mark.parametrize(
    ("schema", "heading"),
    [
        (chat.ChatCompletionRequest, "Chat completions only"),
        (completions.CompletionRequest, "Completions only"),
    ],
)
def test_the_fields_are_those_of_the_request(schema: type[shared.GenerationOptions], heading: str) -> None:
    both, own = field_rows("Both endpoints"), field_rows(heading)
    assert both.keys() == shared.GenerationOptions.model_fields.keys()
    assert own.keys() == schema.model_fields.keys() - both.keys()
    for name, row in (both | own).items():
        assert len(row) == 4 and all(row), name
        if name != "max_tokens":  # its default depends on the endpoint
            assert_default(name, schema.model_fields[name], row[2])


def assert_default(name: str, field: FieldInfo, cell: str) -> None:
    if field.is_required():
        assert cell == "required", name
    elif (value := field.get_default(call_default_factory=True)) is not None:
        assert cell == f"`{msgspec.json.encode(value).decode()}`", name
    else:
        assert cell in {"none", "drawn"} or cell.startswith("the model's, else "), name


def test_the_nested_fields_are_all_there() -> None:
    cells = [cell for row in rows(section(API, "Nested objects")) for cell in row]
    named = set(re.findall(r"\w+", " ".join(word for cell in cells for word in words(cell))))
    models = [model for model in (*vars(chat).values(), *vars(shared).values()) if isinstance(model, type)]
    nested = [model for model in models if issubclass(model, Body) and "model" not in model.model_fields]
    assert chat.TextPart in nested and shared.StreamOptions in nested
    for model in nested:
        assert not {*model.model_fields, *model.unsupported} - named, model
    assert {*chat.ROLES, *chat.OTHER_PARTS} <= named


def test_the_refused_fields_are_those_of_the_requests() -> None:
    everywhere, in_chat, in_completions = (
        set(words(line)) for line in section(API, "Refused").splitlines() if line.startswith("* ")
    )
    assert everywhere == shared.UNSUPPORTED_EVERYWHERE
    assert in_chat == chat.ChatCompletionRequest.unsupported - everywhere
    assert in_completions == completions.CompletionRequest.unsupported - everywhere


def test_the_keys_of_answers_are_those_sent() -> None:
    sent: set[str] = set()
    for answer in (responses.ChatCompletion, responses.Completion):
        sent |= answer.model_fields.keys() - {"choices"}
    for choice in (responses.ChatChoice, responses.CompletionChoice):
        sent |= {f"choices[].{key}" for key in choice.model_fields}
    assert sent == field_rows("Answers").keys()


def test_the_limits_are_those_of_the_schemas() -> None:
    limits = dict(rows(section(API, "Limits")))
    stops = f"{shared.MAX_STOPS} of {shared.MAX_STOP_CHARACTERS} characters"
    assert limits["body"].endswith(f" {MAX_DEPTH} levels")
    assert limits["messages, prompts"] == f"{chat.MAX_MESSAGES}, {completions.MAX_PROMPTS}"
    assert limits["choices, listed logprobs"] == f"{shared.MAX_CHOICES}, {shared.MAX_TOP_LOGPROBS}"
    assert limits["stop strings, stop token ids, biases"] == f"{stops}, 64, {shared.MAX_BIASES}"
    assert (
        limits["headers"]
        == f"{MAX_HEADER_BYTES >> 10} KiB, complete {HEADER_SECONDS:.0f} s after their first byte"
    )
    assert limits["body, next piece"] == f"complete after {BODY_SECONDS:.0f} s, {PIECE_SECONDS:.0f} s"
    assert limits["pipelined requests"] == f"{MAX_PIPELINED} wait; a client that sends more is dropped"
    assert limits["idle connection"] == f"closed after {KEEP_ALIVE} s"


def test_the_routes_are_those_of_the_app(app: FastAPI) -> None:
    served = {
        f"{method.upper()} {path}" for path, methods in app.openapi()["paths"].items() for method in methods
    }
    served.add(f"GET {app.openapi_url}")
    assert {route.replace(":path", "") for route in served} == set(keyed(rows(section(API, "Routes"))))
    states = {state.value for state in EngineState}
    assert states <= set(words(section(API, "Routes")))


def test_the_error_codes_are_those_of_the_server() -> None:
    described = {code for row in rows(section(API, "Errors")) for code in words(row[1])}
    assert described == set(error_codes()) | CODES_PUT_TOGETHER


def error_codes() -> Iterator[str]:
    """Every literal in a place where a code is given, or where an explanation begins with one."""
    for path in (ROOT / "server").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            given: list[ast.expr] = []
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                position = CODE_ARGUMENT.get(node.func.id, len(node.args))
                named = [one.value for one in node.keywords if one.arg == "code"]
                given = [*node.args[position : position + 1], *named]
            elif (
                path.name == "parsing.py"
                and isinstance(node, ast.Return)
                and isinstance(node.value, ast.Tuple)
            ):
                given = node.value.elts[:1]
            yield from (
                one.value for one in given if isinstance(one, ast.Constant) and isinstance(one.value, str)
            )


# -- links


def anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        linked = (page.parent / name).resolve() if name else page
        assert linked.exists(), target
        assert not anchor or anchor in anchors(linked), target
