"""Text for tokenizers and detokenizers to get wrong."""

from __future__ import annotations

import random

from hypothesis import settings
from hypothesis import strategies as st

STEADY = settings(max_examples=200, deadline=None, derandomize=True)
"""The same examples on every machine, however busy it is."""

CUTS = st.lists(st.integers(1, 5), min_size=1, max_size=60)
"""Sizes of the pieces that ``cut`` makes."""

_WRITTEN = (
    *("", " ", "a", " a", "  a", "   around   ", "ſs 'ſ 'LL", "\ufeffbom", "\x00\x01\x7f\x85"),
    "Hello, world! It's 12345 o'clock; I'VE 3.14 don'T, 1,000,000 ½ ² ٣ 一二三 Ⅷ",
    'def f(x):\n    return x**2 + 1\n\n\nclass A:\n\tpass\r\n\r\nprint("hi")  # done\n',
    *("emoji 😀👩‍👩‍👧‍👦🏳️‍🌈 🇩🇪🇯🇵 ok", "🤖" * 9),
    *("漢字かな交じり文。日本語テスト、中文测试！한국어 테스트", "ＡＢＣ　全角"),
    *("مرحبا بالعالم ١٢٣ שלום עולם", "ภาษาไทย हिन्दी தமிழ்", "ǅungla ΑΒΓ абв CamelHTTP"),
    *("e\u0301 vs é, Å Å ﬁ", "a\u0300\u0301", "\u00a0nbsp\u2009thin\u200bzero"),
    *("tabs\t\ttabs\n\n\n\nnewlines\n \n  \n", "x" * 40 + " " * 40 + "y" + " " * 33 + "\n" * 35),
    *("<|im_start|>user\nhi<|im_end|>\n<s>[INST] a [/INST]</s><bos>", "<0x41> <0xFF>"),
    "https://e.com/a?b=c&d=e#f `c` $x$ ~~ ^^ || <<>>",
)

_RANGES = (
    *((0x20, 0x7F), (0xA0, 0x180), (0x370, 0x500), (0x5D0, 0x5EA), (0x620, 0x64A), (0x900, 0x970)),
    *((0x300, 0x330), (0x2000, 0x2030), (0x3040, 0x3100), (0x4E00, 0x4E80), (0x1F600, 0x1F640)),
)


def corpus(random_texts: int = 120) -> list[str]:
    """Code, prose, scripts, emoji, runs of white space, numbers, special tokens, and random mixtures."""
    rng = random.Random(5)
    letters = [chr(code) for start, end in _RANGES for code in range(start, end)]
    letters += ["\n", "\t", "\r\n", "  "] * 20 + [" "] * 200
    mixed = ("".join(rng.choices(letters, k=rng.randint(1, 80))) for _ in range(random_texts))
    return [*_WRITTEN, *mixed]


def cut(data: bytes, sizes: list[int]) -> list[bytes]:
    """Data in pieces of these sizes, over and over."""
    pieces, start = [], 0
    while start < len(data):
        size = sizes[len(pieces) % len(sizes)]
        pieces.append(data[start : start + size])
        start += size
    return pieces


def first_stop(text: str, stops: list[str]) -> tuple[int, int] | None:
    """(start, end) of the stop string that a reader going character by character meets first."""
    for end in range(1, len(text) + 1):
        lengths = [len(stop) for stop in stops if text[:end].endswith(stop)]
        if lengths:
            return end - max(lengths), end
    return None
