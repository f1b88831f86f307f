"""A chat model that says what a test wrote down, and asks for tools as a real one does."""

from collections.abc import Iterator, Sequence
from typing import Any

from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage


class ScriptedModel(GenericFakeChatModel):
    """Says one message after the other, whatever it is asked."""

    def bind_tools(self, tools: Sequence[Any], **_: Any) -> "ScriptedModel":
        return self


def calling(tool: str, **arguments: Any) -> AIMessage:
    """A message that asks for a tool."""
    return AIMessage("", tool_calls=[{"name": tool, "args": arguments, "id": f"call-{tool}", "type": "tool_call"}])


def scripted(*messages: AIMessage | str) -> ScriptedModel:
    """A model that says these messages in turn."""
    said: Iterator[AIMessage] = iter([AIMessage(each) if isinstance(each, str) else each for each in messages])
    return ScriptedModel(messages=said)
