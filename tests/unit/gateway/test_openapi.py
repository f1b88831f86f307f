"""The document is one that other tools read as it is meant: generators, validators and people."""

import json
import re
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any, get_args, get_type_hints

import msgspec
import pytest
from jsonschema import Draft202012Validator

from gateway import wire
from gateway.documents import schema_words
from gateway.documents.member_words import MEMBERS
from gateway.documents.openapi import api_document
from gateway.documents.page import page as render
from gateway.problems import KINDS
from tests.support.operations import DECLARED

DOCUMENT = api_document("http://127.0.0.1:8080")
SCHEMAS = DOCUMENT["components"]["schemas"]
OPERATIONS = [each for methods in DOCUMENT["paths"].values() for each in methods.values()]
SHAPES = [shape for name, shape in wire.SHAPES.items() if name in SCHEMAS]


def below(schema: Any) -> list[dict[str, Any]]:
    """Every object in a part of the document."""
    if isinstance(schema, list):
        return [found for each in schema for found in below(each)]
    if not isinstance(schema, dict):
        return []
    return [schema, *(found for each in schema.values() for found in below(each))]


ALL = [each for schema in SCHEMAS.values() for each in below(schema)]
ALL += [each for one in OPERATIONS for parameter in one["parameters"] for each in below(parameter)]
ALL += below(DOCUMENT["components"]["parameters"])


def test_every_schema_is_one() -> None:
    for schema in SCHEMAS.values():
        Draft202012Validator.check_schema(schema)


def test_patterns_are_those_of_ecma() -> None:
    patterns = {each["pattern"] for each in ALL if isinstance(each.get("pattern"), str)}
    assert patterns
    for pattern in patterns:
        assert not re.search(r"\\[AZzG]|\(\?[P<]", pattern), pattern


def test_no_constant_is_without_a_type_and_no_object_without_a_word_on_its_members() -> None:
    assert not [each for each in ALL if "const" in each]
    assert not [
        each for each in ALL
        if each.get("type") == "object" and not each.keys() & {"properties", "additionalProperties"}
    ]  # fmt: skip
    assert SCHEMAS["SaveRequest"]["properties"]["metadata"]["additionalProperties"] is True


def test_the_answer_that_is_a_document_itself_is_an_open_object() -> None:
    answer = DOCUMENT["paths"]["/openapi.json"]["get"]["responses"]["200"]["content"]["application/json"]
    assert answer["schema"] == {"type": "object", "additionalProperties": True}


def test_a_default_makes_no_member_required_of_who_sends_it() -> None:
    assert not [each for schema in SCHEMAS.values() for each in below(schema) if "default" in each]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
def test_times_have_their_format(shape: type[msgspec.Struct]) -> None:
    hints = get_type_hints(shape)
    for name, described in SCHEMAS[shape.__name__]["properties"].items():
        is_time = "datetime" in repr(hints.get(name))  # none: the tag of a line
        assert ("date-time" in json.dumps(described)) == is_time, name


def test_codes_are_an_enum_and_the_version_is_the_packages() -> None:
    assert SCHEMAS["Problem"]["properties"]["code"]["enum"] == sorted(KINDS)
    assert DOCUMENT["info"]["version"] == version("stateroom-gateway")


def test_every_parameter_is_described_and_every_operation_is_in_a_group() -> None:
    for one in OPERATIONS:
        for parameter in one["parameters"]:
            assert "$ref" in parameter or parameter["description"], (one["operationId"], parameter)
        assert set(one["tags"]) <= schema_words.TAGS.keys(), one["operationId"]
    assert all(each["description"] for each in DOCUMENT["components"]["parameters"].values())


def test_every_member_is_described_and_no_word_is_left_over() -> None:
    members = {name: schema["properties"] for name, schema in SCHEMAS.items()}
    assert not [f"{name}.{each}" for name in members for each, one in members[name].items() if not one["description"]]
    shown = {one["description"] for properties in members.values() for one in properties.values()}
    assert not [name for name, words in MEMBERS.items() if words not in shown]


def test_what_is_made_or_begun_has_a_location_and_what_is_refused_the_headers_of_its_status() -> None:
    for one in OPERATIONS:
        for status, answer in one["responses"].items():
            headers = answer["headers"].keys()
            assert ("Location" in headers) == (status in {"201", "202"}), (one["operationId"], status)
            assert ("WWW-Authenticate" in headers) == (status == "401")
            assert ("Allow" in headers) == (status == "405")


def test_every_link_of_the_page_leads_somewhere_on_it() -> None:
    page = render(DOCUMENT)
    named = re.findall(r'href="#([^"]+)"', page)
    assert len(named) > len(OPERATIONS)
    assert set(named) <= set(re.findall(r' id="?([^" >]+)', page))


def _nested(kind: Any) -> Iterator[type[msgspec.Struct]]:
    """The structs that a body is made of, itself first."""
    for each in get_args(kind):
        yield from _nested(each)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        yield kind
        for field in msgspec.structs.fields(kind):
            yield from _nested(field.type)


@pytest.mark.parametrize("name", sorted(name for name, one in DECLARED.items() if one.operation.body is not None))
def test_no_body_has_room_for_a_member_that_this_build_does_not_know(name: str) -> None:
    """What a newer client means by one, an older build must not ignore."""
    found = list(_nested(DECLARED[name].operation.body))
    assert found
    assert [each for each in found if not each.__struct_config__.forbid_unknown_fields] == []
