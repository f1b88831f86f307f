"""Artifacts that come along with the state that names them: which, how much of them, and never somebody else's."""

import base64
import os
from collections.abc import Iterator
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import httpx
import msgpack
import pytest

from gateway.admission import limits
from gateway.routes.checkpoints.inlining import inlined
from gateway.wire.checkpoints import InlinedArtifact
from storage.artifacts.model import NewArtifact
from storage.blobs.memory import MemoryBlobStore
from storage.errors import BlobsNotConfigured, IntegrityFailure
from storage.model import Value
from storage.scope import ClientShare, Scope
from storage.service import Store, StoreOptions
from tests.support.faulty_blobs import FaultyBlobStore
from tests.support.gateway import GatewayProcess
from tests.support.operations import Tenancy, assert_problem
from tests.support.stores import DEPLOYMENT_ID

MIB = 1024 * 1024
PACKED = {"Accept": "application/msgpack"}


@pytest.fixture(scope="module")
def client(running_gateway: GatewayProcess) -> Iterator[httpx.Client]:
    tenancy = Tenancy(running_gateway)
    with tenancy.client(tenancy.tenant(), "inlining") as opened:
        yield opened


def upload(client: httpx.Client, content: bytes, thread: str, **headers: str) -> Any:
    named = {"Stateroom-Artifact-Name": "a.png", "Content-Type": "image/png"}
    named |= {one.replace("_", "-"): text for one, text in headers.items()}
    answer = client.post(f"/v1/threads/{thread}/artifacts", content=content, headers=named)
    assert answer.status_code == 201, answer.text
    return answer.json()


def save(client: httpx.Client, thread: str, state: Any, **headers: str) -> str:
    named = {one.replace("_", "-"): text for one, text in headers.items()}
    answer = client.post(f"/v1/threads/{thread}/checkpoints", json={"state": state}, headers=named)
    assert answer.status_code == 201, answer.text
    return answer.json()["checkpoint_id"]


def load(client: httpx.Client, thread: str, query: str = "resolve=inline", **headers: str) -> Any:
    named = {one.replace("_", "-"): text for one, text in headers.items()}
    answer = client.get(f"/v1/threads/{thread}/checkpoints/latest?{query}", headers={**PACKED, **named})
    assert answer.status_code == 200, answer.text
    return msgpack.unpackb(answer.content, timestamp=3)


def test_an_artifact_that_the_state_or_a_write_names_comes_along_and_the_state_stays(client: httpx.Client) -> None:
    thread = str(uuid4())
    shown, written = upload(client, b"\x89PNG", thread), upload(client, b"", thread)
    checkpoint = save(client, thread, {"page": {"shots": [shown["pointer"], shown["pointer"]]}, "n": 1})
    writes = {"writes": [{"channel": "x", "idx": 0, "value": written["pointer"]}]}
    put = client.post(f"/v1/threads/{thread}/checkpoints/{checkpoint}/writes/task", json=writes)
    assert put.status_code == 200, put.text
    plain, resolved = load(client, thread, "view=state"), load(client, thread)
    of_file = {"name": "a.png", "media_type": "image/png"}
    assert resolved.pop("artifacts") == {
        shown["artifact_id"]: {**of_file, "size_bytes": 4, "data": b"\x89PNG"},
        written["artifact_id"]: {**of_file, "size_bytes": 0, "data": b""},
    }
    assert resolved == plain
    channels = load(client, thread, "view=channels&resolve=inline")
    assert list(channels.pop("artifacts")) == [shown["artifact_id"], written["artifact_id"]]
    assert channels == load(client, thread, "view=channels")
    assert load(client, thread, "view=none&resolve=inline")["artifacts"] == {}
    in_json = client.get(f"/v1/threads/{thread}/checkpoints/latest?resolve=inline").json()
    assert base64.b64decode(in_json["artifacts"][shown["artifact_id"]]["data"]) == b"\x89PNG"


def test_names_types_sizes_and_previews_come_along_without_a_content(client: httpx.Client) -> None:
    thread = str(uuid4())
    preview = os.urandom(4096)
    header = base64.urlsafe_b64encode(preview).decode()
    seen = upload(client, b"x" * (MIB + 1), thread, Stateroom_Artifact_Preview=header)
    bare = upload(client, b"", thread)
    save(client, thread, {"shots": [seen["pointer"], bare["pointer"]]})
    of_file = {"name": "a.png", "media_type": "image/png"}
    described = {
        seen["artifact_id"]: {**of_file, "size_bytes": MIB + 1, "preview": preview},
        bare["artifact_id"]: {**of_file, "size_bytes": 0},
    }
    with_previews = load(client, thread, "resolve=previews")
    assert with_previews.pop("artifacts") == described
    assert with_previews == load(client, thread, "resolve=pointers")
    page = client.get(f"/v1/threads/{thread}/checkpoints?view=state&resolve=previews").json()
    assert base64.b64decode(page["artifacts"][seen["artifact_id"]]["preview"]) == preview
    # Content that is asked for comes with them, and what is too large has its preview all the same.
    described[seen["artifact_id"]]["too_large"] = True
    described[bare["artifact_id"]]["data"] = b""
    assert load(client, thread)["artifacts"] == described


def test_a_load_with_previews_is_always_answered_whole(client: httpx.Client) -> None:
    thread = str(uuid4())
    made = upload(client, b"1", thread)
    save(client, thread, {"a": made["pointer"]})
    path = f"/v1/threads/{thread}/checkpoints/latest"
    known = {"If-None-Match": client.get(path).headers["etag"]}
    assert client.get(path, headers=known).status_code == 304
    assert list(client.get(f"{path}?resolve=previews", headers=known).json()["artifacts"]) == [made["artifact_id"]]


def test_a_page_of_the_history_has_what_its_states_name_once(client: httpx.Client) -> None:
    thread = str(uuid4())
    first, second = upload(client, b"1", thread), upload(client, b"2", thread)
    save(client, thread, {"a": first["pointer"]})
    save(client, thread, {"a": first["pointer"], "b": second["pointer"]})
    path = f"/v1/threads/{thread}/checkpoints"
    page = client.get(f"{path}?view=state&resolve=inline").json()
    assert {one: base64.b64decode(each["data"]) for one, each in page["artifacts"].items()} == {
        first["artifact_id"]: b"1",
        second["artifact_id"]: b"2",
    }
    assert "artifacts" not in client.get(f"{path}?view=state").json()
    assert client.get(f"{path}?resolve=inline").json()["artifacts"] == {}
    newest = client.get(f"{path}?limit=1").json()
    rest = client.get(f"{path}?view=state&resolve=inline&cursor={newest['next_cursor']}").json()
    assert list(rest["artifacts"]) == [first["artifact_id"]]
    assert_problem(client.get(f"{path}?resolve=everything"), 422, "invalid-request")


def test_channels_of_adapters_are_resolved_where_they_are_shown(client: httpx.Client) -> None:
    thread = str(uuid4())
    made = upload(client, b"private", thread)
    channels = {"~own": {"version": 1, "encoding": "msgpack", "data": msgpack.packb(made["pointer"])}}
    saved = client.post(
        f"/v1/threads/{thread}/checkpoints",
        content=msgpack.packb({"channels": channels}),
        headers={"Content-Type": "application/msgpack"},
    )
    assert saved.status_code == 201, saved.text
    assert load(client, thread)["artifacts"] == {}
    assert load(client, thread, "view=channels&resolve=inline")["artifacts"][made["artifact_id"]]["data"] == b"private"


def test_a_mebibyte_each_and_eight_in_all_come_along_and_not_a_byte_more(client: httpx.Client) -> None:
    thread = str(uuid4())
    full = os.urandom(MIB)
    sizes = [MIB, MIB + 1, *[MIB] * 6, MIB - 1, 2, 1, 1, 0]
    made = [upload(client, full[:size] + b"x" * (size - len(full)), thread) for size in sizes]
    save(client, thread, {"shots": [each["pointer"] for each in made]})
    artifacts = load(client, thread)["artifacts"]
    assert list(artifacts) == [each["artifact_id"] for each in made]
    assert [each["size_bytes"] for each in artifacts.values()] == sizes
    # 8 MiB but one byte; then two bytes do not fit, one does, another one does not, and none always does.
    expected = [True, False, *[True] * 6, True, False, True, False, True]
    assert ["data" in each for each in artifacts.values()] == expected
    assert ["too_large" not in each for each in artifacts.values()] == expected
    datas = [each["data"] for each in artifacts.values() if "data" in each]
    assert sum(map(len, datas)) == limits.INLINED_BYTES_MAX == 8 * MIB
    assert datas[0] == full


def test_what_is_under_a_share_comes_with_that_share_only(client: httpx.Client) -> None:
    share, other = (base64.b64encode(os.urandom(32)).decode() for _ in range(2))
    sealed_thread, other_thread, open_thread = str(uuid4()), str(uuid4()), str(uuid4())
    secret = upload(client, b"secret", sealed_thread, Stateroom_Client_Share=share)
    foreign = upload(client, b"foreign", other_thread, Stateroom_Client_Share=other)
    plain = upload(client, b"plain", open_thread)
    state = {"a": secret["pointer"], "b": foreign["pointer"], "c": plain["pointer"]}
    save(client, sealed_thread, state, Stateroom_Client_Share=share)
    save(client, open_thread, state)
    artifacts = load(client, sealed_thread, Stateroom_Client_Share=share)["artifacts"]
    assert artifacts[secret["artifact_id"]]["data"] == b"secret"
    assert artifacts[plain["artifact_id"]]["data"] == b"plain"
    assert artifacts[foreign["artifact_id"]] == {"withheld": True}
    previews = load(client, sealed_thread, "resolve=previews", Stateroom_Client_Share=share)["artifacts"]
    assert previews[secret["artifact_id"]]["size_bytes"] == 6
    assert previews[foreign["artifact_id"]] == {"withheld": True}
    previews = load(client, open_thread, "resolve=previews")["artifacts"]
    assert previews[secret["artifact_id"]] == previews[foreign["artifact_id"]] == {"withheld": True}
    artifacts = load(client, open_thread)["artifacts"]
    assert artifacts[plain["artifact_id"]]["data"] == b"plain"
    assert artifacts[secret["artifact_id"]] == artifacts[foreign["artifact_id"]] == {"withheld": True}


# --- against storage itself: pointers that no save would have let in -------------------------------------------------


@pytest.fixture
def bucket() -> FaultyBlobStore:
    return FaultyBlobStore(MemoryBlobStore())


async def open_store(database: Any, root_key: Any, blobs: Any) -> Store:
    return await Store.open(
        database.app_url,
        root_key=root_key,
        deployment_id=DEPLOYMENT_ID,
        connections_max=4,
        durable=False,
        options=StoreOptions(blobs=blobs),
    )


@pytest.fixture
async def store(database: Any, root_key: Any, bucket: FaultyBlobStore) -> Any:
    opened = await open_store(database, root_key, bucket)
    yield opened
    await opened.close()


async def create(store: Store, scope: Scope, data: bytes, share: ClientShare | None = None) -> Any:
    async def body() -> Any:
        yield data

    return await store.artifacts.create(scope, f"t-{share is not None}", NewArtifact(name="a"), body(), share=share)


def naming(*artifact_ids: UUID) -> list[Value]:
    return [Value("msgpack", msgpack.packb([f"stateroom:artifact:{each}" for each in artifact_ids]))]


async def test_a_pointer_is_resolved_in_the_scope_that_asks_and_nowhere_else(store: Store, scope: Scope) -> None:
    own, nothing = await create(store, scope, b"own"), uuid4()
    named = naming(own.artifact_id, nothing)
    shown = await inlined(store.artifacts, scope, named, None, with_content=True)
    assert shown[str(own.artifact_id)].data == b"own"
    assert shown[str(nothing)] == InlinedArtifact(missing=True)
    other_subject = Scope(scope.tenant_id, "somebody-else")
    await create(store, other_subject, b"theirs")  # a subject with keys, and so with data
    for stranger in (other_subject, Scope(scope.tenant_id, "nobody-yet"), Scope(uuid4(), scope.subject_id)):
        for with_content in (False, True):
            seen = await inlined(store.artifacts, stranger, named, None, with_content=with_content)
            assert list(seen.values()) == [InlinedArtifact(missing=True)] * 2


async def test_only_so_many_pointers_are_looked_up(store: Store, scope: Scope) -> None:
    own = await create(store, scope, b"own")
    strays = [uuid4() for _ in range(limits.INLINED_ARTIFACTS_MAX)]
    last_in = await inlined(store.artifacts, scope, naming(*strays[1:], own.artifact_id), None, with_content=True)
    assert last_in[str(own.artifact_id)].data == b"own"
    beyond = await inlined(store.artifacts, scope, naming(*strays, own.artifact_id), None, with_content=True)
    assert str(own.artifact_id) not in beyond
    assert len(last_in) == len(beyond) == limits.INLINED_ARTIFACTS_MAX


async def test_what_a_state_names_is_held_without_its_metadata(store: Store, scope: Scope) -> None:
    async def body() -> Any:
        yield b"x"

    new = NewArtifact(name="a", metadata={"deep": [[]] * 5_000}, preview=b"p")
    made = await store.artifacts.create(scope, "t", new, body())
    assert (await store.artifacts.get(scope, made.artifact_id)).metadata == new.metadata
    content = (await store.artifacts.open_named(scope, [made.artifact_id]))[made.artifact_id]
    assert content is not None
    assert (content.artifact.preview, content.artifact.metadata) == (b"p", {})


async def test_a_damaged_artifact_fails_the_load_and_is_never_left_out(
    store: Store, scope: Scope, admin: asyncpg.Connection
) -> None:
    good, bad = await create(store, scope, b"good"), await create(store, scope, b"bad")
    await admin.execute("UPDATE stateroom.artifacts SET size_bytes = 2 WHERE artifact_id = $1", bad.artifact_id)
    named = naming(good.artifact_id, bad.artifact_id)
    for with_content in (False, True):
        with pytest.raises(IntegrityFailure):
            await inlined(store.artifacts, scope, named, None, with_content=with_content)


async def test_without_an_object_store_a_state_that_names_nothing_still_loads(
    database: Any, root_key: Any, scope: Scope
) -> None:
    bare = await open_store(database, root_key, None)
    try:
        assert await inlined(bare.artifacts, scope, naming(), None, with_content=True) == {}
        with pytest.raises(BlobsNotConfigured):
            await inlined(bare.artifacts, scope, naming(uuid4()), None, with_content=True)
    finally:
        await bare.close()
