"""`docs/items.md` as it stands: its sessions in a shell, its filters, and what it says of LangGraph's stores.

Its Python is run by `tests/conformance/test_python_client.py`, as that of other pages.
"""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import pytest
from langgraph.store.memory import InMemoryStore

from stateroom import Client, InvalidRequest
from stateroom.langgraph import StateroomStore

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "items.md").read_text()
SESSIONS = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
FILTERS = [
    (wanted, re.findall("`([^`]*)`", found), re.findall("`([^`]*)`", other))
    for wanted, found, other in re.findall(r"^\| `([^`]*)` \| (`.*`) \| (.*)\|$", PAGE, re.MULTILINE)
]
REFUSED = re.findall("`([^`]*)`", re.search(r"^- Refused with 422: (.*)$", PAGE, re.MULTILINE)[1])
CASES = re.findall(r"^\| ([^|]*) \| [^|]* \| [^|]* \| [^|]* \|$", PAGE.split("| case |")[1], re.MULTILINE)[:15]


@pytest.fixture
def environ(running_gateway, tmp_path):
    lines = running_gateway.env_file.read_text().splitlines()
    programs = str(Path(sys.executable).parent)  # where the environment has `stateroom`
    found = dict(shlex.split(line)[0].split("=", 1) for line in lines)
    return os.environ | found | {"PATH": f"{programs}:{os.environ['PATH']}", "STATEROOM_SUBJECT": f"user-{uuid4()}"}


def run(script, environ, folder):
    command = ["bash", "-euo", "pipefail", "-c", script]
    return subprocess.run(command, env=environ, cwd=folder, capture_output=True, text=True, timeout=120, check=False)


def test_the_curl_sessions_answer_as_their_comments_say(environ, tmp_path):
    script = "\n".join(each for each in SESSIONS if "call " in each).replace("user-42", f"user-{uuid4()}")
    done = run(script, environ, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr.split() == re.findall(r"  # (\d{3})\b", script)
    assert len(done.stderr.split()) > 10
    first, second = re.findall(r'"key":"(?:north|east)"', done.stdout)[-2:]
    assert (first, second) == ('"key":"north"', '"key":"east"')


def test_the_session_of_the_command_line_works(environ, tmp_path):
    [session] = [each for each in SESSIONS if "stateroom item" in each]
    vectors = [{"model": "compass-3", "vectors": [[0, 1, 0]]}]
    line = json.dumps({"path": ["notes"], "key": "north", "value": {"text": "north"}, "vectors": vectors})
    done = run(f"echo '{line}' | stateroom item put --lines -\n{session}", environ, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "replaced  1" in done.stdout
    assert "north" in done.stdout
    assert "Deleted 1 items." in done.stderr


@pytest.mark.parametrize(("wanted", "found", "other"), FILTERS, ids=[each[0] for each in FILTERS])
def test_a_filter_finds_what_its_row_says_and_nothing_else(running_gateway, wanted, found, other):
    values = [json.loads(each) for each in found + other]
    with Client(running_gateway.url, running_gateway.api_key, subject=f"user-{uuid4()}") as client:
        for number, value in enumerate(values):
            client.items.put(("values",), f"{number:02}", value)
        keys = sorted(each.key for each in client.items.search(filter=json.loads(wanted)))
    assert [values[int(key)] for key in keys] == values[: len(found)]


def test_filters_that_are_none_are_refused(running_gateway):
    assert len(REFUSED) > 5
    assert len(FILTERS) > 15
    with Client(running_gateway.url, running_gateway.api_key, subject=f"user-{uuid4()}") as client:
        client.items.put(("values",), "k", {})
        for wanted in REFUSED:
            with pytest.raises(InvalidRequest):
                client.request("POST", "/items:search", body={"filter": json.loads(wanted)})


def embed(texts):
    return [[float(text.count("a")), float(text.count("b")), 1.0] for text in texts]


def keys(found):
    return [each.key for each in found]


def order(store):
    for key in ("first", "second"):
        store.put(("p",), key, {})
    return keys(store.search(("p",)))


def greater_missing(store):
    store.put(("p",), "k", {})
    return keys(store.search(("p",), filter={"n": {"$gt": 9}}))


def greater(store):
    for number, value in enumerate((9, 10, "s")):
        store.put(("p",), str(number), {"n": value})
    return keys(store.search(("p",), filter={"n": {"$gt": 9}}))


def unequal_missing(store):
    store.put(("p",), "k", {})
    return keys(store.search(("p",), filter={"n": {"$ne": 9}}))


def null(store):
    store.put(("p",), "missing", {})
    store.put(("p",), "null", {"x": None})
    return sorted(keys(store.search(("p",), filter={"x": None})))


def nested(store):
    store.put(("p",), "k", {"a": {"b": 1, "c": 2}})
    return keys(store.search(("p",), filter={"a": {"b": 1}}))


def without_vectors(store):
    store.put(("p",), "with", {"text": "a"})
    store.put(("p",), "without", {"text": "a"}, index=False)
    return keys(store.search(("p",), query="a"))


def put_again(store):
    store.put(("p",), "k", {"text": "a"})
    store.put(("p",), "k", {"text": "b"}, index=False)
    return [each.score is not None for each in store.search(("p",), query="a")]


def pages(store):
    for number in range(60):
        store.put(("p",), str(number), {"text": "a" * number})
    return [len(store.search(("p",), query="a", limit=10, offset=offset)) for offset in range(0, 50, 10)]


def created(store):
    store.put(("p",), "k", {})
    before = store.get(("p",), "k").created_at
    store.put(("p",), "k", {"n": 1})
    return store.get(("p",), "k").created_at == before


def negative(store):
    store.put(("p",), "k", {})
    return type(store).__name__ if store.search(("p",), limit=-1) == [] else "others"


def odd_values(store):
    store.put(("p",), "k", {"nul": "\0", "nan": float("nan")})
    value = store.get(("p",), "k").value
    return value["nul"], str(value["nan"])


def as_list(store):
    store.put(("p", "q"), "k", {})
    return keys(store.search(["p"]))


def joined(store):
    store.put(("p",), "k", {"n": 1})
    store.put(("p",), "other", {"n": 3})
    return keys(store.search(("p",), filter={"$or": [{"n": 1}, {"$and": [{"n": 2}]}]}))


# What is told of each row here, and of LangGraph's store in memory where it is not only said.
TOLD = {
    "order without a query": (order, ["second", "first"], ["first", "second"]),
    "`$gt`, member missing": (greater_missing, [], TypeError),
    '`$gt 9` of 9, 10 and "s"': (greater, ["1"], ValueError),
    "`$ne`, member missing": (unequal_missing, [], ["k"]),
    '`{"x": None}`': (null, ["null"], ["missing", "null"]),
    "a map in a filter": (nested, ["k"], ["k"]),
    "query, item without vectors": (without_vectors, ["with"], ["with", "without"]),
    "put again with `index=False`": (put_again, [], [True]),
    "query, pages of 10 of 60": (pages, [10] * 5, [10] * 5),
    "`created_at` when put again": (created, True, False),
    "negative limit": (negative, InvalidRequest, "InMemoryStore"),
    "NUL and NaN in values": (odd_values, ("\0", "nan"), ("\0", "nan")),
    "a namespace as a list": (as_list, ["k"], []),
    "`$and`, `$or`": (joined, ["k"], []),
    "over, but not swept yet": (None, None, None),  # tests/conformance/test_langgraph_store.py lets time pass
}


def test_every_case_of_the_page_is_tried():
    assert [*TOLD] == CASES


def tried(case, store):
    try:
        return case(store)
    except Exception as failure:  # noqa: BLE001  it is what is compared
        return type(failure)


@pytest.mark.parametrize("case", [name for name, (tries, _, _) in TOLD.items() if tries])
def test_stores_do_what_the_page_says(running_gateway, case):
    index = {"dims": 3, "embed": embed, "model": "letters", "fields": ["text"]}
    tries, here, in_memory = TOLD[case]
    with StateroomStore(running_gateway.url, running_gateway.api_key, subject=f"user-{uuid4()}", index=index) as store:
        assert tried(tries, store) == here
    if in_memory is not None:
        assert tried(tries, InMemoryStore(index=index)) == in_memory
