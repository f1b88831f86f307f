"""A suite that any LangGraph store can be held against.

This package owns what a store must do: the contract of ``BaseStore``, and where LangGraph's own stores differ, what is
right. It needs LangGraph and nothing else: no test framework, no network. A case that fails says what it found.

    from stateroom.testing.stores import validate_store

    report = await validate_store(make_store)
    report.print_report()
    assert report.passed_all(), report.failures()
"""

from stateroom.testing.stores.configs import CharacterEmbeddings, MakeStore, StoreConfig
from stateroom.testing.stores.report import CaseResult, StoreReport
from stateroom.testing.stores.validating import CASES, validate_store

__all__ = [
    "CASES",
    "CaseResult",
    "CharacterEmbeddings",
    "MakeStore",
    "StoreConfig",
    "StoreReport",
    "validate_store",
]
