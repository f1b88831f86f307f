"""Thread tokens: what a client has seen of a namespace, for it to keep where the store's owner cannot reach.

A rollback of a whole thread leaves seals that agree with each other; only a client that remembers more can tell. A
token holds a tag of the thread's incarnation, the namespace's sequence and a tag of the state at that sequence, under
a MAC of the subject. It opens nothing and grants nothing. The same tags are what heads are anchored by.
"""

import base64
import binascii
import struct

import msgspec

from storage.errors import InvalidState, RollbackDetected
from storage.format.chain import HeadSeal, Macs

TAG_BYTES = 16
_FORMAT = 1
_BODY = struct.Struct(f">B{TAG_BYTES}sQ{TAG_BYTES}s")


def incarnation_tag(macs: Macs, incarnation: bytes) -> bytes:
    """What may be told of an incarnation outside the seals."""
    return macs.mac(b"incarnation", incarnation)[:TAG_BYTES]


def thread_tag(macs: Macs, thread_id: str) -> bytes:
    """A thread's name where its id must not appear."""
    return macs.mac(b"thread-tag", thread_id.encode())[:TAG_BYTES]


def removal_mac(macs: Macs, thread: bytes, incarnation: bytes) -> bytes:
    """Proof that the life of a thread, by its tags, ended by a request."""
    return macs.mac(b"removed", thread, incarnation)


def _state_tag(macs: Macs, head_id: str, head: HeadSeal) -> bytes:
    return macs.mac(b"head-state", head_id.encode(), head.encode())[:TAG_BYTES]


class ThreadToken(msgspec.Struct, frozen=True):
    """What a client has seen of a namespace."""

    namespace: str
    incarnation_tag: bytes
    sequence: int
    state_tag: bytes

    @classmethod
    def of(cls, macs: Macs, namespace: str, head_id: str, head: HeadSeal) -> "ThreadToken":
        """Of a head as it is now."""
        return cls(namespace, incarnation_tag(macs, head.incarnation), head.sequence, _state_tag(macs, head_id, head))

    def after(self, macs: Macs, head_id: str, head: HeadSeal) -> "ThreadToken":
        """Of a head of the same life and namespace."""
        return ThreadToken(self.namespace, self.incarnation_tag, head.sequence, _state_tag(macs, head_id, head))

    def encode(self, macs: Macs, thread_id: str) -> str:
        """The text that a client keeps."""
        body = _BODY.pack(_FORMAT, self.incarnation_tag, self.sequence, self.state_tag)
        name = self.namespace.encode()
        return base64.urlsafe_b64encode(body + _mac(macs, thread_id, body, name) + name).rstrip(b"=").decode("ascii")

    @classmethod
    def decode(cls, macs: Macs, thread_id: str, text: str) -> "ThreadToken":
        """Read what `encode` wrote for this thread.

        Raises:
            InvalidState: it is no token.
            RollbackDetected: it was made for another thread, or under keys that are not the subject's any more.
        """
        token = cls.parse(text)
        # Authenticates no credential: who guesses one harms no one else, so the time it takes tells nothing of use.
        if token.encode(macs, thread_id) != text:
            raise RollbackDetected("the token does not belong to this thread, or its subject's keys were replaced")
        return token

    @classmethod
    def parse(cls, text: str) -> "ThreadToken":
        """Read what a token says, without asking whether it is ours.

        Raises:
            InvalidState: it is no token.
        """
        try:
            raw = base64.b64decode(text.encode("ascii") + b"=" * (-len(text) % 4), altchars=b"-_", validate=True)
            body, mac, name = raw[: _BODY.size], raw[_BODY.size :][:TAG_BYTES], raw[_BODY.size + TAG_BYTES :]
            layout, incarnation, sequence, state = _BODY.unpack(body)
            namespace = name.decode()
        except (ValueError, binascii.Error, struct.error):
            raise InvalidState("this is no thread token") from None
        if layout != _FORMAT or len(mac) != TAG_BYTES:
            raise InvalidState("this is no thread token of a format that this gateway knows")
        return cls(namespace, incarnation, sequence, state)

    def admits(self, macs: Macs, head_id: str, head: HeadSeal) -> bool:
        """Whether ``head`` can be what became of the state this token was given for."""
        if incarnation_tag(macs, head.incarnation) != self.incarnation_tag:
            return False
        if head.sequence == self.sequence:
            return _state_tag(macs, head_id, head) == self.state_tag
        return head.sequence > self.sequence


def _mac(macs: Macs, thread_id: str, body: bytes, name: bytes) -> bytes:
    return macs.mac(b"thread-token", thread_id.encode(), body, name)[:TAG_BYTES]
