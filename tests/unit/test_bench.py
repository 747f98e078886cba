"""``tandem bench`` against a scripted server."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path

import pytest

from server.client.bench.load import closed_loop, open_loop
from server.client.bench.main import run
from server.client.bench.prompts import WORDS, random_text, words_for
from server.client.bench.records import RequestRecord
from tests.unit.fake_openai_server import Script, serving, unused_url

SHORT = ["--prompt-tokens", "20", "--output-tokens", "6"]


def bench(script: Script, tmp_path: Path, *arguments: str) -> tuple[int, dict]:
    file = tmp_path / "report.json"
    with serving(script) as url:
        code = run(["--url", url, "--json", str(file), *SHORT, *arguments])
    return code, json.loads(file.read_text()) if file.exists() else {}


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_rows_requests_and_prompt_sizes(endpoint: str, tmp_path: Path, capsys) -> None:
    script = Script(models=["first", "second"], cached_tokens=3)
    code, report = bench(
        script, tmp_path, "--endpoint", endpoint, "--concurrency", "1,3", "--requests", "5", "--api-key", "k"
    )
    assert code == 0
    assert (report["model"], report["notes"]) == ("first", [])
    assert [row["label"] for row in report["rows"]] == ["1 stream", "3 streams"]
    for row in report["rows"]:
        assert (row["requests"], row["errors"]) == (5, {})
        assert (row["prompt_tokens_mean"], row["output_tokens_mean"]) == (20, 6)
        assert row["cached_tokens"] == 15
        assert row["ttft"]["p50"] > 0
    measured = script.bodies[-10:]
    assert all(body["ignore_eos"] and body["min_tokens"] == body["max_tokens"] == 6 for body in measured)
    assert all(body["stream"] and body["stream_options"] == {"include_usage": True} for body in measured)
    prompts = [b["prompt"] if endpoint == "completions" else b["messages"][0]["content"] for b in measured]
    assert len(set(prompts)) == 10
    assert set(script.authorizations) == {"Bearer k"}
    table = capsys.readouterr().out
    assert "| 3 streams |" in table and "first at http://127.0.0.1" in table


def test_joined_frames_are_divided_by_their_tokens(tmp_path: Path) -> None:
    code, report = bench(Script(tokens_per_frame=3), tmp_path, "--concurrency", "1", "--requests", "1")
    assert code == 0
    assert report["rows"][0]["output_tokens_mean"] == 6


def test_failures_are_counted_by_kind_and_give_exit_code_1(tmp_path: Path, capsys) -> None:
    script = Script(status=lambda number: 503 if number in (4, 6, 7) else 500 if number == 5 else 200)
    code, report = bench(script, tmp_path, "--concurrency", "2", "--requests", "8")
    assert code == 1
    [row] = report["rows"]
    assert (row["requests"], row["errors"]) == (8, {"503": 3, "500": 1})
    assert "2 streams: 3 of 8 requests failed: 503 (scripted 503)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("script", "kind"),
    [(Script(error_after=3), "error in stream"), (Script(break_after=3), "stream cut off")],
)
def test_broken_streams_are_failures(script: Script, kind: str, tmp_path: Path) -> None:
    """Sizing the prompt asks for one or two tokens, so only the measured answers come to frame 3."""
    code, report = bench(script, tmp_path, "--concurrency", "1", "--requests", "2")
    assert code == 1
    [row] = report["rows"]
    assert row["errors"] == {kind: 2}
    assert row["output_tokens_per_second"] == 0


def test_timeouts_are_failures(tmp_path: Path) -> None:
    script = Script(wait_for_disconnect_after=4)
    code, report = bench(script, tmp_path, "--concurrency", "1", "--requests", "1", "--timeout", "3")
    assert code == 1
    assert report["rows"][0]["errors"] == {"timeout": 1}


def test_a_server_without_extensions_is_asked_in_plain_words(tmp_path: Path) -> None:
    script = Script(refused_fields=frozenset({"ignore_eos", "min_tokens"}), answer_tokens=4)
    code, report = bench(script, tmp_path, "--concurrency", "1", "--requests", "2")
    assert code == 0
    assert report["rows"][0]["prompt_tokens_mean"] == 20
    assert any("refuses ignore_eos" in note for note in report["notes"])
    assert any("4.0 tokens on average, 6 were asked for" in note for note in report["notes"])


def test_a_server_without_usage_is_measured_by_frames(tmp_path: Path) -> None:
    script = Script(refused_fields=frozenset({"ignore_eos", "stream_options"}))
    code, report = bench(script, tmp_path, "--concurrency", "1", "--requests", "2")
    assert code == 0
    [row] = report["rows"]
    assert (row["prompt_tokens_mean"], row["prefill_tokens_per_second"]) == (None, None)
    assert row["output_tokens_mean"] == 6
    assert any("refuses stream_options" in note for note in report["notes"])


def test_extensions_can_be_switched_off(tmp_path: Path) -> None:
    script = Script()
    code, _ = bench(script, tmp_path, "--concurrency", "1", "--requests", "1", "--no-ignore-eos")
    assert code == 0
    assert not any("ignore_eos" in body or "min_tokens" in body for body in script.bodies)


def test_open_loop_rows(tmp_path: Path) -> None:
    code, report = bench(Script(), tmp_path, "--rate", "200,500", "--requests", "6")
    assert code == 0
    assert [row["label"] for row in report["rows"]] == ["200 req/s", "500 req/s"]
    assert all(row["requests"] == 6 and row["decode_tokens_per_second"] is None for row in report["rows"])


def test_equal_seeds_send_equal_prompts(tmp_path: Path) -> None:
    first, second, other = Script(), Script(), Script()
    for script, seed in ((first, "5"), (second, "5"), (other, "6")):
        bench(script, tmp_path, "--concurrency", "1", "--requests", "2", "--seed", seed)
    assert first.bodies == second.bodies != other.bodies


def test_no_server(capsys) -> None:
    url = unused_url()
    assert run(["--url", url]) == 1
    assert run(["--url", url, "--model", "m"]) == 1
    assert capsys.readouterr().err.count(f"no server answers at {url};") == 2


def test_a_server_that_refuses_everything(tmp_path: Path, capsys) -> None:
    code, report = bench(Script(status=lambda number: 401), tmp_path)
    assert (code, report) == (1, {})
    assert "401: scripted 401" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["--concurrency", "0"],
        ["--concurrency", "1,x"],
        ["--rate", "1", "--concurrency", "2"],
        ["--rate", "inf"],
        ["--requests", "-1"],
        ["--endpoint", "embeddings"],
        ["--no-such-flag"],
    ],
)
def test_wrong_arguments(arguments: list[str], capsys) -> None:
    assert run(arguments) == 2
    assert "error" in capsys.readouterr().err


# -- parts


@pytest.mark.parametrize(("per_word", "template"), [(1.0, 0), (1.0, 31), (1.4, 12), (2.5, 3)])
def test_prompts_get_the_wanted_size(per_word: float, template: int) -> None:
    asked = []

    async def count(words: int) -> int:
        asked.append(words)
        return round(words * per_word) + template

    words = asyncio.run(words_for(512, count))
    assert abs(round(words * per_word) + template - 512) <= per_word / 2
    assert len(asked) <= 4


def test_prompts_smaller_than_the_template_have_one_word() -> None:
    async def count(words: int) -> int:
        return words + 30

    assert asyncio.run(words_for(8, count)) == 1


def test_random_texts_differ_from_the_first_words_on() -> None:
    rng = random.Random(0)
    texts = [random_text(50, rng).split() for _ in range(200)]
    assert all(len(text) == 50 and set(text) <= set(WORDS) for text in texts)
    assert len({tuple(text[:5]) for text in texts}) == 200


def test_closed_loop_never_has_more_than_its_streams_under_way() -> None:
    under_way, most, sent = 0, 0, 0

    async def send() -> RequestRecord:
        nonlocal under_way, most, sent
        under_way, sent = under_way + 1, sent + 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        under_way -= 1
        return RequestRecord(started=0, finished=1)

    records = asyncio.run(closed_loop(send, streams=3, requests=10))
    assert (len(records), sent, most) == (10, 10, 3)


def test_open_loop_does_not_wait_for_answers() -> None:
    async def scenario() -> list[RequestRecord]:
        all_sent, sent = asyncio.Event(), 0

        async def send() -> RequestRecord:
            nonlocal sent
            sent += 1
            if sent == 5:
                all_sent.set()
            await all_sent.wait()  # would never come if one request waited for another
            return RequestRecord(started=0, finished=1)

        return await open_loop(send, 1000.0, 5, random.Random(1))

    assert len(asyncio.run(asyncio.wait_for(scenario(), 20))) == 5
