"""Flows and dead letters: what the fleet has in common."""

from __future__ import annotations

from loom_mq.journal.protocol import DeadLetter
from loom_mq.model.execution import FlowRecord
from loom_mq.testing.conformance.journal_rig import Rig, name


class RegistryRules:
    """F2: flows and dead letters."""

    async def test_flows_stay_known(self, rig: Rig) -> None:
        """F2: registered twice is known once, and a new queue replaces the old."""
        flow = name("flow/ü")
        records = [FlowRecord(flow=flow, version=v, queue="q") for v in ("1", "2")]
        await rig.journal.register_flows(records)
        await rig.second.register_flows([FlowRecord(flow=flow, version="2", queue="r")])
        await rig.journal.register_flows([])
        found = [each for each in await rig.journal.flows() if each.flow == flow]
        found.sort(key=lambda each: each.version)
        assert found == [records[0], FlowRecord(flow=flow, version="2", queue="r")]

    async def test_dead_letters_are_kept_once(self, rig: Rig) -> None:
        """F2: newest first, with any body."""
        now = await rig.journal.now()
        letters = [
            DeadLetter(
                id=name("letter"),
                queue="q",
                reason=f"reason {age} \u2013 ü",
                body=b"\x00\xff" * age,
                headers={"content_type": "x", "ü": ""},
                at=now - age,
            )
            for age in (3, 2, 1)
        ]
        await rig.journal.record_dead_letters(letters)
        await rig.second.record_dead_letters(letters[:2])
        await rig.journal.record_dead_letters([])
        assert await rig.second.dead_letters() == letters[::-1]
        assert await rig.journal.dead_letters(2) == letters[:0:-1]
        undated = DeadLetter(id=name("letter"), queue="q", reason="r", body=b"")
        await rig.journal.record_dead_letters([undated])
        (newest,) = await rig.journal.dead_letters(1)
        assert newest.id == undated.id
        assert newest.at >= now

    async def test_dead_letters_are_dropped_by_id(self, rig: Rig) -> None:
        """F2: each once, whoever asks; the others stay."""
        letters = [
            DeadLetter(id=name("letter"), queue="q", reason="r", body=b"b", at=age)
            for age in (1, 2, 3)
        ]
        await rig.journal.record_dead_letters(letters)
        first, second, third = (each.id for each in letters)
        assert await rig.second.drop_dead_letters([second, "nowhere", first]) == [True, False, True]
        assert await rig.journal.drop_dead_letters([second]) == [False]
        assert await rig.journal.drop_dead_letters([]) == []
        kept = [each.id for each in await rig.journal.dead_letters()]
        assert third in kept
        assert not {first, second} & set(kept)
