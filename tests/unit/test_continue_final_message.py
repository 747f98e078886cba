"""Where a conversation is cut so that the model goes on with its last message.

The oracle is transformers' ``apply_chat_template(continue_final_message=True)``.
"""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from server.generation.prompts import _CONTINUE_MARK, _without_ending
from server.http.errors import ApiError
from server.text.chat_template import ChatTemplate

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TRIMMING = "{% for m in messages %}[{{ m.role }}] {{ m.content | trim }} </s>{% endfor %}"


def ours(source: str, content: str) -> str:
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": content + _CONTINUE_MARK}]
    return _without_ending(ChatTemplate({"default": source}).render(messages, add_generation_prompt=False))


@pytest.mark.parametrize("source", [CHATML, TRIMMING], ids=["chatml", "trimming"])
@pytest.mark.parametrize(
    "content", ["end", "im", "d", "|", ">", "The answer", " spaced ", "two\nlines\n", "hi", "user"]
)
def test_equals_transformers(source: str, content: str):
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()), chat_template=source)
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": content}]
    expected = tokenizer.apply_chat_template(messages, continue_final_message=True, tokenize=False)
    assert ours(source, content) == expected


def test_a_template_without_the_last_text_is_refused():
    with pytest.raises(ApiError, match="did not render"):
        ours("{{ messages[0].content }}", "lost")
