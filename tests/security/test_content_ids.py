"""What a piece is named by is its content: a piece that was exchanged by who has the subject's keys is refused, too."""

# ruff: noqa: S608  the place is a constant of these tests

import pytest

from crypto import Kind
from storage.errors import IntegrityFailure
from storage.format.manifest import chunk_location
from tests.support.states import contents, document, load, save, state


async def exchange(store, scope, admin, forge):
    """Seal other bytes, with the right keys and at the right place, where the subject's one piece is."""
    place = "tenant_id = $1 AND subject_id = $2"
    sealer = await store.keys.sealer(scope)
    row = await admin.fetchrow(
        f"SELECT piece_id, envelope FROM stateroom.chunks WHERE {place}", scope.tenant_id, scope.subject_id
    )
    location = chunk_location(row["piece_id"], None)
    plaintext = sealer.open(Kind.CHUNK, location, row["envelope"])
    await admin.execute(
        f"UPDATE stateroom.chunks SET envelope = $3 WHERE {place}",
        scope.tenant_id,
        scope.subject_id,
        sealer.seal(Kind.CHUNK, location, forge(plaintext)),
    )


async def test_a_piece_sealed_anew_with_the_same_content_still_opens(store, scope, admin):
    await save(store, scope, content=state(a=document("as it was")))
    await exchange(store, scope, admin, lambda plaintext: plaintext)
    assert contents(await load(store, scope)) == {"a": document("as it was")}


async def test_other_content_under_a_pieces_id_is_refused_though_it_is_sealed_with_the_right_keys(store, scope, admin):
    await save(store, scope, content=state(a=document("as it was")))
    await exchange(store, scope, admin, lambda plaintext: plaintext[:-1] + bytes([plaintext[-1] ^ 1]))
    with pytest.raises(IntegrityFailure):
        await load(store, scope)
    assert (await store.verification.subject(scope)).findings
