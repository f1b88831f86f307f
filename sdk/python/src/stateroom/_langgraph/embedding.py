"""What an embedding model makes of the texts of operations on a store.

This module owns which texts those are, and that one call of the model serves all puts of a moment. Where that call
fails, each put is tried by itself, so that one text that the model refuses fails its own operation only. What is
searched for is embedded by what the model has for queries, each one once. The model is the caller's: the gateway never
sees a text to embed, and what it gets is sealed as plaintext is.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from langgraph.store.base import (
    Embeddings,
    IndexConfig,
    Op,
    PutOp,
    SearchOp,
    ensure_embeddings,
    get_text_at_path,
    tokenize_path,
)

from stateroom._items.shapes import Metric
from stateroom._langgraph.operations import Embedded
from stateroom.errors import InvalidRequest

_METRICS: Final[dict[str, Metric]] = {"cosine": "cosine", "inner_product": "dot", "l2": "l2"}
_WHOLE: Final = "$"


class StoreIndex(IndexConfig, total=False):
    """How items are found by what they mean: LangGraph's ``IndexConfig``, and what it has no words for.

    Attributes:
        distance_type: ``cosine`` (when left out), ``inner_product`` or ``l2``, as LangGraph's store for PostgreSQL has
            it.
        model: The name that vectors are kept under. Only those of one name are compared, so another model needs another
            name; when left out, it is made of what ``embed`` is called.
    """

    distance_type: str
    model: str


Outcome = Embedded | Exception | None


class Embedding:
    """An embedding model, and which texts of items it is asked about.

    Args:
        index: What the store was given.

    Raises:
        ValueError: The distance type is none of those there are.
    """

    def __init__(self, index: StoreIndex) -> None:
        metric = index.get("distance_type", "cosine")
        if metric not in _METRICS:
            raise ValueError(f"distance_type is one of {', '.join(_METRICS)}")
        self._metric = _METRICS[metric]
        self._dimensions = index["dims"]
        self._model = index.get("model") or _name_of(index["embed"])
        self._embeddings: Embeddings = ensure_embeddings(index["embed"])
        self._fields = [_tokens(each) for each in index.get("fields") or [_WHOLE]]

    def of(self, ops: Sequence[Op]) -> list[Outcome]:
        """What the model makes of the texts of each operation; ``None``: it has none. Or why it made nothing."""
        queries = {each: _tried(self._embeddings.embed_query, each) for each in _queries(ops)}
        return self._joined(ops, queries, self._of_puts([self._texts(op) for op in ops]))

    async def aof(self, ops: Sequence[Op]) -> list[Outcome]:
        """What ``of`` gives, without blocking the event loop."""
        asked = _queries(ops)
        puts, *queries = await asyncio.gather(
            self._aof_puts([self._texts(op) for op in ops]),
            *(_atried(self._embeddings.aembed_query, each) for each in asked),
        )
        return self._joined(ops, dict(zip(asked, queries, strict=True)), puts)

    def _of_puts(self, texts: Sequence[Sequence[str]]) -> list[Any]:
        """The vectors of the texts of each operation, or why there are none."""
        try:
            return _dealt(texts, self._embeddings.embed_documents(_flat(texts)) if any(texts) else [])
        except Exception as failure:  # noqa: BLE001  it is another's code
            if sum(map(bool, texts)) == 1:
                return [failure if own else [] for own in texts]
        return [self._of_puts([own])[0] if own else [] for own in texts]

    async def _aof_puts(self, texts: Sequence[Sequence[str]]) -> list[Any]:
        """What ``_of_puts`` gives, without blocking the event loop."""
        try:
            return _dealt(texts, await self._embeddings.aembed_documents(_flat(texts)) if any(texts) else [])
        except Exception as failure:  # noqa: BLE001  it is another's code
            if sum(map(bool, texts)) == 1:
                return [failure if own else [] for own in texts]
        return [(await self._aof_puts([own]))[0] if own else [] for own in texts]

    def _texts(self, op: Op) -> list[str]:
        """The texts of a put that are to be found."""
        if not isinstance(op, PutOp) or op.value is None or op.index is False:
            return []
        fields = self._fields if op.index is None else [_tokens(each) for each in op.index]
        return [text for field in fields for text in get_text_at_path(op.value, field)]

    def _joined(self, ops: Sequence[Op], queries: Mapping[str, Any], puts: Sequence[Any]) -> list[Outcome]:
        return [
            self._outcome(queries[op.query] if isinstance(op, SearchOp) and op.query else put)
            for op, put in zip(ops, puts, strict=True)
        ]

    def _outcome(self, made: Any) -> Outcome:
        if isinstance(made, Exception):
            return made
        if any(len(each) != self._dimensions for each in made):
            return InvalidRequest(f"the index has {self._dimensions} dims, and the model made others")
        return Embedded(self._model, self._metric, made) if made else None


def _queries(ops: Sequence[Op]) -> list[str]:
    """What is searched for, each once: a model may embed it in another way than what is found."""
    return [*dict.fromkeys(op.query for op in ops if isinstance(op, SearchOp) and op.query)]


def _tried(embed: Callable[[str], Sequence[float]], query: str) -> Any:
    try:
        return [embed(query)]
    except Exception as failure:  # noqa: BLE001  it is another's code
        return failure


async def _atried(embed: Callable[[str], Awaitable[Sequence[float]]], query: str) -> Any:
    try:
        return [await embed(query)]
    except Exception as failure:  # noqa: BLE001  it is another's code
        return failure


def _dealt(texts: Sequence[Sequence[str]], made: Sequence[Sequence[float]]) -> list[list[Sequence[float]]]:
    """The vectors that were made of each operation's texts.

    Raises:
        InvalidRequest: The model made more of them, or fewer, than there are texts.
    """
    count = sum(map(len, texts))
    if len(made) != count:
        raise InvalidRequest(f"the model made {len(made)} vectors of {count} texts")
    vectors = iter(made)
    return [[next(vectors) for _ in own] for own in texts]


def _flat(texts: Sequence[Sequence[str]]) -> list[str]:
    return [text for own in texts for text in own]


def _tokens(field: str) -> Any:
    return field if field == _WHOLE else tokenize_path(field)


def _name_of(embed: Any) -> str:
    if isinstance(embed, str):
        return embed
    named = embed if hasattr(embed, "__qualname__") else type(embed)
    model = getattr(embed, "model", None) or getattr(embed, "model_name", None)
    name = f"{named.__module__}.{named.__qualname__}"
    return f"{name}:{model}" if isinstance(model, str) else name
