"""What every verb on the life of keys is made of."""

from dataclasses import dataclass

from storage.administration.audit import Audit
from storage.administration.jobs import Jobs
from storage.control.deployment_keys import Deployment
from storage.keys.keys import Keys
from storage.keys.older_transactions import OlderTransactions


@dataclass(frozen=True, slots=True)
class Parts:
    """What every verb on the life of keys is made of.

    Attributes:
        deployment: The database, root key, id and clock.
        keys: The keys of tenants and subjects.
        jobs: The rows of the jobs that do the rest.
        audit: The log that everything is recorded in.
        older_transactions: The question whether transactions have ended that may believe an old key's state.
    """

    deployment: Deployment
    keys: Keys
    jobs: Jobs
    audit: Audit
    older_transactions: OlderTransactions
