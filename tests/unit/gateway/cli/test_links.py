"""`stateroom thread link`, `unlink`, `children`, `delete --family`, against a gateway that answers what it is told."""

THREAD = {
    "thread_id": "hotels", "agent": None, "status": "active", "tier": "hot", "strict": False, "client_share": False,
    "created_at": "2026-11-21T10:00:00Z", "updated_at": "2026-11-21T10:00:00Z", "head_id": None,
    "parent": {"thread_id": "trip", "namespace": "", "checkpoint_id": "c1", "absent": False},
}  # fmt: skip


def test_a_thread_is_linked_and_shows_its_parent(command, gateway):
    gateway.answer(THREAD)
    outcome = command("thread", "link", "hotels", "trip", "--checkpoint", "c1")
    assert outcome.code == 0, outcome.err
    assert (gateway.last.method, gateway.last.path) == ("PUT", "/v1/threads/hotels/parent")
    assert gateway.last.body == {"thread_id": "trip", "namespace": "", "checkpoint_id": "c1"}
    assert "trip" in outcome.out


def test_a_thread_is_unlinked(command, gateway):
    gateway.answer(None, 204)
    outcome = command("thread", "unlink", "hotels")
    assert (outcome.code, gateway.last.method, gateway.last.path) == (0, "DELETE", "/v1/threads/hotels/parent")
    assert "Unlinked hotels" in outcome.err


def test_children_are_listed(command, gateway):
    gateway.answer({"threads": [THREAD], "next_cursor": None})
    outcome = command("thread", "children", "trip", "--limit", "5")
    assert (outcome.code, gateway.last.path) == (0, "/v1/threads/trip/children")
    assert "hotels" in outcome.out
    gateway.answer({"threads": [], "next_cursor": None})
    assert "No children." in command("thread", "children", "trip").err


def test_a_family_is_deleted_when_one_says_so(command, gateway):
    gateway.answer(None, 204)
    outcome = command("thread", "delete", "trip", "--family", "--yes")
    assert (outcome.code, gateway.last.query) == (0, {"family": "true"})
    assert "Deleted trip and all that descend from it." in outcome.err
    gateway.answer(None, 204)
    assert command("thread", "delete", "trip", "--yes").code == 0
    assert gateway.last.query == {}
