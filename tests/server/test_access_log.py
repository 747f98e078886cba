"""One line a request, as text and as JSON, and where the time went."""

from __future__ import annotations

import json
import logging
import time

import httpx
import pytest

from configs.log_format import formatter
from scheduler.messages import SchedulerStats
from scheduler.plan import ACCELERATOR_ONLY
from scheduler.tier import Tier
from tests.server.fake_engine_process import stats
from tests.server.fakes import MODEL, FakeEngine

pytestmark = pytest.mark.anyio
BODY = {"model": MODEL, "prompt": "hi there", "max_tokens": 3}


def line_of(caplog: pytest.LogCaptureFixture) -> dict[str, object]:
    (record,) = [one for one in caplog.records if one.name == "server.access"]
    line: dict[str, object] = json.loads(formatter("json").format(record))
    return line


async def test_a_line_tells_all_but_the_texts(
    http: httpx.AsyncClient, engine: FakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="server.access")
    engine.scheduled_at, engine.pause = time.monotonic, 0.001
    headers = {"X-Request-Id": "mine", "X-Client-Request-Id": "theirs", "Authorization": "Bearer s3cret"}
    answer = await http.post("/v1/completions", json=BODY, headers=headers)
    line = line_of(caplog)
    assert line["logger"] == "server.access" and line["level"] == "info" and str(line["time"]).endswith("Z")
    assert (line["method"], line["path"], line["status"]) == ("POST", "/v1/completions", 200)
    assert (line["id"], line["client_id"], line["response"]) == ("mine", "theirs", answer.json()["id"])
    assert (line["model"], line["reason"]) == (MODEL, "length")
    assert (line["prompt"], line["cached"], line["output"]) == (8, 0, 3)
    stages = [line[f"{stage}_ms"] for stage in ("queue", "prefill", "decode")]
    assert all(isinstance(one, float) and one >= 0 for one in stages)
    assert line["ttft_ms"] == pytest.approx(stages[0] + stages[1], abs=0.2)
    shown = json.dumps(line)
    assert "hi there" not in shown and "Hel" not in shown and "s3cret" not in shown
    timing = answer.headers["server-timing"]
    assert [part.partition(";dur=")[0] for part in timing.split(", ")] == ["queue", "prefill", "decode"]


async def test_plan_modes_of_an_accelerator(
    http: httpx.AsyncClient, engine: FakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="server.access")
    latest: SchedulerStats = stats(1, 1)
    engine.stats, engine.tier = latest, lambda choice, position: Tier.DEVICE
    await http.post("/v1/completions", json=BODY)
    assert line_of(caplog)["plan_modes"] == ACCELERATOR_ONLY.mode


@pytest.mark.parametrize("given", ["", "a b", "x" * 129, 'a"b'])
async def test_ids_that_are_no_ids(
    http: httpx.AsyncClient, caplog: pytest.LogCaptureFixture, given: str
) -> None:
    caplog.set_level(logging.INFO, logger="server.access")
    headers = {"X-Request-Id": given, "X-Client-Request-Id": given}
    answer = await http.get("/version", headers=headers)
    line = line_of(caplog)
    assert line["id"] == answer.headers["x-request-id"] != given
    assert "client_id" not in line


async def test_times_reach_the_metrics(http: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.scheduled_at = time.monotonic
    await http.post("/v1/completions", json=BODY)
    text = (await http.get("/metrics")).text
    for stage in ("queue", "prefill", "decode"):
        assert f'tandem_{stage}_time_seconds_count{{model_name="{MODEL}"}} 1.0' in text


def test_a_line_of_json_is_one_line_whatever_is_in_it() -> None:
    record = logging.LogRecord("x", logging.ERROR, "", 1, "a\n%s", ('\u2028"b',), None)
    for line, name in (
        (formatter("json").format(record), None),
        (formatter("json", "engine").format(record), "engine"),
    ):
        assert "\n" not in line
        read = json.loads(line)
        assert (read["message"], read["level"], read.get("process")) == ('a\n\u2028"b', "error", name)
    assert formatter("text", "engine").format(record).endswith(' engine ERROR x: a\n\u2028"b')
