"""The database's clock, which is asked before what is written by it."""

from datetime import datetime

from storage.postgres.statement import Statement

NOW = Statement("SELECT clock_timestamp()", datetime)
