"""State read and saved at versions: through `States`, on a real database."""

import asyncio
import time

import msgpack
import pytest

from migrations.state.errors import StateTooNew, UpcastFailed
from storage.errors import (
    ChannelUnchangedUnknown,
    InvalidState,
    StateSchemaExists,
    StateSchemaInvalid,
    StateSchemaMismatch,
    StateTooNewToSave,
    TooCostly,
)
from storage.format.ids import mint_checkpoint_id
from storage.model import (
    ChannelHistoryQuery,
    ChannelValue,
    FullState,
    HistoryQuery,
    Load,
    Parent,
    Patch,
    Precondition,
    Save,
    TaskWrites,
    TaskWritesQuery,
    Value,
)
from storage.postgres.unit_of_work import Silent
from storage.schemas.registry import Definition
from storage.schemas.versions import AS_SAVED, WantedVersions
from storage.scope import Scope, TenantScope
from storage.service import Store, StoreOptions
from tests.support.states import contents, packed, patch, state, write, writes_of
from tests.support.stores import DEPLOYMENT_ID

RENAME = [{"op": "rename", "from": "/user_pref", "to": "/user_profile"}]
BACK = [{"op": "rename", "from": "/user_profile", "to": "/user_pref"}]
V1, V2 = WantedVersions(any_schema=1), WantedVersions(any_schema=2)


async def register(store, scope, schema="travel", *, first=None, up=RENAME, down=BACK, **more):
    tenant = TenantScope(scope.tenant_id)
    await store.state_schemas.put(tenant, schema, 1, Definition(**(first or {})))
    await store.state_schemas.put(tenant, schema, 2, Definition(up=up, down=down, **more))


async def save(store, scope, number, thread_id="t1", schema="travel", **parts):
    parts.setdefault("content", state(user_pref="aisle") if number == 1 else state(user_profile="window"))
    return await store.states.save(scope, Save(thread_id=thread_id, state_schema=schema, state_version=number, **parts))


async def load(store, scope, wanted, checkpoint_id=None, thread_id="t1"):
    loaded = await store.states.load(scope, wanted, Load(thread_id, "", checkpoint_id, with_state=True))
    return loaded.checkpoint


async def stored(admin, scope):
    rows = []
    for table in ("checkpoints", "chunks", "pending_writes", "heads", "threads"):
        every = f"SELECT ctid, xmin, t.* FROM stateroom.{table} t WHERE tenant_id = $1"  # noqa: S608
        rows += await admin.fetch(every, scope.tenant_id)
    return [tuple(row) for row in rows]


async def test_two_versions_at_once_on_one_thread_lose_nothing(store, scope, admin):
    await register(store, scope)
    first = await save(store, scope, 1)
    second = await save(store, scope, 2)
    third = await save(store, scope, 1, content=state(user_pref="aisle again"))
    before = await stored(admin, scope)
    for checkpoint, value in ((first, "aisle"), (second, "window"), (third, "aisle again")):
        assert contents(await load(store, scope, V1, checkpoint.checkpoint_id)) == {"user_pref": value}
        assert contents(await load(store, scope, V2, checkpoint.checkpoint_id)) == {"user_profile": value}
    listed = await store.states.history(scope, V2, HistoryQuery(thread_id="t1", with_state=True))
    assert [contents(each)["user_profile"] for each in listed.items] == ["aisle again", "window", "aisle"]
    assert {each.state_version for each in listed.items} == {2}
    as_saved = await store.states.history(scope, AS_SAVED, HistoryQuery(thread_id="t1", with_state=True))
    assert [each.state_version for each in as_saved.items] == [1, 2, 1]
    assert await stored(admin, scope) == before, "a read wrote something"


async def test_state_of_a_schema_that_its_reader_does_not_name_is_never_given_to_it(store, scope):
    await register(store, scope)
    await register(store, scope, "other")
    travel = WantedVersions(by_schema={"travel": 1})
    saved = await save(store, scope, 2, schema="other")
    await store.states.put_writes(
        scope, TaskWrites("t1", "", saved.checkpoint_id, "task", "", [write(0, "user_profile", "x")], None)
    )
    with pytest.raises(StateSchemaMismatch, match=r"under schema 'other'.*knows state of 'travel'"):
        await load(store, scope, travel)
    for thread_id in ("t1", None):
        with pytest.raises(StateSchemaMismatch):
            await store.states.history(scope, travel, HistoryQuery(thread_id=thread_id, with_state=True))
    with pytest.raises(StateSchemaMismatch):
        await store.states.task_writes(scope, travel, TaskWritesQuery("t1", "", saved.checkpoint_id, "task"))
    later = await save(store, scope, 2, schema="other")
    with pytest.raises(StateSchemaMismatch):
        await store.states.channel_history(
            scope, travel, ChannelHistoryQuery("t1", "", later.checkpoint_id, ["user_profile"])
        )
    # A write has a schema of its own; without state there is nothing to mistake, and whoever names it gets it.
    mine = await save(store, scope, 1, "t2")
    await store.states.put_writes(
        scope,
        TaskWrites(
            "t2",
            "",
            mine.checkpoint_id,
            "task",
            "",
            [write(0, "user_profile", "x")],
            None,
            state_schema="other",
            state_version=2,
        ),
    )
    with pytest.raises(StateSchemaMismatch):
        await load(store, scope, travel, thread_id="t2")
    assert len((await store.states.history(scope, travel, HistoryQuery(thread_id="t1"))).items) == 2
    both = WantedVersions(by_schema={"travel": 1, "other": 1})
    assert contents(await load(store, scope, both, saved.checkpoint_id)) == {"user_pref": "window"}
    assert contents(await load(store, scope, AS_SAVED)) == {"user_profile": "window"}


async def test_a_version_that_cannot_be_shown_is_refused_by_name(store, scope):
    await register(store, scope, down=None)
    await save(store, scope, 2)
    with pytest.raises(StateTooNew, match="no step leads back"):
        await load(store, scope, V1)
    with pytest.raises(StateTooNewToSave, match="newest registered version is 2"):
        await load(store, scope, WantedVersions(any_schema=3))
    with pytest.raises(StateTooNewToSave):
        await save(store, scope, 3, content=state(user_profile="x"))
    with pytest.raises(StateTooNewToSave, match="the schema is not registered"):
        await save(store, scope, 1, schema="other")
    with pytest.raises(InvalidState, match="go together"):
        await store.states.save(scope, Save(thread_id="t1", content=state(a=1), state_schema="travel"))


async def test_an_upcast_that_fails_leaves_the_stored_bytes_and_names_no_value(store, scope, admin):
    await register(store, scope, up=[{"op": "convert", "path": "/user_pref", "type": "integer"}])
    await save(store, scope, 1, content=state(user_pref="a secret"))
    before = await stored(admin, scope)
    with pytest.raises(UpcastFailed) as caught:
        await load(store, scope, V2)
    assert (caught.value.schema, caught.value.step, caught.value.pointer) == ("travel", "v1_to_v2", "/user_pref")
    assert "secret" not in str(caught.value)
    assert await stored(admin, scope) == before
    assert contents(await load(store, scope, AS_SAVED)) == {"user_pref": "a secret"}


async def test_pending_writes_go_by_their_own_version(store, scope):
    await register(store, scope)
    saved = await save(store, scope, 1, status="waiting")
    place = ("t1", "", saved.checkpoint_id)
    await store.states.put_writes(scope, TaskWrites(*place, "old", "", [write(0, "user_pref", "of v1")], None))
    await store.states.put_writes(
        scope,
        TaskWrites(
            *place,
            "new",
            "",
            [write(0, "user_profile", "of v2"), write(1, "__interrupt__", "?")],
            None,
            state_schema="travel",
            state_version=2,
        ),
    )
    at_two, at_one = await load(store, scope, V2), await load(store, scope, V1)
    assert writes_of(at_two) == [
        ("new", 0, "user_profile", "of v2"), ("new", 1, "__interrupt__", "?"), ("old", 0, "user_profile", "of v1")
    ]  # fmt: skip
    assert writes_of(at_one) == [
        ("new", 0, "user_pref", "of v2"), ("new", 1, "__interrupt__", "?"), ("old", 0, "user_pref", "of v1")
    ]  # fmt: skip
    for task in ("old", "new"):
        found = await store.states.task_writes(scope, V2, TaskWritesQuery(*place, task))
        assert found[0].channel == "user_profile"
    # A copy keeps the versions, and what they are bound to.
    await store.threads.copy(scope, "t1", "t2")
    assert writes_of(await load(store, scope, V2, thread_id="t2")) == writes_of(at_two)


async def test_the_version_of_a_pending_write_cannot_be_edited(store, scope, admin):
    await register(store, scope)
    saved = await save(store, scope, 1)
    await store.states.put_writes(
        scope,
        TaskWrites(
            "t1",
            "",
            saved.checkpoint_id,
            "task",
            "",
            [write(0, "user_profile", "x")],
            None,
            state_schema="travel",
            state_version=2,
        ),
    )
    for change in ("state_version = 1", "state_schema = NULL, state_version = NULL"):
        await admin.execute(f"UPDATE stateroom.pending_writes SET {change} WHERE tenant_id = $1", scope.tenant_id)  # noqa: S608
        with pytest.raises(Exception, match=r"not authenticate|altered|edited|missing"):
            await load(store, scope, AS_SAVED)


async def test_a_delta_channel_that_was_renamed_is_followed_through_its_ancestors(store, scope):
    rename = [{"op": "rename", "from": "/msgs", "to": "/messages"}]
    back = [{"op": "rename", "from": "/messages", "to": "/msgs"}]
    await register(store, scope, up=rename, down=back)
    ids = []
    parent = None
    for number, (version, name) in enumerate([(1, "msgs"), (1, "msgs"), (2, "messages"), (2, "messages")]):
        content = state(**{name: ["seed"]}) if number == 0 else state(other=number)
        parts = {} if parent is None else {"parent": Parent(parent)}
        saved = await save(store, scope, version, content=content, delta_channels=(name,), **parts)
        parent = saved.checkpoint_id
        ids.append(parent)
        await store.states.put_writes(
            scope,
            TaskWrites(
                "t1",
                "",
                parent,
                f"task{number}",
                "",
                [write(0, name, [f"m{number}"])],
                None,
                state_schema="travel",
                state_version=version,
            ),
        )
    # A client of version 1 answers a checkpoint of version 2.
    await store.states.put_writes(
        scope,
        TaskWrites(
            "t1", "", ids[2], "late", "", [write(0, "msgs", ["late"])], None, state_schema="travel", state_version=1
        ),
    )
    for wanted, name in ((V1, "msgs"), (V2, "messages")):
        found = await store.states.channel_history(scope, wanted, ChannelHistoryQuery("t1", "", ids[3], [name]))
        history = found.channels[name]
        assert msgpack.unpackb(history.seed.value.data) == ["seed"]
        assert [msgpack.unpackb(each.value.data) for each in history.writes] == [["m0"], ["m1"], ["late"], ["m2"]]
        assert {each.channel for each in history.writes} == {name}
        assert (await load(store, scope, wanted, ids[3])).delta_channels == (name,)
        loaded = await store.states.load(scope, wanted, Load("t1", "", ids[3], with_state=True, history=[name]))
        assert (loaded.histories, loaded.checkpoint) == (found, await load(store, scope, wanted, ids[3]))
    # As saved, each is under the name it had then: the wrong one finds nothing of the others.
    as_saved = await store.states.channel_history(scope, AS_SAVED, ChannelHistoryQuery("t1", "", ids[3], ["messages"]))
    assert [msgpack.unpackb(each.value.data) for each in as_saved.channels["messages"].writes] == [["m2"]]


async def test_a_patch_of_another_version_applies_to_the_converted_parent_and_can_be_repeated(store, scope):
    await register(store, scope)
    first = await save(store, scope, 1, content=state(user_pref={"seat": "aisle"}, done=["a"]))
    change = patch(put={"user_profile": {"seat": "window"}}, append={"done": ["b"]})
    head = Precondition(head_id=first.checkpoint_id)
    request = Save(
        thread_id="t1", content=change, precondition=head, state_schema="travel", state_version=2,
        checkpoint_id=mint_checkpoint_id(first.created_at, first.checkpoint_id),
    )  # fmt: skip
    saved = await store.states.save(scope, request)
    again = await store.states.save(scope, request)
    assert (saved.created, again.created, again.checkpoint_id) == (True, False, saved.checkpoint_id)
    found = await load(store, scope, AS_SAVED)
    assert contents(found) == {"user_profile": {"seat": "window"}, "done": ["a", "b"]}
    assert (found.state_version, found.parent_id) == (2, first.checkpoint_id)
    # Without a version, a patch is at its parent's.
    plain = Save(thread_id="t1", content=patch(put={"x": 1}), precondition=Precondition(head_id=saved.checkpoint_id))
    await store.states.save(scope, plain)
    assert (await load(store, scope, AS_SAVED)).state_version == 2


async def test_an_unchanged_channel_of_another_version_is_not_known(store, scope):
    await register(store, scope)
    first = await save(store, scope, 1, content=FullState({"user_pref": ChannelValue(7, packed("aisle"))}))
    unchanged = FullState({"user_pref": ChannelValue(7, None)})
    parent = Parent(first.checkpoint_id)
    with pytest.raises(ChannelUnchangedUnknown):
        await save(store, scope, 2, content=unchanged, parent=parent)
    await save(store, scope, 1, content=unchanged, parent=parent)


async def test_ephemeral_channels_are_stored_nowhere(store, scope, admin):
    await register(store, scope, first={"ephemeral": ("token",)}, ephemeral=("token",))
    saved = await save(store, scope, 1, content=state(user_pref="x", token="secret"), delta_channels=("token",))
    await store.states.put_writes(
        scope,
        TaskWrites(
            "t1",
            "",
            saved.checkpoint_id,
            "task",
            "",
            [write(0, "token", "secret"), write(1, "user_pref", "y")],
            None,
            state_schema="travel",
            state_version=1,
        ),
    )
    found = await load(store, scope, AS_SAVED)
    assert (contents(found), found.delta_channels) == ({"user_pref": "x"}, ())
    assert writes_of(found) == [("task", 1, "user_pref", "y")]
    head = Precondition(head_id=saved.checkpoint_id)
    change = Patch(set={"token": packed("secret")}, append={"token": [b"\x01"]}, remove=[])
    await save(store, scope, 1, content=change, precondition=head)
    assert contents(await load(store, scope, AS_SAVED)) == {"user_pref": "x"}


async def test_what_names_no_version_is_held_to_its_checkpoints(store, scope):
    only_text = {"properties": {"user_pref": {"type": "string"}}}
    await register(store, scope, first={"ephemeral": ("token",), "json_schema": only_text})
    saved = await save(store, scope, 1)
    place = ("t1", "", saved.checkpoint_id)
    writes = [write(0, "token", "secret"), write(1, "user_pref", "y")]
    for stored, unchanged in ((1, 0), (0, 1)):
        receipt = await store.states.put_writes(scope, TaskWrites(*place, "task", "", writes, None))
        assert (receipt.stored, receipt.unchanged) == (stored, unchanged)
    assert writes_of(await load(store, scope, AS_SAVED)) == [("task", 1, "user_pref", "y")]
    assert writes_of(await load(store, scope, V2)) == [("task", 1, "user_profile", "y")]
    head = Precondition(head_id=saved.checkpoint_id)
    with pytest.raises(InvalidState) as refused:
        await store.states.save(scope, Save(thread_id="t1", content=patch(put={"user_pref": 3}), precondition=head))
    assert refused.value.pointer == "/changes/set/user_pref"
    change = patch(put={"token": "secret", "user_pref": "z"})
    await store.states.save(scope, Save(thread_id="t1", content=change, precondition=head))
    found = await load(store, scope, AS_SAVED)
    assert (contents(found), found.state_version) == ({"user_pref": "z"}, 1)


async def test_a_patch_does_not_bring_along_what_its_version_never_stores(store, scope):
    await register(store, scope, ephemeral=("token",))
    saved = await save(store, scope, 1, content=state(user_pref="x", token="stored before it was ephemeral"))
    head = Precondition(head_id=saved.checkpoint_id)
    await save(store, scope, 2, content=patch(put={"more": 1}), precondition=head)
    assert contents(await load(store, scope, AS_SAVED)) == {"user_profile": "x", "more": 1}


async def test_a_hostile_step_leaves_the_loop_to_others(store, scope):
    heavy = [{"op": "copy", "from": "/list", "to": f"/copies/{number}"} for number in range(15)]
    await register(store, scope, up=heavy, down=None)
    await save(store, scope, 1, content=state(list=[[]] * 50_000))
    longest, last = 0.0, time.monotonic()

    async def tick():
        nonlocal longest, last
        while True:
            await asyncio.sleep(0)
            longest, last = max(longest, time.monotonic() - last), time.monotonic()

    ticking = asyncio.create_task(tick())
    began = time.monotonic()
    with pytest.raises(TooCostly):
        await load(store, scope, V2)
    spent = time.monotonic() - began
    await asyncio.sleep(0)  # for what was held back to the last
    ticking.cancel()
    assert longest < spent / 2, "others waited for the conversion"


@pytest.mark.parametrize("wanted", [V1, V2])
async def test_writes_that_a_step_is_still_needed_for_are_counted(database, root_key, scope, wanted):
    class Reads(Silent):
        def __init__(self):
            self.seen = []

        def state_read(self, saved, shown):
            self.seen.append((saved, shown))

    reads = Reads()
    opened = await Store.open(
        database.app_url,
        root_key=root_key,
        deployment_id=DEPLOYMENT_ID,
        connections_max=4,
        durable=False,
        options=StoreOptions(observer=reads),
    )
    try:
        await register(opened, scope)
        old = await save(opened, scope, 1, content=state(other=1), delta_channels=("user_pref",))
        await opened.states.put_writes(
            scope, TaskWrites("t1", "", old.checkpoint_id, "a", "", [write(0, "user_pref", "x")], None)
        )
        await save(opened, scope, 2, content=state(other=2), delta_channels=("user_profile",))
        name = {1: "user_pref", 2: "user_profile"}[wanted.any_schema]
        found = await opened.states.channel_history(scope, wanted, ChannelHistoryQuery("t1", "", None, [name]))
        assert len(found.channels[name].writes) == 1
        assert ((1, 2) in reads.seen) == (wanted is V2)
        reads.seen.clear()
        await opened.states.task_writes(scope, wanted, TaskWritesQuery("t1", "", old.checkpoint_id, "a"))
        assert ((1, 2) in reads.seen) == (wanted is V2)
    finally:
        await opened.close()


SCHEMA = {
    "type": "object",
    "required": ["name"],
    "properties": {
        "name": {"type": "string"},
        "done": {"type": "array", "minItems": 1, "items": {"type": "string"}},
        "photo": {"type": "string"},
        "message": {"type": "object", "properties": {"$ext": {"const": 5}}, "required": ["$ext"]},
    },
}


@pytest.mark.parametrize(
    ("content", "pointer"),
    [
        (state(name=3), "/state/name"),
        (state(other=3), "/state"),
        (state(name="x", done=[]), "/state/done"),
        (state(name="x", done=["a", 2]), "/state/done/1"),
        (FullState({"name": ChannelValue(1, packed(3))}, root="/channels"), "/channels/name"),
        (FullState({"message": ChannelValue(1, packed({})), "name": ChannelValue(1, None)}), "/state/message"),
        (patch(put={"name": 3}), "/changes/set/name"),
        (patch(append={"done": ["b", 2]}), "/changes/append/done/1"),
    ],
)
async def test_what_a_json_schema_does_not_allow_is_refused_with_its_place_and_no_value(store, scope, content, pointer):
    await register(store, scope, first={"json_schema": SCHEMA})
    first = await save(store, scope, 1, content=state(name="secret", done=["a"]))
    head = Precondition(head_id=first.checkpoint_id)
    with pytest.raises(InvalidState) as caught:
        await save(store, scope, 1, content=content, precondition=head)
    assert caught.value.pointer == pointer


async def test_what_is_required_is_asked_of_a_state_and_not_of_the_input_that_a_run_begins_with(store, scope):
    rules = {"required": ["n"], "properties": {"n": {"type": "integer"}}}
    await register(store, scope, first={"json_schema": rules})
    await save(store, scope, 1, content=state(__start__={"n": 1}), source="input")
    await save(store, scope, 1, content=state(n=1), source="loop")
    for content, source in ((state(__start__={}), "loop"), (state(), None), (state(n="x"), "input")):
        with pytest.raises(InvalidState):
            await save(store, scope, 1, content=content, source=source)


async def test_a_json_schema_sees_what_it_is_told_and_no_more_than_comes(store, scope):
    await register(store, scope, first={"json_schema": SCHEMA})
    message = Value("msgpack", msgpack.packb(msgpack.ExtType(5, b"...")))
    content = FullState(
        {
            "name": ChannelValue(1, packed("x")),
            "photo": ChannelValue(1, packed(b"\xff")),
            "message": ChannelValue(1, message),
            "__start__": ChannelValue(1, packed(3)),
            "~langgraph": ChannelValue(1, packed(3)),
        }
    )
    first = await save(store, scope, 1, content=content)
    head = Precondition(head_id=first.checkpoint_id)
    await save(store, scope, 1, content=patch(put={"photo": "other"}, append={"done": ["b"]}), precondition=head)


async def test_a_channel_whose_large_parts_were_uploaded_ahead_is_not_looked_into_and_the_others_are(store, scope):
    only_text = {"type": "object", "properties": {"photo": {"type": "object"}, "name": {"type": "string"}}}
    only_text |= {"required": ["photo", "name", "age"]}
    await register(store, scope, first={"json_schema": only_text})
    apart = ChannelValue(None, Value("msgpack", b"\x91\xa1x", (1,)))
    for channels, pointer in (
        ({"photo": apart, "name": 7}, "/state/name"),
        ({"photo": {}, "name": "Ada"}, "/state"),
        ({"photo": apart, "name": "Ada"}, None),
    ):
        values = {name: each if each is apart else state(x=each).channels["x"] for name, each in channels.items()}
        asked = Save(thread_id="t1", content=FullState(values), state_schema="travel", state_version=1)
        if pointer is None:
            # Not even what is missing is noticed: the save is checked as one that brings some channels.
            assert (await store.states.checked(scope, asked)).content == asked.content
            continue
        with pytest.raises(InvalidState) as refused:
            await store.states.checked(scope, asked)
        assert refused.value.pointer == pointer


async def test_a_definition_is_written_once_and_what_is_wrong_is_pointed_at(store, scope):
    tenant = TenantScope(scope.tenant_id)
    await register(store, scope)
    _, added = await store.state_schemas.put(tenant, "travel", 2, Definition(up=RENAME, down=BACK))
    assert not added
    with pytest.raises(StateSchemaExists):
        await store.state_schemas.put(tenant, "travel", 2, Definition(up=RENAME))
    wrong = [
        (3, Definition(), "/up"),
        (3, Definition(up=[{"op": "eval", "path": "/a"}]), "/up/0/op"),
        (3, Definition(up=[{"op": "remove", "path": "/a", "when": "(("}]), "/up/0/when"),
        (3, Definition(deployment="nobody"), "/deployment"),
        (3, Definition(up=RENAME, json_schema={"type": 7}), "/json_schema/type"),
        (3, Definition(up=RENAME, json_schema={"$ref": "https://example.org/x"}), "/json_schema"),
    ]
    for number, definition, pointer in wrong:
        with pytest.raises(StateSchemaInvalid) as caught:
            await store.state_schemas.put(tenant, "travel", number, definition)
        assert caught.value.pointer.startswith(pointer)
    with pytest.raises(StateSchemaInvalid, match="v3_to_v4: the next version is 3") as gap:
        await store.state_schemas.put(tenant, "travel", 4, Definition(up=RENAME))
    assert (gap.value.parameter, gap.value.pointer) == ("state_version", "")
    other = Scope(TenantScope(scope.tenant_id).tenant_id, "another")
    assert [each.number for each in await store.state_schemas.get(other, "travel")] == [1, 2]


async def test_versions_of_a_schema_have_a_size_together(store, scope):
    tenant = TenantScope(scope.tenant_id)
    filler = {"description": "x" * 250_000}
    await store.state_schemas.put(tenant, "travel", 1, Definition(json_schema=filler))
    for number in range(2, 17):
        await store.state_schemas.put(tenant, "travel", number, Definition(up=RENAME, json_schema=filler))
    with pytest.raises(StateSchemaInvalid, match="together"):
        await store.state_schemas.put(tenant, "travel", 17, Definition(up=RENAME, json_schema=filler))


SPLIT = """
def upcast(given):
    first, _, last = given["name"].partition(" ")
    return {**{name: each for name, each in given.items() if name != "name"}, "first": first, "last": last}
"""


async def test_a_schema_opts_in_to_steps_of_the_deployment(database, root_key, scope, tmp_path):
    (tmp_path / "people").mkdir()
    (tmp_path / "people" / "v1_to_v2.py").write_text(SPLIT)
    opened = await Store.open(
        database.app_url,
        root_key=root_key,
        deployment_id=DEPLOYMENT_ID,
        connections_max=4,
        durable=False,
        options=StoreOptions(steps_folder=tmp_path),
    )
    try:
        tenant = TenantScope(scope.tenant_id)
        await opened.state_schemas.put(tenant, "crm", 1, Definition())
        await opened.state_schemas.put(tenant, "crm", 2, Definition(deployment="people"))
        opaque = ChannelValue(1, Value("pickle", b"\x80\x04N."))
        content = FullState({"name": ChannelValue(1, packed("Ada Lovelace")), "kept": opaque})
        await save(opened, scope, 1, schema="crm", content=content)
        found = await load(opened, scope, V2)
        assert contents_of(found, "first", "last") == ["Ada", "Lovelace"]
        assert found.channels["kept"].value == opaque.value
    finally:
        await opened.close()


def contents_of(checkpoint, *names):
    return [msgpack.unpackb(checkpoint.channels[name].value.data) for name in names]


async def test_a_large_state_is_converted_beside_the_loop(store, scope):
    await register(store, scope)
    await save(store, scope, 1, content=state(user_pref=["x" * 1000] * 400))
    ticks = 0

    async def tick():
        nonlocal ticks
        while True:
            await asyncio.sleep(0)
            ticks += 1

    ticking = asyncio.create_task(tick())
    found = await load(store, scope, V2)
    ticking.cancel()
    assert len(contents(found)["user_profile"]) == 400
    assert ticks
