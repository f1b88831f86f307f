"""What `stateroom doctor` says of API keys and tenants: who cannot be administered, what is damaged, what ends soon.

Pure: it is given the records and says sentences. A key's first MAC takes its secret, so that what is said of a key is
what its seal vouches for.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import UUID

from gateway.authentication import api_keys
from storage.keys.key_seals import Peppers
from storage.model import ApiKeyRecord

ENDS_SOON = timedelta(days=14)
NAMED_MAX = 10  # of a kind; the rest is counted
_FOR_AGENTS = {"state:read", "state:write"}


@dataclass(slots=True)
class Census:
    """What was found.

    Attributes:
        keys: The number of keys that are not revoked.
        older_pepper: The number of those under another pepper than the active one.
        damaged: Keys that nothing opens, a sentence each.
        notes: Things to do before they hurt, a sentence each.
    """

    keys: int = 0
    older_pepper: int = 0
    damaged: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def examine_keys(
    operators: Iterable[ApiKeyRecord],
    tenants: Mapping[UUID, Iterable[ApiKeyRecord]],
    peppers: Peppers,
    now: datetime,
    *,
    seals_needed: bool,
) -> Census:
    """Look at the keys that are not revoked.

    Args:
        operators: The operators' keys.
        tenants: The keys of each tenant.
        peppers: The deployment's.
        now: The time that their ends are compared with.
        seals_needed: Whether a key without a seal is damaged.
    """
    census = Census()
    sound = _sound(operators, "of the operators", census, peppers, now, seals_needed=seals_needed)
    ends = [record.expires_at for record in sound if "operator" in record.permissions]
    dated = [moment for moment in ends if moment is not None]
    # One that was made for a few hours is to end; that the last one does may not be noticed in time.
    if ends and len(dated) == len(ends) and max(dated) - now < ENDS_SOON:
        census.notes.append(f"the last key of the operators ends at {max(dated):%Y-%m-%d %H:%M}")
    for tenant_id, records in tenants.items():
        sound = _sound(records, f"of tenant {tenant_id}", census, peppers, now, seals_needed=seals_needed)
        administering = [record for record in sound if "tenant:admin" in record.permissions]
        if not administering:
            census.notes.append(f"tenant {tenant_id} has no key that administers it")
        elif not {name for record in administering for name in record.grants} >= _FOR_AGENTS:
            census.notes.append(f"administrators of tenant {tenant_id} can make no key for its agents")
    return census


def _sound(
    records: Iterable[ApiKeyRecord],
    whose: str,
    census: Census,
    peppers: Peppers,
    now: datetime,
    *,
    seals_needed: bool,
) -> list[ApiKeyRecord]:
    """Those that work, as far as that can be told without their secrets; the others are noted."""
    sound = []
    for record in records:
        census.keys += 1
        census.older_pepper += record.pepper_version != peppers.active.version
        status = api_keys.status_of(record, peppers, now)
        if status == "damaged" or (record.seal is None and seals_needed):
            census.damaged.append(f"key {record.key_id} {whose} was edited, or is under a pepper that is not given")
        elif status == "active":
            sound.append(record)
    return sound


def shared_names(names: Iterable[str]) -> list[str]:
    """The names that more than one tenant has."""
    return sorted(name for name, count in Counter(names).items() if count > 1)


def shown(sentences: list[str]) -> str:
    """Sentences, a line each; of many, the first and how many more there are."""
    more = len(sentences) - NAMED_MAX
    return "\n".join(sentences[:NAMED_MAX] + ([f"and {more:,} more"] if more > 0 else []))
