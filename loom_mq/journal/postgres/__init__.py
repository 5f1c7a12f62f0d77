"""The journal on PostgreSQL (J9). The only package that knows asyncpg."""

from loom_mq.journal.postgres.inspection import ServerFacts, inspect_server
from loom_mq.journal.postgres.journal import PostgresJournal
from loom_mq.journal.postgres.migrate import migrate, migration_script

__all__ = ["PostgresJournal", "ServerFacts", "inspect_server", "migrate", "migration_script"]
