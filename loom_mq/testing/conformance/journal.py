"""The kit that every journal must pass (J9): rules J1 to J8, J10 and what F2, F7, F9, K6,
K7, K13 and K16 need.

A store is held to it by a test class that says how to open it::

    class TestMyJournal(JournalConformance):
        @pytest_asyncio.fixture
        async def stores(self, tmp_path):
            async with MyJournal(tmp_path) as first, MyJournal(tmp_path) as second:
                yield Stores(first, second)

The storage must be empty. Needs pytest, pytest-asyncio and, for the comparison with the
journal in memory, hypothesis.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from loom_mq.testing.conformance.journal_append import AppendRules
from loom_mq.testing.conformance.journal_claim import ClaimRules
from loom_mq.testing.conformance.journal_differential import DifferentialRules, differential
from loom_mq.testing.conformance.journal_fleet import (
    LeaseRules,
    SweepRules,
    TimerRules,
)
from loom_mq.testing.conformance.journal_index import IndexRules, ListingRules, NameRules
from loom_mq.testing.conformance.journal_lifecycle import (
    DeleteRules,
    LifecycleNameRules,
    RewriteRules,
)
from loom_mq.testing.conformance.journal_mail import MailRules
from loom_mq.testing.conformance.journal_plant import PlantRules
from loom_mq.testing.conformance.journal_registry import RegistryRules
from loom_mq.testing.conformance.journal_rig import Rig, Stores
from loom_mq.testing.conformance.journal_schedules import ScheduleRules
from loom_mq.testing.conformance.journal_snapshots import SnapshotRules
from loom_mq.testing.conformance.journal_start_policies import StartPolicyRules

__all__ = ["JournalConformance", "Rig", "Stores", "differential"]


@pytest.mark.asyncio
class JournalConformance(
    AppendRules,
    ClaimRules,
    MailRules,
    LeaseRules,
    SweepRules,
    TimerRules,
    ScheduleRules,
    RegistryRules,
    IndexRules,
    ListingRules,
    NameRules,
    SnapshotRules,
    StartPolicyRules,
    PlantRules,
    RewriteRules,
    DeleteRules,
    LifecycleNameRules,
    DifferentialRules,
):
    """See the module's docstring. A subclass supplies the fixture `stores`."""

    @pytest_asyncio.fixture
    async def rig(self, stores: Stores) -> AsyncIterator[Rig]:
        """What the tests use."""
        rig = Rig(stores)
        yield rig
        await rig.close()
