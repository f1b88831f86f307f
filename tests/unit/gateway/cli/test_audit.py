import json
from datetime import UTC, datetime
from uuid import UUID

import pytest

from crypto import NoteKey, SecretKey, SigningKey, sign_note
from storage.format.audit import (
    RESTORED_ACTION,
    AnchorText,
    Entry,
    Event,
    Gap,
    encode_body,
    export_lines,
    link,
    origin_of,
    start_of,
)
from tests.unit.gateway.cli.conftest import API_KEY, OPERATOR_KEY

DEPLOYMENT, TENANT = UUID(int=1), UUID(int=2)
ORIGIN = origin_of(DEPLOYMENT, TENANT)
SIGNING_KEY = SigningKey(SecretKey(bytes(range(32))))
PUBLIC_KEY = str(NoteKey(ORIGIN, SIGNING_KEY.public_key))


def chain(count):
    entries, previous = [], start_of(DEPLOYMENT, TENANT)
    for number in range(1, count + 1):
        at = datetime(2026, 11, 21, 10, number, tzinfo=UTC)
        body = encode_body(
            Event(tenant_id=TENANT, sequence=number, at=at, actor="api-key:k", action="a", target="t\u202e", detail={})
        )
        entries.append(Entry(number, body, previous, link(previous, number, body)))
        previous = entries[-1].hash
    return entries


LOG = chain(5)
NOTE = sign_note(AnchorText(ORIGIN, 4, LOG[3].hash).render(), ORIGIN, SIGNING_KEY)


def shown(entry):
    body = json.loads(entry.body)
    return {
        "sequence": entry.sequence,
        **{name: body[name] for name in ("at", "actor", "action", "target", "detail")},
        "body": entry.body.decode(),
        "previous": entry.previous.hex(),
        "hash": entry.hash.hex(),
    }


@pytest.fixture
def export(command, gateway, tmp_path):
    gateway.answer({"origin": ORIGIN, "public_key": PUBLIC_KEY})
    gateway.answer({"origin": ORIGIN, "events": [shown(each) for each in LOG[:3]], "next_cursor": "more"})
    gateway.answer({"origin": ORIGIN, "events": [shown(each) for each in LOG[3:]], "next_cursor": None})
    file = tmp_path / "log.ndjson"
    outcome = command("audit", "export", str(file))
    assert outcome.code == 0, outcome.err
    assert "5 events" in outcome.err
    return file


@pytest.fixture
def verify(command, environment, tmp_path, export):
    (tmp_path / "anchor").write_text(NOTE, encoding="utf-8")
    for name in ("STATEROOM_URL", "STATEROOM_API_KEY", "STATEROOM_OPERATOR_KEY"):
        environment.delenv(name)  # offline: no gateway, no credential

    def run(*more, key=PUBLIC_KEY):
        return command("audit", "verify", str(export), "--anchor", str(tmp_path / "anchor"), "--public-key", key, *more)

    return run


def test_an_export_asks_for_the_rows_as_they_are_and_for_every_page(export, gateway):
    assert [request.path for request in gateway.requests] == ["/v1/audit/key", "/v1/audit", "/v1/audit"]
    assert [request.query.get("verify") for request in gateway.requests[1:]] == ["false", "false"]
    assert gateway.last.query["cursor"] == "more"
    assert gateway.last.headers["authorization"] == f"Bearer {API_KEY}"
    assert len(export.read_bytes().splitlines()) == 6


def test_an_export_never_overwrites_a_file(command, gateway, export):
    before = export.read_bytes()
    gateway.answer({"origin": ORIGIN, "public_key": PUBLIC_KEY})
    assert command("audit", "export", str(export)).code == 6
    assert export.read_bytes() == before


def test_an_export_that_breaks_off_leaves_no_file(command, gateway, tmp_path):
    gateway.answer({"origin": ORIGIN, "public_key": PUBLIC_KEY})
    gateway.answer({"origin": ORIGIN, "events": [shown(LOG[0])], "next_cursor": "more"})
    gateway.refuse(403, "permission-denied")
    assert command("audit", "export", str(tmp_path / "half")).code == 4
    assert not (tmp_path / "half").exists()


def test_a_genuine_export_verifies_offline(verify, gateway):
    asked = len(gateway.requests)
    outcome = verify()
    assert outcome.code == 0
    assert "5 events, anchored through event 4" in outcome.out
    assert len(gateway.requests) == asked


def test_the_public_key_may_come_from_a_file(verify, tmp_path):
    (tmp_path / "key").write_text(PUBLIC_KEY + "\n")
    assert verify(key=str(tmp_path / "key")).code == 0


@pytest.mark.parametrize(
    ("attack", "kind"),
    [
        ("edit", "edited"),
        ("delete", "missing"),
        ("truncate", "truncated"),
        ("fork", "forked"),
        ("reorder", "reordered"),
    ],
)
def test_a_falsified_export_exits_with_1_and_says_how(verify, export, attack, kind):
    lines = export.read_text().splitlines(keepends=True)
    match attack:
        case "edit":
            lines[1] = lines[1].replace("api-key:k", "api-key:x")
        case "delete":
            del lines[1]
        case "truncate":
            del lines[2:5]
        case "fork":
            other = Entry(4, LOG[3].body, LOG[1].hash, link(LOG[1].hash, 4, LOG[3].body))
            lines[3] = (
                json.dumps(
                    {
                        "sequence": 4,
                        "previous": other.previous.hex(),
                        "hash": other.hash.hex(),
                        "body": other.body.decode(),
                    }
                )
                + "\n"
            )
        case _:
            lines[1], lines[2] = lines[2], lines[1]
    export.write_text("".join(lines))
    outcome = verify("--json")
    assert outcome.code == 1
    found = json.loads(outcome.out)
    assert found["ok"] is False
    assert found["anchored_through"] == 0
    assert kind in {each["kind"] for each in found["findings"]}
    assert kind in verify().err


def test_nothing_is_verified_with_another_key_or_a_broken_anchor(verify, tmp_path):
    stranger = str(NoteKey(ORIGIN, SigningKey(SecretKey.generate()).public_key))
    assert verify(key=stranger).code == 1
    assert "nothing can be verified" in verify(key="x").err
    (tmp_path / "anchor").write_text(NOTE.replace("\n4\n", "\n3\n"), encoding="utf-8")
    assert verify().code == 1
    (tmp_path / "anchor").write_bytes(b"\xff")
    assert verify().code == 1


def test_verify_needs_an_anchor(command, export):
    assert command("audit", "verify", str(export), "--public-key", PUBLIC_KEY).code == 2


def test_anchor_and_key_are_printed_so_that_they_can_be_kept(command, gateway):
    answer = {"origin": ORIGIN, "sequence": 4, "hash": LOG[3].hash.hex(), "note": NOTE, "stored": True}
    gateway.answer(answer)
    outcome = command("audit", "anchor")
    assert (outcome.out, outcome.err) == (NOTE, "")
    assert (gateway.last.method, gateway.last.path) == ("POST", "/v1/audit/anchor")
    gateway.answer(answer | {"stored": False})
    assert "only one" in command("audit", "anchor", "--latest").err
    assert gateway.last.method == "GET"
    gateway.answer({"origin": ORIGIN, "public_key": PUBLIC_KEY})
    assert command("audit", "key").out == PUBLIC_KEY + "\n"


def test_the_operators_log_is_read_with_the_operators_key(command, gateway):
    gateway.answer({"origin": ORIGIN, "events": [shown(LOG[0])], "next_cursor": None})
    outcome = command("audit", "list", "--operator")
    assert "api-key:k" in outcome.out
    assert "\u202e" not in outcome.out  # nothing stored turns the operator's terminal around
    assert gateway.last.path == "/v1/admin/audit"
    assert gateway.last.headers["authorization"] == f"Bearer {OPERATOR_KEY}"


def test_events_list_as_json_exactly_as_the_api_gave_them(command, gateway):
    gateway.answer({"origin": ORIGIN, "events": [shown(each) for each in LOG], "next_cursor": None})
    outcome = command("audit", "list", "--json", "--limit", "2")
    assert [json.loads(line) for line in outcome.out.splitlines()] == [shown(each) for each in LOG[:2]]


def test_an_event_that_cannot_be_read_is_listed_all_the_same(command, gateway):
    unreadable = shown(LOG[0]) | dict.fromkeys(("at", "actor", "action", "target", "detail"))
    gateway.answer({"origin": ORIGIN, "events": [unreadable], "next_cursor": None})
    assert command("audit", "list").code == 0


def test_a_documented_gap_is_printed_and_never_passed_over(command, environment, tmp_path):
    lost = chain(7)[6]
    gap = Gap.after(3, 5, LOG[4].hash, AnchorText(ORIGIN, 7, lost.hash))
    at = datetime(2026, 11, 21, 11, tzinfo=UTC)
    body = encode_body(
        Event(
            tenant_id=TENANT,
            sequence=8,
            at=at,
            actor="local",
            action=RESTORED_ACTION,
            target="audit",
            detail=gap.detail,
        )
    )
    entry = Entry(8, body, LOG[4].hash, link(LOG[4].hash, 8, body))
    (tmp_path / "log").write_bytes(b"".join(export_lines(ORIGIN, [*LOG, entry])))
    for name, text in (("old", AnchorText(ORIGIN, 7, lost.hash)), ("new", AnchorText(ORIGIN, 8, entry.hash))):
        (tmp_path / name).write_text(sign_note(text.render(), ORIGIN, SIGNING_KEY), encoding="utf-8")

    def run(*anchors, more=()):
        named = [part for anchor in anchors for part in ("--anchor", str(tmp_path / anchor))]
        return command("audit", "verify", str(tmp_path / "log"), *named, "--public-key", PUBLIC_KEY, *more)

    both = run("old", "new")
    assert both.code == 0
    assert "events after 3 and up to 7 that were anchored are lost" in both.out
    shown = json.loads(run("new", more=["--json"]).out)
    assert (shown["ok"], shown["gaps"]) == (True, [{"sequence": 8, **gap.detail}])
    unproven = run("old")
    assert unproven.code == 1
    assert "no anchor given here vouches for it" in unproven.err
