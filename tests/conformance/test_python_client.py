"""The Python client's promises, kept by a real gateway."""

import dataclasses
import re
import sys
from pathlib import Path
from types import ModuleType
from uuid import uuid4

import msgspec
import pytest

from stateroom import (
    AsyncClient,
    CheckpointExists,
    CheckpointNotFound,
    Client,
    HeadMoved,
    Model,
    OnceKeyReused,
    PreconditionRequired,
    ThreadExists,
    ThreadNotFound,
    Usage,
)
from stateroom._protocol import calls
from stateroom._protocol.wire import WriteIn, WritesRequest
from stateroom._threads.once.records import ONCE_ANCHOR, once_place


class Item(msgspec.Struct):
    id: str


@dataclasses.dataclass
class Trip:
    plan: list[Item]
    done: list[str]


@pytest.fixture
def client(gateway_env, subject):
    with Client(gateway_env.url, gateway_env.api_key, subject=subject) as opened:
        yield opened


def run_agent(client, execute, *, crash_before_save_of=None):
    """The example every page shows; a crash leaves between an effect's result and the next save."""
    thread = client.thread("trip-7", agent="travel", state_type=Trip)
    head = thread.load()
    trip = head.state if head else Trip(plan=[Item("flight"), Item("hotel"), Item("car")], done=[])
    for item in trip.plan[len(trip.done) :]:
        trip.done.append(thread.once(item.id, execute, item))
        if item.id == crash_before_save_of:
            raise KeyboardInterrupt
        thread.save(trip)
    thread.save(trip, status="done")
    return trip


@pytest.mark.parametrize("crash_at", ["flight", "hotel", "car"])
def test_a_resumed_agent_repeats_no_finished_effect(gateway_env, subject, crash_at):
    effects = []

    def execute(item: Item) -> str:
        effects.append(item.id)
        return f"booked {item.id}"

    with Client(gateway_env.url, gateway_env.api_key, subject=subject) as first, pytest.raises(KeyboardInterrupt):
        run_agent(first, execute, crash_before_save_of=crash_at)
    with Client(gateway_env.url, gateway_env.api_key, subject=subject) as second:
        trip = run_agent(second, execute)
        assert effects == ["flight", "hotel", "car"]
        assert trip.done == ["booked flight", "booked hotel", "booked car"]
        info = second.thread("trip-7").info()
        assert info is not None
        assert (info.status, info.agent) == ("done", "travel")


async def test_once_refuses_other_arguments_in_any_process_and_client_and_replays_what_says_none(
    gateway_env, subject, client, thread_id
):
    paid = []

    def pay(amount: int) -> str:
        paid.append(amount)
        return f"paid {amount}"

    thread = client.thread(thread_id)
    assert thread.once("pay", pay, 10) == "paid 10"
    with pytest.raises(OnceKeyReused):
        thread.once("pay", pay, 99)
    async with AsyncClient(gateway_env.url, gateway_env.api_key, subject=subject) as other:
        assert await other.thread(thread_id).once("pay", pay, 10) == "paid 10"
        with pytest.raises(OnceKeyReused):
            await other.thread(thread_id).once("pay", pay, 99)

    # As the release before stored it: a result, and nothing about the arguments.
    task_id, channel = once_place("earlier")
    writes = WritesRequest(writes=[WriteIn(channel=channel, idx=0, value="kept")])
    client.drive(calls.write(thread_id, ONCE_ANCHOR, task_id, writes))
    assert thread.once("earlier", pay, 1) == thread.once("earlier", pay, 2) == "kept"
    assert paid == [10]


def test_once_results_outlive_saves_and_pruning_but_not_their_thread(client, thread_id):
    thread = client.thread(thread_id)
    assert thread.once("a", lambda: 1) == 1
    for number in range(3):
        thread.save({"n": number})
    client.prune([thread_id])
    assert thread.once("a", lambda: 2) == 1
    assert client.thread(thread_id, namespace="sub").once("a", lambda: 3) == 3
    assert thread.delete()
    assert thread.once("a", lambda: 4) == 4


def test_one_text_is_no_list_of_threads_runs_keys_or_elements(client, thread_id):
    thread = client.thread(thread_id)
    thread.save({"a": 1, "b": 2, "log": []}, run_id="a")
    for removes in (
        lambda: client.prune("ab", strategy="delete"),
        lambda: client.prune(b"ab", strategy="delete"),
        lambda: client.delete_runs("ab"),
        lambda: thread.patch(remove="ab"),
        lambda: thread.patch(append={"log": "ab"}),
        lambda: thread.compact("log", keep_last=1, summary="ab"),
    ):
        with pytest.raises(TypeError, match="sequence"):
            removes()
    head = thread.load()
    assert head is not None
    assert head.state == {"a": 1, "b": 2, "log": []}


def test_of_two_writers_one_is_told_that_the_head_moved(client, thread_id):
    mine, theirs = client.thread(thread_id), client.thread(thread_id)
    assert mine.load() is None
    assert theirs.load() is None
    first = theirs.save({"by": "them"})
    with pytest.raises(HeadMoved) as caught:
        mine.save({"by": "me"})
    assert caught.value.head_id == first.checkpoint_id
    head = mine.load()
    assert head is not None
    assert head.state == {"by": "them"}
    assert mine.save({"by": "me"}).parent_id == first.checkpoint_id


def test_what_is_saved_comes_back(client, thread_id):
    thread = client.thread(thread_id, agent="planner")
    saved = thread.save(
        {"text": "\x00 \U0001f600", "blob": b"\x00\xff", "big": 2**60, "nested": {"list": [None, 1.5, []]}},
        status="waiting",
        metadata={"cost": {"eur": 1}},
        model=Model(name="m", seed=7),
        usage=Usage(input_tokens=10),
        run_id="run-1",
        source="loop",
    )
    head = client.thread(thread_id).load()
    assert head is not None
    assert head.state == {
        "text": "\x00 \U0001f600",
        "blob": b"\x00\xff",
        "big": 2**60,
        "nested": {"list": [None, 1.5, []]},
    }
    assert (head.checkpoint_id, head.step, head.status, head.agent) == (
        saved.checkpoint_id,
        saved.step,
        "waiting",
        "planner",
    )
    assert (head.run_id, head.source, head.metadata) == ("run-1", "loop", {"cost": {"eur": 1}})
    assert head.model is not None
    assert (head.model.name, head.model.seed) == ("m", 7)
    assert head.usage is not None
    assert head.usage.input_tokens == 10


def test_a_patch_changes_only_what_it_names(client, thread_id):
    thread = client.thread(thread_id)
    thread.save({"log": [1], "keep": "k", "drop": "d"})
    thread.patch(set={"new": {"x": 1}}, append={"log": [2, 3]}, remove=["drop"])
    head = thread.load()
    assert head is not None
    assert head.state == {"log": [1, 2, 3], "keep": "k", "new": {"x": 1}}
    with pytest.raises(CheckpointNotFound):
        client.thread(str(uuid4())).patch(set={"a": 1})


def test_a_fork_continues_from_an_old_checkpoint_and_history_keeps_both_branches(client, thread_id):
    thread = client.thread(thread_id)
    ids = [thread.save({"n": number}).checkpoint_id for number in range(3)]
    forked = thread.fork(ids[0])
    head = forked.load()
    assert head is not None
    assert head.state == {"n": 0}
    branch = forked.save({"n": 100})
    assert (branch.parent_id, branch.step) == (ids[0], head.step + 1)
    assert [info.checkpoint_id for info in thread.history()] == [branch.checkpoint_id, *reversed(ids)]
    assert thread.at(ids[2]).state == {"n": 2}
    with pytest.raises(HeadMoved):
        thread.save({"n": 3})


def test_the_same_id_with_the_same_content_is_no_second_checkpoint(client, thread_id):
    first = client.thread(thread_id).save({"a": 1}, checkpoint_id="fixed", step=0)
    again = client.thread(thread_id).save({"a": 1}, checkpoint_id="fixed", step=0)
    assert (first.created, again.created) == (True, False)
    with pytest.raises(CheckpointExists):
        client.thread(thread_id).save({"a": 2}, checkpoint_id="fixed", step=0)


def test_a_strict_thread_insists_on_a_known_head(client, thread_id):
    thread = client.thread(thread_id)
    assert thread.change(strict=True).strict
    with pytest.raises(PreconditionRequired):
        thread.save({"a": 1})
    assert thread.load() is None
    thread.save({"a": 1})
    thread.save({"a": 2})


def test_a_strict_client_loses_no_update_and_makes_its_threads_strict_for_all(gateway_env, subject, client, thread_id):
    with Client(gateway_env.url, gateway_env.api_key, subject=subject, strict=True) as strict:
        hers, his = strict.thread(thread_id), strict.thread(thread_id)
        hers.save({"a": 1})
        with pytest.raises(HeadMoved):
            his.save({"a": 2})  # it never looked
        hers.patch(append={}, set={"a": 3})
        branch = hers.fork(hers.head_id)
        branch.save({"a": 4})
        with pytest.raises(HeadMoved):
            hers.save({"a": 5})
        with pytest.raises(PreconditionRequired):
            client.thread(thread_id).save({"a": 6})

        assert branch.delete()
        branch.save({"a": 7})
        info = branch.info()
        assert info is not None
        assert info.strict
        relaxed = strict.thread(f"{thread_id}-relaxed", strict=False)
        relaxed.save({"a": 1})
        strict.thread(f"{thread_id}-relaxed", strict=False).save({"a": 2})


async def test_a_strict_asynchronous_client_loses_no_update(gateway_env, subject, thread_id):
    async with AsyncClient(gateway_env.url, gateway_env.api_key, subject=subject, strict=True) as strict:
        await strict.thread(thread_id).save({"a": 1})
        with pytest.raises(HeadMoved):
            await strict.thread(thread_id).save({"a": 2})


def test_listings_select_by_what_checkpoints_are(client, thread_id):
    thread = client.thread(thread_id, agent="lister")
    for number in range(5):
        thread.save({"n": number}, status="failed" if number == 3 else "active", metadata={"even": number % 2 == 0})
    assert [info.step for info in thread.history(limit=2)] == [4, 3]
    assert [info.step for info in thread.history(status="failed")] == [3]
    assert [info.step for info in thread.history(matching={"even": True})] == [4, 2, 0]
    assert [info.thread_id for info in client.checkpoints(agent="lister", status="failed")] == [thread_id]
    assert [info.thread_id for info in client.threads(agent="lister")] == [thread_id]
    assert list(client.thread(str(uuid4())).history()) == []


def test_a_copy_is_a_thread_of_its_own(client, thread_id):
    thread, target = client.thread(thread_id), str(uuid4())
    thread.save({"n": 1})
    thread.once("effect", lambda: "done")
    assert thread.copy(target).checkpoints == 1
    copied = client.thread(target)
    head = copied.load()
    assert head is not None
    assert head.state == {"n": 1}
    assert copied.once("effect", lambda: "again") == "done"
    with pytest.raises(ThreadExists):
        thread.copy(target)
    with pytest.raises(ThreadNotFound):
        client.thread(str(uuid4())).copy(str(uuid4()))
    assert thread.delete()
    assert not thread.delete()
    assert copied.load() is not None


@pytest.mark.parametrize("odd", ["../x", "a/b?c#d", "Zoë ünïcode", "%2e%2e", "a|b+c@d"])
def test_any_text_is_a_thread_id(client, odd):
    client.thread(odd).save({"odd": odd})
    head = client.thread(odd).load()
    assert head is not None
    assert (head.thread_id, head.state) == (odd, {"odd": odd})


async def test_the_async_client_keeps_the_same_promises(gateway_env, subject, thread_id):
    async with AsyncClient(gateway_env.url, gateway_env.api_key, subject=subject) as client:
        thread = client.thread(thread_id, state_type=Trip)
        assert await thread.load() is None
        await thread.save(Trip(plan=[Item("a")], done=[]))
        await thread.save(Trip(plan=[Item("a")], done=["x"]))
        head = await thread.load()
        assert head is not None
        assert head.state == Trip(plan=[Item("a")], done=["x"])
        assert [info.step async for info in thread.history()] == [head.step, head.step - 1]
        assert (await client.whoami()).subject_id in {subject, None}


ROOT = Path(__file__).parents[2]
PAGES = {"sdk/python/README.md": 12, "docs/lost-updates.md": 2, "docs/workspaces.md": 1, "docs/items.md": 6}
BLOCKS = {page: re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL) for page in PAGES}
EXAMPLES = [(page, number) for page in PAGES for number in range(len(BLOCKS[page]))]


@pytest.mark.parametrize(("page", "number"), EXAMPLES)
def test_every_example_of_the_pages_runs(gateway_env, monkeypatch, tmp_path, page, number):
    monkeypatch.chdir(tmp_path)  # one of them keeps tokens in a folder
    monkeypatch.setenv("STATEROOM_URL", gateway_env.url)
    monkeypatch.setenv("STATEROOM_API_KEY", gateway_env.api_key)
    module = ModuleType(f"page_example_{number}")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(BLOCKS[page][number], page, "exec"), module.__dict__)  # noqa: S102


def test_the_pages_have_their_examples():
    assert {page: len(blocks) for page, blocks in BLOCKS.items()} == PAGES
