"""Once-calls of both clients, as effects in the ledger of a real gateway: repeated until they finish, then told."""

import pytest

from stateroom import AsyncClient, Client, EffectMismatch, InvalidRequest, OnceKeyReused, current_effect
from stateroom._protocol import calls
from stateroom._protocol.wire import WriteIn, WritesRequest
from stateroom._threads.once.records import ONCE_ANCHOR, once_place


class Lost(Exception):
    """The connection broke: nobody knows."""


@pytest.fixture
def client(gateway_env, subject):
    with Client(gateway_env.url, gateway_env.api_key, subject=subject) as opened:
        yield opened


@pytest.fixture
def thread(client):
    made = client.thread("t")
    made.save({"n": 1})
    return made


def shown(thread):
    return [(each.name, each.status, each.attempt, each.mode) for each in thread.effects()]


def test_a_once_call_is_an_effect_and_no_pending_write(client, thread):
    assert thread.once("pay", lambda: "paid") == "paid"
    assert thread.once("pay", lambda: "again") == "paid"
    assert shown(thread) == [("pay", "done", 1, "idempotent")]
    assert client.drive(calls.read_writes("t", "", ONCE_ANCHOR, once_place("pay")[0])).writes == []


def test_what_failed_is_called_again_under_the_same_key_also_with_other_arguments(thread):
    keys = []

    def pay(amount):
        keys.append(current_effect().provider_key)
        if len(keys) < 3:
            raise Lost
        return f"paid {amount}"

    for amount in (1, 2):
        with pytest.raises(Lost):
            thread.once("pay", pay, amount)
    assert shown(thread) == [("pay", "unknown", 2, "idempotent")]
    assert thread.once("pay", pay, 3) == "paid 3"
    assert len({*keys}) == 1
    with pytest.raises(OnceKeyReused):
        thread.once("pay", pay, 2)
    assert len(keys) == 3


def test_a_result_without_a_form_is_not_kept(thread):
    with pytest.raises(InvalidRequest):
        thread.once("open", object)
    assert thread.once("open", lambda: "opened") == "opened"


def test_every_branch_of_a_thread_is_told(client, thread):
    first = thread.save({"n": 2})
    thread.save({"n": 3})
    assert thread.once("pay", lambda: "paid") == "paid"
    fork = thread.fork(first.checkpoint_id)
    assert fork.once("pay", lambda: "again") == "paid"
    fork.save({"n": 4})
    for each in (fork, client.thread("t")):
        assert each.once("pay", lambda: "again") == "paid"


def test_names_are_unique_in_their_namespace_however_long_they_are(client, thread):
    long = "n" * 300
    for number, namespace in enumerate(["", "work", "work:1", "work:2", "a|b"]):
        there = client.thread("t", namespace=namespace)
        for name in ("pay", long):
            assert there.once(name, lambda said: said, said=number) == number
            assert there.once(name, lambda said: said, said=number) == number


def test_what_earlier_releases_kept_is_told_and_compared(client, thread):
    task_id, channel = once_place("earlier")
    for idx, name, value in ((0, channel, "kept"), (1, "stateroom:intent", "1:else")):
        writes = WritesRequest(writes=[WriteIn(channel=name, idx=idx, value=value)], namespace="work:1")
        client.drive(calls.write("t", ONCE_ANCHOR, task_id, writes))
        there = client.thread("t", namespace="work:1")
        if idx == 0:
            continue
        for _ in range(2):
            with pytest.raises(OnceKeyReused):
                there.once("earlier", lambda: "again")


def test_a_name_of_an_effect_is_none_of_a_once_call(thread):
    thread.effect(name="pay")(lambda: "paid")()
    with pytest.raises(OnceKeyReused):
        thread.once("pay", lambda: "again")
    thread.once("book", lambda: "booked")
    with pytest.raises(EffectMismatch):
        thread.effect(name="book")(lambda: "again")()


async def test_of_two_at_once_the_second_waits_until_the_first_may_be_dead_and_both_tell_what_was_kept(
    gateway_env, subject, client, thread
):
    async with AsyncClient(gateway_env.url, gateway_env.api_key, subject=subject) as other:

        async def slow() -> str:
            assert await other.thread("t").once("race", lambda: "rival") == "rival"
            return "mine"

        assert await other.thread("t").once("race", slow) == "rival"
    assert shown(thread) == [("race", "done", 2, "idempotent")]
