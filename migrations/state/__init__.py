"""State upcasters: pure functions from one state version to the next. No database, clock, tenant or network.

`chain` runs them, `declarative` compiles what tenants register, `loading` finds what operators wrote in Python.
"""
