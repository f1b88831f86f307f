"""The ledger of effects from Python, against a real gateway: what is done once, again, or not at all."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap

import pytest

from stateroom import (
    AsyncClient,
    Client,
    EffectInProgress,
    EffectMismatch,
    EffectNotFound,
    EffectNotUnknown,
    EffectOutcome,
    EffectOwnKey,
    EffectRepeats,
    EffectSuperseded,
    EffectUnknown,
    LimitExceeded,
    PermissionDenied,
    ResultMissing,
    current_effect,
)
from tests.support.tenants import somebody_else


class Declined(Exception):
    """The bank says no: nothing was paid."""


class Lost(Exception):
    """The connection broke: nobody knows."""


@pytest.fixture
def client(gateway_env, subject):
    with Client(gateway_env.url, gateway_env.api_key, subject=subject) as opened:
        yield opened


@pytest.fixture
async def async_client(gateway_env, subject):
    async with AsyncClient(gateway_env.url, gateway_env.api_key, subject=subject) as opened:
        yield opened


@pytest.fixture
def thread(client):
    made = client.thread("t")
    made.save({"n": 1})
    return made


class Bank:
    """What is called, and how often; it fails as it is told."""

    def __init__(self, *failures):
        self.calls = []
        self._failures = list(failures)

    def pay(self, to: str, amount: int) -> dict[str, int]:
        self.calls.append((to, amount))
        if self._failures:
            raise self._failures.pop(0)
        return {"paid": amount}


def named(to, amount):
    return f"pay-{to}"


def test_what_was_done_is_told_and_not_done_again_also_by_another_process(client, thread):
    bank = Bank()
    pay = thread.effect(name=named)(bank.pay)
    assert pay("bob", 5) == pay("bob", 5) == {"paid": 5}
    thread.save({"n": 2})
    elsewhere = client.thread("t")
    elsewhere.load()
    assert elsewhere.effect(name=named)(bank.pay)("bob", amount=5) == {"paid": 5}
    assert bank.calls == [("bob", 5)]
    [listed] = thread.effects()
    assert (listed.name, listed.tool, listed.mode, listed.status, listed.result) == (
        "pay-bob", "pay", "once", "done", None,
    )  # fmt: skip
    shown = thread.get_effect("pay-bob")
    assert (shown.args, shown.result) == ({"to": "bob", "amount": 5}, {"paid": 5})


def test_the_first_effect_of_a_thread_makes_it(client):
    bank = Bank()
    fresh = client.thread("fresh")
    assert fresh.effect(name="n")(bank.pay)("bob", 1) == {"paid": 1}
    fresh.save({"n": 1})
    assert fresh.effect(name="n")(bank.pay)("bob", 1) == {"paid": 1}
    assert len(bank.calls) == 1


def test_a_name_stands_for_one_intent_and_an_intent_for_one_name(thread):
    bank = Bank()
    thread.effect(name="n")(bank.pay)("bob", 5)
    with pytest.raises(EffectMismatch):
        thread.effect(name="n")(bank.pay)("bob", 6)
    with pytest.raises(EffectRepeats) as refused:
        thread.effect(name="m")(bank.pay)("bob", 5)
    assert (refused.value.effect_name, refused.value.execution) == ("n", 1)
    assert bank.calls == [("bob", 5)]
    assert thread.effect(name="m", repeat=True)(bank.pay)("bob", 5) == {"paid": 5}
    assert (thread.get_effect("m").repeats, thread.get_effect("m").repeats_name) == (1, "n")
    assert len(bank.calls) == 2


def test_what_is_the_same_intent_can_be_some_of_the_arguments(thread):
    bank = Bank()
    thread.effect(name="n", identity=["to"])(bank.pay)("bob", 5)
    with pytest.raises(EffectRepeats):
        thread.effect(name="m", identity=["to"])(bank.pay)("bob", 6)
    assert thread.effect(name="m", identity=["to"])(bank.pay)("eve", 6) == {"paid": 6}


def test_what_failed_for_certain_is_done_again_and_what_may_have_happened_is_not(thread):
    bank = Bank(Declined(), Lost())
    pay = thread.effect(name=named, definite=(Declined,))(bank.pay)
    with pytest.raises(Declined):
        pay("bob", 5)
    assert thread.get_effect("pay-bob").status == "failed"
    with pytest.raises(Lost):
        pay("bob", 5)
    for _ in range(2):
        with pytest.raises(EffectUnknown) as unknown:
            pay("bob", 5)
        assert unknown.value.execution == 1
        assert unknown.value.attempt == 2
    shown = thread.get_effect("pay-bob")
    assert (shown.status, shown.attempt, shown.error, len(bank.calls)) == ("unknown", 2, "Lost", 2)


@pytest.mark.parametrize("found", [True, EffectOutcome(True, {"paid": 5})])
def test_a_check_that_finds_that_it_happened_resolves_it(thread, found):
    bank = Bank(Lost())
    pay = thread.effect(name=named, check=lambda to, amount: found)(bank.pay)
    with pytest.raises(Lost):
        pay("bob", 5)
    expected = None if found is True else {"paid": 5}
    if found is True:
        with pytest.raises(Exception, match="object"):  # the function says that it returns a dict
            pay("bob", 5)
    else:
        assert pay("bob", 5) == expected
    assert thread.get_effect("pay-bob").result == expected
    assert (thread.get_effect("pay-bob").resolved_by, len(bank.calls)) == ("check", 1)


def test_a_check_that_finds_that_nothing_happened_lets_it_run_and_one_that_cannot_tell_does_not(thread):
    bank = Bank(Lost())
    answers = [None, False]
    pay = thread.effect(name=named, check=lambda to, amount: answers.pop(0))(bank.pay)
    with pytest.raises(Lost):
        pay("bob", 5)
    with pytest.raises(EffectUnknown):
        pay("bob", 5)
    assert pay("bob", 5) == {"paid": 5}
    assert len(bank.calls) == 2


def test_what_is_idempotent_runs_again_under_the_same_key(thread):
    keys = []

    def charge(amount: int, provider_key: str = "") -> str:
        keys.append(provider_key)
        effect = current_effect()
        assert effect is not None
        assert effect.provider_key == provider_key
        if len(keys) == 1:
            raise Lost
        return "charged"

    kept = thread.effect(name="c", mode="idempotent")(charge)
    with pytest.raises(Lost):
        kept(5)
    assert kept(5) == kept(5) == "charged"
    assert len(keys) == 2
    assert len({*keys}) == 1
    assert current_effect() is None
    assert thread.get_effect("c").attempt == 2


def test_a_person_resolves_with_another_key_that_may(gateway_env, client, thread, subject):
    bank = Bank(Lost())
    pay = thread.effect(name=named)(bank.pay)
    with pytest.raises(Lost):
        pay("bob", 5)
    with pytest.raises((PermissionDenied, EffectOwnKey)):
        thread.resolve_effect("pay-bob", happened=True)
    assert [each.thread_id for each in client.unknown_effects()] == ["t"]
    reads = ["state:read", "subject:act_as"]
    decider = somebody_else(gateway_env.url, gateway_env.operator_key, gateway_env.api_key, [*reads, "approval:decide"])
    reader = somebody_else(gateway_env.url, gateway_env.operator_key, gateway_env.api_key, reads)
    with Client(gateway_env.url, reader, subject=subject) as may_not, pytest.raises(PermissionDenied):
        may_not.thread("t").resolve_effect("pay-bob", happened=True)
    with Client(gateway_env.url, decider, subject=subject) as person:
        resolved = person.thread("t").resolve_effect("pay-bob", happened=True, result={"paid": 5})
        assert (resolved.status, resolved.started_by != resolved.resolved_by) == ("done", True)
        with pytest.raises(EffectNotUnknown):
            person.thread("t").resolve_effect("pay-bob", happened=False)
    assert list(client.unknown_effects()) == []
    assert pay("bob", 5) == {"paid": 5}
    assert len(bank.calls) == 1


async def test_a_call_that_is_cancelled_may_have_happened(async_client):
    thread = async_client.thread("t")
    begun = asyncio.Event()

    @thread.effect(name="slow")
    async def slow(n: int) -> int:
        begun.set()
        await asyncio.Event().wait()
        return n

    task = asyncio.create_task(slow(1))
    await begun.wait()
    with pytest.raises(EffectInProgress) as refused:
        await async_client.thread("t").effect(name="slow")(slow.__wrapped__)(1)
    assert refused.value.retry_after_seconds is not None
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    shown = await thread.get_effect("slow")
    assert (shown.status, shown.error) == ("unknown", "CancelledError")


def test_a_result_too_large_for_the_ledger_is_an_artifact_and_one_without_a_form_is_missing(client, thread):
    calls = []

    def read() -> str:
        calls.append(1)
        return "x" * 1_500_000

    kept = thread.effect(name="large", mode="read")(read)
    assert kept() == kept() == "x" * 1_500_000
    shown = thread.get_effect("large")
    assert (shown.result_state, shown.result) == ("artifact", None)
    assert shown.result_bytes is not None
    assert shown.result_bytes > 1_500_000
    assert len(calls) == 1

    def odd():
        calls.append(2)
        return object()

    kept_odd = thread.effect(name="odd")(odd)
    kept_odd()
    with pytest.raises(ResultMissing):
        kept_odd()
    assert calls == [1, 2]


def deep(levels: int) -> object:
    value: object = 1
    for _ in range(levels):
        value = [value]
    return value


class Failing:
    """A result of which nobody can make anything plain."""

    def model_dump(self) -> object:
        raise ZeroDivisionError


@pytest.mark.parametrize(
    "result",
    [deep(1_000), deep(50_000), {"$encoded": "x"}, 2**70, Failing()],
    ids=["deep", "deeper", "reserved", "large number", "failing"],
)
def test_what_happened_is_done_whatever_it_gave(thread, result):
    """A result that cannot be kept does not leave it open whether something was done."""
    calls = []

    def act():
        calls.append(1)
        return result

    kept = thread.effect(name="act")(act)
    given = kept()
    assert given is result or given == result
    shown = thread.get_effect("act")
    assert shown.status == "done"
    if shown.result_state == "missing":
        with pytest.raises(ResultMissing):
            kept()
    assert len(calls) == 1


def test_the_calls_by_themselves_keep_the_same_ledger(thread):
    started = thread.start_effect("a", "tool", {"n": 1})
    assert started.must_run
    done = thread.finish_effect(started.effect, result=[1, 2])
    assert (done.status, done.result_state) == ("done", "stored")
    assert thread.finish_effect(started.effect, result=[1, 2]).status == "done"
    with pytest.raises(EffectSuperseded):
        thread.finish_effect(started.effect, "failed", error="E")
    again = thread.start_effect("a", "tool", {"n": 1})
    assert (again.must_run, again.effect.result) == (False, [1, 2])
    with pytest.raises(EffectNotFound):
        thread.get_effect("b")
    with pytest.raises(LimitExceeded):
        thread.start_effect("b", "tool", {"n": "x" * 1_100_000})
    assert [each.name for each in thread.effects(status="done")] == ["a"]
    assert list(thread.effects(status="unknown")) == []


def test_another_line_of_the_thread_has_executions_of_its_own(client, thread):
    first = thread.head_id
    reads = []

    def look(n: int) -> int:
        reads.append(n)
        return len(reads)

    thread.save({"n": 2})
    assert thread.effect(name="r", mode="idempotent")(look)(1) == 1
    fork = thread.fork(first)
    assert fork.effect(name="r", mode="idempotent")(look)(1) == 2
    assert fork.get_effect("r").execution == 2
    assert fork.get_effect("r", execution=1).provider_key == fork.get_effect("r").provider_key


DYING = """
    import os, signal, sys
    from stateroom import Client
    with Client(sys.argv[1], sys.argv[2], subject=sys.argv[3]) as client:
        thread = client.thread("t")
        thread.load()
        with thread.claim(holder="dies", lease_seconds=5):
            @thread.effect(name="pay")
            def pay(n: int) -> int:
                print("acted", flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
                return n
            pay(1)
"""


def test_what_a_process_was_doing_when_it_died_is_not_done_again(gateway_env, client, thread, subject):
    command = [sys.executable, "-c", textwrap.dedent(DYING), gateway_env.url, gateway_env.api_key, subject]
    died = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env={**os.environ})
    assert (died.returncode, died.stdout.split()) == (-signal.SIGKILL, ["acted"])
    acted = []

    def pay(n: int) -> int:
        acted.append(n)
        return n

    elsewhere = client.thread("t")
    elsewhere.load()
    with pytest.raises(EffectInProgress):
        elsewhere.effect(name="pay")(pay)(1)
    # Its claim is another's now, so that it is not waited for.
    with elsewhere.claim(holder="goes-on", take_over=True):
        for _ in range(2):
            with pytest.raises(EffectUnknown):
                elsewhere.effect(name="pay")(pay)(1)
    assert acted == []
