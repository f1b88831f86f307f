"""Arguments that a person edited, checked against what the tool takes: in a worker process, like all JSON Schemas.

Owns how a tool's arguments are shown to a worker: as the members of an object. Whether they may be edited, and what is
done with them, is `storage.approvals`'.
"""

from uuid import UUID

import msgspec

from migrations.state.tasks import Check, Checked, Invalid, Program, SchemaText
from storage.schemas.workers import Workers


class EditWork:
    """Asks the workers, in the name of a tenant."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers

    async def misfit(self, tenant_id: UUID, schema: bytes, args: bytes) -> str | None:
        """What is wrong with arguments by a JSON Schema, in words without any of their values; None: nothing.

        Args:
            tenant_id: In whose name it is checked.
            schema: The JSON Schema, in JSON.
            args: The arguments, a map in MessagePack.

        Raises:
            TooCostly, TenantTooCostly, Unavailable: as `Workers.ask`.
        """
        program = Program(SchemaText(schema, "whole"))
        learned = await self._workers.learn(tenant_id, program)
        if isinstance(learned, Invalid):
            return f"its JSON Schema cannot be used: {learned.why}"
        members = msgspec.msgpack.decode(args, type=dict[str, msgspec.Raw])
        shapes = [(name, "msgpack") for name in members]
        request = Check(program.digest, shapes)
        answer, _ = await self._workers.ask(tenant_id, program, request, [bytes(each) for each in members.values()])
        if isinstance(answer, Invalid):
            return f"its JSON Schema cannot be used: {answer.why}"
        assert isinstance(answer, Checked)  # noqa: S101  for the type checker: nothing else answers this
        if answer.too_deep:
            return "they are nested too deeply"
        place = "".join(f"/{str(step).replace('~', '~0').replace('/', '~1')}" for step in answer.steps)
        return None if answer.rule is None else f"{answer.rule} at {place or '/'}"
