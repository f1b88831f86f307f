"""Bodies of the settings that switch events on."""

from datetime import datetime

from gateway.wire.base import Request, Response


class EventSettingsChange(Request):
    """Whether the tenant's events are told."""

    on: bool


class EventSettings(Response):
    """Whether the tenant's events are told, and since when none of them is left out.

    ``damaged``: it was written or edited outside the gateway and says nothing, until a PUT supersedes it.
    """

    on: bool
    on_since: datetime | None
    damaged: bool
