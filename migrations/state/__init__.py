"""State upcasters: pure functions from one state version to the next. No database, clock, tenant or network.

No state schema exists yet; loading returns state as it was saved.
"""
