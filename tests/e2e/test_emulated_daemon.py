"""The daemon with an emulated accelerator that is far too small for what is asked of it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import httpx

from tests.e2e.conftest import MODEL
from tests.e2e.daemon import Daemon

DEVICE_PAGES = 16
HOST_PAGES = 4096
PAGE_SIZE = 16
QUESTIONS = [
    f"Here are some numbers: {' '.join(str(number * place) for place in range(32))}. Tell me about {topic}."
    for number, topic in enumerate(["Paris", "whales", "tea", "iron", "the moon"], 3)
]


def ask(daemon: Daemon, question: str) -> tuple[str, int]:
    """The answer, and the tokens of question and answer."""
    body = {
        "model": MODEL, "messages": [{"role": "user", "content": question}], "temperature": 0,
        "max_tokens": 12,
    }  # fmt: skip
    response = httpx.post(f"{daemon.url}/v1/chat/completions", json=body, timeout=60)
    response.raise_for_status()
    answer = response.json()
    return answer["choices"][0]["message"]["content"], answer["usage"]["total_tokens"]


def test_it_answers_as_the_cpu_does(daemon: Daemon):
    options = (
        "--dtype", "float32", "--device", "emulated", "--plan-mode", "auto",
        "--emulate-profile", "configs/profiles/emulated-small.json",
        "--device-kv-pages", str(DEVICE_PAGES), "--host-kv-pages", str(HOST_PAGES),
    )  # fmt: skip
    with Daemon(*options) as emulated, ThreadPoolExecutor(len(QUESTIONS)) as threads:
        answers = list(threads.map(lambda question: ask(emulated, question), QUESTIONS))
        assert sum(tokens for _answer, tokens in answers) > 2 * DEVICE_PAGES * PAGE_SIZE
        assert emulated.metric("tandem_kv_pages_total", tier="device") == DEVICE_PAGES
        assert emulated.metric("tandem_kv_pages_total", tier="host") == HOST_PAGES
        emulated.wait_until_idle()
        for tier in ("device", "host"):
            assert emulated.metric("tandem_kv_pages_cached", tier=tier) > 0, f"nothing was in {tier} pages"
    assert [answer for answer, _tokens in answers] == [ask(daemon, question)[0] for question in QUESTIONS]
