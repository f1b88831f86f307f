"""Exports that were changed on the way, or made by somebody who knows only the public key: refused, nothing in part."""

import os
import tracemalloc
from contextlib import suppress
from datetime import UTC, datetime
from uuid import uuid4

import msgspec
import pytest

from crypto import ExportOpener, ExportSealer, OpenError
from storage.control.features import DECISIONS
from storage.errors import ImportForOther, ImportRefused, ImportUnbound, IntegrityFailure
from storage.format import export as form
from storage.format.leaves import placeholder, read_placeholder
from storage.format.manifest import ChannelRecord
from storage.format.pieces import read_composite, write_composite
from storage.model import Precondition
from storage.postgres.statement import Statement
from storage.scope import OperatorScope, Scope, TenantScope
from storage.transfer.exporting import NO_POLICY_JSON
from tests.support.features import switch_on
from tests.support.ledgers import finish, start
from tests.support.states import contents, document, load, patch, put, save, state, write
from tests.support.transfers import ACTOR, content, deployment, exported, exported_tenant, imported, recipient, unbound

TABLES = (
    "threads",
    "heads",
    "checkpoints",
    "chunks",
    "pending_writes",
    "artifacts",
    "blob_refs",
    "artifact_refs",
    "effects",
)
SCREEN = "data:image/png;base64," + "A" * 150_000
NOW = datetime(2026, 11, 22, tzinfo=UTC)


@pytest.fixture(scope="module")
async def here(postgres, migrated_template):
    async with deployment(postgres, migrated_template) as store:
        yield store


@pytest.fixture(scope="module")
async def there(postgres, migrated_template):
    async with deployment(postgres, migrated_template) as store:
        yield store


@pytest.fixture
def target(scope):
    return Scope(uuid4(), scope.subject_id)


async def rows(store, scope):
    """What is in the subject's tables."""
    async with store.unit_of_work.snapshot(scope) as transaction:
        return {
            table: await transaction.fetch_only(
                Statement(f"SELECT count(*) FROM stateroom.{table} WHERE tenant_id = :tenant_id", int)  # noqa: S608
            )
            for table in TABLES
        }


NOTHING = dict.fromkeys(TABLES, 0)


async def a_thread(store, scope, thread_id="t1"):
    first = await save(
        store, scope, thread_id=thread_id,
        content=state(
            messages=[document(f"m{n}", 900) for n in range(100)],
            screens=[{"text": document(f"s{n}", 2_000), "picture": SCREEN + str(n)} for n in range(3)],
        ),
    )  # fmt: skip
    await save(
        store, scope, thread_id=thread_id, content=patch(append={"messages": ["more"]}),
        precondition=Precondition(head_id=first.checkpoint_id),
    )  # fmt: skip
    await put(store, scope, first.checkpoint_id, write(0, "messages", document("w")), thread_id=thread_id)


async def opened(there, target, file):
    """The records of a file, as only the recipient reads them."""
    own = await there.transfer_keys.newest()
    opener = ExportOpener(lambda _: own, target.tenant_id)
    frames = form.Frames()
    found = [form.decode(each) for each in frames.take(opener.write(file))]
    return [*found, *(form.decode(each) for each in frames.take(opener.finish()))]


async def sealed(there, target, records, *, honest=True, export_id=None):
    """A file of these records, by somebody who knows the format and the public key; with true digests if ``honest``.

    Or with a true one of the file only (``"file"``).
    """
    receiver = await recipient(there, target.tenant_id)
    sealer = ExportSealer(receiver, export_id or records[0].export_id)
    whole, thread, thread_id = form.RunningDigest(), None, ""
    file = sealer.start
    for record in records:
        if isinstance(record, form.Beginning):
            thread, thread_id = form.RunningDigest(), record.thread_id
        encoded = form.encode(record)
        if isinstance(record, form.Ending) and honest is True:
            encoded = form.encode(msgspec.structs.replace(record, digest=thread.digest()))
        if isinstance(record, form.End) and honest:
            encoded = form.encode(msgspec.structs.replace(record, digest=whole.digest()))
        if thread is not None and not isinstance(record, form.Ending):
            thread.add(form.digested(record, encoded, thread_id))
        whole.add(encoded)
        file += sealer.write(form.frame(encoded))
    return file + sealer.finish()


def index_of(records, kind, nth=0):
    return [at for at, each in enumerate(records) if isinstance(each, kind)][nth]


def replaced(records, at, **changes):
    return [*records[:at], msgspec.structs.replace(records[at], **changes), *records[at + 1 :]]


def of_kind(records, kind):
    return next(at for at, each in enumerate(records) if isinstance(each, form.PieceRecord) and each.kind == kind)


def grown(data):
    """A composite piece whose first placeholder says that its leaf is longer."""
    held, holes = read_composite(data)
    _, size = read_placeholder(held, holes[0])
    wrong = placeholder(bytes(17), size + 1)
    return write_composite(held[: holes[0]] + wrong + held[holes[0] + len(wrong) :], holes)


async def refused(there, target, file, kind=ImportRefused):
    with pytest.raises(kind):
        await imported(there, target.tenant_id, file)
    assert await rows(there, target) == NOTHING


async def test_the_forger_of_these_tests_makes_files_that_are_taken(here, there, scope, target):
    await a_thread(here, scope)
    records = await opened(there, target, await exported(here, there, scope, target.tenant_id))
    assert (await imported(there, target.tenant_id, await sealed(there, target, records))).verified == 1


async def test_a_bit_flipped_anywhere_is_refused(here, there, scope, target):
    await a_thread(here, scope)
    file = await exported(here, there, scope, target.tenant_id)
    for at in [*range(0, 300, 7), *range(300, len(file), len(file) // 40), len(file) - 1]:
        altered = bytearray(file)
        altered[at] ^= 0x40
        await refused(there, target, bytes(altered))


async def test_a_file_that_is_cut_or_goes_on_is_refused(here, there, scope, target):
    await a_thread(here, scope)
    file = await exported(here, there, scope, target.tenant_id)
    for length in [0, 1, 4, 40, 200, *range(300, len(file), len(file) // 30), len(file) - 16, len(file) - 1]:
        await refused(there, target, file[:length])
    for more in (b"x", bytes(16), bytes(20_000), file):
        await refused(there, target, file + more)


async def test_a_stretch_of_another_export_is_refused(here, there, scope, target):
    await a_thread(here, scope)
    one, other = [await exported(here, there, scope, target.tenant_id) for _ in range(2)]
    for at in range(400, len(one) - 20_000, len(one) // 20):
        await refused(there, target, one[:at] + other[at : at + 16_400] + one[at + 16_400 :])
    await refused(there, target, one[: len(one) // 2] + other[len(other) // 2 :])


async def test_another_deployments_file_is_refused_and_names_both_keys(here, there, scope, target):
    await a_thread(here, scope)
    file = await exported(here, here, scope, target.tenant_id)
    own = (await there.transfer_keys.newest()).public_key.fingerprint
    with pytest.raises(ImportForOther, match=own):
        await imported(there, target.tenant_id, file)
    assert await rows(there, target) == NOTHING


async def test_records_that_change_places_are_missing_or_come_twice_are_refused(here, there, scope, target):
    await a_thread(here, scope)
    records = await opened(there, target, await exported(here, there, scope, target.tenant_id))
    middle = range(1, len(records) - 1)
    for at in middle:
        for changed in (records[:at] + records[at + 1 :], [*records[: at + 1], *records[at:]]):
            file = await sealed(there, target, changed, honest=False)
            with pytest.raises(ImportRefused):
                await imported(there, target.tenant_id, file)
            assert await rows(there, target) == NOTHING, (at, type(records[at]))
    for at in middle[:-1]:
        if records[at] != records[at + 1]:
            swapped = [*records[:at], records[at + 1], records[at], *records[at + 2 :]]
            await refused(there, target, await sealed(there, target, swapped, honest=False))


async def test_forged_records_with_true_digests_are_refused(here, there, scope, target):
    await a_thread(here, scope)
    records = await opened(there, target, await exported(here, there, scope, target.tenant_id))
    start = index_of(records, form.Beginning)
    pieces = [at for at, each in enumerate(records) if isinstance(each, form.PieceRecord)]
    composite, leaf, elements = (of_kind(records, kind) for kind in (4, 3, 0))
    checkpoint, pending = index_of(records, form.CheckpointRecord), index_of(records, form.PendingRecord)
    head, ending = index_of(records, form.Head), index_of(records, form.Ending)
    large = [*range(leaf + 1, len(records))]
    data = next((at for at in large if isinstance(records[at], form.Data)), None)
    forged = {
        "no opening": records[1:],
        "another format": replaced(records, 0, format=1),
        "two openings": [records[0], *records],
        "nothing after the opening": records[:1],
        "no end": records[:-1],
        "something after the end": [*records, records[-1]],
        "an end of another count": replaced(records, len(records) - 1, threads=2),
        "a forged subject": replaced(records, start, subject_id="~evil"),
        "a piece of itself": replaced(records, composite, children=[composite - pieces[0]]),
        "a piece that comes later": replaced(records, composite, children=[10_000]),
        "children of a leaf": replaced(records, pieces[-1], kind=3, children=[0]),
        "a leaf of another size": replaced(records, leaf, size=1),
        "a placeholder of another size": replaced(records, composite, data=grown(records[composite].data)),
        "a composite that is none": replaced(records, composite, data=b"x", size=1),
        "an index with content": replaced(records, elements, kind=2),
        "a piece number": replaced(records, checkpoint, pieces=[10_000]),
        "a value of a piece it does not have": replaced(
            records, checkpoint, channels=[ChannelRecord("c", None, "msgpack", (b"", [77], 1))]
        ),
        "notes of a piece it does not have": replaced(
            records, checkpoint, channels=[ChannelRecord("c", None, "msgpack", b"\x01", leaves=(b"", [77], 1))]
        ),
        "notes of a write of a piece it does not have": replaced(records, pending, leaves=(b"", [77], 1)),
        "a file that is not here": replaced(records, checkpoint, named_ids=uuid4().bytes),
        "a file in a channel that is not here": replaced(
            records, checkpoint, channels=[ChannelRecord("c", None, "msgpack", b"\x01", uuid4().bytes)]
        ),
        "half a file": replaced(records, checkpoint, named_ids=bytes(17)),
        "another head": replaced(records, head, head_id=records[checkpoint].checkpoint_id),
        "a head of a namespace that is none": replaced(records, head, namespace="other"),
        "no head": records[:head] + records[head + 1 :],
        "two heads": [*records[: head + 1], *records[head:]],
        "another number of pieces": replaced(records, ending, pieces=1),
        "another number of files": replaced(records, ending, artifacts=1),
        "a write twice": [*records[: pending + 1], *records[pending:]],
        "a checkpoint twice": [*records[: checkpoint + 1], *records[checkpoint:]],
        "a thread in a thread": [*records[:checkpoint], records[start], *records[checkpoint:]],
        "a policy that makes no sense": [
            *records[: start + 1], form.PolicyRecord("thread", "", b'{"idle_ttl_seconds": -1}'), *records[start + 1 :]
        ],
        "a policy of the tenant in a thread": [
            *records[: start + 1], form.PolicyRecord("tenant", "", NO_POLICY_JSON), *records[start + 1 :]
        ],
        "a schema that is none": [records[0], form.Schema("s", 1, b"[]"), *records[1:]],
    }  # fmt: skip
    if data is not None:
        forged["content that is missing"] = records[:data] + records[data + 1 :]
    for name, each in forged.items():
        if each[0] is records[1]:
            file = await sealed(there, target, each, export_id=records[0].export_id)
        else:
            file = await sealed(there, target, each)
        with pytest.raises(ImportRefused) as refusal:
            await imported(there, target.tenant_id, file)
        assert await rows(there, target) == NOTHING, (name, refusal.value)


async def test_forged_effects_with_true_digests_are_refused(here, there, scope, target):
    for store in (here, there):
        await switch_on(store, DECISIONS)
    await a_thread(here, scope)
    for name in ("call-1", "call-2"):
        await finish(here, scope, await start(here, scope, name, args={"to": name}), result={"id": 7})
    records = await opened(there, target, await exported(here, there, scope, target.tenant_id))
    first = index_of(records, form.EffectRecord)
    ending = index_of(records, form.Ending)
    assert (first, ending) == (index_of(records, form.Head) + 1, first + 2)
    effect = records[first]
    forged = {
        "another order": [*records[:first], records[first + 1], effect, *records[first + 2 :]],
        "twice": [*records[:first], effect, *records[first:]],
        "outside of a thread": [*records[: ending + 1], effect, *records[ending + 1 :]],
        "a namespace of a call": replaced(records, first, namespace="node:task"),
        "a pointer that is none": replaced(records, first, identity=["to"]),
        "arguments that are none": replaced(records, first, args=b"\xc1"),
        "arguments nested too deeply": replaced(records, first, args=b"\x91" * 5_000 + b"\x01"),
        "too many arguments": replaced(records, first, args=b"\xdc\x75\x30" + b"\x01" * 30_000),
        "more executions than a name has": replaced(records, first, execution=101),
        "a result that is not where it says": replaced(records, first, result_state="artifact"),
        "an artifact besides the result": replaced(records, first, artifact_id=uuid4()),
        "no result where one is stored": replaced(records, first, result=None),
        "more than a thread has": [
            *records[:first],
            *(msgspec.structs.replace(effect, name=f"c{n:05}") for n in range(10_001)),
            *records[first + 2 :],
        ],
    }  # fmt: skip
    for name, each in forged.items():
        with pytest.raises(ImportRefused) as refusal:
            await imported(there, target.tenant_id, await sealed(there, target, each))
        assert await rows(there, target) == NOTHING, (name, refusal.value)
    assert (await imported(there, target.tenant_id, await sealed(there, target, records))).verified == 1
    assert {each.name: each.status for each in (await there.effects.list(target, "t1")).items} == {
        "call-1": "done", "call-2": "done",
    }  # fmt: skip


async def test_a_thread_that_is_not_what_its_own_digest_says_is_refused(here, there, scope, target):
    await a_thread(here, scope)
    records = await opened(there, target, await exported(here, there, scope, target.tenant_id))
    changed = replaced(records, index_of(records, form.CheckpointRecord), step=7)
    await refused(there, target, await sealed(there, target, changed, honest="file"))


async def test_the_content_of_one_export_under_the_header_of_another_is_refused(here, there, scope, target):
    await a_thread(here, scope)
    records = await opened(there, target, await exported(here, there, scope, target.tenant_id))
    await refused(there, target, await sealed(there, target, records, export_id=uuid4()))


async def test_a_piece_that_doubles_itself_is_refused_before_it_is_put_together(here, there, scope, target):
    await save(here, scope, content=state(messages=[document(f"m{n}", 900) for n in range(50)]))
    records = await opened(there, target, await exported(here, there, scope, target.tenant_id))
    first = index_of(records, form.PieceRecord)
    checkpoint = index_of(records, form.CheckpointRecord)
    count = checkpoint - first
    wide = [
        *records[:checkpoint],
        *(form.PieceRecord(2, [count - 1 + n if n else 0] * 100, 0, b"") for n in range(5)),
        *records[checkpoint:],
    ]
    ending = index_of(wide, form.Ending)
    await refused(there, target, await sealed(there, target, replaced(wide, ending, pieces=wide[ending].pieces + 5)))
    deep = [
        *records[:checkpoint],
        *(form.PieceRecord(2, [count - 1 + n if n else 0], 0, b"") for n in range(2_000)),
        *records[checkpoint:],
    ]
    ending = index_of(deep, form.Ending)
    await refused(
        there, target, await sealed(there, target, replaced(deep, ending, pieces=deep[ending].pieces + 2_000))
    )


async def test_a_record_that_would_inflate_beyond_its_length_is_refused(there, target):
    receiver = await recipient(there, target.tenant_id)
    bomb = form.frame(bytes(50_000_000))
    assert len(bomb) < 10_000
    for lengths in ((len(bomb) - 8 | 1 << 31, 2**32 - 1), (len(bomb) - 8 | 1 << 31, 100_000), (2**31 - 1, 2**31 - 1)):
        sealer = ExportSealer(receiver, uuid4())
        frame = b"".join(each.to_bytes(4, "big") for each in lengths) + bomb[8:]
        await refused(there, target, sealer.start + sealer.write(frame) + sealer.finish())


async def test_texts_that_no_row_may_hold_are_refused(here, there, scope, target):
    await a_thread(here, scope)
    records = await opened(there, target, await exported(here, there, scope, target.tenant_id))
    start, checkpoint = index_of(records, form.Beginning), index_of(records, form.CheckpointRecord)
    for at, changes in (
        (start, {"thread_id": "a\0b"}),
        (start, {"thread_id": "ä" * 200}),
        (start, {"agent": "x" * 300}),
        (checkpoint, {"run_id": "a\0b"}),
        (checkpoint, {"step": 2**40}),
        (checkpoint, {"input_tokens": 2**70}),
        (checkpoint, {"status": "other"}),
    ):
        with suppress(OverflowError):  # what MessagePack cannot say nobody can send
            await refused(there, target, await sealed(there, target, replaced(records, at, **changes)))


async def test_a_tenants_file_that_is_cut_leaves_whole_threads_and_the_rest_comes_the_next_time(here, there, target):
    tenant_id = uuid4()
    source = Scope(tenant_id, target.subject_id)
    for n in range(6):
        await save(here, source, thread_id=f"t{n}", content=state(data=[os.urandom(900) for _ in range(60)]))
    file = await exported_tenant(here, there, tenant_id, target.tenant_id)
    with pytest.raises(ImportRefused):
        await imported(there, target.tenant_id, file[: len(file) * 2 // 3])
    threads = (await there.threads.list(target)).items
    assert 0 < len(threads) < 6
    for each in threads:
        assert contents(await load(there, target, each.thread_id)) == contents(await load(here, source, each.thread_id))
        assert not (await there.verification.thread(target, each.thread_id)).findings
    report = await imported(there, target.tenant_id, file)
    assert (report.threads, report.passed_over) == (6 - len(threads), len(threads))


async def test_a_thread_waits_for_what_follows_it(here, there, scope, target):
    """All of the thread has opened, but of the next record only the beginning."""
    await a_thread(here, scope)
    records = await opened(there, target, await exported(here, there, scope, target.tenant_id))
    ending = index_of(records, form.Ending)
    following = form.Schema("s", 1, os.urandom(200_000))
    file = await sealed(there, target, [*records[: ending + 1], following, *records[ending + 1 :]])
    seen = []

    async def body():
        yield file[:-100_000]
        seen.append(await rows(there, target))

    own = await there.transfer_keys.newest()
    opener, frames = ExportOpener(lambda _: own, target.tenant_id), form.Frames()
    assert any(isinstance(form.decode(each), form.Ending) for each in frames.take(opener.write(file[:-100_000])))
    with pytest.raises(ImportRefused):
        await there.importing.run(TenantScope(target.tenant_id), body(), ACTOR)
    assert seen == [NOTHING]
    assert await rows(there, target) == NOTHING


async def test_what_was_uploaded_for_a_thread_that_is_refused_is_given_up(here, there, scope, target):
    await a_thread(here, scope)
    records = await opened(there, target, await exported(here, there, scope, target.tenant_id))
    ending = index_of(records, form.Ending)
    await refused(there, target, await sealed(there, target, replaced(records, ending, checkpoints=7)))
    async with there.unit_of_work.snapshot(target) as transaction:
        states = await transaction.fetch_all(
            Statement("SELECT state FROM stateroom.blob_intents WHERE tenant_id = :tenant_id", str)
        )
    assert set(states) == {"swept"}


async def test_a_damaged_thread_breaks_the_export_off_and_what_came_is_refused(here, there, scope, target):
    await a_thread(here, scope)
    async with here.unit_of_work.begin(scope) as transaction:
        await transaction.run(
            Statement("DELETE FROM stateroom.pending_writes WHERE tenant_id = :tenant_id AND subject_id = :subject_id")
        )
    receiver = await recipient(there, target.tenant_id)
    export = await here.exporting.thread(scope, "t1", receiver, ACTOR)
    came = bytearray()

    async def download():
        async for each in export.content:
            came.extend(each)

    with pytest.raises(IntegrityFailure):
        await download()
    await refused(there, target, bytes(came))
    job = await here.jobs.get(TenantScope(scope.tenant_id), export.job_id)
    assert job.state == "failed"


async def test_memory_does_not_grow_with_the_thread(here, there, scope, target, tmp_path):
    head = None
    for _ in range(24):
        elements = {"data": [os.urandom(20_000) for _ in range(60)]}
        content_of = state(**elements) if head is None else patch(append=elements)
        precondition = None if head is None else Precondition(head_id=head)
        head = (await save(here, scope, content=content_of, precondition=precondition)).checkpoint_id
    receiver = await recipient(there, target.tenant_id)
    path = tmp_path / "file"
    tracemalloc.start()
    try:
        export = await here.exporting.thread(scope, "t1", receiver, ACTOR)
        with path.open("wb") as output:
            async for each in export.content:
                output.write(each)
        exporting = tracemalloc.get_traced_memory()[1]
        tracemalloc.reset_peak()

        async def body():
            with path.open("rb") as source:
                while data := source.read(65_536):
                    yield data

        report = await there.importing.run(TenantScope(target.tenant_id), body(), ACTOR)
        importing = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert report.verified == 1
    assert path.stat().st_size > 28_000_000
    assert exporting < 16_000_000, exporting
    assert importing < 20_000_000, importing


# --- whose it is -----------------------------------------------------------------------------------------------------


async def test_an_export_is_taken_in_by_the_tenant_it_names_and_by_no_other(here, there, scope, target):
    await a_thread(here, scope)
    file = await exported(here, there, scope, target.tenant_id)
    stranger = Scope(uuid4(), target.subject_id)
    with pytest.raises(ImportForOther, match="another tenant"):
        await imported(there, stranger.tenant_id, file)
    assert await rows(there, stranger) == NOTHING
    # Nor by who says that it is theirs: without the tenant nothing of it opens.
    own = await there.transfer_keys.newest()
    header_at = 7
    length = int.from_bytes(file[5:7], "big")
    theirs = msgspec.json.decode((await exported(here, there, scope, stranger.tenant_id))[header_at:][:length])
    named = msgspec.json.decode(file[header_at:][:length]) | {"tenant": theirs["tenant"]}
    forged = file[:header_at] + msgspec.json.encode(named) + file[header_at + length :]
    with pytest.raises(OpenError):
        ExportOpener(lambda _: own, stranger.tenant_id).write(forged)
    assert str(target.tenant_id).encode() not in file
    assert (await imported(there, target.tenant_id, file)).verified == 1


async def test_an_export_that_names_no_tenant_is_taken_in_once_and_only_where_an_operator_says_so(
    here, there, scope, target
):
    await a_thread(here, scope)
    records = await opened(there, target, await exported(here, there, scope, target.tenant_id))
    file = unbound((await there.transfer_keys.newest()).public_key, records)
    export_id, stranger = records[0].export_id, Scope(uuid4(), target.subject_id)
    for each in (target, stranger):
        async with there.unit_of_work.begin(OperatorScope(founding=each.tenant_id)) as transaction:
            await transaction.run(
                Statement(
                    "INSERT INTO stateroom.tenants (tenant_id, name, created_at) VALUES (:tenant_id, :name, now())"
                ),
                tenant_id=each.tenant_id,
                name=str(each.tenant_id),
            )
    await refused(there, target, file, ImportUnbound)
    await there.importing.unbound.accept(target.tenant_id, export_id, ACTOR)
    await refused(there, stranger, file, ImportUnbound)
    assert (await imported(there, target.tenant_id, file)).verified == 1
    with pytest.raises(ImportUnbound):
        await imported(there, target.tenant_id, file)
    for chain in (TenantScope(target.tenant_id), OperatorScope()):
        page = await there.audit.page(chain, ACTOR)
        assert "import.accept-unbound" in {record.event.action for record in page.items}
    # What somebody else wrote into the table accepts nothing.
    async with there.unit_of_work.begin(TenantScope(stranger.tenant_id)) as transaction:
        await transaction.run(
            Statement(
                "INSERT INTO stateroom.unbound_imports (tenant_id, export_id, accepted_at, mac)"
                " VALUES (:tenant_id, :export_id, now(), :mac)"
            ),
            export_id=export_id,
            mac=bytes(32),
        )
    await refused(there, stranger, file, ImportUnbound)


@pytest.mark.parametrize("damage", ["heads", "chunks"])
async def test_a_damaged_thread_is_named_and_left_out_and_keeps_no_other_from_leaving(
    here, there, scope, target, damage
):
    for thread_id in ("t1", "t2", "t3"):
        await a_thread(here, scope, thread_id)
    statement = {
        "heads": "UPDATE stateroom.heads SET sequence = sequence + 1 WHERE tenant_id = :tenant_id AND thread_id = 't2'",
        # Found only when some of the thread is out already.
        "chunks": "DELETE FROM stateroom.chunks WHERE tenant_id = :tenant_id AND thread_id = 't2'",
    }[damage]
    async with here.unit_of_work.begin(scope) as transaction:
        await transaction.run(Statement(statement))
    tenant = TenantScope(scope.tenant_id)
    export = await here.exporting.tenant(tenant, await recipient(there, target.tenant_id), ACTOR)
    report = await imported(there, target.tenant_id, await content(export))
    assert (report.threads, report.verified) == (2, 2)
    assert [(each.thread_id, each.reason) for each in report.passed] == [("t2", "damaged")]
    job = await here.jobs.get(tenant, export.job_id)
    assert (job.state, job.note) == ("done", f"2 threads, 1 left out; 1 damaged: {scope.subject_id}/t2")
