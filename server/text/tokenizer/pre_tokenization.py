"""How byte-level BPE vocabularies cut text before merging, by the name a GGUF file gives.

GGUF stores only a name (``tokenizer.ggml.pre``) for what tokenizer.json spells out. The patterns are
those of the models' own tokenizer.json files; the names are llama.cpp's (src/llama-vocab.cpp).
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Regex, normalizers, pre_tokenizers

from engine.model_error import ModelError

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN35 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_GPT4O = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_PUNCTUATION = r"[\p{P}$+<=>^~|]+"


@dataclass(frozen=True, slots=True, kw_only=True)
class PreTokenization:
    """One family's way to cut text."""

    patterns: tuple[str, ...]
    """Oniguruma patterns; each cuts what the one before it left."""
    nfc: bool = False
    """Whether text is brought to Unicode's composed form first."""
    ignore_merges: bool = False
    """Whether a piece that is a token already is taken whole, whatever the merges say."""
    add_bos: bool = False
    """Whether begin-of-sequence is added where the file does not say."""

    def normalizer(self) -> normalizers.Normalizer | None:
        """What runs before the cutting."""
        return normalizers.NFC() if self.nfc else None

    def pre_tokenizer(self) -> pre_tokenizers.PreTokenizer:
        """The cutting, then GPT-2's byte alphabet."""
        cuts = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in self.patterns]
        to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([*cuts, to_bytes])


_BY_NAMES: tuple[tuple[tuple[str, ...], PreTokenization], ...] = (
    # What llama.cpp takes for files from before names existed; it was Falcon's.
    (("default",), PreTokenization(patterns=(_PUNCTUATION, _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"))),
    (("gpt-2", "phi-2", "mpt", "olmo", "jais", "exaone4"), PreTokenization(patterns=(_GPT2,))),
    (
        ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"),
        PreTokenization(patterns=(r"\p{N}", _GPT2)),
    ),
    (
        ("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"),
        PreTokenization(patterns=(_LLAMA3,), ignore_merges=True, add_bos=True),
    ),
    (("smaug-bpe", "dbrx"), PreTokenization(patterns=(_LLAMA3,))),
    (("qwen2",), PreTokenization(patterns=(_QWEN2,), nfc=True)),
    (("deepseek-r1-qwen", "megrez"), PreTokenization(patterns=(_QWEN2,))),
    (("qwen35",), PreTokenization(patterns=(_QWEN35,), nfc=True)),
    (("tekken",), PreTokenization(patterns=(_TEKKEN,), ignore_merges=True, add_bos=True)),
    (("gpt-4o", "llama4"), PreTokenization(patterns=(_GPT4O,))),
)


def pre_tokenization(name: str, where: object) -> PreTokenization:
    """The way to cut text that ``tokenizer.ggml.pre`` names.

    Args:
        name: the name.
        where: names the file in the error message.

    Raises:
        ModelError: the name is not known; guessing would give the model wrong tokens.
    """
    for names, rules in _BY_NAMES:
        if name in names:
            return rules
    known = ", ".join(sorted(name for names, _ in _BY_NAMES for name in names))
    raise ModelError(f"{where}: tokenizer.ggml.pre {name!r} is not supported; known are {known}")
