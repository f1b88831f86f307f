"""Large leaves between bodies and the model: what a save says of them, and what a load shows.

Owns the checks of what is said. Which leaves are large is the storage's to say: what is said of another value is not
kept, and is no fault, because a client does not know from which size on the operator moves values out.
"""

from collections.abc import Sequence

from msgspec import UNSET, UnsetType

from gateway import wire
from gateway.admission import limits
from gateway.admission.slices import Work
from gateway.http.artifact_headers import check_media_type
from gateway.wire.problems import Fault
from storage.errors import InvalidState, LimitExceeded
from storage.model import LargeLeaf, Value

_SLICE_LEAVES = 1000


class LeafReader:
    """Reads what a body says of large leaves, and counts the previews in it."""

    def __init__(self) -> None:
        self._preview_bytes = 0

    def read(
        self, sent: Sequence[wire.checkpoints.LeafIn], where: str, *, by_offset: bool
    ) -> Work[tuple[LargeLeaf, ...]]:
        """What is said of the leaves of one value.

        Args:
            sent: As it was sent.
            where: The pointer to it.
            by_offset: Whether the value came as the bytes that offsets are of.

        Raises:
            InvalidState: it does not say of what, or by an offset where there are none.
            InvalidRequest: a media type is none.
            LimitExceeded: the previews of the body are too many bytes.
        """
        leaves = []
        for number, each in enumerate(sent, 1):
            leaves.append(self._one(each, f"{where}/{number - 1}", by_offset=by_offset))
            if number % _SLICE_LEAVES == 0:
                yield
        return tuple(leaves)

    def _one(self, sent: wire.checkpoints.LeafIn, where: str, *, by_offset: bool) -> LargeLeaf:
        if (sent.at is UNSET) == (sent.path is UNSET):
            raise InvalidState("say by at or by path of which leaf", where)
        if sent.at is not UNSET and not by_offset:
            raise InvalidState(
                "offsets are of MessagePack that is sent as it is; name the leaf by its path", f"{where}/at"
            )
        if sent.path is not UNSET and sent.path and not sent.path.startswith("/"):
            raise InvalidState("must be a JSON pointer (RFC 6901) into the value", f"{where}/path")
        if sent.media_type is not None:
            fault = Fault(detail="must be a media type, such as image/png", pointer=f"{where}/media_type")
            check_media_type(sent.media_type, fault)
        self._preview_bytes += len(sent.preview or b"")
        if self._preview_bytes > limits.PREVIEWS_BYTES_MAX:
            found = self._preview_bytes
            raise LimitExceeded("PREVIEWS_BYTES_MAX", limits.PREVIEWS_BYTES_MAX, found, f"{where}/preview")
        return LargeLeaf(
            at=None if sent.at is UNSET else sent.at,
            path=None if sent.path is UNSET else sent.path,
            media_type=sent.media_type,
            preview=sent.preview,
        )


def leaves_out(value: Value, before: int | None = 0) -> Work[list[wire.checkpoints.LeafOut] | UnsetType]:
    """What is known of a value's large leaves; absent where it has none.

    ``before``: how many bytes stand before the value's in what is shown; None: it is not shown as its bytes.
    """
    shown: list[wire.checkpoints.LeafOut] = []
    for each in value.leaves:
        shown.append(
            wire.checkpoints.LeafOut(
                piece=each.piece_id,
                size_bytes=each.size_bytes,
                at=UNSET if before is None or each.at is None else before + each.at,
                path=_or_unset(each.path),
                media_type=_or_unset(each.media_type),
                preview=UNSET if each.preview is None else each.preview,
            )
        )
        if len(shown) % _SLICE_LEAVES == 0:
            yield
    return shown or UNSET


def _or_unset(text: str | None) -> str | UnsetType:
    return UNSET if text is None else text
