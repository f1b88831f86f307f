"""PostgreSQL: the engine, the transaction, the tables, and one file of statements per domain.

Nothing outside this package sends SQL. It holds no meaning: what is sealed and what a rule is lives above.
"""
