"""JSON Schemas of tenants: what is accepted is checked in time that grows with the state, and with nothing else."""

import time

import msgpack
import pytest

from migrations.state.errors import SchemaInvalid
from migrations.state.json_schemas import (
    EVALUATIONS_MAX,
    PATTERNS_MAX,
    SUBSCHEMAS_MAX,
    JsonSchema,
    Part,
    TooDeep,
    check_json_schema,
    cost_of,
    shown,
)

TREE = {"$ref": "#/$defs/tree"}
JSON = {"$ref": "#/$defs/json"}


def doubling(word, levels):
    """Alternatives that refer to the next ones twice."""
    steps = {f"a{number}": {word: [{"$ref": f"#/$defs/a{number + 1}"}] * 2} for number in range(levels)}
    return {"$defs": {**steps, f"a{levels}": {"type": "string"}}, "properties": {"x": {"$ref": "#/$defs/a0"}}}


def elsewhere(levels):
    """A reference that names a schema, and that the library decodes first, so that it goes on at another one."""
    return {**doubling("anyOf", levels), "$defs": {**doubling("anyOf", levels)["$defs"], "a%30": {}}} | {
        "properties": {"x": {"$ref": "#/$defs/a%30"}}
    }


def nested(levels):
    schema = {}
    for _ in range(levels):
        schema = {"not": schema}
    return schema


OTHER_DRAFTS = [f"http://json-schema.org/draft-0{number}/schema#" for number in (4, 6, 7)]
UNSEEN = [
    elsewhere(40),
    # The parts of another draft are read by its rules: `format` is checked, and `id` moves what references are from.
    *({"properties": {"x": {"$schema": draft, "format": "idn-hostname"}}} for draft in OTHER_DRAFTS),
    {
        "properties": {
            "x": {
                "$schema": OTHER_DRAFTS[0],
                "id": "x",
                "definitions": doubling("anyOf", 40)["$defs"],
                "allOf": [{"$ref": "#/definitions/a0"}],
            }
        },
        "definitions": {"a0": {}},
    },
]


@pytest.mark.parametrize(
    "schema",
    [
        *UNSEEN,
        *(doubling(word, 40) for word in ("anyOf", "allOf", "oneOf")),
        # The doubling goes down into the value with each level, without recursion and with it.
        {
            "$defs": {
                **{
                    f"a{number}": {"allOf": [{"items": {"$ref": f"#/$defs/a{number + 1}"}}] * 2} for number in range(40)
                },
                "a40": {},
            },
            "$ref": "#/$defs/a0",
        },
        {"anyOf": [{"properties": {"x": {"$ref": "#"}}}, {"properties": {"x": {"$ref": "#"}}, "required": ["y"]}]},
        {"properties": {"x": {"$ref": "#"}}, "additionalProperties": {"$ref": "#"}, "patternProperties": {"x": TREE}},
        {"properties": {"x": {"$ref": "#"}}, "patternProperties": {"x": {"$ref": "#"}}},
        {"items": {"$ref": "#"}, "contains": {"$ref": "#"}},
        {"$ref": "#"},
        {"$defs": {"a": {"not": {"$ref": "#/$defs/b"}}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
        {"$defs": {f"a{n}": {"$ref": f"#/$defs/a{n + 1}"} for n in range(2000)} | {"a2000": {}}, "$ref": "#/$defs/a0"},
        {"properties": {"x": {"$ref": "https://json-schema.org/draft/2020-12/schema"}}},
        {"$dynamicAnchor": "node", "properties": {"x": {"$dynamicRef": "#node"}}},
        {"properties": {"x": {"anyOf": [{"const": number} for number in range(EVALUATIONS_MAX)]}}},
        # Each element is compared with each member, unless all of them are texts or all are integers.
        {"properties": {"x": {"items": {"enum": [{"k": number} for number in range(8_000)]}}}},
        {"properties": {"x": {"items": {"enum": [number + 0.5 for number in range(8_000)]}}}},
        {"properties": {"x": {"items": {"enum": [*map(str, range(2_000)), 1]}}}},
        {"properties": {"x": {"items": {"const": [[number] for number in range(1_000)]}}}},
        # What patterns compile to is bounded, each and together.
        {"properties": {f"c{number}": {"pattern": "[\\p{L}\\p{N}]{90}" + str(number)} for number in range(40)}},
        {"properties": {f"c{number}": {"pattern": "[\\p{L}\\p{N}]{90}" + str(number)} for number in range(300)}},
        {"patternProperties": {"^[\\p{L}\\p{N}]{90}" + str(number): {} for number in range(40)}},
        {"properties": {f"c{number}": {"pattern": "[\\p{L}\\p{N}]{5}" + str(number)} for number in range(400)}},
        {"properties": {f"c{number}": {"pattern": str(number)} for number in range(PATTERNS_MAX + 1)}},
        nested(300),
    ],
)
def test_a_schema_whose_work_is_not_bounded_by_the_state_is_refused(schema):
    began = time.monotonic()
    with pytest.raises(SchemaInvalid) as refused:
        check_json_schema(schema)
    assert refused.value.pointer.startswith("/json_schema")
    assert time.monotonic() - began < 2


@pytest.mark.parametrize(
    ("schema", "fits", "differs"),
    [
        (
            {
                "$defs": {"tree": {"type": "object", "properties": {"left": TREE, "right": TREE}}},
                "$ref": "#/$defs/tree",
            },
            {"left": {"right": {}}},
            {"left": {"right": 3}},
        ),
        (
            {
                "$defs": {
                    "json": {
                        "anyOf": [
                            {"type": ["string", "null"]},
                            {"type": "array", "items": JSON},
                            {"type": "object", "additionalProperties": JSON},
                        ]
                    }
                },
                "properties": {"x": JSON, "y": {"anyOf": [JSON, {"type": "integer"}]}},
            },
            {"x": [{"a": ["b", None]}], "y": 3},
            {"x": [{"a": ["b", 3]}]},
        ),
        (
            {"$defs": {"a/b~": {"type": "integer"}}, "properties": {"x": {"items": {"$ref": "#/$defs/a~1b~0"}}}},
            {"x": [1]},
            {"x": ["1"]},
        ),
        (
            {
                "properties": {"x": {"enum": list(range(5000))}, "$ref": {"type": "string"}},
                "patternProperties": {"^n_": {"type": "integer"}},
            },
            {"x": 7, "$ref": "#", "n_1": 1},
            {"x": -7},
        ),
    ],
)
def test_what_people_write_is_accepted_recursion_included(schema, fits, differs):
    check_json_schema(schema)
    validator = JsonSchema(schema)
    assert validator.misfit(fits) is None
    assert validator.misfit(differs) is not None


@pytest.mark.parametrize(
    ("schema", "plain"),
    [
        ({"properties": {"x": {"type": "string", "maxLength": 9}}, "required": ["x"]}, True),
        ({"properties": {"x": {"enum": ["a", "b"]}, "y": {"items": {"$ref": "#/$defs/n"}}}, "$defs": {"n": {}}}, True),
        ({"properties": {"x": {"pattern": "^a"}}}, False),
        ({"patternProperties": {"^a": {}}}, False),
        ({"properties": {"x": {"items": {"uniqueItems": True}}}}, False),
        ({"properties": {"x": {"multipleOf": 0.001}}}, False),
        ({"properties": {"x": {"items": {"enum": [[number] for number in range(8_000)]}}}}, False),
    ],
)
def test_only_a_schema_whose_cost_is_linear_is_plain(schema, plain):
    part: Part = "whole"
    assert cost_of(schema, part).plain is plain


@pytest.mark.parametrize("schema", UNSEEN)
def test_a_schema_of_before_whose_work_cannot_be_foreseen_is_not_plain(schema):
    assert not cost_of(schema, "whole").plain


@pytest.mark.parametrize("draft", OTHER_DRAFTS)
def test_another_draft_may_be_named_at_the_root_and_changes_nothing(draft):
    schema = {"$schema": draft, "properties": {"x": {"type": "string", "format": "date"}, "$schema": {"type": "null"}}}
    check_json_schema(schema)
    assert JsonSchema(schema).misfit({"x": "no date", "$schema": None}) is None


def test_the_comparisons_of_a_value_are_counted():
    assert cost_of({}, "whole").steps == 1
    wide = {"properties": {"x": {"items": {"properties": {f"p{number}": {} for number in range(100)}}}}}
    assert cost_of(wide, "whole").steps >= 100
    assert cost_of({"anyOf": [wide] * 5}, "whole").steps >= 500


@pytest.mark.parametrize("schema", [{"$ref": "http://x.example/"}, {"pattern": "("}])
def test_what_refers_outside_or_cannot_be_used_is_refused(schema):
    with pytest.raises(SchemaInvalid) as refused:
        check_json_schema(schema)
    assert refused.value.pointer.startswith("/json_schema")


def test_a_schema_of_too_many_parts_is_refused():
    with pytest.raises(SchemaInvalid, match="subschemas"):
        check_json_schema({"properties": {f"c{number}": {} for number in range(SUBSCHEMAS_MAX)}})


def test_a_reference_that_leads_nowhere_is_not_plain():
    assert not cost_of({"$ref": "#/$defs/none"}, "whole").plain


def test_true_and_false_are_schemas():
    check_json_schema({"properties": {"x": True, "y": False}})
    assert JsonSchema({"properties": {"y": False}}).misfit({"y": 1}) is not None


def test_what_binds_a_whole_state_does_not_bind_some_channels_of_it():
    schema = {"required": ["x"], "properties": {"y": {"type": "integer"}}}
    assert JsonSchema(schema).misfit({"y": 1}) is not None
    assert JsonSchema(schema, "some").misfit({"y": 1}) is None
    assert JsonSchema(schema, "some").misfit({"y": "1"}) is not None


@pytest.mark.parametrize("place", ["$defs", "definitions"])
def test_of_elements_only_what_is_said_of_each_is_checked(place):
    listed = {"maxItems": 1, "items": {"$ref": f"#/{place}/n"}}
    schema = {place: {"n": {"type": "integer"}}, "properties": {"x": listed, "y": {"prefixItems": [{}], "items": {}}}}
    assert JsonSchema(schema, "elements").misfit({"x": [1, 2], "y": ["any"]}) is None
    assert JsonSchema(schema, "elements").misfit({"x": [1, "2"]}) is not None
    assert JsonSchema({"type": "object"}, "elements").misfit({"x": [1]}) is None


def test_a_value_that_is_nested_too_deeply_for_its_schema_is_told():
    deep = []
    for _ in range(900):
        deep = [deep]
    with pytest.raises(TooDeep):
        JsonSchema({"additionalProperties": {"type": "integer"}}).misfit({"x": deep})


@pytest.mark.parametrize(
    ("encoding", "data", "seen"),
    [
        ("msgpack", msgpack.packb({"a": [1, b"x"], 1: float("nan")}), {"a": [1, "eA=="], "1": "nan"}),
        ("msgpack", msgpack.packb(msgpack.ExtType(5, b"x")), {"$ext": 5}),
        ("msgpack", msgpack.packb(msgpack.Timestamp(1)), {"$ext": -1}),
        ("msgpack", b"\xc1", {"$encoded": "msgpack"}),
        ("json", b'{"a": 1}', {"a": 1}),
        ("json", b"{", {"$encoded": "json"}),
        ("null", b"", None),
        ("bytes", b"x", "eA=="),
        ("pickle", b".", {"$encoded": "pickle"}),
    ],
)
def test_a_channel_is_shown_to_its_schema_as_json(encoding, data, seen):
    assert shown(encoding, data) == seen
