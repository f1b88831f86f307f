"""What all bodies share: requests refuse unknown members; names, ids and versions have one form each."""

from typing import Annotated, Any, Literal, Self

from msgspec import Meta, Struct, inspect

Status = Literal["active", "waiting", "failed", "done"]
View = Literal["none", "state", "channels"]
# Whether large leaves of serialised values come in place, or as placeholders; JSON has no placeholders.
Pieces = Literal["resolved", "refs"]
# What of the artifacts that a state names comes along: nothing, what is said of them, or that and their content.
Resolve = Literal["pointers", "previews", "inline"]
# Offsets in `data` where 28 bytes stand for a large leaf that was uploaded as a piece of the thread before.
Holes = Annotated[list[Annotated[int, Meta(ge=0, le=2**53)]], Meta(max_length=10_000)]
Integer = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]  # what MessagePack and PostgreSQL hold
Version = str | Integer | float
PRIVATE_PREFIX = "~"  # channels of adapters begin with it; they are in the channels view only
NAME_BYTES_MAX = 255
NAMESPACE_BYTES_MAX = 1024  # with four ids of 255 bytes it fits an entry of a B-tree (2,704 bytes)
WITHOUT_NUL = r"^[^\x00]*$"  # PostgreSQL's text holds every character but this one
Name = Annotated[str, Meta(min_length=1, max_length=NAME_BYTES_MAX, pattern=WITHOUT_NUL)]
Title = Annotated[str, Meta(max_length=NAME_BYTES_MAX, pattern=WITHOUT_NUL)]
Namespace = Annotated[str, Meta(max_length=NAMESPACE_BYTES_MAX, pattern=WITHOUT_NUL)]
Word = Annotated[str, Meta(pattern=r"^[A-Za-z0-9._:-]{1,64}\Z")]
CheckpointIdText = Name
StateVersionNumber = Annotated[int, Meta(ge=1, lt=2**31)]
# What the claim of a thread gave; it travels in bodies, where an older build refuses what it does not know.
Fence = Annotated[int, Meta(ge=1, le=2**53)]


class Request(Struct, forbid_unknown_fields=True, kw_only=True):
    """Base of request bodies: an unknown field is an error, not a silent loss."""


class Response(Struct, kw_only=True):
    """Base of response bodies."""

    @classmethod
    def of(cls, record: object, **members: Any) -> Self:
        """The body that shows a record, whose attributes have the members' names; ``members`` are all others."""
        return cls(**{name: getattr(record, name) for name in cls.__struct_fields__ if name not in members}, **members)


NOT_BLANK = r"[^\s\x00]"
Reason = Annotated[str, Meta(min_length=1, max_length=500, pattern=NOT_BLANK)]
MediaType = Annotated[str, Meta(min_length=3, max_length=255)]


def alternatives(kind: inspect.Type) -> list[inspect.Type]:
    """The types that a place of a shape may have."""
    if isinstance(kind, inspect.UnionType):
        return [alternative for each in kind.types for alternative in alternatives(each)]
    return alternatives(kind.type) if isinstance(kind, inspect.Metadata) else [kind]
