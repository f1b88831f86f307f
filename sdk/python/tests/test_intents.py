"""A call's digest is the same in every process and release; the format page has the same vectors."""

import json
import re
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from uuid import UUID

import msgspec
import pytest
from pydantic import BaseModel

from stateroom._threads.once.intents import _canonical, intent_of

PAGE = Path(__file__).parents[3] / "docs" / "formats" / "once-record.md"


class Seat(Enum):
    WINDOW = "window"


@dataclass
class Payment:
    amount: Decimal
    to: str


class Trip(msgspec.Struct):
    plan: list[str]


class Model(BaseModel):
    plan: set[str]


def test_the_vectors_of_the_format_page_hold():
    vectors = json.loads(re.search(r"```json\n(.*?)```", PAGE.read_text(), re.DOTALL)[1])
    for vector in vectors:
        assert intent_of(vector["name"], vector["args"], vector["kwargs"]) == vector["intent"]
    assert len(vectors) >= 3


# RFC 8785, appendix B, and what lies at the edges of each notation.
@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0.0, "0"), (-0.0, "0"), (5e-324, "5e-324"), (1.7976931348623157e308, "1.7976931348623157e+308"),
        (9007199254740992.0, "9007199254740992"), (295147905179352830000.0, "295147905179352830000"),
        (9.999999999999997e22, "9.999999999999997e+22"), (1e23, "1e+23"),
        (999999999999999900000.0, "999999999999999900000"),
        (1e21, "1e+21"), (9.999999999999997e-7, "9.999999999999997e-7"), (0.000001, "0.000001"),
        (333333333.3333332, "333333333.3333332"), (-1.5, "-1.5"), (10.0, "10"), (1e-7, "1e-7"),
    ],
)  # fmt: skip
def test_numbers_are_written_as_ecmascript_does(number, text):
    assert _canonical(number) == text


def test_what_json_cannot_say_is_tagged():
    assert _canonical(2**53 - 1) == "9007199254740991"
    assert _canonical(2**53) == '{"$int":"9007199254740992"}'
    assert _canonical(float("nan")) == '{"$float":"nan"}'
    assert _canonical(datetime(2026, 11, 22, tzinfo=UTC)) == '{"$datetime":"2026-11-22T00:00:00+00:00"}'
    assert _canonical(date(2026, 11, 22)) == '{"$date":"2026-11-22"}'
    assert _canonical(timedelta(seconds=1)) == '{"$timedelta":"1000000"}'
    assert _canonical(Decimal("1.20")) == '{"$decimal":"1.20"}'
    assert _canonical(UUID(int=7)) == '{"$uuid":"00000000-0000-0000-0000-000000000007"}'
    assert _canonical(b"x") == f'{{"$bytes":"{"2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"}"}}'
    assert _canonical({"b", "a"}) == '{"$set":["a","b"]}'
    assert _canonical({2: "two", 1: "one"}) == '{"$map":[[1,"one"],[2,"two"]]}'
    assert _canonical({"\U0001f600": 1, "\ufb33": 2, "a": (1, None)}) == '{"a":[1,null],"\U0001f600":1,"\ufb33":2}'


def test_nothing_that_is_written_like_a_tag_is_taken_for_one():
    assert _canonical({"$int": "9007199254740992"}) != _canonical(2**53)
    assert _canonical("9007199254740992") != _canonical(2**53)
    assert _canonical([1, 2]) != _canonical({1, 2})
    assert intent_of("pay", [1], {}) != intent_of("pay", [], {"amount": 1}) != intent_of("pays", [], {"amount": 1})


def test_types_with_fields_count_by_their_fields():
    assert _canonical(Payment(Decimal(5), "bob")) == '{"amount":{"$decimal":"5"},"to":"bob"}'
    assert _canonical(Trip(["hotel"])) == '{"plan":["hotel"]}'
    assert _canonical(Model(plan={"b", "a"})) == '{"plan":{"$set":["a","b"]}}'
    assert _canonical(Seat.WINDOW) == '"window"'


def test_what_has_no_plain_form_counts_by_its_type_and_the_rest_is_still_compared():
    connection, other = object(), object()
    assert intent_of("pay", [connection, 10], {}) == intent_of("pay", [other, 10], {})
    assert intent_of("pay", [connection, 10], {}) != intent_of("pay", [connection, 99], {})
    circle: list[object] = []
    circle.append(circle)
    assert intent_of("pay", [circle, 10], {}) != intent_of("pay", [circle, 99], {})


@pytest.mark.slow
def test_the_digest_is_the_same_in_processes_with_other_hash_seeds():
    program = (
        "from stateroom._threads.once.intents import intent_of; print(intent_of('n', [{*'a set has no order'}], {}))"
    )
    told = [
        subprocess.run([sys.executable, "-c", program], env={"PYTHONHASHSEED": seed}, capture_output=True, check=True)  # noqa: S603 - our own program
        for seed in ("1", "2")
    ]
    expected = intent_of("n", [{*"a set has no order"}], {})
    assert [each.stdout.decode().strip() for each in told] == [expected] * 2
