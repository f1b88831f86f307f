"""Another program that knows only docs/formats/ledger.md (and envelope.md) verifies what the code writes."""

import hashlib
import hmac
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import get_args
from uuid import UUID

import pytest
from cryptography.hazmat.primitives.hashes import SHA512
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from crypto import Sealer, SecretKey, SubjectKeys
from storage.approvals.rows import action_mac, keyed, with_mac
from storage.format.chain import LiveSet
from storage.format.thread_ledgers.claim import ClaimColumns
from storage.format.thread_ledgers.effect import EffectColumns, counted, part_member
from storage.format.thread_ledgers.names import effect_name_mac, intent_mac, member_of
from storage.format.thread_ledgers.seal import LedgerSeal, RowKind, effect_part, member
from storage.statements.thread_ledgers.approvals import ActionRow, ApprovalRow, VoteRow

PAGE = (Path(__file__).resolve().parents[4] / "docs" / "formats" / "ledger.md").read_text()
ID_KEY = bytes(range(32))
SEALER = Sealer(UUID(int=1), UUID(int=2), "user-1", SubjectKeys({1: SecretKey.generate()}, 1, SecretKey(ID_KEY)))
LIFE = bytes(range(16))
AT = datetime(2026, 11, 27, 20, 15, 0, 7, tzinfo=UTC)
TEXT, TAG, NUMBER = "text ü", b"t" * 16, 2**40
EFFECT = EffectColumns(
    thread_id="t1", namespace="", name_mac=TAG, execution=1, attempt=2, mode="once", status="done", intent_mac=TAG,
    provider_key=UUID(int=7), anchor_checkpoint_id=None, run_id=TEXT, fence=NUMBER, created_at=AT, started_at=AT,
    leased_until=AT, finished_at=None, started_by="key", resolved_by=None, result_state="stored", result_bytes=0,
    artifact_id=None, approval_id=UUID(int=8), approval_position=3, copied=True, client_share=False, asked_member=TAG,
    args_member=TAG, outcome_member=None, result_member=TAG,
)  # fmt: skip
CLAIM = ClaimColumns("t1", NUMBER, TEXT, None, 100, AT, 1, 2, "held", True, False, TAG)
APPROVAL = ApprovalRow(
    UUID(int=8), "", "c", None, "travel", "action", TAG, TAG * 2, TAG * 2, "approved", ["accept", "edit"], "key", "me",
    AT, AT, AT, None, 1, True, False, 600, True, 4, False, True, TAG, None, TAG, b"",
)  # fmt: skip
ACTION = ActionRow(UUID(int=8), 0, TAG * 2, "approved", "accept", TAG, True, b"")
VOTE = VoteRow(UUID(int=8), "me", "key", "principal:me", ["accept", "reject"], TAG, AT, False, b"")


def field(value):
    tag, data = 0, b""
    match value:
        case bytes():
            tag, data = 1, value
        case str():
            tag, data = 2, value.encode()
        case list():
            tag, data = 2, "\0".join(value).encode()
        case int():
            tag, data = 3, int(value).to_bytes((value + (value < 0)).bit_length() // 8 + 1, signed=True)
        case UUID():
            tag, data = 4, value.bytes
        case datetime():
            since = value - datetime(1970, 1, 1, tzinfo=UTC)
            tag, data = 5, (since.days * 86_400_000_000 + since.seconds * 1_000_000 + since.microseconds).to_bytes(8)
    return bytes([tag]) + len(data).to_bytes(4) + data


def mac(purpose, *parts):
    key = HKDFExpand(SHA512(), 32, b"stateroom/v1/mac\0" + field(purpose)).derive(ID_KEY)
    return hmac.digest(key, b"".join(len(each).to_bytes(8) + each for each in parts), hashlib.sha256)


def row_mac(kind, row):
    """The MAC of a row, over the fields that the page lists, in its order."""
    section = PAGE.split(f"### `{kind}`\n")[1].split("#")[0]
    listed = sorted((int(number), name) for number, name in re.findall(r"\| (\d+) \| ([a-z_]+)", section))
    assert [number for number, _ in listed] == [*range(1, len(listed) + 1)]
    assert {name for _, name in listed} >= {*row.__struct_fields__} - {"mac"}  # the page leaves nothing out
    around = {"incarnation": LIFE, "thread_id": "t1"}
    values = [around[name] if name in around else getattr(row, name) for _, name in listed]
    return mac(b"ledger-row", kind.encode(), b"".join(map(field, values)))


ROWS = {
    "claim": (CLAIM, CLAIM.proof(SEALER, LIFE)),
    "effect": (EFFECT, EFFECT.proof(SEALER, LIFE)),
    "approval": (APPROVAL, with_mac(SEALER, "t1", APPROVAL).mac),
    "approval-action": (ACTION, with_mac(SEALER, "t1", ACTION).mac),
    "approval-vote": (VOTE, with_mac(SEALER, "t1", VOTE).mac),
}


@pytest.mark.parametrize("kind", get_args(RowKind))
def test_the_mac_of_a_row_is_what_the_page_says(kind):
    row, written = ROWS[kind]
    assert row_mac(kind, row) == written


def test_tags_are_what_the_page_says():
    place = field("t1") + field("work") + field(TEXT)
    assert effect_name_mac(SEALER, "t1", "work", TEXT) == mac(b"effect-name", place)[:16]
    assert intent_mac(SEALER, "pay", b"[]") == mac(b"effect-intent", field("pay"), b"[]")[:16]
    assert part_member(SEALER, "result", b"x") == mac(b"ledger-member", b"effect-result", b"x")[:16]
    assert member_of(SEALER, b"claim-note", b"x") == mac(b"ledger-member", b"claim-note", b"x")[:16]
    for part in (b"request", b"display", b"decision", b"external-id", b"vote"):
        assert keyed(SEALER, part, b"x") == mac(b"approval-" + part, b"x")[:16]
    assert action_mac(SEALER, TAG * 2) == mac(b"approval-action", TAG * 2)


def test_a_seal_is_read_and_its_sums_are_computed_as_the_page_says():
    sums = {"approvals": LiveSet(), "claims": LiveSet()}
    effects = [LiveSet()] * 16
    by_page = {}
    for kind, (row, written) in ROWS.items():
        of = written
        part = "claims" if kind == "claim" else "approvals"
        if kind == "effect":
            of = counted(row.namespace, row.name_mac, row.execution, written)
            assert of == field(row.namespace) + field(row.name_mac) + field(row.execution) + written
            part = effect_part(row.name_mac)
            assert part == row.name_mac[0] % 16
            effects[part] = effects[part].add(member(SEALER, "effect", of))
        else:
            sums[part] = sums[part].add(member(SEALER, kind, of))
        count, total = by_page.get(part, (0, 0))
        added = int.from_bytes(mac(b"live-ledger-row", kind.encode(), of))
        by_page[part] = (count + 1, (total + added) % 2**256)
    data = LedgerSeal(NUMBER, sums["approvals"], sums["claims"], tuple(effects)).seal(SEALER, "t1", LIFE, 9)
    body, proof = data[:-32], data[-32:]
    assert proof == mac(b"ledger-seal", field("t1") + field(LIFE) + field(9), body)
    assert (body[0], int.from_bytes(body[1:9])) == (1, NUMBER)
    parts = int.from_bytes(body[9:11])
    order = ["approvals", "claims", *(part for part in range(16) if parts >> part & 1)]
    assert len(body) == 11 + 40 * len(order)
    read = {
        part: (int.from_bytes(body[at : at + 8]), int.from_bytes(body[at + 8 : at + 40]))
        for part, at in zip(order, range(11, len(body), 40), strict=True)
    }
    assert read == by_page
