"""API keys: what is accepted, and what becomes of a file that changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from configs.settings import Settings
from server.http.keys import KeyFileError, KeyRing


def test_without_keys_none_is_asked_for() -> None:
    assert not KeyRing().required
    assert KeyRing().find(["anything"]) is None


def test_keys_of_options_and_file_are_numbered_in_order(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_bytes(b"# ours\r\nthird\n\n  fourth \nfirst\n")
    ring = KeyRing(("first", "second"), file)
    found = [ring.find([text]) for text in ("first", "second", "third", "fourth")]
    assert [key and key.number for key in found] == [1, 2, 3, 4]
    assert ring.find(["", "firs", "first ", "FIRST", "\u20ac"]) is None
    assert ring.find(["wrong", "second"]) == found[1]


def test_a_changed_file_counts_once_it_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("old")
    ring = KeyRing((), file)
    file.write_text("new")
    assert ring.find(["old"]) and not ring.find(["new"])
    assert ring.reload() == "1 keys are accepted now"
    assert ring.find(["new"]) and not ring.find(["old"])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "the keys can't be read: No such file"),
        ("# nothing\n", "there is no key in it"),
        ("good\ns3cret key\n", "line 2 is no key"),
        ("s3cret\u20ac", "line 1 is no key"),
        ("x" * (1 << 20) + "y", "more than 1048576 bytes"),
    ],
)
def test_a_file_that_is_wrong_changes_nothing_and_shows_nothing(
    tmp_path: Path, content: str | None, message: str
) -> None:
    file = tmp_path / "keys"
    file.write_text("old")
    ring = KeyRing((), file)
    file.unlink()
    if content is not None:
        file.write_text(content, encoding="utf-8")
    with pytest.raises(KeyFileError, match=message) as error:
        ring.reload()
    assert "s3cret" not in str(error.value)
    assert ring.find(["old"])
    with pytest.raises(KeyFileError):
        KeyRing((), file)


def test_nothing_shows_a_key() -> None:
    settings = Settings(api_key=("s3cret",))
    ring = KeyRing(settings.api_key)
    assert "s3cret" not in f"{settings!r} {settings} {ring!r} {vars(ring)} {ring.find(['s3cret'])}"
