"""Which stores the suite asks for, and the embedding model that those with an index are given.

This module owns what a store must be made with. The model needs nothing but the text: it counts characters, so that
texts that share many of them are near each other, and gives the same vector each time.
"""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from langchain_core.embeddings import Embeddings
from langgraph.store.base import BaseStore, IndexConfig, TTLConfig

DIMENSIONS: Final = 48


class CharacterEmbeddings(Embeddings):
    """Vectors that say how often each character is in a text."""

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """The vectors of some texts."""
        return [self._vector(each) for each in texts]

    def embed_query(self, text: str) -> list[float]:
        """The vector of a text that is searched for."""
        return self._vector(text)

    def _vector(self, text: str) -> list[float]:
        counts = [0.0] * DIMENSIONS
        for character in text:
            counts[ord(character) % (DIMENSIONS - 1)] += 1.0
        counts[-1] = 0.0 if text else 1.0  # no vector has a length of 0
        length = sum(each * each for each in counts) ** 0.5
        return [each / length for each in counts]


class AskingEmbeddings(CharacterEmbeddings):
    """A model that embeds what is searched for in another way, as real ones do: this one answers questions."""

    def embed_query(self, text: str) -> list[float]:
        """The vector of what answers a question."""
        return self._vector(text.removesuffix("?")[::-1].swapcase())


def embed(texts: list[str]) -> list[list[float]]:
    """The model as a function."""
    return CharacterEmbeddings().embed_documents(texts)


async def aembed(texts: list[str]) -> list[list[float]]:
    """The model as an asynchronous function."""
    return embed(texts)


@dataclass(frozen=True)
class StoreConfig:
    """What a store is made with.

    Attributes:
        index: How items are found by what they mean, as LangGraph says it; ``None``: they are not. All that the suite
            asks for have as many dimensions.
        ttl: How long items live, as LangGraph says it; ``None``: nothing is said about it.
    """

    index: IndexConfig | None = None
    ttl: TTLConfig | None = None


MakeStore: TypeAlias = Callable[[StoreConfig], AbstractAsyncContextManager[BaseStore]]


def indexed(model: Any = None, *fields: str) -> StoreConfig:
    """A store with an index over some fields; none: over each value as a whole."""
    index = IndexConfig(dims=DIMENSIONS, embed=model or CharacterEmbeddings())
    if fields:
        index["fields"] = [*fields]
    return StoreConfig(index=index)


PLAIN: Final = StoreConfig()
WHOLE: Final = indexed()
FIELDS: Final = indexed(None, "title", "notes[*].text")
ASKING: Final = indexed(AskingEmbeddings(), "text")
FUNCTION: Final = indexed(embed, "text")
ASYNC_FUNCTION: Final = indexed(aembed, "text")
# In minutes. What is read lives anew.
TIMED: Final = StoreConfig(ttl=TTLConfig(default_ttl=10.0, refresh_on_read=True))
# What is read does not, unless a call asks for it; what is put lives until it is deleted, unless a call says how long.
UNREFRESHED: Final = StoreConfig(ttl=TTLConfig(refresh_on_read=False))
