"""K3: histories that earlier code wrote still fit, and still say the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.orders.flows import fulfil
from loom_mq.flows.registry import Registry
from loom_mq.flows.rehearsal import rehearse
from loom_mq.kernel.fold import fold
from loom_mq.kernel.snapshots import decode_snapshot, encode_state
from loom_mq.lifecycle.lines import read_archive
from loom_mq.lifecycle.reading import ArchivedExecution
from loom_mq.model.execution import Status
from tests.support import timing_flows

FOLDER = Path(__file__).parent.parent / "golden"
FILES = sorted(FOLDER.glob("schema-*/*.ndjson"))
REGISTRY = Registry([fulfil, *timing_flows.ALL])


def history(path: Path) -> ArchivedExecution:
    with path.open() as lines:
        [archived] = read_archive(lines)
    return archived


def test_there_are_some_of_each_schema() -> None:
    assert {path.parent.name for path in FILES} == {"schema-1", "schema-2"}
    assert len(FILES) >= 15


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
async def test_k3_every_prefix_of_a_golden_history_fits_the_code(path: Path) -> None:
    """K3: as it stands, and wherever its worker might have died."""
    archived = history(path)
    flow = REGISTRY.get(archived.row.flow, archived.row.version)
    assert flow is not None
    for length in range(1, len(archived.events) + 1):
        outcome = await rehearse(flow, archived.events[:length])
        assert outcome.ok, f"after {length} events: {outcome.problem}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
async def test_j6_a_golden_history_folds_to_its_row(path: Path) -> None:
    """J6, J7: the fold of today says what the index said then, through a snapshot too."""
    archived = history(path)
    state = fold(archived.events)
    row = archived.row
    assert (state.status, state.last_seq, state.gates, state.wake_at) == (
        row.status,
        row.last_seq,
        row.gates,
        row.wake_at,
    )
    assert state.status is (Status.SUSPENDED if path.stem == "waiting" else Status.COMPLETED)
    assert decode_snapshot(encode_state(state)) == state
