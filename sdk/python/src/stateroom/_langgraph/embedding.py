"""What an embedding model makes of the texts of operations on a store.

This module owns which texts those are, and that one call of the model serves all operations of a moment. Where that
call fails, each operation is tried by itself, so that one text that the model refuses fails its own operation only. The
model is the caller's: the gateway never sees a text to embed, and what it gets is sealed as plaintext is.
"""

from collections.abc import Sequence
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
        texts = [self._texts(op) for op in ops]
        try:
            return self._sorted(ops, texts, self._embeddings.embed_documents([*_flat(texts)]) if any(texts) else [])
        except Exception as failure:  # noqa: BLE001  it is another's code
            if sum(map(bool, texts)) == 1:
                return [failure if own else None for own in texts]
        return [self.of([op])[0] if own else None for op, own in zip(ops, texts, strict=True)]

    async def aof(self, ops: Sequence[Op]) -> list[Outcome]:
        """What ``of`` gives, without blocking the event loop."""
        texts = [self._texts(op) for op in ops]
        try:
            made = await self._embeddings.aembed_documents([*_flat(texts)]) if any(texts) else []
            return self._sorted(ops, texts, made)
        except Exception as failure:  # noqa: BLE001  it is another's code
            if sum(map(bool, texts)) == 1:
                return [failure if own else None for own in texts]
        return [(await self.aof([op]))[0] if own else None for op, own in zip(ops, texts, strict=True)]

    def _texts(self, op: Op) -> list[str]:
        if isinstance(op, SearchOp):
            return [op.query] if op.query else []
        if not isinstance(op, PutOp) or op.value is None or op.index is False:
            return []
        fields = self._fields if op.index is None else [_tokens(each) for each in op.index]
        return [text for field in fields for text in get_text_at_path(op.value, field)]

    def _sorted(
        self, ops: Sequence[Op], texts: Sequence[Sequence[str]], made: Sequence[Sequence[float]]
    ) -> list[Outcome]:
        vectors = iter(made)
        outcomes: list[Outcome] = []
        for _, own in zip(ops, texts, strict=True):
            mine = [next(vectors) for _ in own]
            if any(len(each) != self._dimensions for each in mine):
                outcomes.append(InvalidRequest(f"the index has {self._dimensions} dims, and the model made others"))
            else:
                outcomes.append(Embedded(self._model, self._metric, mine) if mine else None)
        return outcomes


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
