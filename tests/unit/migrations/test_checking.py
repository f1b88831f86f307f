import datetime as dt
import gc
import os
import sys
import threading
import time
from contextlib import contextmanager
from textwrap import dedent
from types import SimpleNamespace

import msgpack
import pytest

from migrations.state import checking
from migrations.state.chain import Chain, PythonDirection, Step
from migrations.state.checking import Case, RecordedWrite, check_chain, check_step, record, record_write, watched
from migrations.state.declarative import compile_operations
from migrations.state.document import Encoded
from migrations.state.errors import PathFault
from migrations.state.loading import chains_of_folder
from tests.unit.migrations.states import packed, unpacked

PREF = {"language": "pt"}


def python_step(tmp_path, source):
    folder = tmp_path / "travel"
    folder.mkdir(exist_ok=True)
    (folder / "v1_to_v2.py").write_text(dedent(source))
    (step,) = chains_of_folder(tmp_path)["travel"].steps
    return step


def whys(step, *cases):
    return [finding.why for finding in check_step(step, cases)]


RENAME = """
    def upcast(state):
        return {("user_profile" if name == "user_pref" else name): value for name, value in state.items()}

    def downcast(state):
        return {("user_pref" if name == "user_profile" else name): value for name, value in state.items()}
"""
CASE = Case("one", packed(user_pref=PREF, n=1), packed(user_profile=PREF, n=1))


def test_a_step_that_keeps_its_promises_has_no_findings(tmp_path):
    assert check_step(python_step(tmp_path, RENAME), [CASE]) == []


def test_a_declared_step_is_held_to_the_same():
    up = compile_operations([{"op": "rename", "from": "/user_pref", "to": "/user_profile"}])
    down = compile_operations([{"op": "rename", "from": "/user_profile", "to": "/user_pref"}])
    assert check_step(Step(1, 2, up, down), [CASE]) == []
    assert "does not lead back" in " ".join(whys(Step(1, 2, up, up), CASE))


def test_what_was_recorded_is_what_a_step_must_make(tmp_path):
    step = python_step(tmp_path, RENAME)
    (found,) = check_step(
        step, [Case("one", packed(a=[{"b": 1}]), packed(a=[{"b": True}]), back=packed(a=[{"b": True}]))]
    )
    assert (found.step, found.case) == ("v1_to_v2", "one")
    assert found.why.endswith("at /a/0/b")
    assert unpacked(found.actual) == {"a": [{"b": 1}]}


def test_a_recorded_float_is_met_by_one_of_either_width(tmp_path):
    single = {"a": Encoded("msgpack", b"\xca\x3f\x80\x00\x00")}
    step = python_step(tmp_path, "def upcast(state): return state")
    assert check_step(step, [Case("one", single, packed(a=1.0))]) == []
    assert check_step(step, [Case("one", packed(a=float("nan")), packed(a=float("nan")))]) == []


@pytest.mark.parametrize(
    "change",
    ["state['a']['b'] = 2", "state['a']['l'].append(1)", "state['a'].pop('b')", "state['a']['l'][0]['m'] = None",
     "state['a']['b'] = True"],
)  # fmt: skip
def test_a_step_that_changes_what_it_is_given_is_found(tmp_path, change):
    step = python_step(
        tmp_path,
        f"""
        def upcast(state):
            if "a" in state:
                {change}
            return {{"fixed": 1}}

        def upcast_write(channel, value):
            return {{}}
        """,
    )
    case = Case("one", packed(a={"b": 1, "l": [{"m": 1}]}), packed(fixed=1))
    assert "it changes what it is given, at /a" in whys(step, case)


@pytest.mark.parametrize(
    ("statement", "named"),
    [
        ("open('/etc/hostname').close()", "open"),
        ("pathlib.Path('/etc/hostname').read_text()", "open"),
        ("os.listdir('/')", "os.listdir"),
        ("os.environ['HOME']", "os.environ"),
        ("os.environ.get('NO_SUCH_THING')", "os.environ"),
        ("os.getenv('HOME')", "os.environ"),
        ("os.getpid()", "getpid"),
        ("os.urandom(4)", "urandom"),
        ("secrets.token_hex()", "urandom"),
        ("uuid.uuid4()", "urandom"),
        ("random.random()", "random.random"),
        ("random.choice([1, 2])", "random."),
        ("time.time()", "time.time"),
        ("time.monotonic_ns()", "time.monotonic_ns"),
        ("time.sleep(0)", "time.sleep"),
        ("time.localtime()", "time.localtime"),
        ("datetime.datetime.now()", "datetime.now"),
        ("datetime.datetime.now(datetime.UTC)", "datetime.now"),
        ("datetime.date.today()", "date.today"),
        ("socket.getaddrinfo('127.0.0.1', 1)", "socket.getaddrinfo"),
        ("socket.socket().close()", "socket.__new__"),
        ("urllib.request.urlopen('http://127.0.0.1:9/')", "urllib.Request"),
        ("subprocess.run(['true'], check=True)", "subprocess.Popen"),
        ("threading.Thread(target=print).start()", "_thread.start_"),
        ("sqlite3.connect(':memory:').close()", "sqlite3.connect"),
    ],
)
@pytest.mark.parametrize("swallows", [False, True])
def test_a_step_that_reaches_outside_of_the_state_is_found(tmp_path, statement, named, swallows):
    modules = (
        "datetime, os, pathlib, random, secrets, socket, sqlite3, subprocess, threading, time, uuid, urllib.request"
    )
    step = python_step(
        tmp_path,
        f"""
        import {modules}

        def upcast(state):
            try:
                {statement}
            except Exception:
                if not {swallows}:
                    raise
            return state
        """,
    )
    found = whys(step, Case("one", packed(a=1), packed(a=1)))
    assert any(why.startswith("it reaches outside of the state") and named in why for why in found), found


@contextmanager
def runs_a_step():
    """Let the hooks take this thread for one that runs a step: when the interpreter calls them, no line is traced."""
    checking._watched.seen = seen = []
    try:
        yield seen
    finally:
        checking._watched.seen = None


IMPORT = SimpleNamespace(f_code=SimpleNamespace(co_filename="<frozen importlib._bootstrap>"), f_back=None)
INSIDE_IMPORT = SimpleNamespace(f_code=SimpleNamespace(co_filename="module.py"), f_back=IMPORT)
ENVIRON = SimpleNamespace(f_code=os.environ.__class__.__getitem__.__code__, f_back=None)


GLOBAL_RANDOM = checking._GLOBAL_RANDOM


class Day(dt.date):
    pass


@pytest.mark.parametrize(
    ("function", "named"),
    [
        (time.time, "time.time"),
        (os.getpid, "posix.getpid"),
        (dt.datetime.now, "datetime.now"),
        (Day.today, "Day.today"),
        (GLOBAL_RANDOM.random, "random.random"),
        (type(GLOBAL_RANDOM)(1).random, None),
        (dt.datetime(2026, 11, 25, tzinfo=dt.UTC).isoformat, None),
        ([].append, None),
        ({}.get, None),
        (len, None),
    ],
)
def test_a_function_that_reaches_outside_is_known_by_what_it_is_bound_to(function, named):
    with runs_a_step() as seen:
        checking._on_call(sys._getframe(), "c_call", function)
    assert seen == ([] if named is None else [named])


def test_the_environment_is_outside():
    with runs_a_step() as seen:
        checking._on_call(ENVIRON, "call", None)
        checking._on_call(ENVIRON, "return", None)
        checking._on_call(sys._getframe(), "call", None)
    assert seen == ["os.environ"]


def test_an_event_that_means_reaching_outside_is_noted_and_refused():
    with runs_a_step() as seen:
        checking._on_event("object.__getattr__", ())
        assert seen == []
    with pytest.raises(PathFault, match=r"reaches outside: socket\.connect"), runs_a_step() as seen:
        checking._on_event("socket.connect", ())
    assert seen == ["socket.connect"]


def test_reading_a_module_is_no_reaching_outside():
    with runs_a_step() as seen:
        checking._on_call(INSIDE_IMPORT, "c_call", time.time)
    assert seen == []


def test_on_a_thread_that_runs_no_step_the_hooks_note_nothing():
    checking._on_event("open", ())
    checking._on_call(ENVIRON, "call", None)
    assert checking._watched.seen is None


def test_what_a_step_computes_and_imports_is_not_taken_for_reaching_outside(tmp_path):
    step = python_step(
        tmp_path,
        """
        import datetime

        def upcast(state):
            import colorsys, decimal, json, re
            day = datetime.datetime.strptime(state.get("day", "2026-11-22"), "%Y-%m-%d")
            moment = datetime.datetime.fromtimestamp(0, datetime.UTC) + datetime.timedelta(days=1)
            text = json.dumps([str(decimal.Decimal("1.5")), re.sub("a", "b", "aa"), colorsys.rgb_to_hsv(1, 0, 0)])
            return {**state, "year": day.year + moment.year, "text": text}

        def upcast_write(channel, value):
            return {channel: value}
        """,
    )
    for module in ("colorsys", "_strptime"):
        sys.modules.pop(module, None)
    after = record(step, packed(day="2026-11-22"))
    sys.modules.pop("colorsys")
    assert check_step(step, [Case("one", packed(day="2026-11-22"), after)]) == []


def test_what_a_collection_of_garbage_calls_is_not_taken_for_the_steps_doing():
    def on_collection(_phase, _info):
        time.perf_counter()

    gc.callbacks.append(on_collection)
    try:
        with watched() as seen:
            kept = [[] for _ in range(100_000)]
    finally:
        gc.callbacks.remove(on_collection)
    assert (len(kept), seen, gc.isenabled()) == (100_000, [], True)


def test_other_threads_go_on_reaching_outside_while_a_step_is_watched(tmp_path):
    file = tmp_path / "file"
    file.write_text("x")
    read = []
    with watched() as seen:
        thread = threading.Thread(target=lambda: None)  # made before: starting one is reaching outside
    thread = threading.Thread(target=lambda: read.append(file.read_text()))
    started = threading.Event()
    go = threading.Event()

    def wait():
        started.set()
        go.wait()
        read.append(file.read_text())

    thread = threading.Thread(target=wait)
    thread.start()
    started.wait()
    with watched() as seen:
        go.set()
        thread.join()
    assert (read, seen) == (["x"], [])


def test_nothing_is_watched_after_a_step(tmp_path):
    before = sys.getprofile()
    with pytest.raises(PathFault), watched():
        (tmp_path / "file").write_text("x")
    assert sys.getprofile() is before
    (tmp_path / "file").write_text("x")


def test_a_step_that_counts_its_runs_is_found(tmp_path):
    step = python_step(
        tmp_path,
        """
        runs = []

        def upcast(state):
            runs.append(1)
            return {name: len(runs) for name in state}
        """,
    )
    assert any("makes something else the second time, at /a" in why for why in whys(step, Case("one", packed(a=0), {})))


def test_a_step_that_raises_is_found_with_its_line_and_without_its_text(tmp_path):
    step = python_step(
        tmp_path,
        """
        def upcast(state):
            raise ValueError(f"secret {state}")
        """,
    )
    (why, *_) = whys(step, Case("one", packed(a="hidden"), {}))
    assert "ValueError in v1_to_v2.py:3" in why
    assert "hidden" not in why


def test_a_value_that_cannot_be_stored_is_found(tmp_path):
    step = python_step(tmp_path, "def upcast(state): return {'a': {1, 2}}")
    assert any("cannot be stored" in why for why in whys(step, Case("one", packed(a=1), packed(a=1))))


def test_a_write_that_becomes_something_else_than_the_state_is_found(tmp_path):
    step = python_step(
        tmp_path,
        """
        def upcast(state):
            after = dict(state)
            if "user_pref" in after:
                after["user_profile"] = {"preferences": after.pop("user_pref")}
            return after

        def upcast_write(channel, value):
            return {"user_profile": value} if channel == "user_pref" else {channel: value}
        """,
    )
    after = packed(user_profile={"preferences": PREF})
    (found,) = check_step(step, [Case("one", packed(user_pref=PREF), after)])
    assert found.case == "one, a pending write to user_pref"
    assert "another user_profile" in found.why
    # Unless that is what it should become, and somebody looked at it.
    looked_at = RecordedWrite("user_pref", packed(a=PREF)["a"], packed(user_profile=PREF))
    assert check_step(step, [Case("one", packed(user_pref=PREF), after, writes=(looked_at,))]) == []
    other = RecordedWrite("user_pref", packed(a=PREF)["a"], packed(user_profile={}))
    assert [
        "than was recorded" in why for why in whys(step, Case("one", packed(user_pref=PREF), after, writes=(other,)))
    ]


def test_a_write_that_a_step_cannot_take_alone_is_found(tmp_path):
    step = python_step(
        tmp_path,
        """
        def upcast(state):
            return {"name": state["first"] + " " + state["last"]} if state else {}
        """,
    )
    case = Case("one", packed(first="Ada", last="Lovelace"), packed(name="Ada Lovelace"))
    found = whys(step, case)
    assert len(found) == 2
    assert all("upcast_write" in why for why in found)


def test_a_chain_needs_a_recorded_state_for_each_step_and_goes_on_from_it():
    def up(old, new):
        return compile_operations([{"op": "rename", "from": f"/{old}", "to": f"/{new}", "required": True}])

    chain = Chain("travel", [Step(1, 2, up("a", "b")), Step(2, 3, up("b", "c"))])
    good = {"v1_to_v2": [Case("one", packed(a=1), packed(b=1))], "v2_to_v3": [Case("one", packed(b=1), packed(c=1))]}
    assert check_chain(chain, good) == []
    (missing,) = check_chain(chain, {"v1_to_v2": good["v1_to_v2"]})
    assert (missing.step, missing.why) == ("v2_to_v3", "no state is recorded for it")
    stuck = {**good, "v1_to_v2": [Case("one", packed(a=1, x=1), packed(b=1, x=1)), Case("two", {}, {})]}
    found = check_chain(chain, stuck)
    assert any("goes no further" in finding.why for finding in found)


def test_opaque_channels_and_extension_values_pass_through(tmp_path):
    extension = msgpack.ExtType(5, b"\x93\xa1a")
    state = {**packed(a=[extension]), "b": Encoded("bytes", b"\xc1")}
    declared = Step(1, 2, compile_operations([{"op": "rename", "from": "/a", "to": "/c"}]))
    after = {"c": state["a"], "b": state["b"]}
    assert check_step(declared, [Case("one", state, after)]) == []
    written = Step(1, 2, PythonDirection(lambda trees: trees))
    assert check_step(written, [Case("one", state, state)]) == []


def test_what_a_step_makes_can_be_recorded(tmp_path):
    step = python_step(tmp_path, RENAME)
    assert record(step, CASE.before) == CASE.after
    assert record_write(step, "user_pref", CASE.before["user_pref"]) == {"user_profile": CASE.before["user_pref"]}


def test_a_way_back_may_refuse_a_lone_write_but_not_the_state():
    up = compile_operations([{"op": "split", "from": "/name", "separator": " ", "to": ["/first", "/last"]}])
    down = compile_operations([{"op": "join", "from": ["/first", "/last"], "separator": " ", "to": "/name"}])
    whole = Case("one", packed(name="Ada Lovelace"), packed(first="Ada", last="Lovelace"))
    assert check_step(Step(1, 2, up, down), [whole]) == []
    half = Case("one", packed(first="Ada"), packed(first="Ada"))
    assert any(finding.refused for finding in check_step(Step(1, 2, up, down), [half]))


@pytest.mark.parametrize(
    ("recorded", "place"),
    [
        (packed(z=0, a=[1, 2]), "/a/1"),
        (packed(z=0, a=[1]), "/a/1"),
        (packed(z=0, a=[1, 3], more=1), "/more"),
        (packed(z=0, a={"x": 1}), "/a"),
    ],
)
def test_the_first_difference_is_named_by_its_place(tmp_path, recorded, place):
    step = python_step(tmp_path, "def upcast(state): return state")
    case = Case("one", packed(z=0, a=[1, 3]), recorded, back=None)
    assert any(why.endswith(f"at {place}") for why in whys(step, case))


@pytest.mark.parametrize(
    ("made", "recorded", "place"),
    [
        ({"x": 1, "y": {"a/b": 1}}, {"x": 1, "y": {"a/b": 2}}, "/a/y/a~1b"),
        ({"x": 1}, {"x": 1, "y": 2}, "/a/y"),
    ],
)
def test_the_first_difference_of_two_objects_is_named_by_its_members(tmp_path, made, recorded, place):
    step = python_step(tmp_path, "def upcast(state): return state")
    assert any(why.endswith(f"at {place}") for why in whys(step, Case("one", packed(a=made), packed(a=recorded))))


def test_channels_that_cannot_be_looked_into_are_compared_by_their_bytes(tmp_path):
    step = python_step(tmp_path, "def upcast(state): return state")
    one, other = {"a": Encoded("pickle", b"1")}, {"a": Encoded("pickle", b"2")}
    assert check_step(step, [Case("one", one, one)]) == []
    assert any(why.endswith("at /a") for why in whys(step, Case("one", one, other)))


def test_a_recorded_write_that_the_whole_state_cannot_take_is_found(tmp_path):
    step = python_step(
        tmp_path,
        """
        def upcast(state):
            return {"b": state["a"] + 1}

        def upcast_write(channel, value):
            return {"b": value}
        """,
    )
    case = Case("one", packed(a=1), packed(b=2), writes=(RecordedWrite("a", packed(a="text")["a"]),))
    assert any(finding.refused for finding in check_step(step, [case]))


def test_a_recorded_write_is_compared_with_the_state_that_has_it(tmp_path):
    write = RecordedWrite("user_pref", packed(a="other")["a"])
    case = Case("one", CASE.before, CASE.after, writes=(write,))
    assert check_step(python_step(tmp_path, RENAME), [case]) == []


def test_writes_that_lead_to_one_channel_are_nobodys_alone(tmp_path):
    step = python_step(
        tmp_path,
        """
        def upcast(state):
            return {"total": state["a"] + state["b"]}

        def upcast_write(channel, value):
            return {"total": value}
        """,
    )
    assert check_step(step, [Case("one", packed(a=1, b=2), packed(total=3))]) == []


def test_a_collection_of_garbage_that_was_off_stays_off():
    gc.disable()
    try:
        with watched():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
