"""The ledger seal: what must be there of a thread's approvals, effects and claims.

It holds the thread's fence and a live set (`storage.format.chain.LiveSet`) for approvals, one for claims and sixteen
for effects, so that a row that was edited, removed or put back in an older, authentic state is noticed by whoever reads
the part that it belongs to. A save reads and writes none of it. The sums are of keyed MACs and say nothing, so that
they are kept in clear under a MAC of the subject's id key: no rotation seals them again, and no client's share is
needed.

Putting back a whole ledger, its seal included, is not visible here: heads are anchored for that, and so is this.
"""

import hmac
import struct
from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from crypto import Field, Sealer
from crypto.context import encode_fields
from storage.errors import IntegrityFailure
from storage.format.chain import LiveSet
from storage.format.token import ThreadToken, incarnation_tag

MAC_BYTES: Final = 32
EFFECT_PARTS: Final = 16
_SUM_BYTES: Final = 32
_FORMAT: Final = 1
# The format; the fence; which parts of effects follow, a bit each.
_HEAD: Final = struct.Struct(">BQH")
_SET: Final = struct.Struct(f">Q{_SUM_BYTES}s")
# No namespace has this name: none may hold a NUL.
ANCHOR_NAMESPACE: Final = "\0ledger"

RowKind = Literal["approval", "approval-action", "approval-vote", "effect", "claim"]


def row_mac(sealer: Sealer, kind: RowKind, columns: Sequence[Field]) -> bytes:
    """The MAC of a row of a ledger, over all of its clear columns and digests of what is sealed in it.

    Args:
        sealer: The subject's; the share takes no part.
        kind: What the row is.
        columns: The columns, its place first, in an order that never changes for the kind.
    """
    return sealer.without_share.mac(b"ledger-row", kind.encode(), encode_fields(columns))


def member(sealer: Sealer, kind: RowKind, mac: bytes) -> bytes:
    """What a row adds to the live set of its part; its place is in its MAC."""
    return sealer.without_share.mac(b"live-ledger-row", kind.encode(), mac)


def effect_part(name_mac: bytes) -> int:
    """Which of the parts of effects one belongs to, by the MAC of its name."""
    return name_mac[0] % EFFECT_PARTS


_NO_EFFECTS: Final = (LiveSet(),) * EFFECT_PARTS


class LedgerSeal(msgspec.Struct, frozen=True):
    """What is counted of a thread's ledger.

    Attributes:
        fence: The thread's: the number of the newest claim, or the next one if that was released; 0: there was none.
        approvals: The live set of approvals, their actions and votes.
        claims: That of claims.
        effects: Those of effects, by `effect_part`.
    """

    fence: int = 0
    approvals: LiveSet = LiveSet()
    claims: LiveSet = LiveSet()
    effects: tuple[LiveSet, ...] = _NO_EFFECTS

    def seal(self, sealer: Sealer, thread_id: str, incarnation: bytes, sequence: int) -> bytes:
        """The bytes to store, which are bound to the thread's life and to how often its ledger changed."""
        sets = [self.approvals, self.claims]
        parts = 0
        for number, each in enumerate(self.effects):
            if each != LiveSet():
                parts |= 1 << number
                sets.append(each)
        body = _HEAD.pack(_FORMAT, self.fence, parts)
        body += b"".join(_SET.pack(each.count, each.total.to_bytes(_SUM_BYTES)) for each in sets)
        return body + _mac(sealer, thread_id, incarnation, sequence, body)

    @classmethod
    def open(cls, sealer: Sealer, thread_id: str, incarnation: bytes, sequence: int, data: bytes) -> "LedgerSeal":
        """Undo `seal`.

        Raises:
            IntegrityFailure: It is not this thread's, or was edited.
        """
        body, mac = data[:-MAC_BYTES], data[-MAC_BYTES:]
        if not hmac.compare_digest(mac, _mac(sealer, thread_id, incarnation, sequence, body)):
            raise IntegrityFailure("the seal of the thread's ledger does not authenticate")
        try:
            number, fence, parts = _HEAD.unpack_from(body)
            found = [LiveSet(count, int.from_bytes(total)) for count, total in _SET.iter_unpack(body[_HEAD.size :])]
        except struct.error:
            raise IntegrityFailure from None
        if number != _FORMAT or len(found) != 2 + parts.bit_count():
            raise IntegrityFailure
        approvals, claims, *rest = found
        left = iter(rest)
        effects = tuple(next(left) if parts >> part & 1 else LiveSet() for part in range(EFFECT_PARTS))
        return cls(fence, approvals, claims, effects)


def ledger_token(sealer: Sealer, incarnation: bytes, sequence: int) -> ThreadToken:
    """How far a thread's ledger is, in the form that heads are anchored in."""
    return ThreadToken(ANCHOR_NAMESPACE, incarnation_tag(sealer.without_share, incarnation), sequence, b"")


def _mac(sealer: Sealer, thread_id: str, incarnation: bytes, sequence: int, body: bytes) -> bytes:
    return sealer.without_share.mac(b"ledger-seal", encode_fields((thread_id, incarnation, sequence)), body)
