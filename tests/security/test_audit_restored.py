"""A restored backup loses audit events that were anchored. Accepting that is documented, bounded and signed.

Whoever has only the database cannot fake it: nothing is signed behind an event that nobody accepted, and an auditor
believes such an event only with an anchor at or after it.
"""

from typing import NamedTuple

import pytest

from crypto import sign_note
from storage.administration.anchors import AnchorNotFound
from storage.blobs.keyspace import AnchorLocation, anchor_prefix
from storage.blobs.memory import MemoryBlobStore
from storage.blobs.store import BlobUnavailable
from storage.errors import IntegrityFailure, SetupError
from storage.format.audit import (
    OPERATOR_CHAIN,
    RESTORED_ACTION,
    AnchorText,
    Event,
    Gap,
    decode_body,
    encode_body,
    export_lines,
    link,
    start_of,
    verify_export,
)
from storage.scope import OperatorScope, TenantScope
from storage.service import Store, StoreOptions
from tests.security.test_audit import WHEN, Log
from tests.support.stores import DEPLOYMENT_ID

ACTOR = "local"


class Stray(NamedTuple):
    """Something that another program put among our objects."""

    name: str

    def object_key(self):
        return self.name


class FillingBlobStore(MemoryBlobStore):
    """An object store that can be full: what is there is read, nothing is added."""

    full = False

    async def put_if_absent(self, *arguments, **named):
        if self.full:
            raise BlobUnavailable
        return await super().put_if_absent(*arguments, **named)


@pytest.fixture
def blobs():
    return FillingBlobStore()


@pytest.fixture
async def open_store(database, root_key, blobs):
    """Opens gateways that remember nothing of each other."""
    opened = []

    async def one(*, restored=True):
        opened.append(
            await Store.open(
                database.app_url,
                root_key=root_key,
                deployment_id=DEPLOYMENT_ID,
                connections_max=4,
                durable=False,
                restored=restored,
                options=StoreOptions(blobs=blobs),
            )
        )
        return opened[-1]

    yield one
    for each in opened:
        await each.close()


class Restorable(Log):
    """A log with anchors at 4 and 6, whose database can be put back to when it had fewer events."""

    async def fill(self):
        await super().fill()
        self.anchors = [self.anchor, await self.store.anchors.anchor(self.scope)]
        return self

    async def put_back(self, events):
        kept = (await self.rows())[events - 1] if events else {"hash": start_of(DEPLOYMENT_ID, self.scope.tenant_id)}
        await self.change("DELETE FROM {log} WHERE tenant_id = $1 AND sequence > $2", events)
        await self.admin.execute(
            "UPDATE stateroom.audit_heads SET sequence = $2, hash = $3, anchored = least(anchored, $2)"
            " WHERE tenant_id = $1",
            self.scope.tenant_id,
            events,
            kept["hash"],
        )

    async def accept(self):
        return [each.gap for each in await self.store.anchors.accept_restored(ACTOR)]

    async def add(self, action="noise", detail=None):
        async with self.store.unit_of_work.begin(self.scope) as transaction:
            await self.store.audit.append(transaction, self.scope.tenant_id, ACTOR, action, "audit", detail)

    async def forge(self, gap):
        """What whoever holds the database writes: an event like a genuine one, consistent to the last byte."""
        tenant_id = self.scope.tenant_id
        body = encode_body(
            Event(
                tenant_id=tenant_id, sequence=gap.sequence, at=WHEN, actor=ACTOR,
                action=RESTORED_ACTION, target="audit", detail=gap.detail,
            )
        )  # fmt: skip
        digest = link(gap.found_hash, gap.sequence, body)
        await self.admin.execute(
            "INSERT INTO stateroom.audit_log VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
            tenant_id, gap.sequence, WHEN, ACTOR, RESTORED_ACTION, "audit", body, gap.found_hash, digest,
        )  # fmt: skip
        await self.admin.execute(
            "UPDATE stateroom.audit_heads SET sequence = $2, hash = $3 WHERE tenant_id = $1",
            tenant_id, gap.sequence, digest,
        )  # fmt: skip

    async def verified(self, *anchors):
        page = await self.store.audit.page(self.scope, "api-key:auditor", 0, 100, verify=False)
        lines = export_lines(anchors[0].text.origin, [each.entry for each in page.items])
        return verify_export(lines, [each.note for each in anchors], self.public_key)


@pytest.fixture
async def log(open_store, admin, root_key):
    return await Restorable(await open_store(), admin, root_key).fill()


def kinds(found):
    return {each.kind for each in found.findings}


@pytest.mark.parametrize(("events", "kept"), [(5, 4), (4, 4), (3, 0), (0, 0)])
async def test_a_restored_log_goes_on_behind_a_gap_that_says_what_is_lost(log, open_store, events, kept):
    await log.put_back(events)
    log.store = await open_store()
    if events:
        await log.nothing_is_signed()
    (gap,) = await log.accept()
    assert (gap.sequence, gap.kept, gap.found, gap.anchored) == (7, kept, events, 6)
    assert gap.anchored_hash == log.anchors[-1].text.hash
    await log.add()
    newest = await log.store.anchors.anchor(log.scope)
    assert newest.text.sequence == 8
    found = await log.verified(*log.anchors, newest)
    assert (found.ok, found.gaps, found.anchored_through) == (True, [gap], 8)
    await log.read()


@pytest.mark.parametrize("events", [5, 3, 0])
async def test_a_log_that_is_behind_its_anchor_is_not_served_from_until_somebody_accepts(log, open_store, events):
    await open_store(restored=False)
    await log.put_back(events)
    with pytest.raises(SetupError, match=r"1 audit logs .* 'stateroom restore accept'"):
        await open_store(restored=False)
    log.store = await open_store()
    await log.accept()
    await open_store(restored=False)


async def test_a_stale_replica_that_has_grown_past_its_anchor_is_told_while_serving_and_refused_at_start(
    log, open_store
):
    serving = await open_store(restored=False)
    await serving.anchors.watch()
    assert (await serving.health()).history
    await log.put_back(3)
    for _ in range(5):
        await log.add()
    assert len(await log.rows()) > log.anchors[-1].text.sequence
    for _ in range(2):
        with pytest.raises(IntegrityFailure, match="fail-over"):
            await serving.anchors.watch()
    assert not (await serving.health()).history
    with pytest.raises(SetupError, match=r"1 audit logs lack an event"):
        await open_store(restored=False)
    # Once that is accepted, the process that goes on serving anchors again.
    await (await open_store()).anchors.accept_restored(ACTOR)
    await serving.anchors.watch()
    assert (await serving.health()).history
    await log.add()
    assert (await serving.anchors.anchor(log.scope)).stored


async def test_a_log_that_was_taken_away_altogether_is_not_served_without(log, open_store):
    tenant_id = log.scope.tenant_id
    await log.admin.execute("INSERT INTO stateroom.tenants VALUES ($1, 'acme', now())", tenant_id)
    await log.change("DELETE FROM {log} WHERE tenant_id = $1")
    await log.admin.execute("DELETE FROM stateroom.audit_heads WHERE tenant_id = $1", tenant_id)
    with pytest.raises(SetupError, match="1 audit logs"):
        await open_store(restored=False)
    log.store = await open_store()
    (gap,) = await log.accept()
    assert (gap.kept, gap.found, gap.anchored) == (0, 0, 6)
    await open_store(restored=False)


async def test_the_operators_log_is_compared_too(log, open_store):
    async with log.store.unit_of_work.begin(OperatorScope()) as transaction:
        await log.store.audit.append(transaction, OPERATOR_CHAIN, ACTOR, "noise", "x")
    await log.store.anchors.anchor(OperatorScope())
    await open_store(restored=False)
    moved = "UPDATE stateroom.audit_heads SET sequence = sequence - $2 WHERE tenant_id = $1"
    await log.admin.execute(moved, OPERATOR_CHAIN, 1)
    with pytest.raises(SetupError, match="1 audit logs"):
        await open_store(restored=False)
    await log.admin.execute(moved, OPERATOR_CHAIN, -1)
    await open_store(restored=False)


async def test_what_is_no_anchor_cannot_hide_the_anchors_behind_it(log, open_store, blobs):
    await log.put_back(5)
    await blobs.put_if_absent(Stray(anchor_prefix(log.scope.tenant_id) + "!"), b"nothing")
    with pytest.raises(IntegrityFailure):
        await open_store(restored=False)
    log.store = await open_store()
    with pytest.raises(IntegrityFailure):
        await log.accept()


async def test_a_start_without_the_anchors_is_refused_because_nobody_knows(log, open_store, blobs):
    blobs.available = False
    with pytest.raises(BlobUnavailable):
        await open_store(restored=False)
    blobs.available = True


async def test_accepting_again_or_without_a_restore_changes_nothing(log, open_store):
    assert await log.accept() == []
    await log.put_back(5)
    assert len(await log.accept()) == 1
    before = await log.rows()
    log.store = await open_store()
    assert await log.accept() == []
    assert await log.rows() == before
    assert (await log.store.anchors.anchor(log.scope)).text.sequence == 7


async def test_a_log_that_was_served_from_before_anybody_accepted_goes_on_too(log, open_store):
    await log.put_back(4)
    log.store = await open_store()
    for _ in range(4):
        await log.add()
    await log.nothing_is_signed()  # event 6 is another one now
    (gap,) = await log.accept()
    assert (gap.sequence, gap.kept, gap.found, gap.anchored) == (9, 4, 8, 6)
    found = await log.verified(*log.anchors, await log.store.anchors.anchor(log.scope))
    assert (found.ok, found.gaps) == (True, [gap])


async def test_a_second_restore_to_before_the_first_is_one_gap(log, open_store):
    await log.put_back(5)
    await log.accept()
    await log.add()
    first = await log.store.anchors.anchor(log.scope)
    await log.put_back(4)
    log.store = await open_store()
    (gap,) = await log.accept()
    assert (gap.sequence, gap.kept, gap.anchored) == (9, 4, 8)
    found = await log.verified(*log.anchors, first, await log.store.anchors.anchor(log.scope))
    assert (found.ok, found.gaps) == (True, [gap])


async def test_an_acceptance_that_could_not_be_signed_is_made_again(log, open_store, blobs):
    await log.put_back(4)
    blobs.full = True
    with pytest.raises(BlobUnavailable):
        await log.accept()
    blobs.full = False
    log.store = await open_store()
    await log.nothing_is_signed()
    (gap,) = await log.accept()
    assert (gap.sequence, gap.kept, gap.found) == (8, 4, 7)
    found = await log.verified(*log.anchors, await log.store.anchors.anchor(log.scope))
    assert found.ok
    assert [each.sequence for each in found.gaps] == [7, 8]


# --- attacks -------------------------------------------------------------------------------------------------------


async def test_a_forged_gap_is_neither_signed_nor_believed(log, open_store):
    await log.put_back(5)
    rows = await log.rows()
    await log.forge(Gap.after(4, 5, rows[-1]["hash"], log.anchors[-1].text))
    log.store = await open_store()
    await log.nothing_is_signed()
    assert kinds(await log.verified(*log.anchors)) == {"missing"}
    assert kinds(await log.verified(log.anchors[0])) == {"missing"}  # not even where no lost anchor is at hand


async def test_a_gap_forged_behind_the_newest_anchor_is_not_signed(log, open_store):
    """Its own anchor would excuse everything before it: the gateway must not be talked into making one."""
    text = log.anchors[-1].text
    rows = await log.rows()
    await log.forge(Gap(8, 0, 6, rows[-1]["hash"], 7, bytes(32)))
    assert text.sequence == 6
    log.store = await open_store()
    await log.nothing_is_signed()
    assert kinds(await log.verified(*log.anchors)) == {"missing"}


async def test_where_no_anchor_is_kept_no_gap_is_ever_signed(log, database, root_key):
    await log.put_back(5)
    rows = await log.rows()
    await log.forge(Gap.after(4, 5, rows[-1]["hash"], log.anchors[-1].text))
    store = await Store.open(
        database.app_url, root_key=root_key, deployment_id=DEPLOYMENT_ID, connections_max=2, durable=False
    )
    try:
        with pytest.raises(IntegrityFailure):
            await store.anchors.anchor(log.scope)
        assert await store.anchors.accept_restored(ACTOR) == []
    finally:
        await store.close()


async def test_a_gap_excuses_nothing_that_was_kept(log, open_store):
    """Accepted by mistake on a log whose older events were edited: the anchor of a kept event still contradicts."""
    await log.put_back(5)
    (gap,) = await log.accept()
    newest = await log.store.anchors.anchor(log.scope)
    assert gap.kept == 4
    other = log.anchors[0].text
    page = await log.store.audit.page(log.scope, "api-key:auditor", 0, 100, verify=False)
    lines = list(export_lines(other.origin, [each.entry for each in page.items]))
    signer = await log.store.anchors._signing_key.newest()
    contradicting = sign_note(AnchorText(other.origin, 4, bytes(32)).render(), other.origin, signer)
    lost = sign_note(AnchorText(other.origin, 6, bytes(32)).render(), other.origin, signer)
    assert kinds(verify_export(lines, [contradicting, newest.note], log.public_key)) == {"forked"}
    # And the lost anchor it names is that one and no other.
    assert kinds(verify_export(lines, [lost, newest.note], log.public_key)) == {"forked"}


async def test_a_gap_that_was_widened_afterwards_is_found(log):
    await log.put_back(5)
    await log.accept()
    newest = await log.store.anchors.anchor(log.scope)
    await log.change(
        "UPDATE {log} SET body = convert_to(replace(convert_from(body, 'UTF8'), '\"kept\":4', '\"kept\":0'), 'UTF8')"
        " WHERE tenant_id = $1 AND sequence = 7"
    )
    assert decode_body((await log.rows())[5]["body"]).detail["kept"] == 0
    assert "edited" in kinds(await log.verified(*log.anchors, newest))
    await log.gateway_refuses()


async def test_a_gap_moved_to_another_place_of_the_log_is_found(log, open_store):
    await log.put_back(5)
    rows = await log.rows()
    for wrong in (
        Gap(7, 4, 4, rows[3]["hash"], 6, bytes(32)),  # another head than stands there
        Gap(7, 4, 4, rows[4]["hash"], 6, bytes(32)),
        Gap(7, 4, 5, bytes(32), 6, bytes(32)),
        Gap(9, 4, 5, rows[4]["hash"], 6, bytes(32)),  # another number than follows from it
        Gap(7, 6, 5, rows[4]["hash"], 6, bytes(32)),  # nothing is lost
    ):
        await log.put_back(5)
        await log.forge(wrong)
        log.store = await open_store()
        await log.gateway_refuses()
        await log.nothing_is_signed()
        with pytest.raises(IntegrityFailure):
            await log.accept()
    await log.put_back(5)


async def test_an_anchor_forged_in_the_bucket_stops_the_acceptance(log, open_store, blobs):
    await log.put_back(5)
    where = AnchorLocation(log.scope.tenant_id, 9)
    assert where.object_key() not in await blobs.list_keys(anchor_prefix(log.scope.tenant_id))
    await blobs.put_if_absent(where, log.anchors[0].note.encode())
    log.store = await open_store()
    with pytest.raises(IntegrityFailure):
        await log.accept()
    assert len(await log.rows()) == 5
    await blobs.delete(where)


async def test_deployments_that_share_a_bucket_keep_their_operators_anchors_apart(log, blobs):
    async with log.store.unit_of_work.begin(OperatorScope()) as transaction:
        await log.store.audit.append(transaction, OPERATOR_CHAIN, ACTOR, "noise", "x")
    assert (await log.store.anchors.anchor(OperatorScope())).stored
    assert await blobs.list_keys(anchor_prefix(OPERATOR_CHAIN)) == []
    assert len(await blobs.list_keys(anchor_prefix(DEPLOYMENT_ID))) == 1
    assert await log.accept() == []


async def test_a_chain_without_anchors_is_left_alone(log):
    nobody = TenantScope(log.scope.tenant_id)
    assert await log.accept() == []
    with pytest.raises(AnchorNotFound):
        await log.store.anchors.latest(TenantScope(DEPLOYMENT_ID))
    assert (await log.store.anchors.latest(nobody)).text.sequence == 6
