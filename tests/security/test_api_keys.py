import base64
import hmac
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from random import Random  # noqa: TID251  seeded
from types import FrameType
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from gateway.authentication import api_keys
from gateway.authentication.principals import Authenticator
from gateway.problems import Unauthenticated
from storage.clock import SystemClock
from storage.keys.key_seals import Pepper, Peppers
from storage.model import ApiKeyRecord
from tests.support.gateway import GatewayProcess
from tests.support.operations import Tenancy, assert_problem, key_id

RANDOM_KEYS = 100_000
PEPPERS = Peppers(Pepper(1, bytes(range(32))))
BASE62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


class Keys:
    """The stored keys, and how often they were asked for."""

    def __init__(self) -> None:
        self.records: dict[str, ApiKeyRecord] = {}
        self.look_ups = 0
        self.sealed = False

    async def seals_needed(self) -> bool:
        return self.sealed

    async def look_up(self, wanted: str) -> ApiKeyRecord | None:
        self.look_ups += 1
        return self.records.get(wanted)

    def mint(self, key: api_keys.PresentedKey | None = None) -> str:
        clock = SystemClock()
        record, text = api_keys.mint(
            PEPPERS, api_keys.NewKey(kind="operator", permissions=("operator",), now=clock.now()), key
        )
        self.records[record.key_id] = record
        return text


@pytest.fixture
def keys() -> Keys:
    return Keys()


@pytest.fixture
def authenticator(keys: Keys) -> Authenticator:
    return Authenticator(PEPPERS, keys.look_up, SystemClock(), keys.seals_needed)


async def _opens(authenticator: Authenticator, text: str) -> bool:
    try:
        await authenticator.verify(b"Bearer " + text.encode("latin-1"))
    except Unauthenticated:
        return False
    return True


def _resealed(text: str) -> str:
    """``text`` with the checksum its other characters ask for: what an attacker who knows the form sends."""
    return text[:-6] + api_keys._checksum(text[:-6])


async def test_a_hundred_thousand_random_keys_open_nothing(keys: Keys, authenticator: Authenticator) -> None:
    real = [keys.mint() for _ in range(100)]
    assert await _opens(authenticator, real[0])
    source = Random(7)  # noqa: S311  guesses, not secrets
    ids = [key_id(text) for text in real]
    before = keys.look_ups
    for number in range(RANDOM_KEYS):
        name = ids[number % len(ids)]  # the hard case: the id is public, only the secret is guessed
        text = f"sr_live_{name}_{''.join(source.choices(BASE62, k=43))}000000"
        presented = api_keys.parse(_resealed(text))
        assert presented is not None
        assert not api_keys.matches(PEPPERS, presented, keys.records[name])
    assert keys.look_ups == before


async def test_what_is_malformed_never_reaches_the_database(keys: Keys, authenticator: Authenticator) -> None:
    real = keys.mint()
    source = Random(11)  # noqa: S311  guesses, not secrets
    malformed = ["", " ", "sr_live_", real[:-1], real + "a", real.upper(), real.replace("_", "-"), "x" * 100_000,
                 real.replace("live", "test"), real[:20] + "\xff" + real[21:], real + "\n", "null"]  # fmt: skip
    malformed += ["".join(source.choices(BASE62 + "_", k=len(real))) for _ in range(20_000)]
    malformed += [f"sr_live_{''.join(source.choices(BASE62, k=12))}_{''.join(source.choices(BASE62, k=49))}"
                  for _ in range(20_000)]  # fmt: skip
    for text in malformed:
        if text.strip() != real:
            assert not await _opens(authenticator, text)
    assert keys.look_ups == 0
    assert await _opens(authenticator, real)
    assert keys.look_ups == 1


async def test_every_typo_of_one_character_is_refused_without_the_database(
    keys: Keys, authenticator: Authenticator
) -> None:
    real = keys.mint()
    for at, right in enumerate(real):
        for wrong in BASE62 + "_":
            if wrong != right:
                assert not await _opens(authenticator, real[:at] + wrong + real[at + 1 :])
    swapped = [real[:at] + real[at + 1] + real[at] + real[at + 2 :] for at in range(len(real) - 1)]
    for text in swapped:
        if text != real:
            assert not await _opens(authenticator, text)
    assert keys.look_ups == 0


@contextmanager
def _counted_hmacs() -> Iterator[list[int]]:
    """How often the interpreter enters `hmac.digest` and `hmac.compare_digest`."""
    counted = [0, 0]

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code is hmac.digest.__code__:
            counted[0] += 1
        elif event == "c_call" and argument is hmac.compare_digest:
            counted[1] += 1

    sys.setprofile(profile)
    try:
        yield counted
    finally:
        sys.setprofile(None)


async def test_an_unknown_id_takes_the_same_work_as_a_wrong_secret(keys: Keys, authenticator: Authenticator) -> None:
    real = keys.mint()
    stranger, _ = (
        api_keys.mint(PEPPERS, api_keys.NewKey(kind="operator", permissions=(), now=SystemClock().now()))[1],
        None,
    )
    wrong = _resealed(real[:30] + ("a" if real[30] != "a" else "b") + real[31:])
    with _counted_hmacs() as for_unknown:
        assert not await _opens(authenticator, stranger)
    with _counted_hmacs() as for_wrong:
        assert not await _opens(authenticator, wrong)
    with _counted_hmacs() as for_right:
        assert await _opens(authenticator, real)
    assert for_unknown == for_wrong == for_right == [4, 4]
    assert keys.look_ups == 3


@pytest.mark.parametrize(
    "edit",
    [
        {"kind": "service"},
        {"tenant_id": UUID(int=2)},
        {"tenant_id": None},
        {"subject_id": "user-2"},
        {"subject_id": None},
        {"permissions": ("decrypt-any", "operator", "state:read")},
        {"permissions": ("state:read", "tenant:admin")},
        {"permissions": ()},
        {"expires_at": None},
        {"expires_at": datetime(2200, 1, 1, tzinfo=UTC)},
        {"key_id": "0" * 12},
    ],
)
async def test_a_key_whose_row_was_edited_opens_nothing(
    keys: Keys, authenticator: Authenticator, edit: dict[str, Any]
) -> None:
    record, text = api_keys.mint(
        PEPPERS,
        api_keys.NewKey(
            kind="subject",
            permissions=("state:read",),
            now=datetime(2026, 1, 1, tzinfo=UTC),
            tenant_id=UUID(int=1),
            subject_id="user-1",
            expires_at=datetime(2100, 1, 1, tzinfo=UTC),
        ),
    )
    keys.records[record.key_id] = replace(record, **edit)
    assert not await _opens(authenticator, text)
    keys.records[record.key_id] = replace(record, name="renamed", last_used_at=datetime(2026, 2, 1, tzinfo=UTC))
    elsewhere = Authenticator(PEPPERS, keys.look_up, SystemClock(), keys.seals_needed)
    assert await _opens(elsewhere, text)


async def test_the_row_of_one_key_copied_under_another_opens_nothing(keys: Keys, authenticator: Authenticator) -> None:
    """Somebody with one valid key and the database writes his own MAC into the row of a key that may do more."""
    mine, text = api_keys.mint(
        PEPPERS, api_keys.NewKey(kind="service", permissions=(), now=SystemClock().now(), tenant_id=UUID(int=1))
    )
    theirs, _ = api_keys.mint(
        PEPPERS, api_keys.NewKey(kind="operator", permissions=("operator",), now=SystemClock().now())
    )
    keys.records[mine.key_id] = replace(theirs, key_id=mine.key_id, mac=mine.mac)
    assert not await _opens(authenticator, text)


async def test_another_pepper_opens_nothing(keys: Keys) -> None:
    real = keys.mint()
    assert not await _opens(
        Authenticator(Peppers(Pepper(1, bytes(32))), keys.look_up, SystemClock(), keys.seals_needed), real
    )


def test_two_keys_overlap_while_one_replaces_the_other(running_gateway: GatewayProcess) -> None:
    tenancy = Tenancy(running_gateway)
    service_key = tenancy.tenant()
    old, new = tenancy.key(service_key, "user-1"), tenancy.key(service_key, "user-1")
    with tenancy.client(old) as with_old, tenancy.client(new) as with_new:
        saved = with_old.post("/v1/threads/t/checkpoints", json={"state": {"note": 1}})
        assert saved.status_code == 201
        for client in (with_old, with_new):
            assert client.get("/v1/threads/t/checkpoints/latest").json()["state"] == {"note": 1}
        tenancy.revoke(service_key, old)
        assert_problem(with_old.get("/v1/whoami"), 401, "unauthenticated")
        assert with_new.get("/v1/threads/t/checkpoints/latest").status_code == 200


def test_a_key_is_shown_once(running_gateway: GatewayProcess) -> None:
    tenancy = Tenancy(running_gateway)
    service_key = tenancy.tenant()
    made = tenancy.key(service_key, "user-1")
    with tenancy.client(service_key) as client:
        listed = client.get("/v1/api-keys")
    assert key_id(made) in listed.text
    for text in (made, service_key):
        secret = text.split("_")[3]
        assert secret not in listed.text
        assert secret[:-6] not in listed.text


@pytest.mark.parametrize(
    "wish",
    [
        {"kind": "operator"},
        {"kind": "service", "permissions": ["operator"]},
        {"kind": "service", "permissions": ["state:everything"]},
        {"kind": "subject", "subject_id": "u", "permissions": ["subject:act_as"]},
        {"kind": "subject", "subject_id": "u", "permissions": ["tenant:admin"]},
        {"kind": "subject", "subject_id": "~shared"},
        {"kind": "subject", "subject_id": "~other"},
        {"kind": "subject"},
        {"kind": "service", "subject_id": "u"},
        {"kind": "service", "tenant_id": "00000000-0000-0000-0000-000000000000"},
        {"kind": "service", "expires_at": "2020-01-01T00:00:00Z"},
    ],
)
def test_nobody_makes_a_key_that_does_more_than_its_kind(running_gateway: GatewayProcess, wish: Any) -> None:
    tenancy = Tenancy(running_gateway)
    with tenancy.client(running_gateway.api_key) as client:
        before = len(client.get("/v1/api-keys?limit=1000").json()["api_keys"])
        problem = assert_problem(client.post("/v1/api-keys", json=wish), 422, "invalid-request")
        assert problem["errors"][0]["pointer"].startswith("/") or wish.keys() > {"tenant_id"}
        assert len(client.get("/v1/api-keys?limit=1000").json()["api_keys"]) == before


async def test_a_dump_of_the_database_holds_no_secret(running_gateway: GatewayProcess) -> None:
    tenancy = Tenancy(running_gateway)
    service_key = tenancy.tenant()
    texts = [service_key, tenancy.key(service_key, "user-1"), running_gateway.api_key, running_gateway.operator_key]
    connection = await asyncpg.connect(running_gateway.database_dsn)
    try:
        names = await connection.fetch(
            "SELECT format('%I.%I', schemaname, tablename) FROM pg_tables WHERE schemaname = 'stateroom'"
        )
        rows = [
            str(row[0])
            for (name,) in names
            for row in await connection.fetch(f"SELECT t::text FROM {name} AS t")  # noqa: S608  names of ours
        ]
        dump = "\n".join(rows)
    finally:
        await connection.close()
    for text in texts:
        assert key_id(text) in dump
        secret = text.split("_")[3][:-6]
        for form in (secret, secret.encode().hex(), base64.b64encode(secret.encode()).decode().rstrip("=")):
            assert form not in dump
