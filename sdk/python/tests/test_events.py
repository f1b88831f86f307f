"""Listening: what is asked, where it goes on, how long it waits after a failure, and what ends it."""

import httpx2
import msgspec
import pytest

from sdk.python.tests.fakes import API_KEY, URL, FakeAsyncClock, FakeClock, Script, packed, problem
from stateroom import (
    AsyncClient,
    Client,
    ClientClosed,
    Event,
    EventsExpired,
    EventsOff,
    EventsRewound,
    GatewayUnavailable,
    SubjectRequired,
    TooManyWaiters,
    current_subject,
)
from stateroom._events.requests import BACKOFF_SECONDS_MAX, SOON_SECONDS, Seen, pause_seconds


def event(number, **more):
    return {
        "event_id": f"e{number}", "type": "checkpoint.saved", "at": "2026-11-21T10:00:00Z",
        "stream": {"kind": "thread", "id": "t", "incarnation": "i"}, "stream_sequence": number, "cursor": f"c{number}",
        "thread_id": "t", **more,
    }  # fmt: skip


def page(*numbers, cursor=None, more=False):
    return packed({"events": [event(each) for each in numbers], "cursor": cursor or f"p{numbers[-1]}", "more": more})


def now(_request=None):
    return packed({"events": [], "cursor": "now-1", "more": False})


def asked(request):
    return dict(request.url.params.multi_items())


def listening(*answers, subject="u", **wanted):
    script = Script(*answers)
    client = Client(URL, API_KEY, subject=subject, transport=script.transport, clock=FakeClock())
    return script, client, client.events(**wanted)


def numbers(events, count):
    return [next(events).stream_sequence for _ in range(count)]


def test_an_event_is_what_it_says_and_does_not_change():
    _, _, events = listening(now, page(1))
    first = next(events)
    assert isinstance(first, Event)
    assert (first.cursor, first.stream.kind, first.thread_id, first.status) == ("c1", "thread", "t", None)
    with pytest.raises(AttributeError):
        first.type = "other"


def test_now_is_asked_for_before_anything_is_waited_for():
    script, _, events = listening(now, page(1), page(2))
    assert numbers(events, 2) == [1, 2]
    first, second, third = map(asked, script.requests)
    assert (first["since"], first["wait_seconds"]) == ("now", "0")
    assert (second["since"], second["wait_seconds"]) == ("now-1", "25")
    assert third["since"] == "p1"


def test_a_cursor_goes_on_behind_it():
    script, _, events = listening(page(8), since="c7")
    assert numbers(events, 1) == [8]
    assert asked(script.requests[0])["since"] == "c7"


def test_filters_are_asked_for_each_time():
    script, _, events = listening(now, page(1), types=("thread.status", "job.ended"), thread="a/b")
    next(events)
    for request in script.requests:
        assert request.url.params.get_list("types") == ["thread.status", "job.ended"]
        assert request.url.params["thread"] == "a/b"


def test_a_failure_goes_on_behind_the_last_event_and_waits_before():
    broken = [httpx2.ReadError("gone")] * 12  # more than one call tries again
    script, client, events = listening(now, page(1, 2, cursor="c2"), *broken, page(3))
    assert numbers(events, 3) == [1, 2, 3]
    assert {asked(each)["since"] for each in script.requests[2:]} == {"c2"}
    assert sum(client._clock.slept) > 0


def test_an_event_that_comes_twice_is_handed_out_once():
    _, _, events = listening(now, page(1, 2), page(2, 3), page(3, 4))
    assert numbers(events, 4) == [1, 2, 3, 4]


def test_only_so_many_ids_are_remembered():
    seen = Seen()
    assert all(seen.add(str(number)) for number in range(10_000))
    assert not seen.add("9999")
    assert seen.add("0")


def test_an_empty_page_goes_on_with_its_cursor():
    script, _, events = listening(now, packed({"events": [], "cursor": "later", "more": False}), page(1))
    next(events)
    assert asked(script.requests[-1])["since"] == "later"


def nothing(client, seconds):
    def answer(_request):
        client._clock.seconds += seconds
        return packed({"events": [], "cursor": "later", "more": False})

    return answer


def test_a_gateway_that_answers_at_once_without_an_event_is_not_asked_at_once_again():
    script, client, events = listening()
    script.answers = [now, *[nothing(client, 0.1)] * 20, page(1), page(2)]
    assert numbers(events, 2) == [1, 2]
    assert len(client._clock.slept) == 20  # neither before the first question that waits, nor behind an event
    assert all(SOON_SECONDS / 2 <= each <= SOON_SECONDS * 1.5 for each in client._clock.slept)
    assert len(set(client._clock.slept)) > 1


def test_a_question_whose_time_is_over_is_asked_again_at_once():
    script, client, events = listening()
    script.answers = [now, *[nothing(client, 25.0)] * 3, page(1)]
    assert numbers(events, 1) == [1]
    assert client._clock.slept == []


def test_without_follow_it_ends_with_what_has_happened():
    script, _, events = listening(page(1, more=True), page(2), since="c0", follow=False)
    assert [each.stream_sequence for each in events] == [1, 2]
    assert {asked(each)["wait_seconds"] for each in script.requests} == {"0"}


@pytest.mark.parametrize(
    ("status", "code", "error"),
    [(410, "events-expired", EventsExpired), (410, "events-rewound", EventsRewound), (409, "events-off", EventsOff)],
)
def test_what_no_other_attempt_mends_ends_it(status, code, error):
    _, _, events = listening(now, page(1), problem(status, code))
    next(events)
    with pytest.raises(error):
        next(events)


def test_too_many_waiters_are_waited_for():
    busy = problem(429, "too-many-waiters", retryable=True, headers={"retry-after": "5"})
    _, client, events = listening(now, *[busy] * 10, page(1))
    assert numbers(events, 1) == [1]
    assert max(client._clock.slept) >= 5


def test_a_gateway_that_was_never_reached_is_told():
    _, _, events = listening(httpx2.ConnectError("refused"))
    with pytest.raises(GatewayUnavailable):
        next(events)


def test_too_many_from_the_first_on_are_told_as_such():
    busy = problem(429, "too-many-waiters", retryable=True, headers={"retry-after": "5"})
    _, _, events = listening(busy)
    with pytest.raises(TooManyWaiters):
        next(events)


def test_the_subject_is_decided_at_once_and_none_is_not_the_whole_tenant():
    client = Client(URL, API_KEY, subject=current_subject, transport=Script(now).transport)
    with client, pytest.raises(SubjectRequired):
        client.events()
    script = Script(now, page(1))
    with Client(URL, API_KEY, subject=current_subject, transport=script.transport) as client:
        next(client.events(whole_tenant=True))
    assert not any("stateroom-subject" in each.headers for each in script.requests)


def test_a_share_is_not_sent():
    script = Script(now, page(1))
    with Client(URL, API_KEY, subject="u", client_share=bytes(32), transport=script.transport) as client:
        next(client.events())
    assert not any("stateroom-client-share" in each.headers for each in script.requests)
    assert {each.headers["stateroom-subject"] for each in script.requests} == {"u"}


def test_this_moment_has_a_cursor():
    script = Script(now)
    with Client(URL, API_KEY, subject="u", transport=script.transport) as client:
        assert client.event_cursor(thread="t") == "now-1"
    assert asked(script.requests[0]) == {"thread": "t", "since": "now", "wait_seconds": "0"}


def test_pauses_grow_to_a_bound_and_are_never_all_the_same():
    pauses = [pause_seconds(failures, GatewayUnavailable()) for failures in range(2000)]
    assert pauses[0] <= 0.5
    assert max(pauses) <= BACKOFF_SECONDS_MAX
    assert min(pauses[10:]) >= BACKOFF_SECONDS_MAX / 2
    assert len(set(pauses[10:])) > 1000


def test_a_client_that_is_closed_meanwhile_says_so():
    _, client, events = listening(now, page(1), page(2))
    next(events)
    client.close()  # as another thread would, between two questions
    with pytest.raises(ClientClosed):
        next(events)


async def test_an_asynchronous_client_that_is_closed_meanwhile_says_so():
    script = Script(now, page(1), page(2))
    over_a_network = AsyncClient(URL, API_KEY, subject="u")
    client = AsyncClient(URL, API_KEY, subject="u", transport=script.transport)
    events = client.events()
    await anext(events)
    for each in (client, over_a_network):
        await each.close()
    with pytest.raises(ClientClosed):
        await anext(events)
    with pytest.raises(ClientClosed):
        await over_a_network.whoami()


async def test_the_asynchronous_iterator_does_the_same():
    script = Script(now, page(1, 2), httpx2.ReadError("gone"), page(3))
    async with AsyncClient(URL, API_KEY, subject="u", transport=script.transport, clock=FakeAsyncClock()) as client:
        found = []
        async for each in client.events():
            found.append(each.stream_sequence)
            if len(found) == 3:
                break
    assert found == [1, 2, 3]


def test_members_of_a_newer_gateway_are_passed_over():
    known = msgspec.convert(event(1, colour="red", type="board.changed"), Event)
    assert known.type == "board.changed"
