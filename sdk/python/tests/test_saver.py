import copy
import subprocess
import sys
from datetime import UTC, datetime

import msgspec
import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver

from sdk.python.tests.fakes import API_KEY, URL, Script, checkpoint, packed, problem, receipt
from stateroom import IntegrityFailure, InvalidRequest, NotConfigured, SubjectRequired, acting_for
from stateroom.langgraph import SKELETON, StateroomSaver

CONFIG = {"configurable": {"thread_id": "t", "checkpoint_ns": "", "checkpoint_id": "parent"}}
FIRST = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}


@pytest.fixture
def saver_of():
    savers = []

    def make(*answers, **options):
        script = Script(*answers)
        saver = StateroomSaver(URL, API_KEY, **{"subject": "user-42", "transport": lambda: script.transport, **options})
        savers.append(saver)
        return saver, script

    yield make
    for saver in savers:
        saver.close()


def langgraph_checkpoint(values, versions=None):
    return {
        "v": 4,
        "id": "child",
        "ts": "2026-11-21T10:00:00+00:00",
        "channel_values": values,
        "channel_versions": versions or dict.fromkeys(values, "1.0"),
        "versions_seen": {},
        "updated_channels": None,
    }


def sent(request):
    return msgspec.msgpack.decode(request.content)


def test_every_method_of_the_base_class_that_touches_storage_is_overridden():
    storage = [
        name
        for name in vars(BaseCheckpointSaver)
        if not name.startswith("_") and callable(getattr(BaseCheckpointSaver, name))
    ]
    # `get` and `aget` are get_tuple's checkpoint; `with_allowlist` copies the saver.
    inherited = {name for name in storage if getattr(StateroomSaver, name) is getattr(BaseCheckpointSaver, name)}
    assert inherited == {"get", "aget", "with_allowlist"}


def test_only_changed_channels_are_sent_with_data(saver_of):
    saver, script = saver_of(receipt("child"))
    saver.put(CONFIG, langgraph_checkpoint({"a": 1, "b": 2}, {"a": "2.0", "b": "1.0", "gone": "3.0"}), {}, {"a": "2.0"})
    (request,) = script.requests
    channels = sent(request)["channels"]
    assert "data" in channels["a"]
    assert channels["b"] == {"version": "1.0"}
    assert "data" in channels[SKELETON]
    assert (sent(request)["checkpoint_id"], sent(request)["parent_id"]) == ("child", "parent")


def test_without_a_parent_everything_is_sent(saver_of):
    saver, script = saver_of(receipt("child"))
    saver.put(FIRST, langgraph_checkpoint({"a": 1, "b": 2}), {}, {})
    body = sent(script.requests[0])
    assert all("data" in channel for channel in body["channels"].values())
    assert body["parent_id"] is None


def test_when_the_parent_lacks_a_channel_everything_is_sent_once_more(saver_of):
    saver, script = saver_of(problem(409, "channel-unchanged-unknown"), receipt("child"))
    stored = saver.put(CONFIG, langgraph_checkpoint({"a": 1, "b": 2}), {}, {"a": "1.0"})
    assert all("data" in channel for channel in sent(script.requests[1])["channels"].values())
    assert stored["configurable"]["checkpoint_id"] == "child"
    assert len(script.requests) == 2


def test_metadata_decides_the_columns_and_odd_metadata_does_not_break_a_put(saver_of):
    saver, script = saver_of(receipt("child"), agent="travel")
    saver.put(
        CONFIG,
        langgraph_checkpoint({}),
        {"source": "fork", "step": 3, "run_id": "r", "counters_since_delta_snapshot": {"x": (1, 2)}},
        {},
    )
    saver.put(
        CONFIG,
        langgraph_checkpoint({}),
        {"step": 2**40, "source": "a b", "big": 2**70, "fn": print, "nan": float("nan"), "text": "é\ud800"},
        {},
    )
    first, second = map(sent, script.requests)
    wanted = {"source": "fork", "step": 3, "run_id": "r", "agent": "travel", "fork": True, "delta_channels": ["x"]}
    assert first | wanted == first
    assert first["metadata"]["counters_since_delta_snapshot"] == {"x": [1, 2]}
    assert {"source", "step", "fork"}.isdisjoint(second)
    assert second["metadata"] == {"step": 2**40, "source": "a b", "text": "é?"}


def test_only_thread_namespace_and_checkpoint_are_taken_from_a_config(saver_of):
    saver, script = saver_of(receipt("child"), metadata_exclude=["email"])
    config = {
        "configurable": {
            **CONFIG["configurable"],
            "__pregel_runtime": object(),
            "api_key": "sk-SECRET",
            "password": "SECRET",
            "email": "SECRET@example.com",
            "plan": "gold",
        },
        "metadata": {"X-Auth-Token": "SECRET", "max_tokens": 5},
        "callbacks": object(),
    }
    saver.put(config, langgraph_checkpoint({}), {"step": 1}, {})
    assert b"SECRET" not in script.requests[0].content
    assert sent(script.requests[0])["metadata"] == {"step": 1, "plan": "gold", "max_tokens": 5}


def test_special_writes_have_fixed_places_and_derive_the_status(saver_of):
    saver, script = saver_of(packed({"stored": 1, "unchanged": 0}))
    saver.put_writes(CONFIG, [("a", 1), ("__interrupt__", "x"), ("__interrupt__", "y")], "task", "~path")
    saver.put_writes(CONFIG, [("__error__", "e"), ("__interrupt__", "x")], "task")
    saver.put_writes(CONFIG, [("__resume__", 1), ("messages", [])], "task")
    waiting, failed, resumed = map(sent, script.requests)
    assert [(write["channel"], write["idx"]) for write in waiting["writes"]] == [("a", 0), ("__interrupt__", -3)]
    assert msgspec.msgpack.decode(waiting["writes"][1]["data"]) == "y"
    assert (waiting["status"], waiting["task_path"]) == ("waiting", "~path")
    assert failed["status"] == "failed"
    assert "status" not in resumed
    assert [(write["channel"], write["idx"]) for write in resumed["writes"]] == [("__resume__", -4), ("messages", 1)]


def test_nothing_to_write_or_to_remove_makes_no_request(saver_of):
    saver, script = saver_of(receipt())
    saver.put_writes(CONFIG, [], "task")
    saver.prune([])
    saver.delete_for_runs([])
    assert saver.get_delta_channel_history(config=CONFIG, channels=[]) == {}
    assert list(saver.list(FIRST, limit=0)) == []
    assert script.requests == []


@pytest.mark.parametrize(
    ("strategy", "said"), [("keep_latest", "keep_latest"), ("delete", "delete"), ("delete_all", "delete")]
)
def test_both_names_of_the_deleting_strategy_are_understood(saver_of, strategy, said):
    saver, script = saver_of(packed({"threads": 1, "checkpoints": 0, "pending_writes": 0}))
    saver.prune(["t"], strategy=strategy)
    assert sent(script.requests[0]) == {"thread_ids": ["t"], "strategy": said}


def test_an_unknown_strategy_is_refused_before_any_request(saver_of):
    saver, script = saver_of(receipt())
    with pytest.raises(ValueError, match="keep_all"):
        saver.prune(["t"], strategy="keep_all")
    assert script.requests == []


def test_many_threads_are_pruned_a_thousand_at_a_time(saver_of):
    saver, script = saver_of(packed({"threads": 1, "checkpoints": 0, "pending_writes": 0}))
    saver.prune([str(number) for number in range(2001)])
    assert [len(sent(request)["thread_ids"]) for request in script.requests] == [1000, 1000, 1]


def test_a_missing_thread_is_no_error_to_read_or_delete(saver_of):
    saver, _ = saver_of(problem(404, "thread-not-found"))
    assert saver.get_tuple(CONFIG) is None
    assert list(saver.list(FIRST)) == []
    saver.delete_thread("t")


def test_values_in_encodings_this_saver_never_writes_are_refused(saver_of):
    for encoding in ("json", "pickle", "msgpack+aes"):
        channels = {"x": {"version": 1, "encoding": encoding, "data": b"{}"}}
        saver, _ = saver_of(checkpoint(channels=channels, pending_writes=[]))
        with pytest.raises(IntegrityFailure):
            saver.get_tuple(CONFIG)


def test_versions_come_back_with_their_types(saver_of):
    versions = {"a": "00001.5", "b": 2, "c": 2.5}
    channels = {name: {"version": version, "encoding": "null", "data": b""} for name, version in versions.items()}
    saver, _ = saver_of(checkpoint(channels=channels, pending_writes=[]))
    found = saver.get_tuple(CONFIG)
    assert found is not None
    assert found.checkpoint["channel_versions"] == versions
    assert [type(version) for version in found.checkpoint["channel_versions"].values()] == [str, int, float]
    assert found.checkpoint["channel_values"] == dict.fromkeys(versions)


def test_versions_grow_as_texts_and_never_repeat(saver_of):
    saver, _ = saver_of(receipt())
    versions = [saver.get_next_version(None, None)]
    for _ in range(12):
        versions.append(saver.get_next_version(versions[-1], None))
    assert versions == sorted(versions)
    assert saver.get_next_version(versions[0], None) != versions[1]
    assert saver.get_next_version(7, None).startswith(f"{8:032}.")
    assert saver.get_next_version(7.0, None).startswith(f"{8:032}.")


def test_filters_on_declared_columns_and_on_any_other_key_are_told_apart(saver_of):
    saver, script = saver_of(packed({"checkpoints": [], "next_cursor": None}))
    wanted = {"source": "input", "step": 2, "run_id": "r", "score": 42}
    list(saver.list(FIRST, filter=wanted, before={"configurable": {"checkpoint_id": "b"}}))
    assert wanted == {"source": "input", "step": 2, "run_id": "r", "score": 42}
    query = dict(script.requests[0].url.params)
    assert query == {
        "namespace": "",
        "before": "b",
        "limit": "100",
        "view": "channels",
        "pieces": "refs",
        "step": "2",
        "source": "input",
        "run_id": "r",
        "filter": '{"score":42}',
    }


def test_all_threads_are_listed_without_a_config(saver_of):
    saver, script = saver_of(packed({"checkpoints": [], "next_cursor": None}))
    assert list(saver.list(None)) == []
    assert script.requests[0].url.path == "/v1/checkpoints"


def test_without_a_subject_no_request_is_made(saver_of):
    script = Script(receipt())
    with StateroomSaver(URL, API_KEY, transport=lambda: script.transport) as saver:
        for attempt in (
            lambda: saver.get_tuple(CONFIG),
            lambda: saver.list(FIRST),
            lambda: saver.alist(FIRST),
            lambda: saver.put(CONFIG, langgraph_checkpoint({}), {}, {}),
            lambda: saver.put_writes(CONFIG, [("a", 1)], "task"),
            lambda: saver.delete_thread("t"),
        ):
            with pytest.raises(SubjectRequired):
                attempt()
        assert script.requests == []
        with acting_for("user-7"):
            saver.put(CONFIG, langgraph_checkpoint({}), {}, {})
    assert script.requests[0].headers["stateroom-subject"] == "user-7"


def test_a_listing_keeps_the_subject_it_was_asked_for(saver_of):
    infos = [msgspec.msgpack.decode(checkpoint("c", channels={}, pending_writes=[]).content)]
    script = Script(
        packed({"checkpoints": infos, "next_cursor": "1"}), packed({"checkpoints": [], "next_cursor": None})
    )
    with StateroomSaver(URL, API_KEY, transport=lambda: script.transport) as saver:
        with acting_for("user-7"):
            listing = saver.list(FIRST)
        with acting_for("user-8"):
            assert len(list(listing)) == 1
    assert [request.headers["stateroom-subject"] for request in script.requests] == ["user-7", "user-7"]


def test_shallow_copies_share_connections(saver_of):
    saver, script = saver_of(receipt("child"))
    copied = copy.copy(saver)
    allowed = saver.with_allowlist([("somewhere", "Thing")])
    assert allowed is not saver
    for each in (saver, copied, allowed):
        each.put(FIRST, langgraph_checkpoint({}), {}, {})
    assert len(script.requests) == 3


def test_a_channel_of_the_savers_own_name_is_refused(saver_of):
    saver, script = saver_of(receipt("child"))
    with pytest.raises(InvalidRequest):
        saver.put(FIRST, langgraph_checkpoint({SKELETON: 1}), {}, {})
    assert script.requests == []


def test_a_filter_by_what_no_plain_data_equals_is_refused_before_any_request(saver_of):
    saver, script = saver_of(packed({"checkpoints": []}))
    with pytest.raises(InvalidRequest, match="'when'"):
        saver.list(None, filter={"when": datetime(2026, 11, 22, tzinfo=UTC)})
    assert script.requests == []


@pytest.mark.slow
@pytest.mark.parametrize("missing", ["langgraph", "langchain_core"])
def test_without_langgraph_the_import_names_the_extra(missing):
    program = f"import sys; sys.modules[{missing!r}] = None; import stateroom; import stateroom.langgraph"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)  # noqa: S603
    assert done.returncode == 1
    assert "ModuleNotFoundError: stateroom.langgraph needs LangGraph: pip install 'stateroom[langgraph]'" in done.stderr


def test_an_unusable_address_is_refused_at_once():
    with pytest.raises(NotConfigured):
        StateroomSaver("gateway:8080", API_KEY)
