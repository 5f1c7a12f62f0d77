"""Stored folds: the newest is kept, and a claimant gets it with what follows it."""

from __future__ import annotations

import asyncio

from loom_mq.journal.protocol import CLAIM_PAGE
from loom_mq.model.execution import DEFAULT_TENANT, ExecutionKey
from loom_mq.model.snapshots import FOLD_VERSION, Snapshot
from loom_mq.testing.conformance.journal_rig import Rig, accepted, events, folded, name


class SnapshotRules:
    """J7."""

    async def test_the_newest_snapshot_is_kept(self, rig: Rig) -> None:
        """J7: byte for byte, of any version, and seen through every handle."""
        key = await rig.started(count=4)
        assert await rig.journal.snapshot(key) is None
        before = await rig.row(key)
        made = (
            Snapshot(0, 1, b""),
            Snapshot(2, FOLD_VERSION, bytes(range(256)) * 4096),
            Snapshot(3, FOLD_VERSION + 1, b"x"),
        )
        for snapshot in made:
            await rig.journal.save_snapshots([(key, snapshot)])
            assert await rig.journal.snapshot(key) == snapshot
            assert await rig.second.snapshot(key) == snapshot
        assert await rig.row(key) == before

    async def test_older_snapshot_never_takes_its_place(self, rig: Rig) -> None:
        """J7: it comes late from a slow holder; an equal one is as good as new."""
        key = await rig.started(count=4)
        newest = folded(2, "newest")
        for snapshot in (newest, folded(0), folded(1)):
            await rig.journal.save_snapshots([(key, snapshot)])
            assert await rig.journal.snapshot(key) == newest
        await rig.journal.save_snapshots([(key, folded(3, "batch")), (key, folded(2))])
        assert await rig.journal.snapshot(key) == folded(3, "batch")
        await rig.journal.save_snapshots([(key, folded(3, "again"))])
        assert await rig.journal.snapshot(key) == folded(3, "again")

    async def test_snapshot_beyond_the_log_is_dropped(self, rig: Rig) -> None:
        """J7, J2: what is not durable cannot have been folded; the log may yet be another."""
        key, pending = await rig.started(count=2), await rig.admitted()
        await rig.journal.save_snapshots([(key, folded(2)), (pending, folded(0))])
        assert await rig.journal.snapshot(key) is None
        assert await rig.journal.snapshot(pending) is None
        accepted(await rig.append(key, events(2)))
        await rig.journal.save_snapshots([(key, folded(2))])
        assert await rig.journal.snapshot(key) == folded(2)

    async def test_snapshots_of_a_batch_are_independent(self, rig: Rig) -> None:
        """J3: one that is dropped, or of nobody, takes no other along."""
        keys = [await rig.started(count=2) for _ in range(3)]
        unknown = ExecutionKey(DEFAULT_TENANT, name("unknown"))
        asked = [(unknown, folded(0)), *((key, folded(n)) for n, key in enumerate(keys))]
        await rig.journal.save_snapshots(asked)
        kept = [await rig.journal.snapshot(key) for key in (unknown, *keys)]
        assert kept == [None, folded(0), folded(1), None]
        assert await rig.journal.get([unknown]) == [None]
        await rig.journal.save_snapshots([])

    async def test_snapshot_asks_for_no_fence(self, rig: Rig) -> None:
        """J7: the fold of a durable log is true whoever made it."""
        key = await rig.started("dead", count=2)
        await rig.journal.acquire_fence(key, 1)
        await rig.journal.save_snapshots([(key, folded(1))])
        assert await rig.journal.snapshot(key) == folded(1)

    async def test_concurrent_snapshots_leave_the_newest(self, rig: Rig) -> None:
        """J7: through two handles at once."""
        key = await rig.started(count=8)
        handles = [rig.journal, rig.second] * 4
        await asyncio.gather(
            *(each.save_snapshots([(key, folded(seq))]) for seq, each in enumerate(handles))
        )
        assert await rig.journal.snapshot(key) == folded(7)

    # ---- claims ------------------------------------------------------------------------------

    async def test_claim_brings_the_snapshot_and_what_follows_it(self, rig: Rig) -> None:
        """J7: if it tells the claimant more than it knows."""
        key = await rig.started("dead", count=6)
        await rig.journal.save_snapshots([(key, folded(3))])
        fence = 1
        for known, snapshot, wanted in (
            (-1, folded(3), [4, 5]),
            (2, folded(3), [4, 5]),
            (3, None, [4, 5]),
            (4, None, [5]),
            (5, None, []),
        ):
            claimed = (await rig.claim(key, f"w{known}", fence, known_seq=known)).claimed
            assert claimed is not None
            assert claimed.snapshot == snapshot
            assert [event.seq for event in claimed.events] == wanted
            assert not claimed.more
            fence += 1

    async def test_claim_of_what_is_all_in_the_snapshot(self, rig: Rig) -> None:
        """J7: no event follows, nor is there more; the same again after a lost answer (J4)."""
        key = await rig.started("dead", count=3)
        await rig.journal.save_snapshots([(key, folded(2))])
        for _ in range(2):
            claimed = (await rig.claim(key, "w", 1)).claimed
            assert claimed is not None
            assert (claimed.snapshot, claimed.events, claimed.more) == (folded(2), (), False)

    async def test_page_of_a_claim_begins_after_the_snapshot(self, rig: Rig) -> None:
        """J7: so that long logs need not be read from their beginning."""
        key = await rig.started("dead", count=CLAIM_PAGE - 1)
        accepted(await rig.append(key, events(CLAIM_PAGE - 1, 5)))
        last = CLAIM_PAGE + 3
        fence = 1
        for seq, count in ((2, CLAIM_PAGE), (3, CLAIM_PAGE), (4, CLAIM_PAGE - 1)):
            await rig.journal.save_snapshots([(key, folded(seq))])
            claimed = (await rig.claim(key, f"w{seq}", fence)).claimed
            assert claimed is not None
            assert claimed.snapshot == folded(seq)
            assert [event.seq for event in claimed.events] == list(range(seq + 1, seq + 1 + count))
            assert claimed.more == (seq + count < last)
            fence += 1
