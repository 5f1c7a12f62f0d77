"""What every broker adapter must do, as tests (F10, C104).

Subclass `BrokerConformance` in a test module, give it a fixture ``harness``, and run
pytest with ``asyncio_mode = "auto"``::

    class TestMine(BrokerConformance):
        @pytest_asyncio.fixture
        async def harness(self) -> AsyncIterator[BrokerHarness]:
            async with MyHarness() as harness:
                yield harness
"""

from __future__ import annotations

from loom_mq.testing.conformance.broker_consume import ConsumeConformance
from loom_mq.testing.conformance.broker_life import LifeConformance, PresenceConformance
from loom_mq.testing.conformance.broker_publish import PublishConformance
from loom_mq.testing.conformance.broker_support import BrokerHarness

__all__ = ["BrokerConformance", "BrokerHarness"]


class BrokerConformance(
    PublishConformance, ConsumeConformance, LifeConformance, PresenceConformance
):
    """The whole kit."""
