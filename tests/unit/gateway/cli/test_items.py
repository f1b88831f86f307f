"""`stateroom item put`, `get`, `list`, `search`, `delete`, `paths`, against a gateway that answers what it is told."""

import io
import json
from base64 import b64encode

import pytest

from gateway.cli import render

WHEN = "2026-11-21T10:00:00Z"
SHARE = b64encode(bytes(32)).decode()


def item(key="k", revision=1, value=None, **members):
    return {
        "path": ["memories", "ada"], "key": key, "value": {"kind": "fact"} if value is None else value,
        "revision": revision, "created_at": WHEN, "updated_at": WHEN,
    } | members  # fmt: skip


def page(*items, cursor=None):
    return {"items": list(items), "next_cursor": cursor}


def written(*results):
    return {"gets": [], "writes": list(results), "searches": [], "paths": []}


def refused(code, **members):
    problem = {"code": code, "title": code, "status": 412, "detail": f"detail of {code}", "retryable": False}
    return {"status": "refused", "problem": problem | members}


CREATED = {"status": "created", "revision": 1, "created_at": WHEN, "updated_at": WHEN}


def test_an_item_is_put_under_labels_and_a_key(command, gateway):
    gateway.answer(CREATED, 201)
    outcome = command(
        "item", "put", "memories", "ada", "seat", "--value", '{"likes": "aisle"}', "--ttl", "30d", "--json"
    )
    assert outcome.code == 0, outcome.err
    assert (gateway.last.method, gateway.last.path) == ("PUT", "/v1/items/memories,ada/seat")
    assert gateway.last.body == {"value": {"likes": "aisle"}, "ttl_seconds": 30 * 86_400}
    assert gateway.last.headers["content-type"] == "application/json"
    assert "if-match" not in gateway.last.headers
    assert json.loads(outcome.out) == CREATED


def test_labels_and_keys_that_are_no_plain_ids_are_encoded_one_by_one(command, gateway):
    gateway.answer(item())
    assert command("item", "get", "a,b/c", "über", "").code == 0
    assert gateway.last.raw_path == "/v1/items/~YSxiL2M,~w7xiZXI/~"
    assert gateway.last.query == {"refresh": "false"}
    gateway.answer(item())
    assert command("item", "get", "--refresh", "a", "--", "-k").code == 0
    assert gateway.last.query == {"refresh": "true"}


@pytest.mark.parametrize(
    ("option", "header", "sent"), [("--if-absent", "if-none-match", "*"), ("--if-revision=7", "if-match", '"7"')]
)
def test_an_item_is_put_only_where_it_is_as_it_should_be(command, gateway, option, header, sent):
    gateway.refuse(412, "item-moved", revision=9)
    outcome = command("item", "put", "a", "k", "--value", "{}", option)
    assert (gateway.last.headers[header], outcome.code) == (sent, 6)
    assert "revision: 9" in outcome.err
    assert "stateroom item get" in outcome.err


def test_a_value_comes_from_a_file_or_from_stdin_with_its_words_as_they_are(command, gateway, tmp_path, monkeypatch):
    text = b'{"photo": {"$bytes": "aGVsbG8="}, "id": 12345678901234567890123, "one": 1.0}'
    (tmp_path / "value.json").write_bytes(text)
    gateway.answer(CREATED, 201)
    assert command("item", "put", "a", "k", "--file", str(tmp_path / "value.json")).code == 0
    assert gateway.last.body["value"] == json.loads(text)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b'{"n": 1}\n')))
    gateway.answer(CREATED, 201)
    assert command("item", "put", "a", "k", "--file", "-").code == 0
    assert gateway.last.body["value"] == {"n": 1}


@pytest.mark.parametrize(
    "words",
    [
        ("put", "a", "k"),
        ("put", "a", "k", "--value", "{"),
        ("put", "a", "k", "--value", "[1]"),
        ("put", "a", "k", "--value", "\udc80"),
        ("put", "a", "k", "--value", "{}", "--file", "-"),
        ("put", "a", "k", "--value", "{}", "--ttl", "soon"),
        ("put", "a", "k", "--value", "{}", "--if-revision", "0"),
        ("put", "a", "k", "--value", "{}", "--if-revision", "1", "--if-absent"),
        ("put", "k", "--value", "{}"),
        ("put", "", "k", "--value", "{}"),
        ("put", "a", "k", "--file", "there-is-none.json"),
        ("put", "a", "k", "--lines", "-"),
        ("put", "--lines", "-", "--ttl", "1d"),
        ("put", "--lines", "-", "--if-revision", "1"),
        ("get", "k"),
        ("get",),
        ("list", "--filter", "kind"),
        ("list", "--filter", '"fact"'),
        ("list", "--limit", "0"),
        ("search", "--model", "m"),
        ("search", "--near-file", "-"),
        ("search", "--near-file", "-", "--model", "m", "--metric", "near"),
        ("delete", "k"),
        ("delete", "--yes"),
        ("delete", "--filter", "{}", "a", "k"),
        ("delete", "--prefix", "a", "k"),
        ("delete", "--prefix", "a", "--if-revision", "1"),
        ("paths", "--max-depth", "0"),
    ],
    ids=" ".join,
)
def test_wrong_use_exits_with_2_and_asks_no_gateway(command, gateway, words):
    outcome = command("item", *words)
    assert (outcome.code, outcome.out, gateway.requests) == (2, "", [])
    assert "Traceback" not in outcome.err


def test_a_file_without_a_value_or_vector_is_named(command, gateway, tmp_path):
    file = tmp_path / "file.json"
    for content in (b"", b"[]", b"{", b'{"a": "\xff"'):
        file.write_bytes(content)
        outcome = command("item", "put", "a", "k", "--file", str(file))
        assert (outcome.code, "file.json holds no value" in outcome.err) == (2, True)
    for content in (b"", b"{}", b'["x"]', b"\xff", b"1.5"):
        file.write_bytes(content)
        outcome = command("item", "search", "--near-file", str(file), "--model", "m")
        assert (outcome.code, "file.json holds no vector" in outcome.err) == (2, True)
    assert gateway.requests == []


def test_an_item_is_shown_with_its_value_and_in_json_as_the_api_gave_it(command, gateway):
    found = item(value={"text": "\x1b[31mred", "n": 1.0, "b": {"$bytes": "AA=="}}, expires_at=WHEN)
    gateway.answer(found)
    outcome = command("item", "get", "memories", "ada", "k")
    assert (gateway.last.method, gateway.last.path) == ("GET", "/v1/items/memories,ada/k")
    assert "\x1b" not in outcome.out
    assert "memories, ada" in outcome.out
    assert '"$bytes": "AA=="' in outcome.out
    gateway.answer(found)
    assert json.loads(command("item", "get", "memories", "ada", "k", "--json").out) == found
    gateway.refuse(404, "item-not-found")
    outcome = command("item", "get", "memories", "ada", "k")
    assert (outcome.code, "stateroom item paths" in outcome.err) == (3, True)


def test_items_are_listed_page_by_page_as_lines_of_json(command, gateway):
    gateway.answer(page(item("a"), cursor="c1"))
    gateway.answer(page(cursor="c2"))
    gateway.answer(page(item("b")))
    outcome = command(
        "item", "list", "--prefix", "memories", "--prefix", "ada", "--filter", '{"n": {"$gt": 1.0}}', "--all", "--json"
    )
    assert [json.loads(line)["key"] for line in outcome.out.splitlines()] == ["a", "b"]
    assert [each.body["cursor"] for each in gateway.requests] == [None, "c1", "c2"]
    assert (gateway.last.method, gateway.last.path) == ("POST", "/v1/items:search")
    assert gateway.last.body == {
        "prefix": ["memories", "ada"], "refresh": False, "filter": {"n": {"$gt": 1.0}}, "limit": 100, "cursor": "c2",
    }  # fmt: skip


def test_a_table_of_items_is_short_and_says_that_there_is_more(command, gateway):
    gateway.answer(page(item("a", value={"text": "x" * 500}), item("b")))
    outcome = command("item", "list", "--limit", "1", "--refresh")
    assert (gateway.last.body["limit"], gateway.last.body["refresh"]) == (2, True)
    assert "... (512 characters)" in outcome.out
    assert "There is more" in outcome.err
    gateway.answer(page())
    assert "No items." in command("item", "list").err


def test_items_are_found_by_a_vector(command, gateway, tmp_path):
    (tmp_path / "v.json").write_text("[1, 0.5]")
    gateway.answer(page(item(score=0.9)))
    outcome = command("item", "search", "--near-file", str(tmp_path / "v.json"), "--model", "e5", "--metric", "dot")
    assert outcome.code == 0, outcome.err
    assert gateway.last.body["near"] == {"model": "e5", "vector": [1.0, 0.5], "metric": "dot"}
    assert "0.9" in outcome.out


def test_paths_are_listed(command, gateway):
    gateway.answer({"paths": [["memories", "ada"], ["memories", "bob"]], "next_cursor": None})
    outcome = command("item", "paths", "--prefix", "*", "--suffix", "ada", "--max-depth", "2", "--json")
    assert [json.loads(line) for line in outcome.out.splitlines()] == [["memories", "ada"], ["memories", "bob"]]
    assert gateway.last.path == "/v1/items:paths"
    assert gateway.last.body == {"prefix": ["*"], "suffix": ["ada"], "max_depth": 2, "limit": 51, "cursor": None}
    gateway.answer({"paths": [["memories", "ada"]], "next_cursor": None})
    assert "memories, ada" in command("item", "paths").out


def test_an_item_is_deleted_when_one_says_so(command, gateway):
    gateway.answer({"status": "deleted"})
    outcome = command("item", "delete", "a", "k", "--if-revision", "3", "--yes")
    assert (outcome.code, gateway.last.method, gateway.last.path) == (0, "DELETE", "/v1/items/a/k")
    assert gateway.last.headers["if-match"] == '"3"'
    assert "Deleted a / k." in outcome.err


@pytest.mark.parametrize("words", [("a", "k"), ("--prefix", "a")])
def test_nobody_is_deleted_without_a_yes(command, gateway, monkeypatch, words):
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    assert command("item", "delete", *words).code == 1
    assert gateway.requests == []


def test_many_are_deleted_as_they_were_found_page_by_page(command, gateway):
    gateway.answer(page(item("a", 1), item("b", 2), item("c", 3), cursor="c1"))
    gateway.answer(
        written({"status": "deleted"}, refused("item-moved", revision=9), refused("item-moved", revision=None))
    )
    gateway.answer(page(cursor="c2"))
    gateway.answer(page(item("d", 4)))
    gateway.answer(written({"status": "deleted"}))
    outcome = command("item", "delete", "--prefix", "memories", "--filter", '{"kind": "fact"}', "--yes")
    assert outcome.code == 0, outcome.err
    assert "Deleted 2 items. 1 changed meanwhile and stay." in outcome.err
    assert gateway.requests[0].body["refresh"] is False
    assert gateway.requests[1].body["writes"][1] == {
        "path": ["memories", "ada"], "key": "b", "delete": True, "if_revision": 2,
    }  # fmt: skip


def test_deleting_ends_where_something_must_be_kept_and_says_how_far_it_came(command, gateway):
    gateway.answer(page(item("a"), item("b"), item("c"), cursor="c1"))
    gateway.answer(written({"status": "deleted"}, refused("legal-hold"), refused("legal-hold")))
    outcome = command("item", "delete", "--prefix", "memories", "--yes")
    assert outcome.code == 6
    assert "1 items were deleted before" in outcome.err
    assert len(gateway.requests) == 2


def test_what_a_list_prints_is_put_in_batches_of_100(command, gateway, tmp_path):
    lines = [json.dumps(item(f"k{n}", n + 1, {"n": n}, score=1.0, ttl_seconds=60)) for n in range(150)]
    (tmp_path / "dump").write_text("\n".join(lines[:100]) + "\n\n" + "\n".join(lines[100:]))
    gateway.answer(written(*[CREATED] * 100))
    gateway.answer(written(*[CREATED | {"status": "replaced"}] * 50))
    outcome = command("item", "put", "--lines", str(tmp_path / "dump"), "--if-absent", "--json")
    assert outcome.code == 0, outcome.err
    assert json.loads(outcome.out) == {"created": 100, "replaced": 50, "indexed": 0, "refused": 0}
    assert [len(each.body["writes"]) for each in gateway.requests] == [100, 50]
    assert gateway.last.body["writes"][0] == {
        "path": ["memories", "ada"], "key": "k100", "value": {"n": 100}, "ttl_seconds": 60, "if_absent": True,
    }  # fmt: skip
    assert "idempotency-key" in gateway.last.headers


def test_lines_that_are_refused_are_named_and_the_others_are_put(command, gateway, tmp_path):
    lines = [item("a"), item("b"), {"path": ["x"], "value": {}}, item("c")]
    (tmp_path / "dump").write_text("{oops\n" + "\n".join(map(json.dumps, lines)))
    gateway.answer(written(CREATED, refused("item-exists", revision=3), CREATED))
    outcome = command("item", "put", "--lines", str(tmp_path / "dump"))
    assert outcome.code == 1
    assert "line 1: it is no item" in outcome.err
    assert "line 3: item-exists: detail of item-exists" in outcome.err
    assert "line 4: it is no item: it has no path and key" in outcome.err
    assert "3 were refused" in outcome.err
    assert "created   2" in outcome.out


def test_a_line_for_which_its_whole_batch_is_refused_is_found(command, gateway, tmp_path):
    (tmp_path / "dump").write_text("\n".join(json.dumps(item(key)) for key in "abc"))
    gateway.refuse(422, "invalid-request")
    gateway.answer(written(CREATED))
    gateway.refuse(422, "invalid-request")
    gateway.answer(written(CREATED))
    outcome = command("item", "put", "--lines", str(tmp_path / "dump"), "--json")
    assert json.loads(outcome.out) == {"created": 2, "replaced": 0, "indexed": 0, "refused": 1}
    assert "line 2: detail of invalid-request" in outcome.err


def test_what_concerns_no_line_ends_the_loading(command, gateway, tmp_path):
    (tmp_path / "dump").write_text("\n".join(json.dumps(item(key)) for key in "abc"))
    gateway.refuse(403, "permission-denied")
    assert command("item", "put", "--lines", str(tmp_path / "dump")).code == 4
    assert len(gateway.requests) == 1


def test_large_lines_are_put_in_smaller_batches(command, gateway, tmp_path):
    (tmp_path / "dump").write_text("\n".join(json.dumps(item(key, value={"t": "x" * 3_000_000})) for key in "abc"))
    gateway.answer(written(CREATED, CREATED))
    gateway.answer(written(CREATED))
    assert command("item", "put", "--lines", str(tmp_path / "dump")).code == 0
    assert [len(each.body["writes"]) for each in gateway.requests] == [2, 1]


def test_items_under_a_share_are_asked_for_with_it(command, gateway, environment, tmp_path):
    (tmp_path / "share").write_text(f"{SHARE}\n")
    environment.setenv("STATEROOM_CLIENT_SHARE_FILE", str(tmp_path / "share"))
    gateway.answer(page())
    command("item", "list")
    assert gateway.last.headers["stateroom-client-share"] == SHARE
    environment.setenv("STATEROOM_CLIENT_SHARE", SHARE)
    outcome = command("item", "list")
    assert (outcome.code, SHARE in outcome.err) == (2, False)


def test_progress_is_for_terminals_and_remarks_have_lines_of_their_own(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    for stream, shown in ((Terminal(), "\r1,000 lines\nline 7: no\n\r2,000 lines\n"), (io.StringIO(), "line 7: no\n")):
        monkeypatch.setattr("sys.stderr", stream)
        with render.Progress("lines") as progress:
            progress.at(1000)
            progress.say("line 7: no")
            progress.at(2000)
        assert stream.getvalue() == shown
