"""Cases about how long items live. LangGraph counts in minutes.

Where LangGraph's own stores disagree, the cases are in ``differences``.
"""

from typing import Final

from stateroom.testing.stores.configs import PLAIN, TIMED, UNREFRESHED
from stateroom.testing.stores.trials import Cases, Trial, UnsupportedError, refused, same

cases: Final = Cases("times")

_MINUTE: Final = 60.0


@cases.case(PLAIN)
async def time_is_refused_where_it_is_not_supported(trial: Trial) -> None:
    """A store that supports no time to live says so, and takes what lives for ever."""
    if trial.calls.store.supports_ttl:
        raise UnsupportedError("the store supports a time to live")
    await refused(trial.put(trial.path(), "k", {}, ttl=1), NotImplementedError, "a time to live")
    await trial.put(trial.path(), "k", {}, ttl=None)
    same(await trial.keys(), ["k"], "what lives for ever")


@cases.case(TIMED, needs_time=True)
async def items_live_as_long_as_they_should(trial: Trial) -> None:
    """An item is there until its time is over."""
    await trial.put(trial.path(), "k", {}, ttl=2)
    await trial.advance(1.5 * _MINUTE)
    same(await trial.is_there("k"), True, "whether it is there before")
    await trial.advance(_MINUTE)
    same(await trial.is_there("k"), False, "whether it is there after")


@cases.case(TIMED, needs_time=True)
async def the_default_is_taken(trial: Trial) -> None:
    """A put that says nothing gets the store's default, and one that says None lives for ever."""
    await trial.put(trial.path(), "default", {})
    await trial.put(trial.path(), "short", {}, ttl=1)
    await trial.put(trial.path(), "for-ever", {}, ttl=None)
    await trial.advance(9 * _MINUTE)
    same([await trial.is_there(each) for each in ("default", "short", "for-ever")], [True, False, True], "after 9")
    await trial.advance(2 * _MINUTE)
    same([await trial.is_there(each) for each in ("default", "for-ever")], [False, True], "after 11")


@cases.case(UNREFRESHED, needs_time=True)
async def without_a_default_items_live_for_ever(trial: Trial) -> None:
    """A put that says nothing lives for ever where the store has no default."""
    await trial.put(trial.path(), "k", {})
    await trial.put(trial.path(), "short", {}, ttl=1)
    await trial.advance(1000 * _MINUTE)
    same([await trial.is_there(each) for each in ("k", "short")], [True, False], "whether they are there")


@cases.case(TIMED, needs_time=True)
async def a_put_begins_anew(trial: Trial) -> None:
    """A put begins the time anew, and with None ends it for good."""
    for key in ("again", "for-ever"):
        await trial.put(trial.path(), key, {}, ttl=2)
    await trial.advance(1.5 * _MINUTE)
    await trial.put(trial.path(), "again", {}, ttl=2)
    await trial.put(trial.path(), "for-ever", {}, ttl=None)
    await trial.advance(1.5 * _MINUTE)
    same([await trial.is_there(each) for each in ("again", "for-ever")], [True, True], "after 3")
    await trial.advance(_MINUTE)
    same([await trial.is_there(each) for each in ("again", "for-ever")], [False, True], "after 4")


@cases.case(TIMED, needs_time=True)
async def reads_keep_alive(trial: Trial) -> None:
    """A get and a search begin the time of what they return anew, where the store is set so."""
    for key in ("got", "found", "unread"):
        await trial.put(trial.path(key), key, {}, ttl=2)
    await trial.advance(1.5 * _MINUTE)
    await trial.get(trial.path("got"), "got")
    await trial.search(trial.path("found"))
    await trial.advance(1.5 * _MINUTE)
    same([await trial.is_there(each, each) for each in ("got", "found", "unread")], [True, True, False], "after 3")
    await trial.advance(_MINUTE)
    same([await trial.is_there(each, each) for each in ("got", "found")], [False, False], "after 4")


@cases.case(TIMED, needs_time=True)
async def reads_may_leave_time_alone(trial: Trial) -> None:
    """A read that asks for it keeps nothing alive."""
    await trial.put(trial.path(), "k", {}, ttl=2)
    await trial.advance(1.5 * _MINUTE)
    await trial.get(trial.path(), "k", refresh_ttl=False)
    await trial.search(trial.path(), refresh_ttl=False)
    await trial.advance(_MINUTE)
    same(await trial.is_there("k"), False, "whether it is there after")


@cases.case(UNREFRESHED, needs_time=True)
async def reads_keep_nothing_alive_unless_asked(trial: Trial) -> None:
    """Where the store is set so, reads keep alive only what they are asked to."""
    for key in ("got", "kept", "searched"):
        await trial.put(trial.path(key), key, {}, ttl=2)
    await trial.advance(1.5 * _MINUTE)
    await trial.get(trial.path("got"), "got")
    await trial.get(trial.path("kept"), "kept", refresh_ttl=True)
    await trial.search(trial.path("searched"), refresh_ttl=True)
    await trial.advance(_MINUTE)
    same([await trial.is_there(each, each) for each in ("got", "kept", "searched")], [False, True, True], "after 2.5")


@cases.case(TIMED, needs_time=True)
async def a_read_keeps_what_it_returned(trial: Trial) -> None:
    """A search keeps alive what it returned, and not what it passed over."""
    for key, number in (("returned", 1), ("passed-over", 2)):
        await trial.put(trial.path(), key, {"n": number}, ttl=2)
    await trial.advance(1.5 * _MINUTE)
    await trial.search(trial.path(), filter={"n": 1})
    await trial.advance(_MINUTE)
    same([await trial.is_there(each) for each in ("returned", "passed-over")], [True, False], "after 2.5")


@cases.case(TIMED, needs_time=True)
async def parts_of_minutes_count(trial: Trial) -> None:
    """A time of less than a minute is what it says, also after it was begun anew by a read."""
    await trial.put(trial.path(), "k", {}, ttl=0.4)
    await trial.advance(16)
    await trial.get(trial.path(), "k")
    await trial.advance(16)
    same(await trial.is_there("k"), True, "whether it is there after 32 seconds and a read")
    await trial.advance(16)
    same(await trial.is_there("k"), False, "whether it is there 32 seconds after the read")


@cases.case(TIMED, needs_time=True)
async def what_is_over_can_be_put_anew(trial: Trial) -> None:
    """A key whose item is over can be put again, and lives again."""
    await trial.put(trial.path(), "k", {"n": 1}, ttl=1)
    await trial.advance(2 * _MINUTE)
    same(await trial.is_there("k"), False, "whether it is there in between")
    await trial.put(trial.path(), "k", {"n": 2}, ttl=1)
    await trial.advance(0.5 * _MINUTE)
    same([each.value for each in await trial.search(trial.path())], [{"n": 2}], "what is there")
