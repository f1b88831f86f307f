"""Bodies of exports and imports."""

from typing import Annotated
from uuid import UUID

from msgspec import Meta

from gateway.wire.base import Name, Request, Response


class TransferKey(Response):
    """What exports for this tenant are sealed for; compare the fingerprint, the deployment's, over another way."""

    public_key: str
    fingerprint: str


class ExportRequest(Request):
    """Who shall be able to open the export: the transfer key that the receiving tenant is shown."""

    recipient: Annotated[str, Meta(max_length=200)]


class UnboundImport(Request):
    """An export of an earlier format: the id in its file's name, and in the audit log of who exported it."""

    export_id: UUID


class ThreadExportRequest(ExportRequest):
    """Whose thread it is, and who shall be able to open its export."""

    subject_id: Name


class PassedOver(Response):
    """A thread that was not imported, and why.

    ``there``: an earlier run brought it; ``exists``: it was here before; ``client-share``: its share was not sent, here
    or at the export; ``archived``, ``damaged``: it could not be read there.
    """

    subject_id: str
    thread_id: str
    reason: str


class PassedItem(Response):
    """An item that was not imported, or not with its vectors, and why.

    ``path`` alone: all items of the path, or the damaged ones among them; neither: a path that nobody could read.
    ``exists``: there is another one of this name; ``expired``: its time is over; ``client-share``, ``damaged``: as for
    threads; ``damaged-vectors``: items of the path are here without vectors that could not be read there.
    """

    subject_id: str
    path: list[str] | None
    key: str | None
    reason: str


class ImportReport(Response):
    """What was imported; ``verified`` threads and ``items_verified`` items were read back and are what was exported.

    The others were written to before they could be compared. ``passed`` names the first 1,000 of ``passed_over``, and
    ``passed_items`` of ``items_passed_over``, which has those in it that are here already, the same, and are not named.
    """

    export_id: str
    job_id: str
    threads: int
    checkpoints: int
    pending_writes: int
    artifacts: int
    state_schemas: int
    verified: int
    passed_over: int
    passed: list[PassedOver]
    items: int
    items_verified: int
    items_passed_over: int
    passed_items: list[PassedItem]
