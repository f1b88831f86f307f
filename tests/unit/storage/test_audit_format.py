"""The offline verifier, on chains made in memory: each way to falsify a log has a name and is found."""

import base64
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from uuid import UUID, uuid4

import pytest

from crypto import NoteKey, SecretKey, SigningKey, sign_note
from storage.format.audit import (
    RESTORED_ACTION,
    AnchorText,
    AuditInvalid,
    Entry,
    Event,
    decode_body,
    encode_body,
    export_lines,
    link,
    origin_of,
    parse_origin,
    start_of,
    verify_export,
)

DEPLOYMENT, TENANT = UUID(int=1), UUID(int=2)
ORIGIN = origin_of(DEPLOYMENT, TENANT)
SIGNING_KEY = SigningKey(SecretKey(bytes(range(32))))
PUBLIC_KEY = str(NoteKey(ORIGIN, SIGNING_KEY.public_key))
START_HEX = "ec873ef1be898788c21b54947cec8e8ecc79e8e48fc3d059cccddeed40b83123"
LINK_HEX = "a8275c2aec51bc24b310d2d345264496362c9245476114e73b8c96e318b584e6"
WHEN = datetime(2026, 11, 21, 10, 0, 0, 123456, tzinfo=UTC)


def event(sequence, tenant_id=TENANT, **parts):
    return Event(
        **{
            "tenant_id": tenant_id,
            "sequence": sequence,
            "at": WHEN + timedelta(seconds=sequence),
            "actor": "api-key:k1",
            "action": "api-key.create",
            "target": f"api-key:{sequence}",
            "detail": {"kind": "service", "permissions": ["a", "b"], "expires_at": None},
        }
        | parts
    )


def chain(events, tenant_id=TENANT):
    entries, previous = [], start_of(DEPLOYMENT, tenant_id)
    for number, each in enumerate(events, 1):
        body = encode_body(replace(each, sequence=number))
        entries.append(Entry(number, body, previous, link(previous, number, body)))
        previous = entries[-1].hash
    return entries


def history(count=8, **changed):
    return chain([event(number, **changed.get(f"e{number}", {})) for number in range(1, count + 1)])


def anchor(entry, origin=ORIGIN, key=SIGNING_KEY):
    return sign_note(AnchorText(origin, entry.sequence, entry.hash).render(), origin, key)


GENUINE = history()
ANCHOR = anchor(GENUINE[5])  # of event 6 of 8


def verified(entries, anchors=(ANCHOR,)):
    return verify_export(export_lines(ORIGIN, entries), anchors, PUBLIC_KEY)


def kinds(entries, anchors=(ANCHOR,)):
    found = verified(entries, anchors)
    assert not found.ok
    assert found.anchored_through == 0
    return {each.kind for each in found.findings}


def test_a_genuine_log_verifies_and_says_how_far_it_is_anchored():
    found = verified(GENUINE)
    assert (found.ok, found.events, found.anchored_through) == (True, 8, 6)
    found = verified(GENUINE, [anchor(each) for each in GENUINE])
    assert (found.ok, found.anchored_through) == (True, 8)


def test_an_edited_event_is_found():
    for number in range(8):
        body = encode_body(event(number + 1, actor="api-key:k2"))
        edited = [*GENUINE[:number], replace(GENUINE[number], body=body), *GENUINE[number + 1 :]]
        assert "edited" in kinds(edited)


def test_every_flipped_bit_of_an_event_is_found():
    first, second, third = history(3)
    anchors = [anchor(third)]
    assert verified([first, second, third], anchors).ok
    for position in range(len(second.body) * 8):
        flipped = bytearray(second.body)
        flipped[position // 8] ^= 1 << position % 8
        assert not verified([first, replace(second, body=bytes(flipped)), third], anchors).ok, position


def test_an_edited_event_is_not_taken_for_one_of_another_tenant():
    body = encode_body(event(3, uuid4()))
    assert kinds([*GENUINE[:2], replace(GENUINE[2], body=body), *GENUINE[3:]]) == {"edited"}


def test_an_edited_event_whose_hash_was_computed_anew_is_found():
    edited = encode_body(event(3, actor="api-key:k2"))
    entry = replace(GENUINE[2], body=edited, hash=link(GENUINE[2].previous, 3, edited))
    assert kinds([*GENUINE[:2], entry, *GENUINE[3:]]) == {"forked"}


def test_an_edited_event_with_the_whole_chain_computed_anew_is_found_by_the_anchor():
    assert kinds(history(e3={"actor": "api-key:k2"})) == {"forked"}


def test_a_deleted_event_is_found():
    for number in range(7):
        assert "missing" in kinds(GENUINE[:number] + GENUINE[number + 1 :])


def test_a_deleted_event_with_the_whole_chain_computed_anew_is_found_by_the_anchor():
    for number in range(6):
        left = [decode_body(each.body) for each in GENUINE[:number] + GENUINE[number + 1 :]]
        assert kinds(chain(left)) == {"forked"}


def test_a_truncated_log_is_found_by_the_anchor():
    for length in range(6):
        assert kinds(GENUINE[:length]) == {"truncated"}
    assert verified(GENUINE[:6]).ok  # exactly what was anchored is there


def test_a_fork_after_a_common_beginning_is_found_by_the_anchor():
    assert kinds(history(20, e5={"target": "api-key:other"})) == {"forked"}


def test_two_anchors_of_one_event_that_disagree_are_found():
    other = history(e3={"actor": "api-key:k2"})
    assert "forked" in kinds(GENUINE, [ANCHOR, anchor(other[5])])


def test_a_fork_that_only_one_of_two_anchors_knows_is_found():
    forked = history(e7={"actor": "api-key:k2"})
    assert verified(forked).ok  # event 7 came after this anchor
    assert kinds(forked, [ANCHOR, anchor(GENUINE[7])]) == {"forked"}


def test_reordered_events_are_found():
    for number in range(7):
        swapped = [*GENUINE]
        swapped[number], swapped[number + 1] = swapped[number + 1], swapped[number]
        assert "reordered" in kinds(swapped)


def test_reordered_bodies_with_the_whole_chain_computed_anew_are_found_by_the_anchor():
    events = [decode_body(each.body) for each in GENUINE]
    events[1], events[2] = events[2], events[1]
    assert kinds(chain(events)) == {"forked"}


def test_a_body_moved_to_another_number_is_found_even_with_its_hash_computed_anew():
    body = GENUINE[1].body
    moved = replace(GENUINE[2], body=body, hash=link(GENUINE[2].previous, 3, body))
    assert "reordered" in kinds([*GENUINE[:2], moved, *GENUINE[3:]])


def test_a_repeated_event_is_found():
    assert "reordered" in kinds([*GENUINE[:3], GENUINE[2], *GENUINE[3:]])


def test_another_tenants_log_is_found():
    other = UUID(int=3)
    foreign = chain([event(number, other) for number in range(1, 9)], other)
    assert "foreign" in kinds(foreign)


def test_an_inserted_event_is_found():
    body = encode_body(event(4))
    inserted = Entry(4, body, GENUINE[2].hash, link(GENUINE[2].hash, 4, body))
    assert not verified([*GENUINE[:3], inserted, *GENUINE[3:]]).ok
    assert kinds(chain([event(1), *(decode_body(each.body) for each in GENUINE)])) == {"forked"}


def test_an_empty_log_is_found_by_the_anchor():
    assert kinds([]) == {"truncated"}


def lines(entries=GENUINE):
    return list(export_lines(ORIGIN, entries))


@pytest.mark.parametrize("change", ["no last line", "cut in a line", "more behind", "other count", "garbage", "deep"])
def test_an_export_that_was_cut_or_changed_is_found(change):
    export = lines()
    match change:
        case "no last line":
            export.pop()
        case "cut in a line":
            export = [*export[:6], export[6][:40]]
        case "more behind":
            export.append(export[0])
        case "other count":
            export[-1] = export[-1].replace(b'"count": 8', b'"count": 9').replace(b'"count":8', b'"count":9')
        case "garbage":
            export.insert(2, b"\xff\xfe\n")
        case _:
            export.insert(2, b"[" * 100_000 + b"\n")
    assert not verify_export(export, [ANCHOR], PUBLIC_KEY).ok


@pytest.mark.parametrize(
    "document",
    [{}, [], 7, None, {"sequence": 1}, {"sequence": "1", "previous": "", "hash": "", "body": ""},
     {"sequence": True, "previous": "00" * 32, "hash": "00" * 32, "body": ""},
     {"sequence": 1, "previous": "zz", "hash": "00" * 32, "body": ""},
     {"sequence": 1, "previous": "00" * 32, "hash": "00" * 32, "body": 5},
     {"sequence": 10**40, "previous": "00" * 32, "hash": "00" * 32, "body": ""}],
)  # fmt: skip
def test_lines_that_are_no_events_are_found_and_nothing_worse_happens(document):
    export = lines()
    export[0] = json.dumps(document).encode() + b"\n"
    found = verify_export(export, [ANCHOR], PUBLIC_KEY)
    assert {"damaged", "missing"} <= {each.kind for each in found.findings}


def test_an_anchor_that_is_not_signed_by_the_key_says_nothing():
    stranger = SigningKey(SecretKey.generate())
    other_origin = origin_of(DEPLOYMENT, UUID(int=9))
    for note in (
        anchor(GENUINE[5], key=stranger),
        anchor(GENUINE[5], origin=other_origin),
        ANCHOR.replace("\n6\n", "\n5\n"),
        sign_note("hello\n", ORIGIN, SIGNING_KEY),
        sign_note(AnchorText(other_origin, 6, GENUINE[5].hash).render(), ORIGIN, SIGNING_KEY),
        sign_note(f"{ORIGIN}\n06\n{ANCHOR.split(chr(10))[2]}\n", ORIGIN, SIGNING_KEY),
        sign_note(f"{ORIGIN}\n6\nAAAA\n", ORIGIN, SIGNING_KEY),
        "",
    ):
        with pytest.raises(AuditInvalid):
            verified(GENUINE, [note])
    with pytest.raises(AuditInvalid):
        verified(GENUINE, [])


@pytest.mark.parametrize("public_key", ["", "x", str(NoteKey("example.com/log", SIGNING_KEY.public_key))])
def test_a_key_of_no_audit_log_is_refused(public_key):
    with pytest.raises(AuditInvalid):
        verify_export(lines(), [ANCHOR], public_key)


def test_an_anchor_is_laid_out_as_a_tlog_checkpoint():
    origin, size, root, empty, signature = ANCHOR.split("\n")[:5]
    assert (origin, size, empty) == (ORIGIN, "6", "")
    assert root == base64.b64encode(GENUINE[5].hash).decode()
    assert signature.startswith(f"\N{EM DASH} {ORIGIN} ")


def test_bodies_are_canonical_whatever_the_order_and_the_time_zone():
    shuffled = event(1, detail={"permissions": ["a", "b"], "expires_at": None, "kind": "service"})
    elsewhere = replace(shuffled, at=shuffled.at.astimezone(timezone(timedelta(hours=5))))
    assert encode_body(event(1)) == encode_body(shuffled) == encode_body(elsewhere)
    assert decode_body(encode_body(event(1))) == event(1)
    assert encode_body(event(1, target="\u00fc\n")).isascii()


def test_the_bytes_of_format_1_never_change():
    body = encode_body(event(1, detail={"b": 1, "a": [True, None, "\u00e9"]}))
    assert body == (
        b'{"action":"api-key.create","actor":"api-key:k1","at":"2026-11-21T10:00:01.123456Z",'
        b'"detail":{"a":[true,null,"\\u00e9"],"b":1},"format":1,"sequence":1,"target":"api-key:1",'
        b'"tenant_id":"00000000-0000-0000-0000-000000000002"}'
    )
    start = start_of(DEPLOYMENT, TENANT)
    assert start.hex() == START_HEX
    assert link(start, 1, body).hex() == LINK_HEX


@pytest.mark.parametrize(
    "value",
    [1.5, b"x", float("nan"), 2**63, {1: 2}, object(), {"a": {"b": {1.5}}}],
    ids=lambda value: type(value).__name__,
)
def test_values_without_one_spelling_are_refused(value):
    with pytest.raises(AuditInvalid):
        encode_body(event(1, detail={"x": value}))


BODY = encode_body(event(1))


@pytest.mark.parametrize(
    "body",
    [b"", b"{}", b"null", b"[]", b"\xff", b"7", BODY + b" ", BODY.replace(b":", b": ", 1), b"[" * 100_000,
     BODY.replace(b'"format":1', b'"format":2'), BODY.replace(b'"sequence":1', b'"sequence":1.0'),
     BODY.replace(b'"sequence":1', b'"sequence":0'), BODY.replace(b'"detail":{', b'"detail":[{', 1)],
)  # fmt: skip
def test_bytes_that_are_no_body_are_refused(body):
    with pytest.raises(AuditInvalid):
        decode_body(body)


def test_an_event_that_is_too_long_is_refused():
    with pytest.raises(AuditInvalid):
        encode_body(event(1, detail={"x": "x" * 300_000}))


@pytest.mark.parametrize("origin", ["", "x", "stateroom/audit/a/b", ORIGIN + "/", ORIGIN.upper(), ORIGIN[:-1] + "-"])
def test_a_name_of_no_chain_is_refused(origin):
    assert parse_origin(ORIGIN) == (DEPLOYMENT, TENANT)
    with pytest.raises(AuditInvalid):
        parse_origin(origin)


def test_a_name_with_ids_in_another_spelling_is_refused():
    with pytest.raises(AuditInvalid):
        parse_origin(ORIGIN.replace("00000000-0000", "0000000000-00"))


def test_an_anchor_whose_hash_is_not_base64_says_nothing():
    with pytest.raises(AuditInvalid):
        verified(GENUINE, [sign_note(f"{ORIGIN}\n6\n*\n", ORIGIN, SIGNING_KEY)])


def test_a_line_with_a_hash_of_another_length_is_found():
    export = lines()
    export[0] = json.dumps({"sequence": 1, "previous": "00", "hash": "00" * 32, "body": ""}).encode() + b"\n"
    assert "damaged" in {each.kind for each in verify_export(export, [ANCHOR], PUBLIC_KEY).findings}


def restored(**changes):
    """A log that ended at event 3, was anchored at 6, and goes on with an event that says so."""
    detail = {
        "kept": 3,
        "found": 3,
        "found_hash": GENUINE[2].hash.hex(),
        "anchored": 6,
        "anchored_hash": GENUINE[5].hash.hex(),
    } | changes
    kept, previous = GENUINE[:3], GENUINE[2].hash
    for number, told in ((7, {"action": RESTORED_ACTION, "detail": detail}), (8, {})):
        body = encode_body(event(number, **told))
        kept = [*kept, Entry(number, body, previous, link(previous, number, body))]
        previous = kept[-1].hash
    return kept


def test_a_gap_that_an_anchor_vouches_for_excuses_what_is_missing_in_it():
    entries = restored()
    result = verified(entries, [ANCHOR, anchor(entries[-1])])
    assert (result.ok, [gap.sequence for gap in result.gaps], result.anchored_through) == (True, [7], 8)


def test_a_gap_that_no_anchor_vouches_for_excuses_nothing():
    assert kinds(restored(), [ANCHOR]) >= {"missing"}


def test_a_gap_that_names_another_event_than_was_anchored_is_found():
    entries = restored(anchored_hash="11" * 32)
    assert "forked" in kinds(entries, [ANCHOR, anchor(entries[-1])])


def test_a_gap_of_another_log_is_found():
    for changes in ({"found_hash": "11" * 32}, {"kept": "3"}):
        assert "forked" in kinds(restored(**changes), [ANCHOR])
