import base64
from collections import Counter
from functools import cache
from typing import Any
from uuid import uuid4

import httpx
import msgpack
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.support.break_glass import decrypting_key
from tests.support.gateway import GatewayProcess
from tests.support.operations import (
    AUTHENTICATED,
    DECLARED,
    NAMED,
    OF_SUBJECTS,
    Tenancy,
    assert_problem,
    request_of,
    save_thread,
)

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
FUZZ = settings(
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
# How many times the examples of one test; derandomized, so that the long run begins with those of the short one.
TIMES = pytest.mark.parametrize("times", [1, pytest.param(40, marks=pytest.mark.soak)], ids=["short", "long"])


def _check(answer: httpx.Response) -> None:
    """What every answer keeps, whatever was sent."""
    assert answer.status_code < 500 or answer.status_code == 503, answer.text[:500]
    if answer.status_code in {429, 503}:
        assert int(answer.headers["retry-after"]) >= 1
    if answer.status_code >= 400 and answer.request.method != "HEAD":
        assert_problem(answer)
    assert answer.headers["x-request-id"]
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.fixture(scope="module")
def tenancy(running_gateway: GatewayProcess) -> Tenancy:
    return Tenancy(running_gateway)


@cache
def _decrypting_key(gateway: GatewayProcess) -> str:
    return decrypting_key(gateway)


def _operating_key(tenancy: Tenancy, name: str) -> str | None:
    """The key of an operator who may do this, where operators do it."""
    permission = DECLARED[name].operation.permission
    if permission == "decrypt-any":
        return _decrypting_key(tenancy.gateway)
    return tenancy.gateway.operator_key if permission == "operator" else None


@pytest.fixture(scope="module")
def document(running_gateway: GatewayProcess) -> Any:
    return httpx.get(f"{running_gateway.url}/openapi.json").json()


@pytest.fixture(scope="module")
def schema(running_gateway: GatewayProcess, document: Any) -> Any:
    made = schemathesis.openapi.from_dict(document)
    made.config.base_url = running_gateway.url
    made.config.generation.update(allow_x00=True)
    return made


def test_the_document_lists_every_operation(document: Any) -> None:
    listed = {one["operationId"] for methods in document["paths"].values() for one in methods.values()}
    assert listed == DECLARED.keys()


@TIMES
@pytest.mark.parametrize("name", DECLARED)
def test_requests_made_from_the_document_conform(tenancy: Tenancy, schema: Any, name: str, times: int) -> None:
    operation = schema.find_operation_by_id(name)
    api_key = _operating_key(tenancy, name) or tenancy.tenant()
    headers = {"Authorization": f"Bearer {api_key}"}
    if name in OF_SUBJECTS:
        headers["Stateroom-Subject"] = "fuzz"

    statuses: Counter[int] = Counter()

    @settings(FUZZ, max_examples=6 * times)
    @given(case=operation.as_strategy())
    def fuzz(case: Any) -> None:
        case.headers.pop("Stateroom-Subject", None)
        answer = case.call(headers=headers)
        if answer.status_code >= 400:
            assert answer.headers["content-type"] == ["application/problem+json"]
        case.validate_response(answer, checks=CHECKS)
        statuses[answer.status_code] += 1

    fuzz()
    assert statuses.total() >= (1 if DECLARED[name].operation.public else 5)
    if not DECLARED[name].operation.public:  # without a credential there is no door; a made-up token opens nothing
        assert not statuses.keys() & {401, 403, 405}, "a valid key of the right kind got no further than the door"


LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=8)
    | st.binary(max_size=8)
    | st.builds(msgpack.ExtType, st.integers(0, 127), st.binary(max_size=8))
)
TREES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5) | st.integers(0, 9), inner, max_size=4)
    ),
    max_leaves=12,
)
WITH_BODY = [name for name, one in AUTHENTICATED.items() if one.operation.body is not None]


def _members(name: str) -> list[str]:
    return list(DECLARED[name].operation.body.__struct_fields__)


def _places(name: str) -> dict[str, str]:
    return dict.fromkeys(NAMED, "x")


def _client(tenancy: Tenancy, name: str, api_key: str) -> Any:
    return tenancy.client(_operating_key(tenancy, name) or api_key, "fuzz" if name in OF_SUBJECTS else None)


@TIMES
@pytest.mark.parametrize("name", WITH_BODY)
def test_any_messagepack_is_answered(tenancy: Tenancy, name: str, times: int) -> None:
    request = request_of(DECLARED[name], **_places(name))
    shaped = st.dictionaries(st.sampled_from(_members(name)), TREES, max_size=5)
    bodies = st.binary(max_size=64) | TREES.map(msgpack.packb) | shaped.map(msgpack.packb)
    with _client(tenancy, name, tenancy.tenant()) as client:

        @settings(FUZZ, max_examples=12 * times)
        @given(body=bodies, accept=st.sampled_from(["application/json", "application/msgpack"]))
        def fuzz(body: bytes, accept: str) -> None:
            headers = {"Content-Type": "application/msgpack", "Accept": accept}
            _check(client.request(request.method, request.path, content=body, headers=headers))

        fuzz()


@TIMES
@pytest.mark.parametrize("media", ["application/json", "application/msgpack"])
@pytest.mark.parametrize("name", WITH_BODY)
def test_a_valid_request_with_bytes_changed_is_answered(tenancy: Tenancy, name: str, media: str, times: int) -> None:
    request = request_of(DECLARED[name], **_places(name))
    packed = media == "application/msgpack"
    valid = msgpack.packb(request.body) if packed else httpx.Request("POST", "http://x", json=request.body).content
    edits = st.lists(st.tuples(st.integers(0, len(valid) - 1), st.integers(0, 255)), min_size=1, max_size=4)
    with _client(tenancy, name, tenancy.tenant()) as client:

        @settings(FUZZ, max_examples=6 * times)
        @given(edits=edits, cut=st.integers(0, len(valid)))
        def fuzz(edits: list[tuple[int, int]], cut: int) -> None:
            changed = bytearray(valid)
            for at, byte in edits:
                changed[at] = byte
            body = bytes(changed[:cut]) if cut % 3 == 0 else bytes(changed)
            _check(client.request(request.method, request.path, content=body, headers={"Content-Type": media}))

        fuzz()


def test_any_state_comes_back_in_both_formats(tenancy: Tenancy) -> None:
    """Whatever a MessagePack client can say in a state is stored, and readable byte for byte and as JSON."""
    with tenancy.client(tenancy.tenant(), "fuzz") as client:

        @settings(FUZZ, max_examples=80)
        @given(tree=TREES)
        def fuzz(tree: Any) -> None:
            path = f"/v1/threads/{uuid4()}/checkpoints"
            body = msgpack.packb({"state": {"value": tree}})
            saved = client.post(path, content=body, headers={"Content-Type": "application/msgpack"})
            _check(saved)
            if saved.status_code != 201:
                assert saved.json()["code"] == "invalid-request"  # a misused $ word
                return
            channels = client.get(f"{path}/latest?view=channels").json()["channels"]
            if channels["value"]["encoding"] == "msgpack":
                assert base64.b64decode(channels["value"]["data"]) == msgpack.packb(tree)
            for accept in ("application/json", "application/msgpack"):
                answer = client.get(f"{path}/latest", headers={"Accept": accept})
                assert answer.status_code == 200
                assert answer.headers["content-type"] == accept

        fuzz()


def test_any_path_query_and_header_is_answered(tenancy: Tenancy) -> None:
    with tenancy.client(tenancy.tenant(), "fuzz") as client:
        thread = save_thread(client)
        base = f"/v1/threads/{thread.thread_id}/checkpoints"
        names = ["namespace", "before", "step", "filter", "limit", "cursor", "since", "run_id", "view", "channel"]
        segment = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="/?#"), min_size=1, max_size=9)
        header = st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=12)

        @settings(FUZZ, max_examples=250)
        @given(
            path=st.sampled_from(
                ["/v1/threads", "/v1/checkpoints", base, f"{base}/latest", f"{base}/latest/channel-history"]
            )
            | segment.map(lambda text: f"/v1/threads/{text}")
            | segment.map(lambda text: f"{base}/{text}"),
            query=st.dictionaries(st.sampled_from(names) | segment, st.text(max_size=9), max_size=2),
            headers=st.dictionaries(
                st.sampled_from(["If-Match", "Accept", "X-Request-Id", "Stateroom-Subject", "Authorization"]),
                header,
                max_size=1,
            ),
        )
        def fuzz(path: str, query: dict[str, str], headers: dict[str, str]) -> None:
            try:
                answer = client.get(path, params=query, headers=headers)
            except (httpx.InvalidURL, UnicodeEncodeError):
                return
            _check(answer)

        fuzz()
