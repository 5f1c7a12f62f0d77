"""`loom migrate`: brings a PostgreSQL journal's schema up to date."""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated

import typer

from loom_mq.cli.exits import Exit
from loom_mq.cli.options import reach_of
from loom_mq.cli.reach import Reach
from loom_mq.cli.screen import Page
from loom_mq.errors import SettingsError
from loom_mq.journal.postgres import migrate as bring_up_to_date
from loom_mq.journal.postgres import migration_script
from loom_mq.journal.postgres.migrate import TIMEOUT
from loom_mq.runtime.ports import SCHEMA


def migrate(
    ctx: typer.Context,
    sql: Annotated[
        bool, typer.Option("--sql", help="Print the SQL that makes a journal; do nothing.")
    ] = False,
) -> Exit:
    """Make the journal's schema in PostgreSQL, or bring it up to date."""
    if sql:
        sys.stdout.write(migration_script(SCHEMA))
        return Exit.DONE
    return asyncio.run(_migrate(reach_of(ctx)))


async def _migrate(reach: Reach) -> Exit:
    address = reach.journal_address()
    if address.scheme != "postgresql":
        raise SettingsError(
            f"{address} needs no `loom migrate`: the next `loom dev` on it brings it up to date"
        )
    timeout = TIMEOUT if reach.timeout is None else reach.timeout
    version = await bring_up_to_date(address.reveal(), SCHEMA, timeout=timeout)
    reach.screen.show(
        Page(
            kind="migration",
            items=[{"schema_version": version}],
            lines=[f"the journal is at version {version}"],
        )
    )
    return Exit.DONE
