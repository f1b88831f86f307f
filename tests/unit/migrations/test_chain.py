import msgpack
import pytest

from migrations.state.chain import Chain, PythonDirection, Step
from migrations.state.declarative import compile_operations
from migrations.state.document import Encoded
from migrations.state.errors import ChainInvalid, StateTooNew, UpcastFailed
from migrations.state.loading import chains_of_folder
from tests.unit.migrations.states import packed, unpacked


def rename(old, new):
    return compile_operations([{"op": "rename", "from": f"/{old}", "to": f"/{new}"}])


def line():
    return Chain(
        "travel",
        [Step(2, 3, rename("b", "c"), rename("c", "b")), Step(1, 2, rename("a", "b"), rename("b", "a"))],
    )


def test_state_goes_up_and_down_the_line():
    state = packed(a=[1])
    assert unpacked(line().convert(state, 1, 3)) == {"c": [1]}
    assert line().convert(line().convert(state, 1, 3), 3, 1) == state


def test_state_at_the_wanted_version_is_returned_as_it_is():
    state = {"a": Encoded("msgpack", b"not msgpack at all \xc1")}
    assert line().convert(state, 2, 2) == state


@pytest.mark.parametrize(
    ("steps", "at_fault", "why"),
    [
        ([(1, 2), (1, 2)], "v1_to_v2", "twice"),
        ([(1, 2), (1, 3)], "v1_to_v3", "fork"),
        ([(1, 3), (2, 3)], "v2_to_v3", "fork"),
        ([(1, 2), (2, 1)], "v2_to_v1", "cycle"),
        ([(2, 2)], "v2_to_v2", "cycle"),
        ([(1, 2), (3, 4)], "v3_to_v4", "no step"),
        ([(0, 1)], "v0_to_v1", "begin at 1"),
    ],
)
def test_steps_that_are_no_line_are_refused_at_the_step(steps, at_fault, why):
    with pytest.raises(ChainInvalid, match=why) as caught:
        Chain("travel", [Step(source, target, rename("a", "b")) for source, target in steps])
    assert caught.value.step == at_fault


def test_versions_that_no_step_reaches_are_refused():
    one_way = Chain("travel", [Step(1, 2, rename("a", "b"))])
    for saved, wanted in ((1, 3), (2, 1), (3, 2)):
        with pytest.raises(StateTooNew) as caught:
            one_way.convert(packed(a=1), saved, wanted)
        assert (caught.value.saved, caught.value.wanted) == (saved, wanted)


def test_python_steps_leave_the_bytes_of_what_they_do_not_replace():
    odd = b"\xdd\x00\x00\x00\x01\xc7\x02\x05hi"  # a long header, and an extension value

    def upcast(state):
        return {"messages": state["msgs"], "count": len(state["msgs"])}

    chain = Chain("travel", [Step(1, 2, PythonDirection(upcast))])
    after = chain.convert({"msgs": Encoded("msgpack", odd)}, 1, 2)
    assert after["messages"].data == odd
    assert msgpack.unpackb(after["count"].data) == 1


def test_python_steps_convert_a_pending_write_without_its_neighbours():
    def upcast(state):
        after = dict(state)
        after.setdefault("lang", "en")
        if "pref" in after:
            after["profile"] = after.pop("pref")
        return after

    chain = Chain("travel", [Step(1, 2, PythonDirection(upcast))])
    assert unpacked(chain.convert(packed(pref=1), 1, 2, partial=True)) == {"profile": 1}
    assert unpacked(chain.convert(packed(other=1), 1, 2, partial=True)) == {"other": 1}


def test_a_python_step_may_say_how_writes_are_converted():
    def upcast(state):
        return {"total": state["a"] + state["b"]}

    def upcast_write(channel, value):
        return {"total": value} if channel in {"a", "b"} else {channel: value}

    explicit = Chain("travel", [Step(1, 2, PythonDirection(upcast, upcast_write))])
    assert unpacked(explicit.convert(packed(a=1), 1, 2, partial=True)) == {"total": 1}
    implicit = Chain("travel", [Step(1, 2, PythonDirection(upcast))])
    with pytest.raises(UpcastFailed, match="upcast_write"):
        implicit.convert(packed(a=1), 1, 2, partial=True)


@pytest.mark.parametrize(
    "upcast",
    [
        lambda state: {}["secret value"],
        lambda state: None,
        lambda state: {1: 2},
        lambda state: {"a": object()},
        lambda state: {"a": "\ud800"},
        lambda state: (_ for _ in ()).throw(ValueError(state["a"])),
    ],
)
def test_what_a_python_step_does_wrong_is_told_without_values(upcast):
    chain = Chain("travel", [Step(1, 2, PythonDirection(upcast))])
    with pytest.raises(UpcastFailed) as caught:
        chain.convert(packed(a="secret value"), 1, 2)
    assert caught.value.step == "v1_to_v2"
    assert "secret" not in str(caught.value)


def test_steps_are_found_in_a_folder(tmp_path):
    (tmp_path / "travel").mkdir()
    (tmp_path / "travel" / "v1_to_v2.py").write_text(
        "def upcast(state):\n    return {'b': state['a']}\n\ndef downcast(state):\n    return {'a': state['b']}\n"
    )
    [(name, chain)] = chains_of_folder(tmp_path).items()
    assert name == "travel"
    assert unpacked(chain.convert(packed(a=1), 1, 2)) == {"b": 1}
    assert unpacked(chain.convert(packed(b=1), 2, 1)) == {"a": 1}


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("travel/helpers.py", "x = 1"),
        ("travel/v1_to_v2.py", "x = 1"),
        ("travel/v1_to_v2.py", "upcast = 3"),
        ("Travel/v1_to_v2.py", "def upcast(state): return state"),
    ],
)
def test_what_is_no_step_is_refused_and_not_passed_over(tmp_path, file, text):
    path = tmp_path / file
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(ChainInvalid):
        chains_of_folder(tmp_path)


def test_a_python_step_moves_channels_that_cannot_be_looked_into_and_knows_null_and_bytes():
    seen = {}

    def upcast(state):
        seen.update(state)
        return {"blob": state["pickled"], "nothing": state["nothing"], "raw": state["raw"]}

    before = {
        "pickled": Encoded("pickle", b"\x80\x04."),
        "nothing": Encoded("null", b""),
        "raw": Encoded("bytes", b"\xff\x00"),
    }
    after = Chain("travel", [Step(1, 2, PythonDirection(upcast))]).convert(before, 1, 2)
    assert after == {"blob": before["pickled"], "nothing": before["nothing"], "raw": before["raw"]}
    assert (seen["nothing"], seen["raw"]) == (None, b"\xff\x00")
    nested = Chain("travel", [Step(1, 2, PythonDirection(lambda state: {"list": [state["pickled"]]}))])
    with pytest.raises(UpcastFailed):
        nested.convert(before, 1, 2)


def test_a_pending_write_that_equals_a_steps_default_is_not_lost():
    chain = Chain("travel", [Step(1, 2, PythonDirection(lambda state: {"messages": state.get("msgs", []), "x": 1}))])
    assert unpacked(chain.convert(packed(msgs=[]), 1, 2, partial=True)) == {"messages": []}


@pytest.mark.slow
def test_a_state_whose_size_is_known_only_when_it_is_written_out_is_bounded():
    wide = [2**63] * 1_000
    chain = Chain("travel", [Step(1, 2, PythonDirection(lambda _state: {"a": [wide] * 7_600}))])
    with pytest.raises(UpcastFailed, match="grew beyond"):
        chain.convert(packed(a=1), 1, 2)
