"""What sealing costs, beside the bare cipher on the same bytes. Nothing is stored.

The bare cipher is one AES-256-GCM call of the installed library under one key with a counted nonce: no key of its own
for each message, no context, no commitment, no compression. It is the floor, not an alternative.
"""

import itertools
import json
import time
from collections.abc import Callable
from uuid import UUID

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from benchmarks.workload import Prose
from crypto import Kind, Sealer, SecretKey, SubjectKeys

RAW = "raw AES-256-GCM"
PLAIN = "sealed"
COMPRESSED = "sealed, zstd"

RECORD_BYTES = 9000  # a state of 8 to 10 KB
BLOB_PART_BYTES = 8 * 1024 * 1024
_LOCATION = ("t1", "", "1f0c6c3e-0000-6000-8000-000000000001", 7)


def sealer() -> Sealer:
    """A subject's sealer with fresh keys."""
    return Sealer(UUID(int=1), UUID(int=2), "user-1", SubjectKeys({1: SecretKey.generate()}, 1, SecretKey.generate()))


def record(prose: Prose) -> bytes:
    """A state in JSON that compresses as prose does."""
    state = {"messages": [{"role": "user", "content": prose.take(500)} for _ in range(16)], "plan": prose.take(200)}
    return json.dumps(state).encode()


def record_work(contender: str, text: bytes) -> Callable[[], object]:
    """Seal and open ``text`` once."""
    if contender == RAW:
        cipher, numbers = AESGCM(AESGCM.generate_key(256)), itertools.count()

        def bare() -> bytes:
            nonce = next(numbers).to_bytes(12, "big")
            return cipher.decrypt(nonce, cipher.encrypt(nonce, text, None), None)

        return bare
    ours = sealer()

    def sealed() -> bytes:
        envelope = ours.seal(Kind.MANIFEST, _LOCATION, text, compress=contender == COMPRESSED)
        return ours.open(Kind.MANIFEST, _LOCATION, envelope)

    assert sealed() == text
    return sealed


def blob_work(contender: str, part: bytes) -> Callable[[], object]:
    """Seal one whole part of a blob."""
    if contender == RAW:
        cipher, numbers = AESGCM(AESGCM.generate_key(256)), itertools.count()
        return lambda: cipher.encrypt(next(numbers).to_bytes(12, "big"), part, None)
    ours = sealer()
    blob = ours.blob_cipher(UUID(int=3), ours.new_blob_key())
    return lambda: blob.seal_part(0, part, last=False)


def timed(work: Callable[[], object], count: int) -> list[float]:
    """How many seconds each of ``count`` runs took."""
    lasted = []
    for _ in range(count):
        began = time.perf_counter()
        work()
        lasted.append(time.perf_counter() - began)
    return lasted
