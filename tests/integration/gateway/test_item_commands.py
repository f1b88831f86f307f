"""`stateroom item` against a running gateway."""

import json
from base64 import b64encode
from datetime import datetime, timedelta
from uuid import uuid4

import pytest

from gateway.cli.main import run
from stateroom import Client, new_client_share


@pytest.fixture
def subject():
    return f"user-{uuid4()}"


@pytest.fixture
def command(running_gateway, subject, monkeypatch, capsys):
    monkeypatch.setenv("STATEROOM_URL", running_gateway.url)
    monkeypatch.setenv("STATEROOM_API_KEY", running_gateway.api_key)
    monkeypatch.setenv("STATEROOM_SUBJECT", subject)

    def call(*words, code=0):
        capsys.readouterr()
        assert run(["item", *map(str, words)]) == code, capsys.readouterr().err
        return capsys.readouterr()

    return call


@pytest.fixture
def told(command):
    def call(verb, *words, code=0):
        return [json.loads(line) for line in command(verb, "--json", *words, code=code).out.splitlines()]

    return call


def test_an_item_is_put_read_and_replaced_by_who_saw_it(command, told):
    [made] = told("put", "memories", "ada", "seat", "--value", '{"likes": "aisle"}', "--ttl", "30d", "--if-absent")
    assert made["status"] == "created"
    [read] = told("get", "memories", "ada", "seat")
    assert (read["path"], read["key"], read["value"]) == (["memories", "ada"], "seat", {"likes": "aisle"})
    assert read["ttl_seconds"] == 30 * 86_400
    assert datetime.fromisoformat(read["expires_at"]) - datetime.fromisoformat(made["updated_at"]) == timedelta(days=30)
    changed = ("put", "memories", "ada", "seat", "--value", '{"likes": "window"}')
    [replaced] = told(*changed, "--if-revision", made["revision"])
    assert replaced["status"] == "replaced"
    assert str(replaced["revision"]) in command(*changed, "--if-revision", made["revision"], code=6).err
    command(*changed, "--if-absent", code=6)
    command("delete", "memories", "ada", "seat", "--if-revision", made["revision"], "--yes", code=6)
    command("delete", "memories", "ada", "seat", "--yes")
    command("delete", "memories", "ada", "seat", "--yes", code=3)
    command("get", "memories", "ada", "seat", code=3)


def test_what_is_listed_is_put_back_as_it_was_with_words_and_numbers(command, told, tmp_path):
    value = (
        '{"b":{"$bytes":"aGVsbG8="},"f":1.0,"big":123456789012345678901234567890,"m":{"$map":[["$map",2]]},"z":null}'
    )
    for path, key in ((("memories", "ada"), ""), (("memories", "a,b/ü"), "-k"), (("notes",), "~")):
        told("put", "--value", value, "--ttl", "12h", "--", *path, key)
    for number in range(120):
        told("put", "memories", "many", f"k{number}", "--value", json.dumps({"n": number}))
    dumped = command("list", "--all", "--json").out
    items = [json.loads(line) for line in dumped.splitlines()]
    assert [each["value"]["n"] for each in items[:120]] == [*reversed(range(120))]
    assert dumped.count(value) == 3
    paths = [["memories", "a,b/ü"], ["memories", "ada"], ["memories", "many"], ["notes"]]
    assert told("paths", "--all") == paths
    assert told("paths", "--prefix", "memories", "--max-depth", 1) == [["memories"]]

    assert "Deleted 122 items." in command("delete", "--prefix", "memories", "--yes").err
    assert told("paths") == [["notes"]]
    lines = tmp_path / "dump"
    lines.write_text("\n".join(reversed(dumped.splitlines())) + '\n{"path": [], "key": "k", "value": {}}\n[]\n')
    [loaded] = told("put", "--lines", lines, code=1)
    assert loaded == {"created": 122, "replaced": 1, "indexed": 0, "refused": 2}
    again = told("list", "--all")

    def kept(item):
        return {name: item.get(name) for name in ("path", "key", "value", "ttl_seconds")}

    assert sorted(map(str, map(kept, again))) == sorted(map(str, map(kept, items)))
    assert told("put", "--lines", lines, "--if-absent", code=1) == [
        {"created": 0, "replaced": 0, "indexed": 0, "refused": 125}
    ]


def test_of_many_items_those_that_a_filter_names_are_listed_and_deleted(command, told):
    for number in range(5):
        told("put", "facts", f"k{number}", "--value", json.dumps({"kind": "fact" if number % 2 else "plan"}))
    assert [each["key"] for each in told("list", "--filter", '{"kind": "fact"}')] == ["k3", "k1"]
    table = command("list", "--prefix", "facts", "--limit", 2)
    assert ("k4" in table.out, "k1" in table.out, "There is more" in table.err) == (True, False, True)
    command("list", "--filter", '{"$near": 1}', code=1)
    command("delete", "--prefix", "facts", "--filter", '{"kind": "plan"}', "--yes")
    assert [each["key"] for each in told("list", "--prefix", "facts")] == ["k3", "k1"]


def test_items_are_found_by_vectors_that_lines_gave_them(command, told, tmp_path):
    lines, vector = tmp_path / "lines", tmp_path / "vector.json"
    vector.write_text("[1, 0]")
    told("put", "facts", "plain", "--value", '{"text": "no vector"}')
    told("put", "facts", "late", "--value", '{"text": "north"}')
    given = [{"model": "compass", "vectors": [[1, 0]]}], [{"model": "compass", "vectors": [[0, 1]]}]
    lines.write_text(
        json.dumps({"path": ["facts"], "key": "late", "vectors": given[0]})
        + "\n"
        + json.dumps({"path": ["facts"], "key": "east", "value": {"text": "east"}, "vectors": given[1]})
    )
    assert told("put", "--lines", lines) == [{"created": 1, "replaced": 0, "indexed": 1, "refused": 0}]
    found = told("search", "--near-file", vector, "--model", "compass", "--prefix", "facts")
    assert [(each["key"], round(each["score"], 2)) for each in found] == [("late", 1.0), ("east", 0.0)]
    assert "No items with vectors" in command("search", "--near-file", vector, "--model", "other").err


def test_looking_keeps_nothing_alive_unless_one_says_so(command, told, running_gateway, subject):
    told("put", "a", "k", "--value", "{}", "--ttl", "1h")
    with Client(running_gateway.url, running_gateway.api_key, subject=subject) as client:
        before = client.items.get(("a",), "k", refresh=False)
        told("get", "a", "k")
        told("list")
        assert client.items.get(("a",), "k", refresh=False) == before


def test_what_is_under_a_share_is_there_with_the_share_only(command, told, monkeypatch):
    monkeypatch.setenv("STATEROOM_CLIENT_SHARE", b64encode(new_client_share()).decode())
    told("put", "secrets", "k", "--value", "{}")
    assert told("paths") == [["secrets"]]
    monkeypatch.delenv("STATEROOM_CLIENT_SHARE")
    assert told("paths") == []
    command("get", "secrets", "k", code=3)
