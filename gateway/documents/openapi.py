"""The OpenAPI 3.1 document, made from the declarations the routes are made from.

``python -m gateway.documents.openapi`` prints it as it is kept in ``tests/golden/openapi.json``.
"""

import functools
import inspect
import re
import sys
from typing import Any

import msgspec
from msgspec import Struct

from gateway import routes, wire
from gateway.authentication.principals import HEARING, LISTING
from gateway.bodies.codec import EVENTS_MEDIA_TYPE, LINES_MEDIA_TYPE, MEDIA_TYPES
from gateway.documents.examples import answer_of, body_of, stream_of
from gateway.documents.member_words import words_of
from gateway.documents.schema_words import PARAMETERS, TAGS, path_schema, portable
from gateway.problems import KINDS
from gateway.routing.operations import Operation
from gateway.telemetry import build
from storage.encoding import encode_json

_NOT_MODIFIED, _UNAUTHENTICATED, _METHOD_NOT_ALLOWED = 304, 401, 405
_PATH_PARAMETER = re.compile(r"\{(\w+)\}")
_ANY = ("bad-request", "headers-too-large", "http-version-unsupported", "unauthenticated", "not-acceptable",
        "invalid-request", "internal", "overloaded", "draining", "tenant-busy", "too-many-failures", "tenant-suspended",
        "database-unavailable", "database-read-only", "build-too-old")  # fmt: skip
_WITH_RAW_BODY = ("malformed-body", "body-timeout", "body-too-large", "unsupported-media-type")
_WITH_BODY = (*_WITH_RAW_BODY, "limit-exceeded")
# A write brings its thread back from the archive.
_WITH_RESTORE = ("archive-too-large", "archive-unavailable")
# Any operation on a subject's state may find its keys destroyed.
_WITH_SUBJECT = ("subject-required", "subject-mismatch", "key-unavailable", "key-destroyed")
_LISTING = (
    " A service key with tenant:admin that names no subject lists over all of the tenant's subjects, by clear columns"
    " only."
)
_HEARING = (
    " A service key with event:read or tenant:admin that names no subject hears all of the tenant's subjects, and what"
    " happens to its jobs and keys."
)
_WITH_SHARE = ("client-share-required", "client-share-wrong", "client-share-unexpected")
_WITH_VERSION = (
    "state-too-new", "state-schema-mismatch", "state-upcast-failed", "too-costly", "tenant-too-costly",
)  # fmt: skip
_OPEN = {"type": "object", "additionalProperties": True}
_ID = "An id; one that does not match [A-Za-z0-9][A-Za-z0-9._:@|+-]{0,254} travels as ~ and its base64url."
_HEADERS: dict[str, dict[str, Any]] = {
    "If-Match": {
        "description": "The ETag of the head you loaded, or several: 412 head-moved when none of them is the head any "
        "more; a weak one never is (RFC 9110). *: there must be a head, whichever; not enough for changes and for "
        "strict threads.",
        "example": '"1f0c6c3e-0000-6000-8000-000000000001"',
    },
    "If-Match-Tag": {
        "name": "If-Match",
        "description": "412 content-changed when the content has none of these ETags.",
    },
    "If-None-Match": {
        "schema": {"type": "string", "enum": ["*"]},
        "description": "*: the namespace must not have a checkpoint yet.",
    },
    "If-None-Match-Head": {
        "name": "If-None-Match",
        "description": "304 when the checkpoint is the head that one of these ETags names, and it has no pending "
        "writes, or Stateroom-Known-Token is its thread token; only with resolve=pointers.",
    },
    "If-None-Match-Tag": {
        "name": "If-None-Match",
        "description": "304 when what is asked for has one of these ETags.",
    },
    "If-Unmodified-Since": {
        "description": "412 content-changed when the artifact is younger; ignored beside If-Match.",
        "example": "Sun, 06 Nov 1994 08:49:37 GMT",
    },
    "If-Modified-Since": {
        "description": "304 when the artifact is not younger; ignored beside If-None-Match.",
        "example": "Sun, 06 Nov 1994 08:49:37 GMT",
    },
    "Range": {
        "description": "One range of bytes: 206, or 416. Several ranges, or another unit: all of it.",
        "example": "bytes=0-1023",
    },
    "Want-Repr-Digest": {
        "description": "`sha-256=10` asks for the digest of the whole content (RFC 9530).",
    },
    "Want-Content-Digest": {
        "description": "`sha-256=10` asks for the digest of what the answer holds (RFC 9530).",
    },
    "If-Range": {
        "description": "The ETag the range is of; with another one, all of it.",
    },
    "Content-Digest": {
        "schema": {"type": "string", "pattern": "^sha-256=:[A-Za-z0-9+/]{43}=:$"},
        "description": "SHA-256 of the body (RFC 9530), verified: 400 digest-mismatch.",
    },
    "Stateroom-Artifact-Name": {
        "required": True,
        "description": "The file's name: visible ASCII, or UTF-8'' and percent-encoded UTF-8 (RFC 8187); 1 to 255 "
        "bytes.",
        "example": "UTF-8''screen%20shot.png",
    },
    "Stateroom-Artifact-Metadata": {
        "description": "base64url of a JSON object of at most 16 KiB.",
    },
    "Stateroom-Artifact-Preview": {
        "description": "base64url of at most 4,096 bytes: a thumbnail or a summary.",
    },
    "Idempotency-Key": {
        "schema": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"},
        "description": "Makes repeating the request safe: again, with the same body, it does nothing and names "
        "what was made, with 200 instead of 201 and Idempotency-Replayed; a secret is shown once. With another body, "
        "422 idempotency-key-reused.",
    },
    "Stateroom-Subject": {
        "description": "For whom a service key acts; ~shared is the tenant's own subject. " + _ID,
        "example": "user-42",
    },
    "Stateroom-Known-Token": {
        "schema": {"type": "string", "maxLength": 2048},
        "description": "The newest Stateroom-Thread-Token you kept of this thread: 409 rollback-detected when it is "
        "older than that, or another one.",
    },
    "Stateroom-Client-Share": {
        "schema": {"type": "string", "minLength": 44, "maxLength": 44, "contentEncoding": "base64"},
        "description": "32 random bytes that only the client keeps. A thread that is made with it (by its first save, "
        "pending write or settings) opens only with it from then on; lost share, lost data.",
    },
    "Accept-State-Version": {
        "description": "The version of its state that the reader knows, for every schema or by schema. State that was "
        "saved at another one is converted in memory, pending writes too; that of a schema which the header does "
        "not name is 409 state-schema-mismatch. Absent: as it was saved.",
        "example": "travel=2",
    },
    "Stateroom-Principal": {
        "schema": {"type": "string", "maxLength": 341},
        "description": "The person who decides, as a backend of many people says (approval:assert): an id, as it is or "
        "~ and its base64url.",
    },
    "Last-Event-ID": {
        "schema": {"type": "string", "maxLength": 86},
        "description": "The id of the last line of a stream, or a cursor: events behind it; it wins over since.",
    },
    "X-Request-Id": {
        "schema": {"type": "string", "pattern": "^[A-Za-z0-9._:-]{1,128}$"},
        "description": "Echoed, logged, and in problems.",
    },
}  # fmt: skip
_PARAMETERS = {
    key: {"name": key, "in": "header"}
    | ({"required": True} if "required" in header else {})
    | {"schema": {"type": "string"}}
    | header
    for key, header in _HEADERS.items()
}


def document(operations: list[tuple[str, Operation[Any]]], *, public_url: str) -> dict[str, Any]:
    """The OpenAPI document of ``operations``, given with their group."""
    every = (shape for _, one in operations for shape in (one.body, one.returns, one.returns_otherwise, *one.lines))
    shapes = [shape for shape in every if shape is not None]
    schemas = portable(dict(sorted(_unique_schemas([*shapes, wire.problems.Problem]).items())))
    for name, schema in schemas.items():
        if "description" in schema:  # a docstring, which Python takes the indentation out of from 3.13 on
            schema["description"] = inspect.cleandoc(schema["description"])
        made_from = [each.__name__ for each in wire.SHAPES[name].__mro__] if name in wire.SHAPES else [name]
        for member, described in schema["properties"].items():
            described["description"] = words_of(member, made_from)
    schemas["Problem"]["properties"]["code"]["enum"] = sorted(KINDS)
    paths: dict[str, dict[str, Any]] = {}
    for group, one in operations:
        paths.setdefault(one.path, {})[one.method.value.lower()] = {"tags": [group], **_operation(one)}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Stateroom",
            "version": build(),
            "description": "Secure multi-tenant persistence gateway for AI agents: their save game.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": public_url}],
        "security": [{"apiKey": []}],
        "tags": [{"name": name, "description": text} for name, text in TAGS.items()],
        "paths": dict(sorted(paths.items())),
        "components": {
            "schemas": schemas,
            "parameters": _PARAMETERS,
            "headers": {
                "ETag": {"description": "Of state, the head's id, quoted; else opaque.", "schema": {"type": "string"}},
                "Stateroom-Thread-Token": {
                    "description": "Opaque; keep the newest of each thread and namespace where the store's owner "
                    "cannot reach, and send it as Stateroom-Known-Token.",
                    "schema": {"type": "string"},
                },
                "WWW-Authenticate": {"description": "Bearer.", "schema": {"type": "string"}},
                "Allow": {"description": "The methods of the path.", "schema": {"type": "string"}},
                "Location": {
                    "description": "The path of what was made; with 202, of the job.",
                    "schema": {"type": "string", "format": "uri-reference"},
                },
                "Idempotency-Replayed": {
                    "description": "true: nothing was done now, because an equal request had done it.",
                    "schema": {"type": "string", "enum": ["true"]},
                },
                "Retry-After": {"description": "Seconds.", "schema": {"type": "integer", "minimum": 1}},
                "X-Request-Id": {"description": "As sent, or minted.", "schema": {"type": "string"}},
                "Content-Digest": {"description": "SHA-256 of all of it (RFC 9530).", "schema": {"type": "string"}},
                "Content-Range": {"description": "Which bytes, with 206 and 416.", "schema": {"type": "string"}},
                "Last-Modified": {"description": "When the artifact was made.", "schema": {"type": "string"}},
                "Accept-Ranges": {"description": "bytes", "schema": {"type": "string"}},
                "Content-Disposition": {
                    "description": "attachment or inline, with the file's name.",
                    "schema": {"type": "string"},
                },
            },
            "securitySchemes": {
                "apiKey": {
                    "type": "http",
                    "scheme": "bearer",
                    "bearerFormat": "sr_live_<key id>_<secret><checksum>",
                    "description": "An API key of a subject, a service or an operator.",
                }
            },
        },
    }


def _unique_schemas(shapes: list[Any]) -> dict[str, Any]:
    unique = list(dict.fromkeys(shapes))
    _, schemas = wire.problems.component_schemas(unique)
    return schemas


def _reference(shape: type[Struct]) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{shape.__name__}"}


def _content(shape: type[Struct], example: Any, *, both: bool = True) -> dict[str, Any]:
    media: dict[str, Any] = {"schema": _reference(shape)}
    content = {MEDIA_TYPES["json"]: {**media, "example": example}}
    return {**content, MEDIA_TYPES["msgpack"]: media} if both else content


def _query_parameters(shape: type[Struct]) -> list[dict[str, Any]]:
    _, schemas = wire.problems.component_schemas([shape])
    described = schemas[shape.__name__]
    required = described.get("required", [])
    parameters = []
    for name, schema in described["properties"].items():
        plain = dict(schema)
        if plain.get("default", ...) is None:
            del plain["default"]
        if "anyOf" in plain:  # absent is how a query says null
            options = [option for option in plain["anyOf"] if option != {"type": "null"}]
            plain = options[0] if len(options) == 1 else {"anyOf": options}
        if isinstance(plain.get("enum"), list):
            plain["enum"] = [choice for choice in plain["enum"] if choice is not None]
        shown = portable(plain, name) | ({"default": plain["default"]} if "default" in plain else {})
        parameters.append(
            {
                "name": name,
                "in": "query",
                "required": name in required,
                "schema": shown,
                "description": PARAMETERS[name],
            }
        )
    return parameters


def _problem_responses(codes: list[str]) -> dict[str, Any]:
    by_status: dict[int, list[str]] = {}
    for code in dict.fromkeys(codes):
        by_status.setdefault(KINDS[code].status, []).append(code)
    answers: dict[str, Any] = {}
    for status, names in sorted(by_status.items()):
        headers = {"X-Request-Id": {"$ref": "#/components/headers/X-Request-Id"}}
        if status == _UNAUTHENTICATED:
            headers["WWW-Authenticate"] = {"$ref": "#/components/headers/WWW-Authenticate"}
        if status == _METHOD_NOT_ALLOWED:
            headers["Allow"] = {"$ref": "#/components/headers/Allow"}
        if any(KINDS[name].retry_after_seconds is not None for name in names):
            headers["Retry-After"] = {"$ref": "#/components/headers/Retry-After"}
        answers[str(status)] = {
            "description": ", ".join(sorted(names)),
            "headers": headers,
            "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
        }
    return answers


def _codes(one: Operation[Any]) -> list[str]:
    if one.public:
        return ["bad-request", "http-version-unsupported", "method-not-allowed", "internal", *one.problems]
    codes = [*_ANY, *one.problems]
    if one.permission is not None:
        codes.append("permission-denied")
    if one.subject:
        codes += _WITH_SUBJECT
    if "Stateroom-Client-Share" in one.headers:
        codes += _WITH_SHARE
    if "Accept-State-Version" in one.headers:
        codes += _WITH_VERSION
    if one.permission == "state:write" and "thread-archived" in one.problems:
        codes += _WITH_RESTORE
    if one.body is not None:
        codes += _WITH_BODY
    if one.raw_body:
        codes += _WITH_RAW_BODY
    return codes


def _operation(one: Operation[Any]) -> dict[str, Any]:  # noqa: C901, PLR0912  one branch for each member
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": path_schema(name), "description": PARAMETERS[name]}
        for name in _PATH_PARAMETER.findall(one.path)
    ]
    if one.query is not None:
        parameters += _query_parameters(one.query)
    names = [*one.headers, *(["Stateroom-Subject"] if one.subject else []), "X-Request-Id"]
    parameters += [{"$ref": f"#/components/parameters/{name}"} for name in names]
    responses: dict[str, Any] = {}
    for status in one.statuses:
        answer: dict[str, Any] = {"description": one.summary}
        headers = {"X-Request-Id": {"$ref": "#/components/headers/X-Request-Id"}}
        if one.etag:
            headers["ETag"] = {"$ref": "#/components/headers/ETag"}
        if one.token:
            headers["Stateroom-Thread-Token"] = {"$ref": "#/components/headers/Stateroom-Thread-Token"}
        if status in {201, 202}:
            headers["Location"] = {"$ref": "#/components/headers/Location"}
        if status != 201 and (one.statuses[0] == 201 or "Idempotency-Key" in one.headers):
            headers["Idempotency-Replayed"] = {"$ref": "#/components/headers/Idempotency-Replayed"}
        for name in one.extra_headers:
            headers[name] = {"$ref": f"#/components/headers/{name}"}
        answer["headers"] = headers
        if status == _NOT_MODIFIED:
            pass  # has no content
        elif one.returns is not None:
            shape = one.returns if status == one.statuses[0] else one.returns_otherwise or one.returns
            answer["content"] = _content(shape, answer_of(one.name, status), both=not one.public)
            if one.stream:
                answer["content"][EVENTS_MEDIA_TYPE] = {"schema": {"type": "string"}, "example": stream_of(one.name)}
        elif one.content:
            answer["content"] = {"*/*": {"schema": {}}}
        elif one.lines:
            answer["content"] = {LINES_MEDIA_TYPE: {"schema": {"oneOf": [_reference(each) for each in one.lines]}}}
        elif one.public:
            answer["content"] = {one.media_type: {"schema": _OPEN if "json" in one.media_type else {"type": "string"}}}
        responses[str(status)] = answer
    described: dict[str, Any] = {
        "operationId": one.name,
        "summary": one.summary,
        "parameters": parameters,
        "responses": responses | _problem_responses(_codes(one)),
    }
    if one.permission is not None:
        more = {LISTING: _LISTING, HEARING: _HEARING}.get(one.reach, "")
        described["description"] = f"Needs the permission {one.permission}.{more}"
    if one.body is not None:
        described["requestBody"] = {"required": True, "content": _content(one.body, body_of(one.name))}
    if one.raw_body:
        described["requestBody"] = {
            "required": True,
            "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
        }
    if one.public:
        described["security"] = []
    return described


def api_document(public_url: str) -> dict[str, Any]:
    """The OpenAPI document of every operation there is."""
    return _every_operation() | {"servers": [{"url": public_url}]}


@functools.cache
def _every_operation() -> dict[str, Any]:
    """The document but for where the gateway is, which is all that differs in a process."""
    operations = [(group, route.operation) for group, group_routes in routes.GROUPS.items() for route in group_routes]
    return document(operations, public_url="")


def golden() -> str:
    """The document as it is kept beside the tests."""
    text = msgspec.json.format(encode_json(api_document("http://127.0.0.1:8080")), indent=2)
    return text.decode() + "\n"


if __name__ == "__main__":
    sys.stdout.write(golden())
