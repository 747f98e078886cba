"""Whether a chat template takes a message's content as a string or as a list of parts.

Nothing declares it, so it is read off the template, as vLLM does: one that loops over a message's
content takes a list. One that also tests ``is string`` takes either.
"""

from __future__ import annotations

from typing import Literal

from jinja2 import nodes

ContentFormat = Literal["string", "list", "either"]


def content_format(template: nodes.Template) -> ContentFormat:
    """How a parsed template wants content."""
    aliases = {"content"} | {
        assignment.target.name
        for assignment in template.find_all(nodes.Assign)
        if isinstance(assignment.target, nodes.Name) and _reads_content(assignment.node)
    }
    loops = (loop.iter for loop in template.find_all(nodes.For))
    if not any(_reads_content(iterated) or _names(iterated, aliases) for iterated in loops):
        return "string"
    tests_string = any(test.name == "string" for test in template.find_all(nodes.Test))
    return "either" if tests_string else "list"


def _reads_content(node: nodes.Node | None) -> bool:
    """Whether an expression is ``something.content`` or ``something['content']``, maybe filtered."""
    if isinstance(node, nodes.Filter):
        return _reads_content(node.node)
    if isinstance(node, nodes.Getattr):
        return node.attr == "content"
    return isinstance(node, nodes.Getitem) and (
        isinstance(node.arg, nodes.Const) and node.arg.value == "content"
    )


def _names(node: nodes.Node | None, aliases: set[str]) -> bool:
    if isinstance(node, nodes.Filter):
        return _names(node.node, aliases)
    return isinstance(node, nodes.Name) and node.name in aliases
