"""The worst legal thing that one tenant can do with each verb, and against each limit.

`VERBS` names a case for every operation of the API, and `LIMITS` for every named limit, but those that `UNPUSHED` has a
reason for; a test of the default suite refuses what is missing. A case prepares what it needs in a tenant of its own
and says what that tenant then sends at its full allowance. Verbs that cost alike share a case, which sends each of them
as itself:

- `bodies`: what reads a body of its own shape. Three bodies as large as there may be, which are all escapes; twenty of
  as many empty lists as there may be values; the rest of the allowance is requests that are accepted.
- `look_ups`: what reads a few rows.
- `pages`: what lists: as many as a page may have, each as heavy as it may be.
"""

import base64
import json
from array import array
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote
from uuid import UUID, uuid4

import msgpack

from gateway.admission import limits
from gateway.authentication.api_keys import generate
from gateway.http.exchange import VERSION_SCHEMAS_MAX
from storage.access.offload import RESOLVED_BYTES_MAX
from storage.approvals.model import APPROVAL_ACTIONS_MAX, APPROVALS_PENDING_MAX
from storage.effects.model import EFFECT_ARGS_BYTES_MAX, EFFECT_ARGS_VALUES_MAX, EFFECT_IDENTITY_MAX
from storage.format.pieces import HOLES_MAX, LEAF_SHOWN_BYTES
from storage.items.filters import ITEM_FILTER_DEPTH_MAX, ITEM_FILTER_VALUES_MAX
from storage.items.model import (
    ITEM_DIMENSIONS_MAX,
    ITEM_LABELS_MAX,
    ITEM_MODELS_MAX,
    ITEM_OFFSET_MAX,
    ITEM_OPERATIONS_MAX,
    ITEM_VALUE_BYTES_MAX,
    ITEM_VECTORS_MAX,
)
from storage.keys.key_seals import Pepper, Peppers
from storage.service import Store
from storage.threads.links import ANCESTORS_MAX
from tests.support.operations import (
    DECLARED,
    Declared,
    Thread,
    empty_export,
    has_approvals,
    request_of,
    save_approval,
    save_files,
    save_thread,
)
from tests.victims import rows
from tests.victims.harness import JSON, MSGPACK, Line, Request, Tenant

EVERYBODY = limits.TENANT_REQUESTS_IN_FLIGHT_MAX  # connections that a tenant can keep busy
LARGE_BYTES = limits.BODY_BYTES_MAX - 64 * 1024
LARGE_AT_ONCE = limits.TENANT_HELD_BYTES_MAX // limits.BODY_BYTES_MAX
DENSE_AT_ONCE = 20
VALUES = limits.VALUES_MAX - 1000  # room for what is around them
WAITERS_TRYING = 1400
NUMBER, CAPTURED = "@N@", "@ID@"
SAVE = "/v1/threads/{}/checkpoints"

Lines = Callable[[Tenant, Declared], Sequence[Line]]
OnRows = Callable[[Store, UUID], Awaitable[None]]


class Case(NamedTuple):
    """A case.

    ``worst`` is the request in words; ``answers``: statuses of which one at least must have been given (429: what
    exceeds the allowance, while what fits it takes longer than is measured). ``rows``: puts what the tenant has into
    the database. ``shares``: its tenant is one that other such cases have, too. ``beside``: what a process in the
    background does meanwhile, again and again; how often counts as the answer ``done``.
    """

    worst: str
    lines: Lines
    answers: frozenset[str] = frozenset({"200", "201", "202", "204", "429"})
    rows: OnRows | None = None
    shares: str = ""
    beside: OnRows | None = None


def repeated(element: bytes, size_bytes: int) -> bytes:
    return element * (size_bytes // len(element))


ESCAPES = b'{"x":"' + repeated(rb"\"", LARGE_BYTES) + b'"}'
EMPTIES = b'{"x":[' + b"[]," * (VALUES - 1) + b"[]]}"
TOO_DENSE = b'{"x":[' + repeated(b"[],", LARGE_BYTES) + b"[]]}"
TEXT = b'{"state":{"a":"' + b"a" * LARGE_BYTES + b'"}}'
STATES = [
    (JSON, b'{"state":{"a":[' + b"[]," * (VALUES - 1) + b"[]]}}"),
    (JSON, b'{"state":{"a":[' + b'{"a":0},' * (VALUES // 3 - 1) + b"[]]}}"),
    (JSON, b'{"state":{"a":[' + b'{"$bytes":""},' * (VALUES // 3 - 1) + b"[]]}}"),
    (JSON, b'{"state":{"a":{"$map":[' + b",".join(b"[%d,[]]" % n for n in range(VALUES // 3)) + b"]}}}"),
    (MSGPACK, msgpack.packb({"state": {"a": [[]] * VALUES}})),
    (MSGPACK, msgpack.packb({"state": {"a": [{"a": 0}] * (VALUES // 3)}})),
]
HEAVY_METADATA = {"a": [[]] * ((limits.METADATA_BYTES_MAX - 256) // 3)}


# --- what tenants prepare ---------------------------------------------------------------------------------------


def accepted(tenant: Tenant, declared: Declared) -> Request:
    """A small request of a verb on data that exists, made of its declaration."""
    thread = save_thread(tenant.client)
    if has_approvals(declared):
        thread = save_approval(tenant.client, thread)
    if {"artifact_id", "upload_id"} & {*declared.parameters}:
        thread = save_files(tenant.client, thread)
    return request(tenant, declared, thread)


def request(tenant: Tenant, declared: Declared, thread: Thread) -> Request:
    named = {"subject_id": "attacker", "tenant_id": str(uuid4()), "key_id": "k", "token": "t", "job_id": str(uuid4())}
    made = request_of(declared, thread._replace(job_id=named["job_id"]), **named)
    body = made.content if made.content is not None else json.dumps(made.body).encode() if made.body else b""
    if made.body == {}:
        body = b"{}"
    return tenant.raw(made.method, made.path + made.query, body, headers=made.headers)


def heavy_history(tenant: Tenant) -> None:
    """A thread of as many checkpoints as a page may have, each with as much metadata as it may have: once a tenant."""
    if tenant.client.get("/v1/threads/t").status_code == 200:
        return
    body = {"state": {"note": "x" * 100}, "metadata": HEAVY_METADATA, "agent": "tester"}
    saves = [{"method": "POST", "url": SAVE.format("t"), "json": body}] * limits.PAGE_ITEMS_MAX
    tenant.send_many(saves, limits.THREAD_WRITES_ACTIVE_MAX)


def dense_states(tenant: Tenant, thread_id: str = "t", count: int = 8) -> None:
    for _ in range(count):
        tenant.send("POST", SAVE.format(thread_id), content=STATES[1][1], headers={"Content-Type": JSON})


def whole(tenant: Tenant, *requests: Request, connections: int = EVERYBODY) -> list[Line]:
    """The same few requests on all connections."""
    del tenant
    return [Line(connections, requests)]


# --- cases that verbs share -------------------------------------------------------------------------------------


def bodies(tenant: Tenant, declared: Declared) -> list[Line]:
    return _bodies(tenant, accepted(tenant, declared))


def _bodies(tenant: Tenant, *small: Request) -> list[Line]:
    method, path = small[0].head.decode().split(" ")[:2]
    return [
        Line(LARGE_AT_ONCE - 1, [tenant.raw(method, path, ESCAPES)]),
        Line(1, [tenant.raw(method, path, TOO_DENSE)]),
        Line(DENSE_AT_ONCE, [tenant.raw(method, path, EMPTIES)]),
        Line(EVERYBODY - LARGE_AT_ONCE - DENSE_AT_ONCE, small),
    ]


def look_ups(tenant: Tenant, declared: Declared) -> list[Line]:
    return whole(tenant, accepted(tenant, declared))


def pages(prepare: Callable[[Tenant], None], query: str = "", path: str = "") -> Lines:
    def lines(tenant: Tenant, declared: Declared) -> list[Line]:
        prepare(tenant)
        where = path or declared.path.replace("{thread_id}", "t").replace("{checkpoint_id}", "latest")
        limit = f"limit={limits.PAGE_ITEMS_MAX}" if "limit" in declared.operation.query.__struct_fields__ else ""
        query_text = "&".join(each for each in (limit, query) if each)
        made = [tenant.raw("GET", f"{where}?{query_text}", accept=accept) for accept in (JSON, MSGPACK)]
        return [Line(EVERYBODY // 2, [each]) for each in made]

    return lines


def public(tenant: Tenant, declared: Declared) -> list[Line]:
    path = declared.path.replace("{token}", "t" * 1000)
    return whole(tenant, tenant.raw("GET", path, api_key=""))


# --- cases of one verb or limit -----------------------------------------------------------------------------------


def saves(tenant: Tenant, declared: Declared) -> list[Line]:
    def to(name: str, body: bytes, media_type: str) -> Request:
        return tenant.raw("POST", SAVE.format(name), body, media_type=media_type)

    dense = [Line(8, [to(f"dense-{number}", body, media)]) for number, (media, body) in enumerate(STATES)]
    channels = {f"c{n}": {"version": 1, "data": msgpack.packb([[]] * 150)} for n in range(limits.CHANNELS_MAX)}
    many = msgpack.packb({"channels": channels})
    return [
        Line(LARGE_AT_ONCE, [to("large", TEXT, JSON)]),
        *dense,
        Line(8, [to("channels", many, MSGPACK)]),
        Line(EVERYBODY - LARGE_AT_ONCE - 8 - 8 * len(STATES), [to(NUMBER, b'{"state":{"a":1}}', JSON)]),
    ]


def policies_set(tenant: Tenant, declared: Declared) -> list[Line]:
    """Policies of agents that have one already; each changes it."""
    path = f"{declared.path}?agent={rows.agent_of(7)}"
    said = {
        "put_save_policy": (b'{"strict":true}', b'{"strict":false}'),
        "put_retention": (b'{"idle_ttl_seconds":31536001}', b'{"idle_ttl_seconds":31536000}'),
    }[declared.name]
    return _bodies(tenant, *(tenant.raw("PUT", path, body) for body in said))


def saves_of_agents(tenant: Tenant, declared: Declared) -> list[Line]:
    """Saves that name no head, each by another agent than the one before."""
    bodies_ = [json.dumps({"state": {"a": 1}, "agent": rows.agent_of(number)}).encode() for number in range(2)]
    return [
        Line(1, [tenant.raw("POST", SAVE.format(f"agents-{number}"), body) for body in bodies_])
        for number in range(EVERYBODY)
    ]


def previews(tenant: Tenant, declared: Declared) -> list[Line]:
    """Of threads of as many agents as have a policy, by a draft that would thin all of them."""
    saves_ = [
        {"method": "POST", "url": SAVE.format(f"t{n}"), "json": {"state": {"a": 1}, "agent": rows.agent_of(n)}}
        for n in range(limits.PAGE_ITEMS_MAX)
    ]
    if tenant.client.get("/v1/threads/t0").status_code != 200:
        tenant.send_many(saves_ * 2)
    return pages(lambda _: None, f"draft={quote(json.dumps({'checkpoints_max': 1}))}")(tenant, declared)


def placeholders(tenant: Tenant, declared: Declared) -> list[Line]:
    """A small body of as many placeholders as there may be, of one leaf: as large an answer as there may be."""
    size = RESOLVED_BYTES_MAX // HOLES_MAX - LEAF_SHOWN_BYTES - 200
    sent = tenant.send("POST", "/v1/threads/t/pieces", content=_leaf(size), headers={"Content-Type": JSON}).json()
    encoded = len(msgpack.packb("a" * size))
    placeholder = msgpack.ExtType(0x68, base64.b64decode(sent["piece"]) + encoded.to_bytes(8, "big"))
    value = [placeholder] * HOLES_MAX
    begin, each = len(msgpack.packb([0] * HOLES_MAX)) - HOLES_MAX, len(msgpack.packb(placeholder))
    body = {"state": {"a": value}, "state_holes": {"a": [begin + each * n for n in range(HOLES_MAX)]}}
    save = tenant.raw("POST", SAVE.format("t"), msgpack.packb(body), media_type=MSGPACK)
    loads = [tenant.raw("GET", f"{SAVE.format('t')}/latest", accept=accept) for accept in (JSON, MSGPACK)]
    tenant.send("POST", SAVE.format("t"), content=msgpack.packb(body), headers={"Content-Type": MSGPACK})
    return [Line(EVERYBODY // 3, [each]) for each in (save, *loads)]


def described(tenant: Tenant, declared: Declared) -> list[Line]:
    """As many placeholders of a small leaf as a body has room for, each with a preview and below a long name."""
    sent = tenant.send("POST", "/v1/threads/t/pieces", content=_leaf(40), headers={"Content-Type": JSON}).json()
    placeholder = msgpack.ExtType(0x68, base64.b64decode(sent["piece"]) + (42).to_bytes(8, "big"))
    each, count = len(msgpack.packb(placeholder)), VALUES // 8 // 3
    value = {"n" * 240: [placeholder] * count}
    begin = len(msgpack.packb(value)) - each * count
    offsets = [begin + each * n for n in range(count)]
    preview = bytes(limits.PREVIEWS_BYTES_MAX // count // 3)
    leaves = [{"at": at, "preview": preview} for at in offsets]
    names = ("a", "b", "c")
    body = {
        "state": dict.fromkeys(names, value),
        "state_holes": dict.fromkeys(names, offsets),
        "state_leaves": dict.fromkeys(names, leaves),
    }
    tenant.send("POST", SAVE.format("t"), content=msgpack.packb(body), headers={"Content-Type": MSGPACK})
    save = tenant.raw("POST", SAVE.format("t"), msgpack.packb(body), media_type=MSGPACK)
    loads = [tenant.raw("GET", f"{SAVE.format('t')}/latest?pieces=refs", accept=accept) for accept in (JSON, MSGPACK)]
    return [Line(LARGE_AT_ONCE, [each]) for each in (save, *loads)]


def nothing(tenant: Tenant, declared: Declared) -> list[Line]:
    """Nothing is sent, but its subject has a key: who has none has no rows."""
    tenant.save("t", state={"a": 1})
    return []


def appends(tenant: Tenant, declared: Declared) -> list[Line]:
    tenant.save("t", state={"a": []})
    body = b'{"changes":{"append":{"a":[' + b"[]," * (VALUES // 8) + b"[]]}}}"
    save = tenant.raw("POST", SAVE.format("t"), body, headers={"If-Match": "*"})
    load = tenant.raw("GET", f"{SAVE.format('t')}/latest")
    return [Line(EVERYBODY // 2, [save]), Line(EVERYBODY // 2, [load])]


def shown(tenant: Tenant, declared: Declared) -> list[Line]:
    lines = []
    for number, (media_type, body) in enumerate(STATES):
        tenant.send("POST", SAVE.format(f"d{number}"), content=body, headers={"Content-Type": media_type})
        lines.append(Line(EVERYBODY // len(STATES), [tenant.raw("GET", f"{SAVE.format(f'd{number}')}/latest")]))
    return lines


def unread(tenant: Tenant, declared: Declared) -> list[Line]:
    tenant.send("POST", SAVE.format("t"), content=TEXT, headers={"Content-Type": JSON})
    return [Line(EVERYBODY, [tenant.raw("GET", f"{SAVE.format('t')}/latest")], reads=False)]


def escaped(tenant: Tenant, declared: Declared) -> list[Line]:
    """Text each of whose bytes JSON writes as six, and binary, which becomes a third more."""
    control = msgpack.packb({"state": {"a": "\x01" * (LARGE_BYTES // 3)}})
    binary = msgpack.packb({"state": {"a": b"\xff" * LARGE_BYTES}})
    for name, body in (("control", control), ("binary", binary)):
        tenant.send("POST", SAVE.format(name), content=body, headers={"Content-Type": MSGPACK})
    gzip = {"Accept-Encoding": "gzip"}
    return [
        Line(EVERYBODY // 4, [tenant.raw("GET", f"{SAVE.format(name)}/latest", headers=headers)])
        for name in ("control", "binary")
        for headers in ({}, gzip)
    ]


def inlined(tenant: Tenant, declared: Declared) -> list[Line]:
    content = b"a" * limits.INLINED_BYTES_EACH_MAX
    preview = base64.urlsafe_b64encode(b"p" * limits.PREVIEW_BYTES_MAX).decode()
    pointers = [
        tenant.send(
            "POST", "/v1/threads/t/artifacts", content=content,
            headers={"Stateroom-Artifact-Name": f"a{number}", "Content-Type": "text/plain",
                     "Stateroom-Artifact-Preview": preview},
        ).json()["pointer"]
        for number in range(limits.INLINED_BYTES_MAX // limits.INLINED_BYTES_EACH_MAX)
    ]  # fmt: skip
    tenant.save("t", state={"a": pointers * (limits.INLINED_ARTIFACTS_MAX // len(pointers))})
    return whole(tenant, tenant.raw("GET", f"{SAVE.format('t')}/latest?resolve=inline"))


def writes(tenant: Tenant, declared: Declared) -> list[Line]:
    each = [[]] * (VALUES // limits.WRITES_MAX - 10)
    many = [{"channel": f"c{n}", "idx": n, "value": each} for n in range(limits.WRITES_MAX)]
    body = json.dumps({"writes": many}, separators=(",", ":")).encode()
    path = f"{SAVE.format('t-' + NUMBER)}/c/writes/task"
    large = b'{"writes":[{"channel":"a","idx":0,"value":"' + b"a" * LARGE_BYTES + b'"}]}'
    tenant.save("t", state={"a": 1})
    return [
        Line(LARGE_AT_ONCE, [tenant.raw("POST", path, large)]),
        Line(EVERYBODY - LARGE_AT_ONCE, [tenant.raw("POST", path, body)]),
    ]


def one_threads_writes(tenant: Tenant, declared: Declared) -> list[Line]:
    """Many more writers to one thread than may wait for it."""
    return whole(tenant, tenant.raw("POST", SAVE.format("one"), b'{"state":{"a":1}}'))


def written(tenant: Tenant, declared: Declared) -> list[Line]:
    each = [[]] * (VALUES // limits.WRITES_MAX - 10)
    many = [{"channel": f"c{n}", "idx": n, "value": each} for n in range(limits.WRITES_MAX)]
    tenant.send("POST", f"{SAVE.format('t')}/c/writes/task", json={"writes": many})
    return whole(tenant, tenant.raw("GET", f"{SAVE.format('t')}/c/writes/task"))


def _leaf(size_bytes: int) -> bytes:
    return json.dumps({"data": base64.b64encode(msgpack.packb("a" * size_bytes)).decode()}).encode()


def piece_in(tenant: Tenant, declared: Declared) -> list[Line]:
    path = "/v1/threads/t/pieces"
    return [
        Line(LARGE_AT_ONCE, [tenant.raw("POST", path, _leaf(LARGE_BYTES // 4 * 3 - 1024))]),
        *(Line(25, [tenant.raw("POST", path, _leaf(20_000 + n))]) for n in range(5)),
    ]


def piece_out(tenant: Tenant, declared: Declared) -> list[Line]:
    body = _leaf(LARGE_BYTES // 4 * 3 - 1024)
    sent = tenant.send("POST", "/v1/threads/t/pieces", content=body, headers={"Content-Type": JSON}).json()
    piece = base64.urlsafe_b64encode(base64.b64decode(sent["piece"])).decode().rstrip("=")
    tenant.save("t", state={"a": 1})
    get = tenant.raw("GET", f"/v1/threads/t/pieces/{piece}")
    return [Line(EVERYBODY // 2, [get]), Line(EVERYBODY // 2, [get], reads=False)]


NAMESPACES = 500
UPLOAD_BYTES = 8 * 1024 * 1024
_NAMED = {"Stateroom-Artifact-Name": "a", "Content-Type": "text/plain"}


def uploads(tenant: Tenant, declared: Declared) -> list[Line]:
    path = f"/v1/threads/t-{NUMBER}/artifacts"
    return whole(tenant, tenant.raw("POST", path, b"a" * UPLOAD_BYTES, headers={"Stateroom-Artifact-Name": "a"}))


def parts(tenant: Tenant, declared: Declared) -> list[Line]:
    begun = tenant.send("POST", "/v1/threads/t/uploads", json={"name": "a"}).json()["upload_id"]
    path = f"/v1/uploads/{begun}/parts"
    return [Line(1, [tenant.raw("PUT", f"{path}/{n}", b"a" * UPLOAD_BYTES)]) for n in range(EVERYBODY)]


def whole_uploads(tenant: Tenant, declared: Declared) -> list[Line]:
    """Begin, send a part, complete: again and again."""
    begin = tenant.raw("POST", "/v1/threads/t/uploads", b'{"name":"a"}', captures='"upload_id":"([^"]+)')
    part = tenant.raw("PUT", f"/v1/uploads/{CAPTURED}/parts/0", b"a" * 100_000)
    return whole(tenant, begin, part, tenant.raw("DELETE", f"/v1/uploads/{CAPTURED}"))


def download(tenant: Tenant, query: str = "") -> str:
    made = tenant.send("POST", "/v1/threads/t/artifacts", content=b"a" * UPLOAD_BYTES * 2, headers=_NAMED)
    return f"/v1/artifacts/{made.json()['artifact_id']}{query}"


def downloads(tenant: Tenant, declared: Declared) -> list[Line]:
    get = tenant.raw("GET", download(tenant, "/content"), accept="*/*")
    return [Line(EVERYBODY // 2, [get]), Line(EVERYBODY // 2, [get], reads=False)]


def signed_downloads(tenant: Tenant, declared: Declared) -> list[Line]:
    url = tenant.send("POST", download(tenant, "/urls"), json={}).json()["url"]
    get = tenant.raw("GET", "/v1/" + url.split("/v1/")[1], accept="*/*", api_key="")
    return [Line(EVERYBODY // 2, [get]), Line(EVERYBODY // 2, [get], reads=False)]


def copies(tenant: Tenant, declared: Declared) -> list[Line]:
    heavy_history(tenant)
    body = f'{{"target_thread_id":"copy-{NUMBER}"}}'.encode()
    return whole(tenant, tenant.raw("POST", "/v1/threads/t/copy", body))


def removals(tenant: Tenant, declared: Declared) -> list[Line]:
    """What is saved is removed at once, by all connections."""
    thread_id, run_id = f"t-{NUMBER}", f"run-{NUMBER}"
    save = tenant.raw("POST", SAVE.format(thread_id), json.dumps({"state": {"a": 1}, "run_id": run_id}).encode())
    removal = {
        "delete_thread": lambda: tenant.raw("DELETE", f"/v1/threads/{thread_id}"),
        "prune": lambda: tenant.raw("POST", "/v1/threads:prune", _bulk("thread_ids", thread_id)),
        "delete_runs": lambda: tenant.raw("POST", "/v1/runs:delete", _bulk("run_ids", run_id)),
    }[declared.name]()
    return whole(tenant, save, removal)


EFFECT = "/v1/threads/t/effects/{}"
EFFECT_ROOM = EFFECT_ARGS_BYTES_MAX - 1024
EFFECT_VALUES = EFFECT_ARGS_VALUES_MAX - 10


def _start(args: bytes, **more: Any) -> bytes:
    """The JSON of a start with these arguments, which are JSON themselves."""
    said = {"tool": "pay", "mode": "idempotent", **more}
    return json.dumps(said).encode()[:-1] + b',"args":' + args + b"}"


def effects_started(tenant: Tenant, declared: Declared) -> list[Line]:
    """Arguments as costly to compare as there may be, under names that are new each time."""
    heavy_history(tenant)
    empties = b'{"a":[' + b"[]," * (EFFECT_VALUES - 1) + b"[]]}"
    maps = b'{"a":[' + b'{"b":1.5},' * (EFFECT_VALUES // 4) + b"0]}"
    long = json.dumps({"a": "\n" * (EFFECT_ROOM // 2)}).encode()
    pointers = ["/a"] * EFFECT_IDENTITY_MAX
    bodies_ = [_start(empties), _start(maps), _start(long), _start(long, identity=pointers)]
    heavy = [tenant.raw("PUT", EFFECT.format(f"h-{number}-{NUMBER}"), body) for number, body in enumerate(bodies_)]
    small = tenant.raw("PUT", EFFECT.format(f"s-{NUMBER}"), _start(b"{}"))
    return [Line(EVERYBODY // 2, heavy), Line(EVERYBODY // 2, [small])]


def effects_finished(tenant: Tenant, declared: Declared) -> list[Line]:
    """Results as large and as dense as there may be, each of an effect that was begun just before."""
    save_once(tenant)
    start = tenant.raw("PUT", EFFECT.format(f"f-{NUMBER}"), _start(b"{}", mode="read"))
    results = [b"[" + b"[]," * (VALUES - 1) + b"[]]", json.dumps("\n" * (EFFECT_ROOM // 2)).encode()]
    ends = []
    for result in results:
        body = b'{"execution":1,"attempt":1,"status":"done","result":' + result + b"}"
        ends += [start, tenant.raw("POST", EFFECT.format(f"f-{NUMBER}/finish"), body)]
    return whole(tenant, *ends)


def save_once(tenant: Tenant) -> None:
    tenant.send("POST", SAVE.format("t"), json={"state": {"note": "x"}})


def effects_shown(tenant: Tenant, declared: Declared) -> list[Line]:
    save_once(tenant)
    args = json.dumps({"a": "\x01" * (EFFECT_ROOM // 2)}).encode()
    tenant.send("PUT", EFFECT.format("shown"), content=_start(args), headers={"Content-Type": JSON})
    get = tenant.raw("GET", EFFECT.format("shown"))
    return [Line(EVERYBODY // 2, [get]), Line(EVERYBODY // 2, [get], reads=False)]


def effects_listed(tenant: Tenant, declared: Declared) -> list[Line]:
    """As many effects as a page may have."""
    save_once(tenant)
    starts = [
        {"method": "PUT", "url": EFFECT.format(f"l-{number}"), "json": {"tool": "pay", "mode": "read", "args": {}}}
        for number in range(limits.PAGE_ITEMS_MAX)
    ]
    tenant.send_many(starts, limits.THREAD_WRITES_ACTIVE_MAX)
    return whole(tenant, tenant.raw("GET", f"/v1/threads/t/effects?limit={limits.PAGE_ITEMS_MAX}"))


def links(tenant: Tenant, declared: Declared) -> list[Line]:
    """Threads are linked below as many ancestors as there may be, to one checkpoint and another."""
    path, parent = f"/v1/threads/linked-{NUMBER}/parent", f"deep-{ANCESTORS_MAX - 1}"
    said = [json.dumps({"thread_id": parent, "checkpoint_id": each}).encode() for each in ("a", "b")]
    return _bodies(tenant, *(tenant.raw("PUT", path, body) for body in said))


def families(tenant: Tenant, declared: Declared) -> list[Line]:
    """Families are deleted that have one thread too many, which is known when all of them have been opened."""
    return whole(tenant, tenant.raw("DELETE", "/v1/threads/wide?family=true"))


def _bulk(name: str, first: str) -> bytes:
    return json.dumps({name: [first, *(f"absent-{n}" for n in range(limits.BULK_ITEMS_MAX - 1))]}).encode()


def compactions(tenant: Tenant, declared: Declared) -> list[Line]:
    tenant.send("POST", SAVE.format("t"), content=STATES[0][1], headers={"Content-Type": JSON})
    save = tenant.raw("POST", SAVE.format("t"), STATES[0][1])
    body = json.dumps({"channel": "a", "keep_last": VALUES // 2, "summary": "x"}).encode()
    return [Line(8, [save]), Line(EVERYBODY - 8, [tenant.raw("POST", "/v1/threads/t/compact", body)])]


def archiving(tenant: Tenant, declared: Declared) -> list[Line]:
    heavy_history(tenant)
    thread_id = f"archived-{uuid4()}"
    tenant.send("POST", "/v1/threads/t/copy", json={"target_thread_id": thread_id})
    both = [tenant.raw("POST", f"/v1/threads/{thread_id}/{verb}") for verb in ("archive", "restore")]
    return whole(tenant, *both, tenant.raw("GET", f"{SAVE.format(thread_id)}/latest"))


def segmenting(tenant: Tenant, declared: Declared) -> list[Line]:
    heavy_history(tenant)
    thread_id = f"segmented-{uuid4()}"
    tenant.send("POST", "/v1/threads/t/copy", json={"target_thread_id": thread_id})
    here = f"/v1/threads/{thread_id}"
    moved = tenant.raw("POST", f"{here}/archive?keep_last=1")
    pages = [tenant.raw("GET", f"{SAVE.format(thread_id)}?limit=1000&status={each}") for each in ("active", "failed")]
    return whole(tenant, moved, *pages, tenant.raw("POST", f"{here}/restore"))


def verifying(tenant: Tenant, declared: Declared) -> list[Line]:
    heavy_history(tenant)
    dense_states(tenant, "dense")
    found = {"verify": b'{"thread_id":"t"}'}.get(declared.name, b"")
    return whole(tenant, tenant.raw("POST", declared.path, found))


def shreds(tenant: Tenant, declared: Declared) -> list[Line]:
    subject = f"s-{NUMBER}"
    by = {"Stateroom-Subject": subject}
    save = tenant.raw("POST", SAVE.format("t"), b'{"state":{"a":1}}', headers=by)
    shred = tenant.raw("POST", f"/v1/subjects/{subject}/shred", json.dumps({"confirm": subject}).encode(), headers=by)
    return whole(tenant, save, shred)


def exports(tenant: Tenant, declared: Declared) -> list[Line]:
    heavy_history(tenant)
    tenant.send("POST", SAVE.format("large"), content=TEXT, headers={"Content-Type": JSON})
    return whole(tenant, request(tenant, declared, Thread("t", "", "", "")))


def trajectories(tenant: Tenant, declared: Declared) -> list[Line]:
    heavy_history(tenant)
    return whole(tenant, request(tenant, declared, Thread("t", "", "", "")))


def whole_threads(tenant: Tenant, declared: Declared) -> list[Line]:
    """Trajectories of a thread whose sub-agents have a namespace each: no page has two steps of one of them."""
    del declared
    saves = [
        {"method": "POST", "url": SAVE.format("wide"), "json": {"state": {"n": step}, "namespace": f"call-{number}"}}
        for step in range(2)
        for number in range(NAMESPACES)
    ]
    tenant.send_many(saves, limits.THREAD_WRITES_ACTIVE_MAX)
    return whole(tenant, tenant.raw("POST", "/v1/threads/wide/trajectory?namespaces=all", b"{}"))


def imports(tenant: Tenant, declared: Declared) -> list[Line]:
    empty = empty_export(tenant.client.get("/v1/whoami").json()["tenant_id"])
    return [
        Line(EVERYBODY // 2, [tenant.raw("POST", "/v1/import", empty)]),
        Line(EVERYBODY // 2, [tenant.raw("POST", "/v1/import", empty[:200] + b"\xff" * UPLOAD_BYTES)]),
    ]


def keys_made(tenant: Tenant, declared: Declared) -> list[Line]:
    body = b'{"kind":"service","name":"a","permissions":["state:read"]}'
    make = tenant.raw("POST", "/v1/api-keys", body, captures='"key_id":"([^"]+)')
    return whole(tenant, make, tenant.raw("DELETE", f"/v1/api-keys/{CAPTURED}"))


def unknown_keys(tenant: Tenant, declared: Declared) -> list[Line]:
    """Keys that look right and that nobody has, a new one each time: nobody's allowance counts them."""
    nobodys_pepper = Peppers(Pepper(1, b"nobody" * 6))
    nobodys = [
        tenant.raw("GET", "/v1/whoami", api_key=generate(nobodys_pepper).reveal()) for _ in range(32 * EVERYBODY)
    ]
    return [Line(1, nobodys[number::EVERYBODY]) for number in range(EVERYBODY)]


COSTLY_PATTERN = r"[\p{L}\p{N}]{5}"


def schemas(tenant: Tenant, declared: Declared) -> list[Line]:
    """As many patterns as compile, then as many more as a task's time is too short for."""

    def definition(count: int) -> bytes:
        return json.dumps({"json_schema": {"properties": {
            f"c{n}": {"pattern": COSTLY_PATTERN + str(n)} for n in range(count)
        }}}).encode()  # fmt: skip

    path = f"/v1/state-schemas/s-{NUMBER}/versions/1"
    many = b'{"json_schema":{"properties":{' + b",".join(b'"%05d":{}' % n for n in range(19_000)) + b"}}}"
    puts = [tenant.raw("PUT", path, body) for body in (*map(definition, (1, 60, 500)), many)]
    return [
        *(Line(EVERYBODY // 5, [each]) for each in puts),
        Line(DENSE_AT_ONCE, [tenant.raw("PUT", path, EMPTIES)]),
    ]


def checked(tenant: Tenant, declared: Declared) -> list[Line]:
    """Saves and loads at a version with patterns and conditions, of a state that all of them look at."""
    pattern = {"items": {"type": "object", "properties": {"t": {"type": "string", "pattern": r"^\p{L}{1,40}$"}}}}
    tenant.send("PUT", "/v1/state-schemas/s/versions/1", json={"json_schema": {"properties": {"a": pattern}}})
    condition = "value.matches('^[a-z]{1,200}[0-9]?$') || value.matches('[a-z]{90}$')"
    step = [{"op": "for_each", "path": "/a", "operations": [{"op": "remove", "path": "/t", "when": condition}]}]
    tenant.send("PUT", "/v1/state-schemas/s/versions/2", json={"up": step})
    state = {"a": [{"t": "abcdefgh"}] * 6_000}
    body = json.dumps({"state": state, "state_schema": "s", "state_version": 1}).encode()
    tenant.send("POST", SAVE.format("t"), content=body, headers={"Content-Type": JSON})
    load = tenant.raw("GET", f"{SAVE.format('t')}/latest", headers={"Accept-State-Version": "2"})
    save = tenant.raw("POST", SAVE.format(f"t-{NUMBER}"), body)
    verb = tenant.raw("POST", declared.path.replace("{state_schema}", "s"), b"{}")
    return [Line(EVERYBODY // 3, [each]) for each in (load, save, verb)]


def silent(tenant: Tenant, declared: Declared) -> list[Line]:
    return [Line(limits.CONNECTIONS_MAX - 64, [Request(b"GET /livez HTTP/1.1\r\nX-Half: ", is_whole=False)])]


def large_bodies(tenant: Tenant, declared: Declared) -> list[Line]:
    return whole(tenant, tenant.raw("POST", SAVE.format("t"), TEXT))


def faulty_bodies(tenant: Tenant, declared: Declared) -> list[Line]:
    """What is wrong comes last, behind as many values, names and bytes as a body may have."""
    wrong = (
        b'{"channels":{"c":{"holes":[' + b"5.0," * (VALUES - 10) + b"5.5]}}}",
        b'{"channels":{' + b"".join(b'"c%d":{},' % n for n in range(VALUES // 2 - 10)) + b'"c":5}}',
        b'{"channels":{"c":{"data":"' + b"A" * LARGE_BYTES + b'"}},"x":1}',
    )
    return [Line(EVERYBODY // len(wrong), [tenant.raw("POST", SAVE.format("t"), body)]) for body in wrong]


def long_queries(tenant: Tenant, declared: Declared) -> list[Line]:
    names = "&".join(f"channel=c{n}" for n in range(limits.CHANNELS_MAX))
    tenant.save("t", state={"a": 1})
    get = tenant.raw(
        "GET", f"{SAVE.format('t')}/latest/channel-history?{names}",
        headers={
            "Accept": "application/json;q=0.1," + "a/b;q=0.1," * (limits.ACCEPT_BYTES_MAX // 10 - 3) + "*/*",
            "Accept-State-Version": ",".join(f"s{n}=1" for n in range(VERSION_SCHEMAS_MAX)),
            **{f"X-{n}": "a" * 400 for n in range(limits.HEADERS_MAX - 20)},
        },
    )  # fmt: skip
    return whole(tenant, get)


def many_subjects(tenant: Tenant) -> None:
    body = {"state": {"a": 1}}
    tenant.send_many([
        {"method": "POST", "url": SAVE.format("t"), "json": body, "headers": {"Stateroom-Subject": subject}}
        for subject in (f"s{n}-".ljust(255, "s") for n in range(limits.PAGE_ITEMS_MAX))
    ])  # fmt: skip


def nobody(tenant: Tenant) -> None:
    """Rows are all that is needed."""


def many_threads(tenant: Tenant) -> None:
    body = {"state": {"a": 1}, "metadata": HEAVY_METADATA}
    tenant.send_many([
        {"method": "POST", "url": SAVE.format(f"t{n}"), "json": body} for n in range(limits.PAGE_ITEMS_MAX)
    ])  # fmt: skip


def many_keys(tenant: Tenant) -> None:
    body = {"kind": "service", "name": "a" * 200, "permissions": ["state:read"]}
    tenant.send_many([{"method": "POST", "url": "/v1/api-keys", "json": body}] * 300)


def many_artifacts(tenant: Tenant) -> None:
    metadata = base64.urlsafe_b64encode(json.dumps({"a": [[]] * 2000}).encode()).decode()
    preview = base64.urlsafe_b64encode(b"p" * limits.PREVIEW_BYTES_MAX).decode()
    headers = {**_NAMED, "Stateroom-Artifact-Metadata": metadata, "Stateroom-Artifact-Preview": preview}
    tenant.send_many([
        {"method": "POST", "url": "/v1/threads/t/artifacts", "content": b"a", "headers": headers}
    ] * 300)  # fmt: skip


def many_jobs(tenant: Tenant) -> None:
    made = request_of(DECLARED["export_tenant"], save_thread(tenant.client))
    tenant.send_many([{"method": made.method, "url": made.path + made.query, "json": made.body}] * 100, 1)


def many_writes(tenant: Tenant) -> None:
    heavy_history(tenant)
    head = tenant.client.get(f"{SAVE.format('t')}/latest?view=none").json()["checkpoint_id"]
    body = {"writes": [{"channel": "note", "idx": n, "value": [[]] * 100} for n in range(limits.WRITES_MAX)]}
    tenant.send("POST", f"{SAVE.format('t')}/{head}/writes/task", json=body)


def histories(tenant: Tenant, declared: Declared) -> list[Line]:
    many_writes(tenant)
    head = f"{SAVE.format('t')}/latest"
    paths = (f"{head}/channel-history?channel=note", f"{head}?view=none&history=note")
    made = [tenant.raw("GET", path, accept=accept) for path in paths for accept in (JSON, MSGPACK)]
    return [Line(EVERYBODY // 4, [each]) for each in made]


def many_schemas(tenant: Tenant) -> None:
    tenant.send_many([
        {"method": "PUT", "url": f"/v1/state-schemas/s{n}/versions/1", "json": {"label": "x"}} for n in range(100)
    ])  # fmt: skip


def _batch(tenant: Tenant, accept: str = JSON, **operations: Any) -> Request:
    body = json.dumps(operations, separators=(",", ":")).encode()
    return tenant.raw("POST", "/v1/items:batch", body, accept=accept)


def items_put(tenant: Tenant, declared: Declared) -> list[Line]:
    """One key and many, of as many bytes or lists as there may be."""
    values = (
        b'"' + b"a" * (ITEM_VALUE_BYTES_MAX - 100) + b'"',
        b"[" + b"[]," * (ITEM_VALUE_BYTES_MAX // 3 - 100) + b"[]]",
    )
    puts = [
        tenant.raw("PUT", f"/v1/items/put/{key}", b'{"value":{"a":%b}}' % value)
        for value in values
        for key in ("one", f"k-{NUMBER}")
    ]
    return [Line(EVERYBODY // 4, [each]) for each in puts]


def items_read(tenant: Tenant, declared: Declared) -> list[Line]:
    """Items of as many bytes as there may be, one by one and a hundred together, half of them not read."""
    gets = [{"path": ["heavy"], "key": f"k{number}"} for number in range(ITEM_OPERATIONS_MAX)]
    formats = (JSON, MSGPACK)
    one = [tenant.raw("GET", f"/v1/items/heavy/k{n}", accept=accept) for n in range(2) for accept in formats]
    many = [_batch(tenant, accept, gets=gets) for accept in formats]
    return [
        *(Line(EVERYBODY // 8, [each]) for each in one),
        *(Line(EVERYBODY // 4, [each], reads=bool(number)) for number, each in enumerate(many)),
    ]


def items_deleted(tenant: Tenant, declared: Declared) -> list[Line]:
    """Paths come and go: each takes the lock of all of the subject's paths."""
    path = f"/v1/items/p-{NUMBER}/k"
    return whole(tenant, tenant.raw("PUT", path, b'{"value":{}}'), tenant.raw("DELETE", path))


def items_searched(tenant: Tenant, declared: Declared) -> list[Line]:
    """Nothing is found in as many items as are looked at; and what is found comes behind as many as may be left out."""
    wanted = [
        {"prefix": ["many"], "filter": FILTER_OF_MANY_VALUES, "limit": 1000},
        {"prefix": ["many"], "filter": FILTER_OF_DEPTH, "limit": 1000},
        {"offset": ITEM_OFFSET_MAX, "limit": 1000},
        {"limit": 1000},
    ]
    sent = [tenant.raw("POST", "/v1/items:search", json.dumps(each).encode()) for each in wanted]
    return [Line(EVERYBODY // 4, [each]) for each in sent]


def items_batched(tenant: Tenant, declared: Declared) -> list[Line]:
    """A hundred searches over everything with a filter, and a hundred puts of as many bytes as there may be."""
    searches = [{"filter": FILTER_OF_MANY_VALUES, "limit": 1000}] * ITEM_OPERATIONS_MAX
    value = {"a": "a" * (ITEM_VALUE_BYTES_MAX - 100)}
    writes = [{"path": [f"w{n % 7}"], "key": f"k{n}", "value": value} for n in range(ITEM_OPERATIONS_MAX)]
    return [
        Line(EVERYBODY - LARGE_AT_ONCE, [_batch(tenant, searches=searches)]),
        Line(LARGE_AT_ONCE - 1, [_batch(tenant, writes=writes)]),
        Line(1, [_batch(tenant, writes=writes, atomic=True)]),
    ]


def items_compared(tenant: Tenant, declared: Declared) -> list[Line]:
    """As many conditions as a filter may have, each of a list of 64 KiB, at items of 256 KiB."""
    conditions = [{name: {"$eq": [[], number]}} for number in range(80) for name in ("a", "b")]
    wanted = [{"prefix": ["heavy"], "filter": {"$or": conditions}, "limit": 1000},
              {"prefix": ["heavy"], "filter": {"a": {"b": 1}}, "limit": 1000},
              {"prefix": ["heavy"], "limit": 1000}]  # fmt: skip
    sent = [tenant.raw("POST", "/v1/items:search", json.dumps(each).encode()) for each in wanted]
    return [Line(EVERYBODY // 3, [each]) for each in sent]


def paths_listed(tenant: Tenant, declared: Declared) -> list[Line]:
    """Ten thousand paths, compared with labels of which each may be anything; once, and a hundred times in a batch."""
    wanted = {"prefix": ["*"] * (ITEM_LABELS_MAX - 1), "suffix": ["*"] * ITEM_LABELS_MAX, "limit": 1000}
    one = tenant.raw("POST", "/v1/items:paths", json.dumps(wanted).encode())
    return [
        Line(EVERYBODY // 2, [one]),
        Line(EVERYBODY // 4, [_batch(tenant, paths=[wanted | {"limit": 1}] * ITEM_OPERATIONS_MAX)]),
        Line(EVERYBODY // 4, [_batch(tenant, searches=[{"prefix": ["nothing"]}] * ITEM_OPERATIONS_MAX)]),
    ]


def items_by_meaning(tenant: Tenant, declared: Declared) -> list[Line]:
    """As many vectors as are searched: by one model, by three that are not all kept open, by one that finds nothing.

    And a hundred queries of as many dimensions as there may be, by a model that nothing has a vector of.
    """

    def search(model: str, **more: Any) -> Request:
        wanted = {"near": {"model": model, "vector": [1.0] * rows.DIMENSIONS}, "limit": 1000} | more
        return tenant.raw("POST", "/v1/items:search", json.dumps(wanted).encode())

    packed = array("f", [0.5] * ITEM_DIMENSIONS_MAX).tobytes()
    queries = [{"near": {"model": "nothing", "packed": packed}, "limit": 1000}] * ITEM_OPERATIONS_MAX
    many = tenant.raw("POST", "/v1/items:batch", msgpack.packb({"searches": queries}), media_type=MSGPACK)
    return [
        Line(EVERYBODY // 4, [search(rows.MODELS[0])]),
        Line(EVERYBODY // 4, [search(rows.MODELS[0], filter={"a": 1})]),
        Line(EVERYBODY // 4, [search(model) for model in rows.MODELS]),
        Line(EVERYBODY // 4, [many]),
    ]


def vectors_put(tenant: Tenant, declared: Declared) -> list[Line]:
    """As many vectors of as many dimensions as an item may have, with it and after it; and a body of numbers."""
    packed = [array("f", [0.5 + n / ITEM_VECTORS_MAX] * ITEM_DIMENSIONS_MAX).tobytes() for n in range(ITEM_VECTORS_MAX)]
    vectors = [{"model": f"m{number}", "packed": packed} for number in range(ITEM_MODELS_MAX)]
    numbers = [{"model": "m", "vectors": [[0.5] * ITEM_DIMENSIONS_MAX] * (ITEM_VECTORS_MAX // 2)}]
    put = msgpack.packb({"value": {}, "vectors": vectors})
    give = msgpack.packb({"writes": [{"path": ["put"], "key": "one", "vectors": vectors}] * 2})
    return [
        Line(LARGE_AT_ONCE, [tenant.raw("PUT", "/v1/items/put/one", put, media_type=MSGPACK)]),
        Line(LARGE_AT_ONCE, [tenant.raw("POST", "/v1/items:batch", give, media_type=MSGPACK)]),
        Line(LARGE_AT_ONCE, [_batch(tenant, writes=[{"path": ["put"], "key": "n", "value": {}, "vectors": numbers}])]),
        Line(EVERYBODY // 2, [tenant.raw("PUT", "/v1/items/put/small", b'{"value":{}}')]),
    ]


def events_heard(tenant: Tenant, declared: Declared) -> list[Line]:
    """As many streams as may be, half of them not read, and many more who try to wait; all are told what eight save."""
    stream = tenant.raw("GET", "/v1/events", accept="text/event-stream")
    wait = tenant.raw("GET", "/v1/events?wait_seconds=30")
    saves_ = [tenant.raw("POST", SAVE.format(f"heard-{number}"), b'{"state":{"a":1}}') for number in range(8)]
    return [
        Line(limits.TENANT_WAITERS_MAX, [stream], reads=False),
        Line(WAITERS_TRYING, [wait]),
        *(Line(1, [each]) for each in saves_),
    ]


def events_behind(tenant: Tenant, declared: Declared) -> list[Line]:
    """Pages of events from their first on."""
    first = tenant.client.get("/v1/events", params={"types": "thread.status"}).json()["cursor"]
    begin = tenant.client.get("/v1/events").json()["cursor"]
    tenant.send_many([{"method": "POST", "url": SAVE.format("t"), "json": {"state": {"a": 1}}}] * limits.PAGE_ITEMS_MAX,
                     limits.THREAD_WRITES_ACTIVE_MAX)  # fmt: skip
    paths = [f"/v1/events?limit=1000&since={begin}", f"/v1/events?limit=1000&types=thread.status&since={first}"]
    return [Line(EVERYBODY // 2, [tenant.raw("GET", path)]) for path in paths]


def question(number: int, *actions: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A question, about a small action unless others are given."""
    asked = [*actions] or [{"tool": "pay", "args": {"amount": number}}]
    return {"external_id": f"q{number}", "actions": asked, "allowed": ["approve", "reject", "edit"], **more}


def asked(tenant: Tenant, thread_id: str, *questions: dict[str, Any]) -> list[str]:
    """The ids of approvals of a thread of their own, the newest first."""
    tenant.save(thread_id, state={"a": 1}, status="waiting", approvals=[*questions])
    found = tenant.client.get("/v1/approvals", params={"thread": thread_id, "limit": 1000}).json()
    return [each["approval_id"] for each in found["approvals"]]


def many_approvals(tenant: Tenant) -> None:
    """As many as a page may have, of as many actions as there may be, in threads of as many as may wait."""
    actions = [{"tool": "pay", "args": {"amount": 1}}] * APPROVAL_ACTIONS_MAX
    tenant.send_many([
        {"method": "POST", "url": SAVE.format(f"asking-{thread}"), "json": {
            "state": {"a": 1}, "approvals": [question(n, *actions) for n in range(APPROVALS_PENDING_MAX)],
        }}
        for thread in range(limits.PAGE_ITEMS_MAX // APPROVALS_PENDING_MAX + 1)
    ])  # fmt: skip


HEAVY_ARGS = {"a": [[]] * 40_000}


def heavy_question(tenant: Tenant, thread_id: str = "heavy") -> str:
    """An approval of nearly as many empty lists as there may be values."""
    action = {"tool": "pay", "args": HEAVY_ARGS, "hide": [f"/a/{n}" for n in range(64)]}
    [approval_id] = asked(tenant, thread_id, question(1, *([action] * 4)))
    return approval_id


def opened_approvals(tenant: Tenant, declared: Declared) -> list[Line]:
    path = f"/v1/approvals/{heavy_question(tenant)}/content"
    return [Line(EVERYBODY // 2, [tenant.raw("GET", path, accept=accept)]) for accept in (JSON, MSGPACK)]


def decisions(tenant: Tenant, declared: Declared) -> list[Line]:
    """Decisions about one approval in a thread of as many as may wait, each of which looks at all of them."""
    approval_id, *_ = asked(tenant, "decided", *map(question, range(APPROVALS_PENDING_MAX)))
    digest = tenant.client.get(f"/v1/approvals/{approval_id}/content").json()["action_hash"]
    path = f"/v1/approvals/{approval_id}/decisions"
    said = [
        {"action_hash": digest, "verdicts": [{"verdict": "approve"}]},  # by who asked: refused
        {"action_hash": "0" * 64, "verdicts": [{"verdict": "approve"}]},
        {"action_hash": digest, "verdicts": [{"verdict": "edit", "edited_args": HEAVY_ARGS}]},
    ]
    return whole(tenant, *(tenant.raw("POST", path, json.dumps(each).encode()) for each in said))


def askings(tenant: Tenant, declared: Declared) -> list[Line]:
    """Saves that ask as much as they may, again and again in each other's place."""
    questions = [question(n, {"tool": "pay", "args": {"amount": n}}) for n in range(APPROVALS_PENDING_MAX)]
    body = json.dumps({"state": {"a": 1}, "approvals": questions}).replace('"amount": 0', f'"amount": "{NUMBER}"')
    return whole(tenant, tenant.raw("POST", SAVE.format("asks-@N@"), body.encode()))


def decisions_waited(tenant: Tenant, declared: Declared) -> list[Line]:
    """As many who wait as may, for as many approvals, and many more who try, while others are decided."""
    questions = [*map(question, range(APPROVALS_PENDING_MAX))]
    threads = range(limits.TENANT_WAITERS_MAX // APPROVALS_PENDING_MAX)
    ids = [each for number in threads for each in asked(tenant, f"waited-{number}", *questions)]
    waits = [tenant.raw("GET", f"/v1/approvals/{each}?wait_seconds=30") for each in ids]
    return [*(Line(1, [each]) for each in waits), Line(WAITERS_TRYING, waits[:1]), *decisions(tenant, declared)[:1]]


def more_paths(tenant: Tenant, declared: Declared) -> list[Line]:
    """A hundred paths more than there may be, again and again."""
    writes = [{"path": [f"more-{NUMBER}", str(n)], "key": "k", "value": {}} for n in range(ITEM_OPERATIONS_MAX)]
    return whole(tenant, _batch(tenant, writes=writes))


_LONG = "x" * 200
FILTER_OF_MANY_VALUES = {"$or": [{"kind": {"$in": [f"{n}"] * 8}} for n in range(ITEM_FILTER_VALUES_MAX // 10 - 10)]}
FILTER_OF_DEPTH: dict[str, Any] = {"tags": [_LONG]}
for _ in range((ITEM_FILTER_DEPTH_MAX - 4) // 2):
    FILTER_OF_DEPTH = {"$or": [FILTER_OF_DEPTH, {"text": {"$gt": _LONG}}]}


BODIES = Case("three bodies of 32 MiB of escapes or empties, 20 of 199,000 empty lists, 105 that are accepted", bodies,
              frozenset({"200", "201", "202", "204", "403", "404", "409", "422"}))  # fmt: skip
LOOK_UPS = Case("128 look-ups at once", look_ups, frozenset({"200", "202", "204", "403", "404"}))
POLICIES = Case("128 look-ups of a tenant with 1,000 save policies and 2,000 retention policies", look_ups,
                rows=rows.policies, shares="policies")  # fmt: skip
POLICIES_SET = Case("bodies as above; 105 set one of 1,000 save policies or 2,000 retention policies", policies_set,
                    frozenset({"200"}), rows=rows.policies, shares="policies")  # fmt: skip
PUBLIC = Case("128 at once without a credential", public, frozenset({"200", "401", "403", "404"}))
CHECKED = Case("patterns and conditions over 6,000 texts, saved, loaded and migrated by 128", checked,
               frozenset({"200", "201", "202", "429"}))  # fmt: skip
REMOVED = Case("128 save and remove, a thousand names in a request", removals)

CASES: dict[str, Case] = {
    "silent connections": Case("CONNECTIONS_MAX - 64 connections with half a header", silent, frozenset()),
    "shown dense": Case("128 loads in JSON of states of 199,000 values", shown),
    "shown escaped": Case("128 loads in JSON of 10 MiB that become 60, of 32 MiB of binary, and gzip", escaped),
    "appended": Case("64 append 25,000 lists, 64 load what grows, in JSON", appends),
    "whole threads": Case("128 trajectories of 500 namespaces", whole_threads),
    "inlined": Case("128 loads that inline 8 MiB of artifacts that are named a thousand times", inlined),
    "one thread": Case("128 writers to one thread", one_threads_writes),
    "large bodies": Case("128 bodies of 32 MiB at once", large_bodies, frozenset({"201", "429"})),
    "faulty bodies": Case(
        "126 bodies with a fault behind 199,000 numbers, 99,000 maps or 32 MiB",
        faulty_bodies,
        frozenset({"422", "429"}),
    ),
    "long queries": Case("1,000 channels in a query, 80 headers of 400 bytes", long_queries),
    "searched states": Case(
        "128 pages with the states of 8 checkpoints of 199,000 values",
        pages(dense_states, "view=state", SAVE.format("t")),
        frozenset({"200", "422", "429"}),
    ),
    "policies of agents": Case(
        "128 save as agents of which 1,000 have save policies and 2,000 retention policies",
        saves_of_agents,
        rows=rows.policies,
        shares="policies",
    ),
    "placeholders": Case("42 save 10,000 placeholders of one leaf, 84 load what they stand for", placeholders),
    "described": Case(
        "3 save 25,000 placeholders of a small leaf, each with a preview and below a long name, 6 load them",
        described,
    ),
    "filtered": Case(
        "128 pages of which a filter of metadata looks at all and finds nothing",
        pages(heavy_history, "filter=" + quote('{"b":1}'), SAVE.format("t")),
        shares="history",
    ),
    "rows counted": Case(
        "nothing is sent; another process counts a tenant's 300,000 rows again and again",
        nothing,
        frozenset({"done"}),
        rows=rows.rows_to_count,
        beside=rows.count,
    ),
    "families": Case(
        "128 delete a family of 1,001 threads", families, frozenset({"422"}), rows=rows.families, shares="families"
    ),
    "segments": Case(
        "128 move 999 checkpoints into segments, list them there, look for what none of them is, and bring them back",
        segmenting,
        shares="history",
    ),
    "items compared": Case(
        "128 searches with 160 conditions, each of a list, or with none, over items of 256 KiB",
        items_compared,
        rows=rows.heavy_items,
        shares="heavy items",
    ),
    "items by meaning": Case(
        "96 searches by meaning over three times as many vectors as are searched, of which two thirds are kept open; 32"
        " batches of 100 queries of 4,096 dimensions",
        items_by_meaning,
        rows=rows.many_vectors,
        shares="vectors",
    ),
    "vectors put": Case(
        "64 puts; 9 give one item 512 or 1,024 vectors of 4,096 dimensions, or 32 as numbers", vectors_put
    ),
    "events heard": Case(
        "256 streams that nobody reads, 1,400 more who try to wait, 20 times a second each, and eight who save",
        events_heard,
        frozenset({"429"}),
        rows=rows.events,
        shares="events",
    ),
    "decisions waited for": Case(
        "256 who wait for as many approvals, 1,400 more who try to, 20 times a second each, and 128 who decide",
        decisions_waited,
        frozenset({"429"}),
    ),
    "asked anew": Case("128 ask 64 questions each, in threads of their own", askings, frozenset({"201", "429"})),
    "more paths": Case(
        "128 put into 100 paths more than there may be", more_paths, rows=rows.many_paths, shares="paths"
    ),
    "unknown keys": Case("128 connections with unknown keys that look right", unknown_keys, frozenset({"401"})),
}

VERBS: dict[str, Case] = {
    "read_events": Case("128 pages of 1,000 events, half of them of a type that none has", events_behind,
                        rows=rows.events, shares="events"),
    "claim_thread": BODIES,
    "renew_claim": BODIES,
    "release_claim": BODIES,
    "get_claim": LOOK_UPS,
    "require_claims": BODIES,
    "list_silent_threads": LOOK_UPS,
    "start_effect": Case("64 start effects of 10,000 values or 1 MiB, by 32 pointers, behind 1,000 checkpoints and "
                         "beside as many of one intent as there may be; 64 start small ones", effects_started),
    "finish_effect": Case("64 results of 1 MiB or 199,000 values, of effects that 64 start", effects_finished),
    "resolve_effect": BODIES,
    "get_effect": Case("128 look-ups of effects of 1 MiB of escapes", effects_shown),
    "list_effects": Case("128 pages of 1,000 effects", effects_listed),
    "list_unknown_effects": LOOK_UPS,
    "list_approvals": Case("128 pages of approvals of 32 actions each", pages(many_approvals),
                           frozenset({"200", "429"}), shares="approvals"),
    "get_approval": LOOK_UPS,
    "open_approval": Case("128 open 160,000 empty lists with 256 hidden parts", opened_approvals,
                          frozenset({"200", "429"})),
    "decide_approval": Case("128 decide about one of 64 approvals, a third of them by 40,000 empty lists", decisions,
                            frozenset({"403", "409", "422"})),
    "cancel_approval": LOOK_UPS,
    "list_approval_policies": LOOK_UPS,
    "put_approval_policy": BODIES,
    "delete_approval_policy": LOOK_UPS,
    "get_event_settings": LOOK_UPS,
    "put_event_settings": BODIES,
    "list_threads": Case("128 pages of 1,000 threads", pages(many_threads)),
    "get_thread": LOOK_UPS,
    "update_thread": BODIES,
    "delete_thread": REMOVED,
    "link_thread": Case("bodies as above; 105 link a thread that has 32 ancestors then", links,
                        frozenset({"200", "201"}), rows=rows.families, shares="families"),
    "unlink_thread": LOOK_UPS,
    "list_children": Case("128 pages of 1,000 children", pages(nobody, path="/v1/threads/wide/children"),
                          rows=rows.families, shares="families"),
    "copy_thread": Case("128 copies of a thread of 1,000 checkpoints", copies, shares="history"),
    "prune": REMOVED,
    "delete_runs": REMOVED,
    "archive_thread": Case("128 archive and restore a thread of 1,000 checkpoints", archiving, shares="history"),
    "restore_thread": Case("128 archive and restore a thread of 1,000 checkpoints", archiving, shares="history"),
    "save_checkpoint": Case("three of 32 MiB, 56 of 199,000 values or 1,000 channels, 69 small", saves),
    "compact_thread": Case("120 compact a list of 199,000 elements that 8 save again", compactions),
    "load_checkpoint": Case("128 answers of 32 MiB that are not read", unread),
    "list_checkpoints": Case("128 pages of 1,000 checkpoints, 16 KiB of empties in each one's metadata",
                             pages(heavy_history), frozenset({"200", "429"}), shares="history"),
    "search_checkpoints": Case("128 pages of 1,000 checkpoints, 16 KiB of empties in each one's metadata",
                               pages(heavy_history), frozenset({"200", "429"}), shares="history"),
    "channel_history": Case("128 histories of a channel, of 1,000 checkpoints, half of them with loads", histories,
                            shares="history"),
    "put_writes": Case("three of 32 MiB, 125 of 1,000 writes of 190 lists each", writes),
    "get_writes": Case("128 read 1,000 writes of 190 lists each", written),
    "get_usage": LOOK_UPS,
    "get_tenant_usage": LOOK_UPS,
    "set_tenant_quota": BODIES,
    "create_artifact": Case("128 uploads of 8 MiB", uploads),
    "begin_upload": BODIES,
    "get_upload": LOOK_UPS,
    "put_upload_part": Case("128 parts of 8 MiB of one upload", parts),
    "complete_upload": BODIES,
    "abort_upload": Case("128 begin uploads, send a part, abort", whole_uploads),
    "list_artifacts": Case("128 pages of 300 artifacts, all with previews and metadata", pages(many_artifacts),
                           frozenset({"200", "429"})),
    "get_artifact": LOOK_UPS,
    "delete_artifact": LOOK_UPS,
    "copy_artifact": BODIES,
    "get_artifact_content": Case("128 downloads of 16 MiB, half of them not read", downloads),
    "create_artifact_url": BODIES,
    "revoke_artifact_urls": LOOK_UPS,
    "read_artifact_url": Case("128 downloads of 16 MiB by signed URL, half of them not read", signed_downloads),
    "put_piece": Case("three leaves of 24 MiB, 125 of 20 KB", piece_in, frozenset({"200", "201"})),
    "get_piece": Case("128 leaves of 24 MiB, half of them not read", piece_out),
    "whoami": LOOK_UPS,
    "create_api_key": Case("128 make keys and revoke them", keys_made),
    "list_api_keys": Case("128 pages of 300 keys", pages(many_keys)),
    "revoke_api_key": Case("128 make keys and revoke them", keys_made),
    "list_operator_keys": LOOK_UPS,
    "revoke_operator_key": LOOK_UPS,
    "create_tenant": BODIES,
    "list_tenants": LOOK_UPS,
    "get_tenant": LOOK_UPS,
    "rename_tenant": BODIES,
    "suspend_tenant": BODIES,
    "resume_tenant": LOOK_UPS,
    "recover_tenant": BODIES,
    "read_audit": Case("128 pages of the audit log", pages(many_keys)),
    "get_audit_anchor": LOOK_UPS,
    "anchor_audit": LOOK_UPS,
    "get_audit_key": LOOK_UPS,
    "read_operator_audit": LOOK_UPS,
    "get_operator_audit_anchor": LOOK_UPS,
    "anchor_operator_audit": LOOK_UPS,
    "get_operator_audit_key": LOOK_UPS,
    "verify": Case("128 verify a thread of 1,000 checkpoints", verifying,
                   frozenset({"200", "202", "429"}), shares="history"),
    "verify_tenant": Case("128 verify 1,000 checkpoints", verifying,
                          frozenset({"200", "202", "409", "429"}), shares="history"),
    "verify_deployment": LOOK_UPS,
    "list_subjects": Case("128 pages of 1,000 subjects", pages(many_subjects)),
    "rotate_key": BODIES,
    "rewrap_subject_keys": LOOK_UPS,
    "get_keys": LOOK_UPS,
    "rewrap_tenant_keys": LOOK_UPS,
    "get_root_keys": LOOK_UPS,
    "shred_subject": Case("128 save and shred subjects", shreds),
    "shred_tenant": BODIES,
    "list_jobs": Case("128 pages of 100 jobs", pages(many_jobs)),
    "get_job": LOOK_UPS,
    "list_deployment_jobs": LOOK_UPS,
    "get_deployment_job": LOOK_UPS,
    "cancel_job": LOOK_UPS,
    "cancel_deployment_job": LOOK_UPS,
    "supersede_job": LOOK_UPS,
    "supersede_deployment_job": LOOK_UPS,
    "get_tenant_job": LOOK_UPS,
    "decrypt": BODIES,
    "get_retention": POLICIES,
    "put_retention": POLICIES_SET,
    "preview_retention": Case("128 previews of 1,000 threads of 1,000 agents with policies", previews,
                              rows=rows.policies, shares="policies"),
    "get_retention_round": LOOK_UPS,
    "begin_retention_round": LOOK_UPS,
    "get_thread_retention": POLICIES,
    "put_thread_retention": BODIES._replace(rows=rows.policies, shares="policies"),
    "get_retention_ceilings": LOOK_UPS,
    "put_retention_ceilings": BODIES,
    "get_save_policy": POLICIES,
    "put_save_policy": POLICIES_SET,
    "get_vector_policy": LOOK_UPS,
    "put_vector_policy": BODIES,
    "put_state_schema_version": Case("96 register 1, 60 and 500 patterns, 20 send 199,000 empty lists", schemas,
                                     frozenset({"201", "422", "429"})),
    "list_state_schemas": Case("128 lists of 100 schemas", lambda tenant, declared: (
        many_schemas(tenant), look_ups(tenant, declared))[1]),
    "get_state_schema": Case("128 look-ups of a schema of 1,000 versions and 4 MiB", look_ups,
                             rows=rows.schema_of_many_versions, shares="schemas"),
    "adopt_state": BODIES,
    "list_state_adoptions": Case("128 look-ups of 1,000 adoptions", look_ups,
                                 rows=rows.schema_of_many_versions, shares="schemas"),
    "plan_state_migration": CHECKED,
    "migrate_state": CHECKED,
    "roll_back_state": CHECKED,
    "get_state_migration": LOOK_UPS,
    "export_thread": Case("128 exports of a thread of 1,000 checkpoints", exports, shares="history"),
    "export_tenant": Case("128 exports of 1,000 checkpoints and 32 MiB", exports, shares="history"),
    "export_trajectory": Case("128 trajectories of 1,000 checkpoints", trajectories, shares="history"),
    "import_threads": Case("128 imports, half of them 8 MiB of nonsense", imports),
    "get_transfer_key": LOOK_UPS,
    "accept_unbound_import": BODIES,
    "put_item": Case("128 puts of 256 KiB of text or empty lists, half of them of one key", items_put),
    "get_item": Case("64 read items of 256 KiB, 64 batches of 100 of them, half of these not read", items_read,
                     frozenset({"200"}), rows=rows.heavy_items, shares="heavy items"),
    "delete_item": Case("128 make a path and remove it", items_deleted),
    "search_items": Case("64 searches with 1,000 values or as deep as may be, that find nothing in 50,000 items; 64 of"
                         " 1,000 items, half of them behind 100,000", items_searched, rows=rows.many_items,
                         shares="items"),
    "list_item_paths": Case("10,000 paths, 64 times with wildcards, 32 batches of a hundred such, 32 of searches",
                            paths_listed, rows=rows.many_paths, shares="paths"),
    "run_item_batch": Case("124 batches of 100 searches over 50,000 items with a filter, 4 of 100 puts of 256 KiB",
                           items_batched, rows=rows.many_items, shares="items"),
    "livez": PUBLIC,
    "readyz": PUBLIC,
    "openapi": PUBLIC,
    "docs": PUBLIC,
}  # fmt: skip

# By which case each limit is pushed; a case of `CASES`, or that of a verb. Those of `gateway.admission.limits`, of the
# page of limits, and whatever else decides a refusal.
LIMITS: dict[str, str] = {
    "HEADER_BYTES_MAX": "long queries",
    "HEADERS_MAX": "long queries",
    "HEADER_SECONDS_MAX": "silent connections",
    "WAITERS_MAX": "events heard",
    "TENANT_WAITERS_MAX": "decisions waited for",
    "APPROVAL_ACTIONS_MAX": "list_approvals",
    "APPROVAL_CONTENT_BYTES_MAX": "open_approval",
    "APPROVALS_PENDING_MAX": "asked anew",
    "WAITER_BYTES_MAX": "events heard",
    "CONNECTIONS_MAX": "silent connections",
    "BODY_BYTES_MAX": "large bodies",
    "HELD_BYTES_MAX": "large bodies",
    "TENANT_HELD_BYTES_MAX": "load_checkpoint",
    "BODY_IDLE_SECONDS_MAX": "large bodies",
    "BODY_SECONDS_MAX": "large bodies",
    "ARTIFACT_BYTES_MAX": "create_artifact",
    "PREVIEW_BYTES_MAX": "list_artifacts",
    "STREAM_BYTES_PER_SECOND_MIN": "create_artifact",
    "STREAM_IDLE_SECONDS_MAX": "get_artifact_content",
    "ANSWER_SLICE_BYTES": "load_checkpoint",
    "ANSWER_SECONDS_MAX": "load_checkpoint",
    "ANSWER_BYTES_PER_SECOND_MIN": "load_checkpoint",
    "CHANNELS_MAX": "save_checkpoint",
    "WRITES_MAX": "put_writes",
    "BULK_ITEMS_MAX": "prune",
    "ANCESTORS_MAX": "link_thread",
    "FAMILY_THREADS_MAX": "families",
    "VALUES_MAX": "save_checkpoint",
    "TREE_BYTES_MAX": "update_thread",
    "SLICED_BYTES_MIN": "shown dense",
    "DEPTH_MAX": "save_checkpoint",
    "FAULTS_MAX": "faulty bodies",
    "NAME_BYTES_MAX": "list_api_keys",
    "METADATA_BYTES_MAX": "list_checkpoints",
    "INLINED_BYTES_EACH_MAX": "inlined",
    "INLINED_BYTES_MAX": "inlined",
    "INLINED_ARTIFACTS_MAX": "inlined",
    "INLINED_AT_ONCE": "inlined",
    "PAGE_ITEMS_MAX": "search_checkpoints",
    "PAGE_ITEMS_DEFAULT": "search_checkpoints",
    "ACCEPT_BYTES_MAX": "long queries",
    "QUERY_FIELDS_MAX": "long queries",
    "TENANT_REQUESTS_IN_FLIGHT_MAX": "save_checkpoint",
    "THREAD_WRITES_ACTIVE_MAX": "one thread",
    "THREAD_WRITES_WAITING_MAX": "one thread",
    "THREAD_WAIT_SECONDS_MAX": "one thread",
    "EXPORT_BYTES_MAX": "export_tenant",
    "TRANSFERS_AT_ONCE": "export_tenant",
    "TENANT_TRANSFERS_AT_ONCE": "export_tenant",
    "TRAJECTORY_STEPS_MAX": "export_trajectory",
    "REFUSED_SECONDS_MAX": "import_threads",
    "TRANSFER_RETRY_SECONDS": "import_threads",
    "RETRY_AFTER_SECONDS": "large bodies",
    "REQUESTS_IN_FLIGHT_MAX": "save_checkpoint",
    "VERSION_SCHEMAS_MAX": "long queries",
    "ID_BYTES_MAX": "list_subjects",
    "HOLES_MAX": "placeholders",
    "PREVIEWS_BYTES_MAX": "described",
    "RESOLVED_BYTES_MAX": "placeholders",
    "LIST_ELEMENTS_MAX": "appended",
    "KEPT_BYTES_MAX": "compact_thread",
    "HISTORY_BYTES_MAX": "searched states",
    "HISTORY_MANIFESTS_BYTES_MAX": "list_checkpoints",
    "HISTORY_SCAN_ROWS_MAX": "filtered",
    "PART_BYTES_MAX": "put_upload_part",
    "DEFINITION_BYTES_MAX": "put_state_schema_version",
    "SUBSCHEMAS_MAX": "put_state_schema_version",
    "PATTERNS_MAX": "put_state_schema_version",
    "PATTERN_BYTES_MAX": "put_state_schema_version",
    "VERSIONS_MAX": "get_state_schema",
    "SCHEMA_BYTES_MAX": "get_state_schema",
    "ADOPTIONS_MAX": "list_state_adoptions",
    "CPU_SECONDS_MAX": "migrate_state",
    "KILLS_MAX": "migrate_state",
    "ARCHIVE_READ_BYTES_MAX": "archive_thread",
    "AGENT_POLICIES_MAX": "put_retention",
    "AGENT_POLICY_ROWS_MAX": "put_retention",
    "AGENT_SAVE_POLICIES_MAX": "policies of agents",
    "ITEM_LABELS_MAX": "list_item_paths",
    "ITEM_PATHS_MAX": "more paths",
    "ITEM_VALUE_BYTES_MAX": "put_item",
    "ITEM_OPERATIONS_MAX": "run_item_batch",
    "ITEM_OFFSET_MAX": "search_items",
    "ITEM_INDEX_BYTES_MAX": "items by meaning",
    "ITEM_VECTORS_MAX": "vectors put",
    "ITEM_DIMENSIONS_MAX": "vectors put",
    "ITEM_MODELS_MAX": "vectors put",
    "ITEM_FILTER_DEPTH_MAX": "search_items",
    "ITEM_FILTER_VALUES_MAX": "run_item_batch",
    "ITEM_COMPARED_BYTES_MAX": "items compared",
    "ITEM_SCAN_ROWS_MAX": "run_item_batch",
    "ITEM_OPENED_ROWS_MAX": "search_items",
    "ITEM_OPENED_BYTES_MAX": "items compared",
    "EFFECT_ARGS_BYTES_MAX": "start_effect",
    "EFFECT_RESULT_BYTES_MAX": "finish_effect",
    "EFFECT_IDENTITY_MAX": "start_effect",
    "EFFECT_ARGS_VALUES_MAX": "start_effect",
    "EFFECTS_MAX": "start_effect",
    "EFFECT_EXECUTIONS_MAX": "start_effect",
}
_A_TEXT = "a text of at most some KiB of a body or head, compared with a pattern; the body's limits bound how many"
_A_WORKER = "counted in a worker process, which CPU_SECONDS_MAX ends: migrate_state"
_A_STEP = "of one operation of a step; DEFINITION_BYTES_MAX bounds all of them, and a worker compiles them"
_A_NUMBER = "a number that is compared; nothing is as large as it says"
# Which limits no case pushes, and why.
UNPUSHED: dict[str, str] = {
    "ID_CHARACTERS_MAX": _A_TEXT,
    "NAMESPACE_BYTES_MAX": _A_TEXT,
    "WORD_CHARACTERS_MAX": _A_TEXT,
    "TASK_PATH_CHARACTERS_MAX": _A_TEXT,
    "TOKEN_CHARACTERS_MAX": _A_TEXT,
    "_MEDIA_TYPE_CHARACTERS_MAX": _A_TEXT,
    "SEARCHABLE_KEY_BYTES_MAX": _A_TEXT,
    "ITEM_PATH_BYTES_MAX": _A_TEXT,
    "ITEM_FILTER_BYTES_MAX": "a body's limits bound them together; what a filter costs is how many values it has",
    "ITEM_TTL_SECONDS_MAX": _A_NUMBER,
    "CLAIM_NOTE_BYTES_MAX": _A_TEXT,
    "EFFECT_POINTER_BYTES_MAX": _A_TEXT,
    "REPEAT_WINDOW_SECONDS": "how long the same is refused under another name",
    "LEASE_SECONDS_MAX": _A_NUMBER,
    "EFFECT_LEASE_SECONDS_MAX": _A_NUMBER,
    "TAKEOVERS_MAX": "after how many a thread is handed to nobody",
    "APPROVALS_ENDED_MAX": "a thread keeps so many rows of some hundred bytes; what reads all of them: decide_approval",
    "EXPIRES_SECONDS_MAX": _A_NUMBER,
    "_DECISIONS_MAX": _A_NUMBER,
    "APPROVAL_POLICIES_MAX": "rows of 200 bytes, which a question reads: put_approval_policy",
    "WAIT_SECONDS_MAX": "how long a waiter lasts, which takes nothing meanwhile",
    "URL_SECONDS_MAX": "how long a URL is good for: nothing is kept for it",
    "_FLOAT_MAX": _A_NUMBER,
    "SECONDS_MAX": _A_NUMBER,
    "COUNT_MAX": _A_NUMBER,
    "SIZE_MAX": _A_NUMBER,
    "_BYTES_MAX": _A_NUMBER,
    "PARTS_MAX": "80 GiB of parts; each is a row of some bytes",
    "SUMMARY_OVER_QUOTA_BYTES_MAX": "less than whoever is below the quota may send: compact_thread",
    "ARCHIVE_BYTES_MAX": "256 MiB of sealed rows take minutes to save; what reads them goes by slices of some MiB",
    "SEARCHABLE_KEYS_MAX": "16 digests a checkpoint, of metadata that METADATA_BYTES_MAX bounds",
    "EXPRESSION_CHARACTERS_MAX": _A_WORKER,
    "EVALUATIONS_MAX": _A_WORKER,
    "NODES_MAX": _A_WORKER,
    "WORK_MAX": _A_WORKER,
    "BYTES_MAX": _A_WORKER,
    "NESTING_MAX": _A_STEP,
    "OPERATIONS_MAX": _A_STEP,
    "LITERAL_BYTES_MAX": _A_STEP,
    "MAPPINGS_MAX": _A_STEP,
    "TARGETS_MAX": _A_STEP,
    "TOKENS_MAX": _A_STEP,
    "POINTER_CHARACTERS_MAX": _A_STEP,
    "SEPARATOR_CHARACTERS_MAX": _A_STEP,
    "INTEGER_CHARACTERS_MAX": _A_STEP,
    "RECORD_BYTES_MAX": "of an export that a deployment sealed: nobody else makes one",
    "ATTEMPTS_MAX": "how often the object store is asked again",
    "FAILURES_MAX": "after how many a round in the background gives up",
    "OFFSET_SECONDS_MAX": "of this process's clock, which no client sets",
    "INDEX_DIMENSIONS_MAX": "of an operator's command",
    "_PEPPERS_MAX": "of an operator's settings",
    "_TICKS_MAX": "of the clock that ids are made by",
}
ALL: dict[str, tuple[Case, Declared]] = {
    **{name: (case, DECLARED[name]) for name, case in VERBS.items() if name in DECLARED},
    **{name: (case, DECLARED["list_checkpoints"]) for name, case in CASES.items()},
}
