"""What `--json` answers, kind by kind; `docs/reference/cli-schemas.json` is made of it.

Each answer is one object with the schema's name and version, a list of items and where the
next page begins. A field may come to a kind without a new version; none goes and none
changes its meaning. Times are RFC 3339 in UTC, durations seconds.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from loom_mq.cli import shapes_done as done
from loom_mq.cli import shapes_schedules as scheduled
from loom_mq.cli import shapes_seen as seen

VERSION: Final = 1
PAGE: Final = "cli-schemas.json"


KINDS: Final[dict[str, type[Struct]]] = {
    "executions": seen.Execution,
    "count": seen.Count,
    "execution": seen.Shown,
    "reason": seen.Reason,
    "stuck": seen.Reason,
    "events": seen.Event,
    "queues": seen.Queue,
    "workers": seen.Worker,
    "flows": seen.Flow,
    "timers": seen.Timer,
    "reconcile-timers": done.Reconciled,
    "schedules": scheduled.Schedule,
    "schedule": scheduled.Schedule,
    "schedule-preview": scheduled.Moment,
    "schedule-trigger": scheduled.Triggered,
    "schedule-backfill": scheduled.Backfilled,
    "schedule-delete": scheduled.Deleted,
    "dead_letters": seen.Letter,
    "dead_letter": seen.ReadLetter,
    "dlq-requeue": done.LetterFate,
    "dlq-drop": done.LetterFate,
    "doctor": seen.Check,
    "census": seen.Census,
    "orphans": seen.Orphan,
    "start": done.Started,
    "result": done.Result,
    "resume": done.Answered,
    "cancel": done.Cancelled,
    "cancel-many": done.CancelledOfMany,
    "verdict": done.Judged,
    "recover": done.Recovered,
    "recover-again": done.RecoveredAgain,
    "fork": done.Forked,
    "migration": done.Migrated,
    "introspection": seen.Introspection,
    "profile": seen.Profile,
    "audit": seen.Stray,
    "replay": seen.Replayed,
    "import": done.Imported,
    "prune": done.Pruned,
    "erase": done.Erased,
    "truncate": done.Truncated,
}
"""What an item of each kind is."""


def _anything(_kind: type) -> dict[str, object]:
    """A user's own value: any JSON."""
    return {"description": "any JSON"}


def document() -> str:
    """All kinds as one JSON Schema document."""
    shapes = list(dict.fromkeys(KINDS.values()))
    _refs, components = msgspec.json.schema_components(
        shapes, schema_hook=_anything, ref_template="#/$defs/{name}"
    )
    defs: dict[str, object] = {**components}
    for kind, item in KINDS.items():
        defs[f"loom.{kind}/{VERSION}"] = {
            "type": "object",
            "properties": {
                "schema": {"const": f"loom.{kind}/{VERSION}"},
                "items": {"type": "array", "items": {"$ref": f"#/$defs/{item.__name__}"}},
                "next": {"type": ["string", "null"]},
            },
            "required": ["schema", "items", "next"],
            "additionalProperties": False,
        }
    kinds_of = [{"$ref": f"#/$defs/loom.{kind}~1{VERSION}"} for kind in KINDS]
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(shape)}" for name, shape in defs.items())
    return (
        '{"$schema": "https://json-schema.org/draft/2020-12/schema",\n'
        '"title": "What loom --json answers",\n'
        f'"oneOf": {json.dumps(kinds_of)},\n'
        f'"$defs": {{\n{lines}\n}}}}\n'
    )


def main() -> None:
    """Write the document into the folder that is named."""
    (Path(sys.argv[1]) / PAGE).write_text(document(), "utf-8")


if __name__ == "__main__":
    main()
