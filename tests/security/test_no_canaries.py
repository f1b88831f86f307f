import base64
import contextlib
import json
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import asyncpg
import httpx
import pytest

from tests.support import standard_zstd as zstd
from tests.support.gateway import GatewayProcess
from tests.support.operations import DECLARED, Tenancy, Thread, request_of

ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
INFLATED_BYTES_MAX = 1 << 24


def _word(name: str) -> str:
    return f"{name}-{uuid4().hex}{uuid4().hex}"


class Run(NamedTuple):
    """What was sent and kept secret, what was sent in clear, and everything that came out."""

    secrets: dict[str, bytes]
    controls: dict[str, bytes]
    texts: dict[str, bytes]
    files: dict[str, bytes]


def forms(secret: bytes) -> list[bytes]:
    """``secret`` raw, in hex, and in base64 at each of the three offsets at which it can begin."""
    found = [secret, secret.hex().encode(), secret.hex().upper().encode()]
    for offset in range(3):
        coded = base64.b64encode(bytes(offset) + secret)
        found.append(coded[4 if offset else 0 : -4])
        found.append(found[-1].translate(bytes.maketrans(b"+/", b"-_")))
    return found


def inflated(content: bytes) -> Iterator[bytes]:
    """Every zstd frame in ``content``, decompressed as far as it goes."""
    at = content.find(ZSTD_MAGIC)
    while at >= 0:
        with contextlib.suppress(zstd.ZstdError):
            yield zstd.ZstdDecompressor().decompress(content[at : at + (1 << 20)], max_length=INFLATED_BYTES_MAX)
        at = content.find(ZSTD_MAGIC, at + 1)


def holds(content: bytes, secret: bytes) -> bool:
    return any(form in content for form in forms(secret))


async def _as_superuser(dsn: str, *statements: str, frame: bytes = b"") -> None:
    connection = await asyncpg.connect(dsn)
    try:
        for statement in statements:
            await connection.execute(statement, *([frame] if "$1" in statement else []))
    finally:
        await connection.close()


def _use(client: httpx.Client, words: dict[str, str], control: str) -> tuple[Thread, list[httpx.Response]]:
    """A run of an agent, with every sort of refusal in between."""
    saves = f"/v1/threads/{control}/checkpoints"
    body = {
        "state": {words["channel"]: words["state"], "long": [words["long"] * 300] * 4, "large": control * 1000},
        "state_leaves": {"large": [{"path": "", "preview": base64.b64encode(words["preview"].encode()).decode()}]},
        "metadata": {words["metadata_name"]: words["metadata"]},
        "agent": control,
        "run_id": "run-1",
    }
    first = client.post(saves, json=body, headers={"Idempotency-Key": "once"})
    assert first.status_code == 201, first.text
    thread = Thread(control, first.json()["checkpoint_id"], "task-1", "run-1")
    write = {"writes": [{"channel": "out", "idx": 0, "value": words["write"] * 40}]}
    assert client.post(f"{saves}/{thread.checkpoint_id}/writes/task-1", json=write).status_code == 200
    assert words["state"] in client.get(f"{saves}/latest").text
    items = _use_items(client, words)
    bad = words["refused"]
    refused = [
        *items,
        client.post(saves, content=f'{{"state":{{"a":"{bad}"'.encode(), headers={"Content-Type": "application/json"}),
        client.post(saves, content=f'{{"state":"{bad}"}}'.encode(), headers={"Content-Type": "text/plain"}),
        client.post(saves, json={"state": bad}),
        client.post(saves, json={"state": {}, "status": bad}),
        client.post(saves, json={"state": {}, "agent": f"{bad}\0"}),
        client.post(saves, json={"state": {}, bad: 1}),
        client.post(saves, json={"state": {"a": {"$bytes": bad}}}),
        client.post(saves, json={"state": {}, "metadata": {bad: 10**30}}),
        client.post(saves, json={"state": {"a": bad}}, headers={"If-Match": '"1ef00000-0000-6000-8000-000000000000"'}),
        client.post(saves, json={"state": {"a": bad}, "checkpoint_id": thread.checkpoint_id}),
        client.post(saves, json={"state": {"a": bad}}, headers={"Idempotency-Key": "once"}),
        client.post(saves, json={"state": {"a": bad}}, headers={"If-None-Match": bad}),
        client.post(saves, json={"changes": {"append": {"long": [bad]}}}),
        client.post(saves, json={"state": {"a": 1}, "state_leaves": {"a": [{"path": bad, "preview": bad}]}}),
        client.post(f"{saves}/c/writes/w", json={"writes": [{"channel": bad, "idx": bad, "value": bad}]}),
        client.get(f"/v1/threads/%00{bad}"),
        client.get(f"/v1/{bad}"),
        client.get("/v1/threads", params={"cursor": bad}),
        client.get("/v1/checkpoints", params={"filter": bad}),
        client.get("/v1/checkpoints", params={"run_id": f"{bad}\0"}),
        client.get("/v1/threads", headers={"Accept": bad}),
        client.get("/v1/threads", headers={"Authorization": f"Bearer {words['wrong_key']}"}),
        client.get("/v1/threads", headers={"Stateroom-Subject": f"{bad} {bad}"}),
    ]
    assert all(400 <= answer.status_code < 500 for answer in refused), [one.status_code for one in refused]
    return thread, refused


def _use_items(client: httpx.Client, words: dict[str, str]) -> list[httpx.Response]:
    """What an agent remembers, found by its path and by a filter, and every sort of refusal."""
    label, key, bad = words["label"], words["item_key"], words["refused"]
    item = f"/v1/items/{label}/{key}"
    value = {words["item_member"]: words["item_value"], "long": words["item_value"] * 200}
    assert client.put(item, json={"value": value}, headers={"Idempotency-Key": "item"}).status_code == 201
    wanted = {"prefix": [label], "filter": {words["item_member"]: words["item_value"]}}
    assert words["item_value"] in client.post("/v1/items:search", json=wanted).text
    assert label in client.post("/v1/items:paths", json={"suffix": [label]}).text
    shared = {"Stateroom-Client-Share": base64.b64encode(words["share"][:32].encode()).decode()}
    assert client.put(item, json={"value": value}, headers=shared).status_code == 201
    refused = [
        client.put(item, json={"value": value}, headers={"If-None-Match": "*"}),
        client.put(item, json={"value": {"a": bad}}, headers={"Idempotency-Key": "item"}),
        client.put(item, json={"value": [bad]}),
        client.put(item, json={"value": {"a": {"$bytes": bad}}}),
        client.put(item, json={"value": {"a": bad * 5000}}),
        client.put(f"/v1/items/{bad * 2},/{bad}", json={"value": {}}),
        client.get(f"/v1/items/{bad}/{bad}"),
        client.get(f"/v1/items/a/~{bad}"),
        client.delete(item, headers={"If-Match": f'"{bad}"'}),
        client.post("/v1/items:search", json={"filter": {bad: {"$x": bad}}}),
        client.post("/v1/items:search", json={"filter": {"a": {f"${bad}": 1}}}),
        client.post("/v1/items:search", json={"filter": {"$or": [bad]}}),
        client.post("/v1/items:search", json={"prefix": [bad] * 17}),
        client.post("/v1/items:search", json={"cursor": bad}),
        client.post("/v1/items:batch", json={"writes": [{"path": [bad], "key": bad, "value": {}, "delete": True}]}),
    ]
    batch = client.post("/v1/items:batch", json={"writes": [{"path": [bad], "key": bad, "value": [bad]}]})
    assert batch.status_code == 200
    assert bad not in batch.text
    return refused


@pytest.fixture(scope="module")
async def run() -> Run:
    folder = Path(tempfile.mkdtemp(prefix="stateroom-canaries-"))
    try:
        with GatewayProcess(folder / "data", {"STATEROOM_LOG_LEVEL": "debug"}) as gateway:
            made = await _run(gateway)
        files = {
            str(path.relative_to(folder)): path.read_bytes()
            for part in ("data/postgres", "data/s3")
            for path in sorted((folder / part).rglob("*"))
            if path.is_file()
        }
        logs = [gateway.log_file, *sorted((folder / "data").glob("*.log*"))]
        return made._replace(files=files, texts=made.texts | {path.name: path.read_bytes() for path in logs})
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def _run(gateway: GatewayProcess) -> Run:
    names = ["channel", "state", "long", "metadata_name", "metadata", "write", "preview", "refused", "wrong_key"]
    names += ["label", "item_key", "item_member", "item_value", "share"]
    words = {name: _word(name) for name in names}
    control, compressed = _word("control"), _word("compressed")
    tenancy = Tenancy(gateway)
    service_key = tenancy.tenant()
    subject_key = tenancy.key(service_key, "user-1")
    with tenancy.client(subject_key) as client:
        thread, refused = _use(client, words, control)
        await _as_superuser(
            gateway.database_dsn,
            "UPDATE stateroom.chunks SET envelope = set_byte(envelope, 59, get_byte(envelope, 59) # 1)",
            "UPDATE stateroom.pending_writes SET value = set_byte(value, 59, get_byte(value, 59) # 1)",
            "UPDATE stateroom.items SET envelope = set_byte(envelope, 59, get_byte(envelope, 59) # 1)",
        )
        damaged = [
            client.get(f"/v1/threads/{control}/checkpoints/{thread.checkpoint_id}"),
            client.get(f"/v1/threads/{control}/checkpoints?view=state"),
            request_of(DECLARED["get_writes"], thread).send(client),
            client.get(f"/v1/items/{words['label']}/{words['item_key']}"),
            client.post("/v1/items:search", json={}),
        ]
        assert {answer.status_code for answer in damaged} == {500}
        assert {answer.json()["code"] for answer in damaged} == {"integrity-failure"}
    tenancy.revoke(service_key, subject_key)
    with tenancy.client(subject_key) as client:
        refused.append(client.get("/v1/whoami"))
    # What the scanner must find: a frame that holds the control, stored as a row of bytes.
    frame = zstd.compress(compressed.encode() * 20)
    await _as_superuser(
        gateway.database_dsn,
        "CREATE TABLE public.control (frame bytea STORAGE EXTERNAL)",
        "INSERT INTO public.control VALUES ($1)",
        "CHECKPOINT",
        frame=frame,
    )
    identity = json.loads((gateway.data_dir / "embedded.json").read_text())
    root = json.loads((gateway.data_dir / "root.key").read_text())
    secrets = {name: word.encode() for name, word in words.items()}
    api_keys = {"service": service_key, "subject": subject_key, "first": gateway.api_key}
    api_keys["operator"] = gateway.operator_key
    secrets |= {f"{name} key": text.split("_")[3][:-6].encode() for name, text in api_keys.items()}
    secrets["pepper"] = bytes.fromhex(identity["api_key_pepper"])
    secrets["pepper in hex"] = identity["api_key_pepper"].encode()
    for number, text in root["keys"].items():
        secrets[f"root key {number}"] = base64.b64decode(text)
        assert len(secrets[f"root key {number}"]) == 32
    texts = {f"answer {number}": answer.content for number, answer in enumerate([*refused, *damaged])}
    texts |= {f"headers {number}": str(answer.headers).encode() for number, answer in enumerate(refused)}
    return Run(secrets, {"clear": control.encode(), "compressed": compressed.encode()}, texts, {})


def test_logs_and_problems_hold_no_secret(run: Run) -> None:
    assert {"data.log", "postgres.log"} <= run.texts.keys()
    assert any(b"integrity-failure" in text for where, text in run.texts.items() if where.startswith("answer"))
    assert b'"event":"request"' in run.texts["data.log"]
    found = [(name, where) for name, secret in run.secrets.items() for where, text in run.texts.items()
             if holds(text, secret)]  # fmt: skip
    assert found == []


def test_the_log_names_no_subject_no_thread_and_no_query(run: Run) -> None:
    lines = [json.loads(line) for line in run.texts["data.log"].splitlines() if line.startswith(b"{")]
    requests = [line for line in lines if line["event"] == "request"]
    assert len(requests) > 20
    for line in requests:
        assert line.keys() <= {"event", "level", "timestamp", "method", "route", "status", "seconds", "request_id",
                               "key_id", "version", "code", "instance", "service"}  # fmt: skip
        assert not re.search(r"control-|user-1|\?", line["route"])
    assert run.controls["clear"] not in run.texts["data.log"]


def test_the_scan_finds_what_is_there(run: Run) -> None:
    assert len(run.files) > 500
    assert any(run.controls["clear"] in content for content in run.files.values())
    assert not any(run.controls["compressed"] * 2 in content for content in run.files.values())
    assert any(run.controls["compressed"] in frame for content in run.files.values() for frame in inflated(content))
    for coded in forms(run.controls["clear"])[1:]:
        assert holds(b"xx" + coded + b"xx", run.controls["clear"])


def test_the_database_and_the_object_store_hold_no_secret(run: Run) -> None:
    everything = [(where, content) for where, content in run.files.items()]
    everything += [(where, frame) for where, content in run.files.items() for frame in inflated(content)]
    found = [(name, where) for name, secret in run.secrets.items() for where, content in everything
             if holds(content, secret)]  # fmt: skip
    assert found == []
