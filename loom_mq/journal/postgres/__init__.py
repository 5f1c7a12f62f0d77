"""The journal on PostgreSQL (J9). The only package that knows asyncpg."""

from loom_mq.journal.postgres.journal import PostgresJournal
from loom_mq.journal.postgres.migrate import migrate, migration_script

__all__ = ["PostgresJournal", "migrate", "migration_script"]
