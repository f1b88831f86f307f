"""What the save policies of a tenant and its agents say of a save.

They say whether it must name the head it follows, and which lists need compaction afterwards. Two agents count for a
save: the one that the thread has, and the one that the save names. What an agent's policy says counts before what the
tenant's says; where the two agents differ, the stricter one counts, so that nobody loses an update because somebody
else is careless. Which lists are long the agent says that the save names, or else the thread's.

A row that no gateway wrote (`storage.control.rows`) may have asked for it: a save that names its head is not concerned,
any other is refused by name; what it said of lists nobody is told. Owns the resolution and the refusals;
`storage.schemas.save_policies` has the verbs.
"""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import TypeVar
from uuid import UUID

import msgspec

from storage.control.rows import ControlRows, Proof, save_policy_row
from storage.errors import IntegrityFailure, PreconditionRequired, Unfinished
from storage.model import SaveRule
from storage.statements.threads.checkpoints import PoliciesRow

T = TypeVar("T")

# Whose the policy of the whole tenant is, as stored.
EVERY_AGENT = ""


class ControlKeyNeeded(Unfinished):
    """The root key has to be asked for what policies are checked with, which is never done within a transaction."""


class AgentUnsure(Unfinished):
    """The thread was written to while its lock was waited for: who has the lock first knows which agent it has."""


class SaveRules(msgspec.Struct, frozen=True):
    """What save policies say of the saves to one thread.

    Attributes:
        rows: The policies as the database writes them: they are still these as long as the text is the same.
        says: What each says, by agent. Damaged ones are left out.
        damaged: The agents whose policies no gateway wrote as they are.
        agent: The agent that the thread has; None: none, or it is new.
        unsure: Whether another request wrote to the thread meanwhile, so that it may have another agent.
    """

    rows: tuple[str, ...] = ()
    says: Mapping[str, SaveRule] = {}
    damaged: frozenset[str] = frozenset()
    agent: str | None = None
    unsure: bool = False

    @classmethod
    def read(cls, control: ControlRows, tenant_id: UUID, row: PoliciesRow) -> "SaveRules":
        """What counts for a save, by what `storage.statements.threads.checkpoints.OPEN` gave.

        Raises:
            ControlKeyNeeded: there are policies, and nothing to check them with.
        """
        if row.policy_rows and not control.can_check:
            raise ControlKeyNeeded
        says, damaged = {}, set()
        for agent, rule, updated_at, proof in _policies(row):
            if control.is_authentic(save_policy_row(tenant_id, agent, rule, updated_at), proof):
                says[agent] = rule
            else:
                damaged.add(agent)
        rows = tuple(row.policy_rows or ())
        return cls(rows, says, frozenset(damaged), row.agent_before, row.policies_unsure)

    def of_thread(self, agent: str | None) -> "SaveRules":
        """The same for the next save, to a thread that has this agent now."""
        return msgspec.structs.replace(self, agent=agent, unsure=False)

    def compared(self) -> list[str]:
        """What a save without a read compares: as `storage.statements.threads.checkpoints.SAVE_ON` makes it."""
        return [self.agent or "", *self.rows]

    def asked_by(self, named: str | None) -> str | None:
        """Whose policy asks a save that names an agent to name its head, in words; None: nobody's.

        Raises:
            AgentUnsure: another agent's policies may count.
            IntegrityFailure: one that counts was written or edited outside the gateway, and none that was not asks.
        """
        if self.unsure:
            raise AgentUnsure
        agents = {each for each in (self.agent, named) if each is not None} or {EVERY_AGENT}
        unknown = None
        for agent in sorted(agents):
            for target in (agent, EVERY_AGENT):
                if target in self.damaged:
                    unknown = target
                    break
                if target in self.says and (strict := self.says[target].strict) is not None:
                    if strict:
                        return whose(target)
                    break
        if unknown is not None:
            raise IntegrityFailure(f"the save policy of {whose(unknown)} was written or edited outside the gateway")
        return None

    def lists_of(self, named: str | None) -> tuple[int | None, int | None]:
        """How many elements, and bytes, a list may have before a save that names an agent is told that it is long.

        None: no policy says so, or the one that does is damaged.
        """
        elements = size = None
        for target in (EVERY_AGENT, named or self.agent):
            if target in self.damaged:
                elements = size = None
            elif target is not None and (rule := self.says.get(target)) is not None:
                elements = elements if rule.compact_elements is None else rule.compact_elements
                size = size if rule.compact_bytes is None else rule.compact_bytes
        return elements, size


def precondition_required(who: str) -> PreconditionRequired:
    """The refusal of a save that names no head, by whose policy asks for it."""
    return PreconditionRequired(
        f"the save policy of {who} asks every save to name the head it follows: load the head, and send its ETag in"
        " If-Match (Python clients do so with strict=True)"
    )


def whose(agent: str) -> str:
    """Whose a policy is, in words."""
    return "the tenant" if agent == EVERY_AGENT else f"agent {agent!r}"


def _policies(row: PoliciesRow) -> Iterator[tuple[str, SaveRule, datetime, Proof]]:
    columns = (
        row.policy_agents, row.policy_strict, row.policy_compact_elements, row.policy_compact_bytes,
        row.policy_updated_at, row.policy_macs, row.policy_mac_formats,
    )  # fmt: skip
    for agent, *says, updated_at, mac, mac_format in zip(*(each or () for each in columns), strict=True):
        yield agent, SaveRule(*says), updated_at, Proof(mac, mac_format)
