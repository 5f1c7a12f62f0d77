"""All guards that are known to matter. A new guard belongs into one of these tables."""

from __future__ import annotations

from typing import Final

from tests.mutants.table_engine import ENGINE
from tests.mutants.table_fold import FOLD
from tests.mutants.table_journal import JOURNAL

MUTANTS: Final = (*FOLD, *ENGINE, *JOURNAL)
