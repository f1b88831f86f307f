"""Bodies of state schemas, adoptions and migrations."""

from datetime import datetime
from typing import Annotated, Any

from msgspec import Meta

from gateway.wire.base import Name, Namespace, Request, Response, StateVersionNumber, Title


class StateSchemaDefinition(Request):
    """A version of a state schema; the first has no step, every other one either ``up`` or ``deployment``.

    ``label`` is the version as people call it, ``json_schema`` (draft 2020-12) what saves are checked against,
    ``ephemeral`` channels that are never stored, ``searchable`` keys of metadata (at most 16, of at most 128 bytes) by
    which a filter finds checkpoints without opening others, ``up`` and ``down`` declarative operations from the version
    before and back, ``deployment`` a schema that the deployment ships steps for.
    """

    label: Title | None = None
    json_schema: dict[str, Any] | None = None
    ephemeral: Annotated[list[Name], Meta(max_length=1000)] = []
    searchable: Annotated[list[Name], Meta(max_length=16)] = []
    up: Annotated[list[dict[str, Any]], Meta(max_length=200)] | None = None
    down: Annotated[list[dict[str, Any]], Meta(max_length=200)] | None = None
    deployment: Name | None = None


class StateSchemaVersion(Response):
    """A registered version. It never changes.

    ``damaged``: it was registered or edited outside the gateway, and so says nothing here. It and those after it are
    not used until it is registered again, as it was.
    """

    state_schema: str
    state_version: int
    label: str | None
    json_schema: dict[str, Any] | None
    ephemeral: list[str]
    searchable: list[str]
    up: list[dict[str, Any]] | None
    down: list[dict[str, Any]] | None
    deployment: str | None
    created_at: datetime
    damaged: bool


class StateSchemaName(Response):
    """A state schema and its newest version."""

    state_schema: str
    newest_version: int


class StateSchemaPage(Response):
    """The tenant's state schemas, by name."""

    state_schemas: list[StateSchemaName]
    next_cursor: str | None


class StateSchema(Response):
    """A state schema with all its versions, oldest first."""

    state_schema: str
    newest_version: int
    versions: list[StateSchemaVersion]


class StateAdoptionRequest(Request):
    """At which version the unversioned state of an agent is that was saved until now.

    ``agent`` null: the state of programs that name no agent. ``namespace`` is one namespace, the root's by default, or
    the beginning of some with a star. ``supersede`` corrects what was said before.
    """

    agent: Name | None
    state_version: StateVersionNumber
    namespace: Namespace = ""
    supersede: bool = False


class StateAdoption(Response):
    """What unversioned state is that was saved before ``adopted_at``; ``damaged``: no gateway wrote this row."""

    state_schema: str
    state_version: int
    agent: str | None
    namespace: str
    adopted_at: datetime
    damaged: bool


class StateAdoptionList(Response):
    """What was adopted under a schema and holds, by agent and namespace."""

    adoptions: list[StateAdoption]


class StateMigrationRequest(Request):
    """What to bring a schema's heads to, and how gently; ``target_version`` absent: the newest.

    ``threads_per_second`` bounds how many are looked at; heads that an agent saved less than ``idle_seconds`` ago are
    left alone, because it is probably at work on them.
    """

    target_version: StateVersionNumber | None = None
    threads_per_second: Annotated[int, Meta(ge=1, le=1000)] = 50
    idle_seconds: Annotated[int, Meta(ge=0, le=86_400)] = 60


class StateRollbackRequest(Request):
    """How gently to undo a migration; ``threads_per_second`` bounds how many heads are looked at."""

    threads_per_second: Annotated[int, Meta(ge=1, le=1000)] = 50


class StateHeads(Response):
    """How many heads are at a version."""

    state_version: int
    heads: int


class UnversionedThreads(Response):
    """How many threads of an agent have a root that was saved without a version and that nobody adopted."""

    agent: str | None
    threads: int


class StateMigrationFailure(Response):
    """Heads that cannot be converted, alike. Names below a channel that nobody registered are ``*``."""

    step: str
    pointer: str
    detail: str
    heads: int


class StateChange(Response):
    """What changes at one place, by type, never by value; null: nothing is there."""

    pointer: str
    before: str | None
    after: str | None


class StateMigrationSample(Response):
    """What would become of one head."""

    subject_id: str
    thread_id: str
    namespace: str
    checkpoint_id: str
    from_version: int
    changes: list[StateChange]


class StateMigrationReport(Response):
    """What a job found and did; ``changed`` is what a plan would change.

    Left alone were: ``current`` (nothing to do), ``waiting`` (for somebody, or with pending writes) and ``recent``
    heads, which are converted when they are loaded; ``shared`` threads, which only their client opens; ``archived``
    ones; heads that ``moved`` whenever they were visited; and what was ``gone`` meanwhile.
    """

    heads: int
    current: int
    changed: int
    waiting: int
    recent: int
    shared: int
    archived: int
    moved: int
    gone: int
    failed: int
    failures: list[StateMigrationFailure]
    samples: list[StateMigrationSample]
