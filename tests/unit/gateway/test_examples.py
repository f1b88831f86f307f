"""The document of the API gives an example of every JSON body and answer, and each is of its shape."""

from typing import Any

import msgspec
import pytest
from jsonschema import Draft202012Validator, FormatChecker

from gateway.documents import examples
from gateway.documents.openapi import api_document
from gateway.problems import KINDS
from gateway.routes import GROUPS
from gateway.routing.operations import Operation

OPERATIONS: list[Operation] = [route.operation for found in GROUPS.values() for route in found]
DOCUMENT = api_document("http://127.0.0.1:8080")
DESCRIBED = {each["operationId"]: each for methods in DOCUMENT["paths"].values() for each in methods.values()}


def shown(operation: Operation) -> list[tuple[str, Any, dict[str, Any]]]:
    """Where the JSON bodies of an operation are described: what they are, their shape, their description."""
    described = DESCRIBED[operation.name]
    found = []
    if operation.body is not None:
        found.append(("body", operation.body, described["requestBody"]["content"]["application/json"]))
    if operation.returns is not None:
        for status in operation.statuses:
            if status == 304:  # says nothing
                continue
            content = described["responses"][str(status)]["content"]["application/json"]
            other = status != operation.statuses[0] and operation.returns_otherwise
            found.append((str(status), other or operation.returns, content))
    return found


BODIES = [pytest.param(*each, id=f"{one.name}-{each[0]}") for one in OPERATIONS for each in shown(one)]


def _within(example: Any, whole: Any) -> bool:
    """Whether ``whole`` says everything that ``example`` says."""
    if isinstance(example, dict):
        return isinstance(whole, dict) and all(
            name in whole and _within(example[name], whole[name]) for name in example
        )
    if isinstance(example, list):
        return len(example) == len(whole) and all(map(_within, example, whole))
    return bool(example == whole)


@pytest.mark.parametrize(("what", "shape", "media"), BODIES)
def test_every_json_body_has_an_example_of_its_shape(what: str, shape: Any, media: dict[str, Any]) -> None:
    example = media["example"]
    schema = {**media["schema"], "components": DOCUMENT["components"]}
    Draft202012Validator(schema, format_checker=FormatChecker()).validate(example)
    read = msgspec.json.decode(msgspec.json.encode(example), type=shape)
    assert _within(example, msgspec.json.decode(msgspec.json.encode(read))), f"{what} has a member that is none"


def test_an_example_is_of_an_operation_that_there_is() -> None:
    assert examples.BODIES.keys() == {each.name for each in OPERATIONS if each.body is not None}
    assert examples.ANSWERS.keys() == {each.name for each in OPERATIONS if each.returns is not None}
    statuses = {(each.name, status) for each in OPERATIONS for status in each.statuses}
    assert examples.OTHERWISE.keys() <= statuses


def test_every_problem_that_an_answer_can_be_is_declared() -> None:
    declared = {
        code
        for described in DESCRIBED.values()
        for answer in described["responses"].values()
        for code in answer["description"].split(", ")
        if "application/problem+json" in answer.get("content", {})
    }
    # A thread that is written to stops its archiving, which a job does: it is an error of the job.
    # Whoever begins an effect is told of its approval; of that there is no operation yet.
    of_effects = {f"approval-{each}" for each in ("consumed", "lapsed", "rejected", "required", "undecided")}
    assert KINDS.keys() - declared == {"thread-active", *of_effects}
