"""What every verb on the life of keys is made of."""

from dataclasses import dataclass

from storage.administration.audit import Audit
from storage.administration.jobs import Jobs
from storage.control.deployment_keys import Deployment
from storage.keys.keys import Keys
from storage.keys.older_transactions import OlderTransactions


@dataclass(frozen=True, slots=True)
class Parts:
    """What every verb on the life of keys is made of."""

    deployment: Deployment
    keys: Keys
    jobs: Jobs
    audit: Audit
    older_transactions: OlderTransactions
