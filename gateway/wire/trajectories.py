"""Lines of trajectories, which are always JSON."""

from datetime import datetime
from typing import Any, Final, Literal

from msgspec import UNSET, Raw, Struct, UnsetType

from gateway.wire.base import CheckpointIdText, Namespace, Response, Status, Version
from gateway.wire.checkpoints import LeafOut, Model, Usage, WriteOut

FORMAT: Final = "stateroom-trajectory/1"
WHOLE_FORMAT: Final = "stateroom-trajectory/2"
"""That of a whole thread, where a step need not follow the one on the line before: it may be of another namespace."""
View = Literal["state", "channels"]
Namespaces = Literal["one", "all"]


class TrajectoryQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    """Which trajectory, and after which of its steps it goes on."""

    namespace: Namespace = ""
    namespaces: Namespaces = "one"
    checkpoint_id: CheckpointIdText | None = None
    after: CheckpointIdText | None = None
    after_namespace: Namespace | None = None
    view: View = "state"


class TrajectoryBegin(Response, tag_field="type", tag="begin"):
    """The first line. ``namespaces``: how many follow, of a whole thread."""

    format: str
    view: View
    thread_id: str
    namespace: str
    checkpoint_id: str
    steps: int
    namespaces: int | UnsetType = UNSET


class TrajectoryChange(Response):
    """What a step did to a channel: ``set`` it, ``append`` a list of elements to it, or ``remove`` it.

    ``value`` in the ``state`` view; ``version``, ``encoding`` and ``data`` in ``channels``, where kind ``version`` says
    that the value stayed and only the version is another one. ``leaves`` says what is known of large leaves in either:
    of ``append``, of those among the new elements, with paths and offsets in the list of these.
    """

    kind: Literal["set", "append", "version", "remove"]
    value: Raw | UnsetType = UNSET
    version: Version | UnsetType | None = UNSET
    encoding: str | UnsetType = UNSET
    data: bytes | UnsetType = UNSET
    leaves: list[LeafOut] | UnsetType = UNSET


class TrajectoryStep(Response, tag_field="type", tag="step"):
    """A checkpoint, and by channel what it changed.

    Of its pending writes the ``state`` view has those that the next step does not show, and ``channels`` has all.
    """

    namespace: str
    checkpoint_id: str
    parent_id: str | None
    step: int
    status: Status
    source: str | None
    agent: str | None
    run_id: str | None
    created_at: datetime
    state_schema: str | None
    state_version: int | None
    model: Model | None
    usage: Usage | None
    metadata: dict[str, Any]
    delta_channels: list[str]
    changes: dict[str, TrajectoryChange]
    writes: list[WriteOut]


class TrajectoryEnd(Response, tag_field="type", tag="end"):
    """The last line; a trajectory without it was broken off. ``status``: the last step's; null: no step came."""

    checkpoint_id: str
    status: Status | None
    steps: int
