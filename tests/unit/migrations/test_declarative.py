import tracemalloc

import msgpack
import pytest

from migrations.state.chain import Chain, Step
from migrations.state.declarative import OPERATIONS_MAX, compile_operations
from migrations.state.document import Encoded
from migrations.state.errors import StepInvalid, UpcastFailed
from tests.unit.migrations.states import packed, unpacked


def run(operations, state, *, partial=False):
    chain = Chain("travel", [Step(1, 2, compile_operations(operations))])
    return chain.convert(state, 1, 2, partial=partial)


def outcome(operations, *, partial=False, **channels):
    return unpacked(run(operations, packed(**channels), partial=partial))


@pytest.mark.parametrize(
    ("operation", "before", "after"),
    [
        ({"op": "rename", "from": "/a", "to": "/b"}, {"a": 1, "z": 2}, {"b": 1, "z": 2}),
        ({"op": "rename", "from": "/a/x", "to": "/a/y"}, {"a": {"x": 1}}, {"a": {"y": 1}}),
        ({"op": "move", "from": "/a/x", "to": "/b/c/d"}, {"a": {"x": 1}}, {"a": {}, "b": {"c": {"d": 1}}}),
        ({"op": "move", "from": "/a", "to": "/b/c"}, {"a": [1]}, {"b": {"c": [1]}}),
        ({"op": "copy", "from": "/a", "to": "/b"}, {"a": [1]}, {"a": [1], "b": [1]}),
        ({"op": "copy", "from": "/a", "to": "/b/c"}, {"a": [1]}, {"a": [1], "b": {"c": [1]}}),
        ({"op": "remove", "path": "/a/0"}, {"a": [1, 2]}, {"a": [2]}),
        ({"op": "set_default", "path": "/lang", "value": "en"}, {"a": 1}, {"a": 1, "lang": "en"}),
        ({"op": "set_default", "path": "/lang", "value": "en"}, {"lang": "de"}, {"lang": "de"}),
        ({"op": "map_values", "path": "/m", "mapping": [["old", "new"]]}, {"m": "old"}, {"m": "new"}),
        ({"op": "map_values", "path": "/m", "mapping": [[1, "one"]]}, {"m": True}, {"m": True}),
        ({"op": "convert", "path": "/n", "type": "integer"}, {"n": "42"}, {"n": 42}),
        ({"op": "convert", "path": "/n", "type": "string"}, {"n": 1.5}, {"n": "1.5"}),
        ({"op": "convert", "path": "/n", "type": "boolean"}, {"n": "True"}, {"n": True}),
        ({"op": "convert", "path": "/n", "type": "number"}, {"n": 2}, {"n": 2.0}),
        ({"op": "convert", "path": "/n", "type": "integer"}, {"n": None}, {"n": None}),
        (
            {"op": "split", "from": "/name", "separator": " ", "to": ["/first", "/last"]},
            {"name": "Ada King Lovelace"},
            {"first": "Ada", "last": "King Lovelace"},
        ),
        (
            {"op": "join", "from": ["/first", "/last"], "separator": " ", "to": "/name"},
            {"first": "Ada", "last": "Lovelace"},
            {"name": "Ada Lovelace"},
        ),
        ({"op": "wrap", "path": "/a"}, {"a": 1}, {"a": [1]}),
        ({"op": "wrap", "path": "/a", "in": "value"}, {"a": 1}, {"a": {"value": 1}}),
        ({"op": "unwrap", "path": "/a"}, {"a": [1]}, {"a": 1}),
        ({"op": "unwrap", "path": "/a", "from": "value"}, {"a": {"value": 1}}, {"a": 1}),
        (
            {"op": "for_each", "path": "/items", "operations": [{"op": "rename", "from": "/n", "to": "/name"}]},
            {"items": [{"n": 1}, {"m": 2}]},
            {"items": [{"name": 1}, {"m": 2}]},
        ),
        ({"op": "remove", "path": "/a", "when": "value > 3"}, {"a": 3}, {"a": 3}),
        ({"op": "remove", "path": "/a", "when": "root.b == 'x'"}, {"a": 3, "b": "x"}, {"b": "x"}),
        ({"op": "rename", "from": "/absent", "to": "/b"}, {"a": 1}, {"a": 1}),
    ],
)
def test_an_operation_does_what_it_says(operation, before, after):
    assert outcome([operation], **before) == after


def test_a_renamed_channel_keeps_its_bytes_and_its_place():
    odd = b"\xdd\x00\x00\x00\x01\xd9\x01a"  # not the shortest encoding of ["a"]
    state = {"first": Encoded("msgpack", odd), "second": Encoded("pickle", b"\x80\x04opaque")}
    after = run([{"op": "rename", "from": "/first", "to": "/third"}], state)
    assert list(after) == ["third", "second"]
    assert after["third"].data == odd
    assert after["second"].data == b"\x80\x04opaque"


def test_extension_values_and_single_floats_beside_an_edit_stay_as_they_were():
    message = msgpack.ExtType(5, bytes(range(256)))
    data = b"\x83" + msgpack.packb("m") + msgpack.packb([message]) + b"\xa1f\xca\x3f\xc0\x00\x00" + b"\xa1o\x01"
    state = {"c": Encoded("msgpack", data)}
    after = run([{"op": "rename", "from": "/c/o", "to": "/c/n"}], state)
    assert after["c"].data == data.replace(b"\xa1o\x01", b"\xa1n\x01")


@pytest.mark.parametrize("value", [b"\x01", b"\xca\x3f\xc0\x00\x00"], ids=["plain", "beside a single float"])
def test_a_channel_with_lists_as_keys_is_not_looked_into_and_can_be_moved(value):
    state = {"c": Encoded("msgpack", b"\x81\x92\xff\xfe" + value)}
    assert run([{"op": "rename", "from": "/c", "to": "/d"}], state) == {"d": state["c"]}
    with pytest.raises(UpcastFailed) as failed:
        run([{"op": "remove", "path": "/c/x"}], state)
    assert failed.value.pointer == "/c"


def test_a_pending_write_follows_its_channel_and_brings_nothing_else():
    operations = [
        {"op": "set_default", "path": "/lang", "value": "en"},
        {"op": "rename", "from": "/user_pref", "to": "/user_profile"},
        {"op": "split", "from": "/name", "separator": " ", "to": ["/first", "/last"]},
    ]
    assert outcome(operations, partial=True, user_pref=[1]) == {"user_profile": [1]}
    assert outcome(operations, partial=True, name="Ada Lovelace") == {"first": "Ada", "last": "Lovelace"}
    assert outcome(operations, partial=True, other=1) == {"other": 1}


@pytest.mark.parametrize(
    ("operation", "channels", "pointer"),
    [
        ({"op": "rename", "from": "/a", "to": "/b"}, {"a": 1, "b": 2}, "/b"),
        ({"op": "remove", "path": "/a/b", "required": True}, {"a": {}}, "/a/b"),
        ({"op": "convert", "path": "/a/b", "type": "integer"}, {"a": {"b": "secret"}}, "/a/b"),
        ({"op": "map_values", "path": "/a", "mapping": [[1, 2]], "otherwise": "fail"}, {"a": "secret"}, "/a"),
        ({"op": "split", "from": "/a", "separator": ",", "to": ["/b", "/c"]}, {"a": 7}, "/a"),
        ({"op": "unwrap", "path": "/a"}, {"a": ["secret", "secret"]}, "/a"),
        (
            {"op": "for_each", "path": "/a", "operations": [{"op": "convert", "path": "/n", "type": "integer"}]},
            {"a": [{"n": 1}, {"n": "secret"}]},
            "/a/1/n",
        ),
        ({"op": "remove", "path": "/a", "when": "value.b.c == 1"}, {"a": {"secret": 1}}, "/a"),
        ({"op": "remove", "path": "/a", "when": "value"}, {"a": "secret"}, "/a"),
    ],
)
def test_a_step_that_cannot_be_applied_names_the_place_and_no_value(operation, channels, pointer):
    with pytest.raises(UpcastFailed) as caught:
        outcome([operation], **channels)
    assert (caught.value.schema, caught.value.step, caught.value.pointer) == ("travel", "v1_to_v2", pointer)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("operations", "pointer"),
    [
        ([], "/operations"),
        ({}, "/operations"),
        ([1], "/operations/0"),
        ([{"op": "eval", "path": "/a"}], "/operations/0/op"),
        ([{"op": "remove", "path": "a"}], "/operations/0/path"),
        ([{"op": "remove", "path": "/a", "more": 1}], "/operations/0/more"),
        ([{"op": "remove", "path": "/a", "required": 1}], "/operations/0/required"),
        ([{"op": "move", "from": "/a", "to": "/a/b"}], "/operations/0/to"),
        ([{"op": "rename", "from": "/a/b", "to": "/c"}], "/operations/0/to"),
        ([{"op": "convert", "path": "/a", "type": "date"}], "/operations/0/type"),
        ([{"op": "map_values", "path": "/a", "mapping": [["x", 1], ["x", 2]]}], "/operations/0/mapping/1"),
        ([{"op": "set_default", "path": "/a", "value": "x" * 70_000}], "/operations/0/value"),
        ([{"op": "split", "from": "/a", "separator": "", "to": ["/b", "/c"]}], "/operations/0/separator"),
        ([{"op": "split", "from": "/a", "separator": ",", "to": ["/b", "/b"]}], "/operations/0/to"),
        ([{"op": "remove", "path": "/a", "when": "value."}], "/operations/0/when"),
        ([{"op": "remove", "path": "/a", "when": "os == 1"}], "/operations/0/when"),
        ([{"op": "remove", "path": "/a", "when": "value.all(v, v > 1)"}], "/operations/0/when"),
        ([{"op": "remove", "path": "/a", "when": "(" * 600}], "/operations/0/when"),
        (
            [{"op": "for_each", "path": "/a", "operations": [{"op": "remove", "path": "/b"}, {"op": "x"}]}],
            "/operations/0/operations/1/op",
        ),
    ],
)
def test_a_step_that_is_not_acceptable_is_refused_where_it_is_wrong(operations, pointer):
    with pytest.raises(StepInvalid) as caught:
        compile_operations(operations)
    assert caught.value.pointer == pointer


def test_operations_and_nesting_are_bounded():
    with pytest.raises(StepInvalid, match="at most"):
        compile_operations([{"op": "remove", "path": "/a"}] * (OPERATIONS_MAX + 1))
    nested = [{"op": "remove", "path": "/a"}]
    for _ in range(4):
        nested = [{"op": "for_each", "path": "/a", "operations": nested}]
    with pytest.raises(StepInvalid, match="nests"):
        compile_operations(nested)


def doubling():
    copies = [{"op": "copy", "from": "/a", "to": f"/a/copy{number}"} for number in range(150)]
    return [{"op": "set_default", "path": "/a", "value": {"x": [1] * 100}}, *copies]


def deepening():
    return [{"op": "wrap", "path": "/a"}] * 150


def widening():
    defaults = [{"op": "set_default", "path": f"/m{number}", "value": 1} for number in range(150)]
    return [{"op": "for_each", "path": "/big", "operations": defaults}]


def conditions():
    heavy = "value.matches('^(a|aa|aaa)*$') || " * 10 + "false"
    each = {"op": "remove", "path": "/x", "when": heavy[:500].rpartition(" || ")[0]}
    return [{"op": "for_each", "path": "/big", "operations": [each] * 150}]


@pytest.mark.parametrize("hostile", [doubling, deepening, widening, conditions])
def test_a_hostile_step_is_stopped_before_it_costs_much(hostile):
    operations = compile_operations(hostile())
    chain = Chain("travel", [Step(1, 2, operations)])
    state = packed(big=[{"x": "aaaaaaaaaaaaaaab"}] * 20_000, a={"x": 1})
    with pytest.raises(UpcastFailed):
        chain.convert(state, 1, 2)


@pytest.mark.parametrize(
    "expression",
    [
        r"value.matches('(\\w{100}){40}')",
        r"value.matches(r'\w{150}')",
        "value.matches('a{1000}{1000}')",
        r'value.matches("(?i)(\\pL{9}){9}")',
        r"value.matches(r'" + r"\w" * 200 + "')",
        # What CEL reads is what counts, however it is written, and whatever stands in between.
        r"value.matches('\x5cpL{190}')",
        r"value.matches('\134pL{190}')",
        r"value.matches('\u005cpL{190}')",
        r"value.matches('[\\p{L}]{200}')",
        "value.matches('''\\\\pL{190}''')",
        "value // .matches('a')\n.matches(root.b)",
        "value.matches(// 'a')\n root.b)",
        "matches(value, 'a')",
        "value.matches(b'a')",
        "value.matches('[[:alpha:]]')",
        "value.matches('(')",
        "value.matches(value)",
        "('x' + value).matches(root.pattern)",
        "value.matches('a') && value.matches ( root.b )",
    ],
)
def test_a_regular_expression_that_takes_long_to_compile_or_is_not_written_out_is_refused(expression):
    with pytest.raises(StepInvalid) as refused:
        compile_operations([{"op": "remove", "path": "/a", "when": expression}])
    assert refused.value.pointer == "/operations/0/when"


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        (r"value.matches('^[A-Z]{2}\\d{4,6}$')", "PT12345"),
        (r"value.matches(r'^\w+@\w+[.]com$') && size(value) < 100", "ada@example.com"),
        ('value.matches("(?i)lisbon|it\'s")', "LISBON"),
        ("value . matches ( 'a{2,30}' )", "aaa"),
    ],
)
def test_regular_expressions_that_people_write_are_accepted(expression, value):
    remove = {"op": "remove", "path": "/a", "when": expression}
    assert outcome([remove], a=value, b=1) == {"b": 1}
    assert outcome([remove], a="-", b=1) == {"a": "-", "b": 1}


@pytest.mark.parametrize(
    "expression",
    [
        r"value.matches('\x5ed{2}$')",
        r"value.matches(r'^d{2}$')",
        'value.matches("""^d{2}$""") // .matches(',
        "'.matches(' != value && value.matches('d{2}')",
    ],
)
def test_a_regular_expression_is_the_one_that_cel_reads(expression):
    remove = {"op": "remove", "path": "/a", "when": expression}
    assert outcome([remove], a="dd", b=1) == {"b": 1}
    assert outcome([remove], a="d", b=1) == {"a": "d", "b": 1}


@pytest.mark.parametrize("between", ["", " ", "\n", "// all(\n"])
def test_no_comment_hides_that_a_condition_iterates(between):
    with pytest.raises(StepInvalid, match="iterate"):
        compile_operations([{"op": "remove", "path": "/a", "when": f"root.{between}all(value, value == 1)"}])


def test_a_regular_expression_on_what_is_no_text_fails_by_name():
    with pytest.raises(UpcastFailed, match="no text"):
        outcome([{"op": "remove", "path": "/a", "when": "value.matches('a')"}], a=1)


@pytest.mark.slow
def test_what_a_condition_is_given_counts():
    looks = [{"op": "remove", "path": "/x", "when": "size(root) == 3"}] * 190
    with pytest.raises(UpcastFailed, match="touches more than"):
        run(looks, packed(big=[1] * 9_000))


@pytest.mark.slow
def test_what_one_step_may_many_together_may_not():
    step = compile_operations([{"op": "copy", "from": "/list", "to": f"/copies/{number}"} for number in range(9)])
    steps = [Step(number, number + 1, step) for number in range(1, 60)]
    again = compile_operations([{"op": "remove", "path": "/copies"}])
    chain = Chain("travel", [each if each.source % 2 else Step(each.source, each.target, again) for each in steps])
    state = packed(list=[1] * 100_000)
    assert unpacked(chain.convert(state, 1, 3)) == {"list": [1] * 100_000}
    with pytest.raises(UpcastFailed, match="touch more than"):
        chain.convert(state, 1, 60)


def test_a_state_that_grows_by_reference_is_refused_before_it_is_written_out():
    tracemalloc.start()
    try:
        copies = [{"op": "copy", "from": "/a", "to": f"/b/{number}"} for number in range(2)]
        steps = [
            Step(number, number + 1, compile_operations([{**each, "to": f"{each['to']}{number}"} for each in copies]))
            for number in range(1, 9)
        ]
        state = packed(a=["x" * 1_000_000] * 10)
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        with pytest.raises(UpcastFailed, match="grew beyond"):
            Chain("travel", steps).convert(state, 1, 9)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak - before < 70 * 1024 * 1024


@pytest.mark.parametrize(
    ("operation", "before", "after"),
    [
        ({"op": "copy", "from": "/absent", "to": "/b"}, {"a": 1}, {"a": 1}),
        ({"op": "convert", "path": "/absent", "type": "string"}, {"a": 1}, {"a": 1}),
        ({"op": "join", "from": ["/x", "/y"], "to": "/z"}, {"a": 1}, {"a": 1}),
        ({"op": "remove", "path": "/absent/b"}, {"a": 1}, {"a": 1}),
        ({"op": "remove", "path": "/a/b/c"}, {"a": {"b": {"c": 1, "d": 2}}}, {"a": {"b": {"d": 2}}}),
        ({"op": "remove", "path": "/a/b/c"}, {"a": {"b": 1}}, {"a": {"b": 1}}),
        ({"op": "remove", "path": "/a/0/c"}, {"a": [{"c": 1}]}, {"a": [{}]}),
        ({"op": "set_default", "path": "/a/0/b", "value": 2}, {"a": [{}, 1]}, {"a": [{"b": 2}, 1]}),
        ({"op": "wrap", "path": "/a/1"}, {"a": [1, 2]}, {"a": [1, [2]]}),
        ({"op": "convert", "path": "/n", "type": "string"}, {"n": True}, {"n": "true"}),
        ({"op": "convert", "path": "/n", "type": "number"}, {"n": "1.5"}, {"n": 1.5}),
        ({"op": "convert", "path": "/n", "type": "boolean"}, {"n": 1}, {"n": True}),
        (
            {"op": "for_each", "path": "/a", "operations": [{"op": "remove", "path": "/b", "when": "root.c == 1"}]},
            {"a": {"x": {"b": 1, "c": 1}, "y": {"b": 1, "c": 2}, "z": {"c": 1}}},
            {"a": {"x": {"c": 1}, "y": {"b": 1, "c": 2}, "z": {"c": 1}}},
        ),
        (
            {"op": "remove", "path": "/a", "when": "value.m == null"},
            {"a": {"m": msgpack.ExtType(5, b"x")}, "b": 1},
            {"b": 1},
        ),
    ],
)
def test_an_operation_reaches_into_lists_and_objects_and_passes_over_what_is_absent(operation, before, after):
    assert outcome([operation], **before) == after


@pytest.mark.parametrize(
    ("operation", "channels", "pointer", "why"),
    [
        ({"op": "convert", "path": "/a", "type": "string"}, {"a": [1]}, "/a", "become text"),
        ({"op": "convert", "path": "/a", "type": "integer"}, {"a": [1]}, "/a", "whole number"),
        ({"op": "convert", "path": "/a", "type": "integer"}, {"a": "99999999999999999999"}, "/a", "64 bits"),
        ({"op": "convert", "path": "/a", "type": "number"}, {"a": "x"}, "/a", "not a number"),
        ({"op": "convert", "path": "/a", "type": "number"}, {"a": "1" * 400}, "/a", "not a number"),
        ({"op": "convert", "path": "/a", "type": "boolean"}, {"a": 2}, "/a", "neither true nor false"),
        ({"op": "for_each", "path": "/a", "operations": [{"op": "remove", "path": "/b"}]}, {"a": 1}, "/a", "elements"),
        ({"op": "set_default", "path": "/a/7", "value": 1}, {"a": [1]}, "/a/7", "no such element"),
        ({"op": "set_default", "path": "/a/b", "value": 1}, {"a": 1}, "/a", "neither an object nor a list"),
        ({"op": "remove", "path": "/a", "when": "size(value) > 0"}, {"a": [1] * 10_001}, "/a", "smaller place"),
    ],
)
def test_what_an_operation_cannot_be_done_on_is_refused_by_its_name(operation, channels, pointer, why):
    with pytest.raises(UpcastFailed, match=why) as caught:
        outcome([operation], **channels)
    assert caught.value.pointer == pointer


@pytest.mark.parametrize(
    ("operation", "member", "why"),
    [
        ({"op": "set_default", "path": "/a"}, "value", "needs a value"),
        ({"op": "set_default", "path": "/a", "value": 2**70}, "value", "cannot be stored"),
        ({"op": "copy", "from": "/a", "to": "/a"}, "to", "the same"),
        ({"op": "map_values", "path": "/a", "mapping": [[1, 2]], "otherwise": "x"}, "otherwise", "keep"),
        ({"op": "map_values", "path": "/a", "mapping": []}, "mapping", "pairs"),
        ({"op": "map_values", "path": "/a", "mapping": [[[], 1]]}, "mapping/0", "scalar"),
        ({"op": "split", "from": "/a", "separator": ",", "to": ["/b"]}, "to", "2 to"),
        ({"op": "remove", "path": "/a" * 17}, "path", "at most 16 parts"),
        ({"op": "remove", "path": "/"}, "path", "a channel first"),
        ({"op": "remove", "path": "/a", "when": " "}, "when", "as text"),
        ({"op": "remove", "path": "/a", "when": "value.getHours() == 1"}, "when", "only these functions"),
    ],
)
def test_a_member_that_is_not_acceptable_is_refused_by_its_name(operation, member, why):
    with pytest.raises(StepInvalid, match=why) as caught:
        compile_operations([operation])
    assert caught.value.pointer == f"/operations/0/{member}"


def test_a_channel_of_json_is_looked_into():
    state = {"c": Encoded("json", b'{"x": 1, "y": 2}')}
    assert unpacked(run([{"op": "remove", "path": "/c/x"}], state)) == {"c": {"y": 2}}


@pytest.mark.parametrize(
    ("channel", "why"),
    [
        (Encoded("json", b"{"), "not what its encoding says"),
        (Encoded("pickle", b"."), "cannot be looked into"),
        (Encoded("msgpack", b"\x91" * 600 + b"\xca\x3f\xc0\x00\x00"), "nested deeper|not what its encoding says"),
    ],
)
def test_a_channel_that_cannot_be_looked_into_is_refused_by_its_name(channel, why):
    with pytest.raises(UpcastFailed, match=why) as caught:
        run([{"op": "remove", "path": "/c/x"}], {"c": channel})
    assert caught.value.pointer == "/c"


SINGLE = b"\xca\x3f\xc0\x00\x00"


@pytest.mark.parametrize("data", [SINGLE, b"\x81" + SINGLE + b"\x01"], ids=["alone", "as a key"])
def test_single_floats_that_move_below_another_channel_stay_single(data):
    after = run([{"op": "move", "from": "/a", "to": "/b/c"}], {"a": Encoded("msgpack", data)})
    assert after["b"].data == b"\x81\xa1c" + data
    out = run([{"op": "move", "from": "/b/c", "to": "/a"}], after)
    assert out["a"].data == data
