"""API keys: kept as digests only, compared in constant time, exchangeable while the server runs."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

KEY = re.compile(r"[!-~]{1,512}")
MAX_FILE_BYTES = 1 << 20


class KeyFileError(Exception):
    """The file with keys can't be used; the message is for the user and shows no key."""


@dataclass(frozen=True, slots=True)
class Key:
    """One key that is accepted."""

    number: int
    """From 1, in the order of options and file: what logs call it."""
    digest: bytes


class KeyRing:
    """All keys that are accepted. Without any, none is asked for.

    Args:
        given: keys from the settings.
        file: one with more of them, or None.

    Raises:
        KeyFileError: the file can't be read, or holds no key or a wrong one.
    """

    def __init__(self, given: Sequence[str] = (), file: Path | None = None) -> None:
        self._given = tuple(map(_digest, given))
        self._file = file
        self._keys: tuple[Key, ...] = ()
        self.reload()

    @property
    def required(self) -> bool:
        """Whether a key has to be sent."""
        return bool(self._keys)

    def reload(self) -> str:
        """Read the file again; what is wrong with it leaves the keys as they were.

        Returns:
            What changed, for the log.

        Raises:
            KeyFileError: the file can't be read, or holds no key or a wrong one.
        """
        listed = () if self._file is None else tuple(map(_digest, _read(self._file)))
        unique = dict.fromkeys(self._given + listed)
        self._keys = tuple(Key(number, digest) for number, digest in enumerate(unique, 1))
        return f"{len(self._keys)} keys are accepted now"

    def find(self, presented: Iterable[str]) -> Key | None:
        """The key that one of these is; takes as long whichever it is, and if none is."""
        found = None
        for text in presented:
            digest = _digest(text)
            for key in self._keys:
                if hmac.compare_digest(key.digest, digest):
                    found = key
        return found


def _digest(text: str) -> bytes:
    """Of equal length for all keys, so that comparing tells nothing of a key's length either."""
    return hashlib.sha256(text.encode("latin-1", "replace")).digest()


def _read(file: Path) -> list[str]:
    try:
        with file.open("rb") as stream:
            data = stream.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise KeyFileError(f"{file}: the keys can't be read: {error.strerror}") from error
    if len(data) > MAX_FILE_BYTES:
        raise KeyFileError(f"{file}: more than {MAX_FILE_BYTES} bytes of keys")
    lines = [line.strip() for line in data.decode("latin-1").splitlines()]
    keys = {number: line for number, line in enumerate(lines, 1) if line and not line.startswith("#")}
    for number, key in keys.items():
        if not KEY.fullmatch(key):
            raise KeyFileError(
                f"{file}: line {number} is no key; one has 1 to 512 printable ASCII characters, no spaces"
            )
    if not keys:
        raise KeyFileError(f"{file}: there is no key in it")
    return list(keys.values())
