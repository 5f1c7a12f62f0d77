"""Finding what nobody drives, and having it driven again (F4, F7, F8, F9)."""

from loom_mq.recovery.abandoned import RecoverySummary, recover_abandoned
from loom_mq.recovery.again import send_again
from loom_mq.recovery.census import Census, CensusTaker, Keeping, orphan_census
from loom_mq.recovery.iteration import iterate_executions
from loom_mq.recovery.predicates import HolderGone, Predicate, all_of, older_than
from loom_mq.recovery.sources import LeaseSweep, Search
from loom_mq.recovery.timers import ReconcileSummary, reconcile_timers

__all__ = [
    "Census",
    "CensusTaker",
    "HolderGone",
    "Keeping",
    "LeaseSweep",
    "Predicate",
    "ReconcileSummary",
    "RecoverySummary",
    "Search",
    "all_of",
    "iterate_executions",
    "older_than",
    "orphan_census",
    "reconcile_timers",
    "recover_abandoned",
    "send_again",
]
