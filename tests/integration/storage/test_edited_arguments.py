"""Arguments that a person edited fit the tool's JSON Schema, or it is said where they do not, without what they are."""

from uuid import uuid4

import msgspec
import pytest

from storage.postgres.unit_of_work import Silent
from storage.schemas.edits import EditWork
from storage.schemas.workers import Workers

SCHEMA = {
    "type": "object",
    "$defs": {"To": {"type": "object", "properties": {"a/b": {"type": "string"}}, "required": ["a/b"]}},
    "properties": {"amount": {"type": "integer"}, "to": {"type": "array", "items": {"$ref": "#/$defs/To"}}},
    "required": ["amount"],
    "additionalProperties": False,
}
deep = msgspec.Raw(b"\x91" * 400 + b"\xc0")


@pytest.fixture
async def edits():
    workers = Workers(Silent())
    yield EditWork(workers)
    await workers.close()


@pytest.mark.parametrize(
    ("schema", "args", "wrong"),
    [
        (SCHEMA, {"amount": 1}, None),
        (SCHEMA, {"amount": 1, "to": [{"a/b": "bob"}]}, None),
        ({}, {"any": b"x"}, None),
        (SCHEMA, {"amount": "s3cr3t"}, "type at /amount"),
        (SCHEMA, {"to": []}, "required at /"),
        (SCHEMA, {"amount": 1, "to": [{"a/b": "bob"}, {"a/b": 5}]}, "type at /to/1/a~1b"),
        (SCHEMA, {"amount": 1, "s3cr3t": 1}, "additionalProperties at /"),
        ({"type": "nonsense"}, {}, "its JSON Schema cannot be used: "),
        ({"$ref": "https://example.org/schema"}, {}, "its JSON Schema cannot be used: "),
        ({"properties": {"amount": {"const": 1}}}, {"amount": deep}, "they are nested too deeply"),
    ],
)
async def test_edited_arguments_are_what_the_tool_takes(edits, schema, args, wrong):
    found = await edits.misfit(uuid4(), msgspec.json.encode(schema), msgspec.msgpack.encode(args))
    assert found is None if wrong is None else found is not None and found.startswith(wrong)
    assert "s3cr3t" not in (found or "")
