"""A statement takes its values by name, refuses those that it does not have, and makes rows of its struct."""

from uuid import uuid4

import msgspec
import pytest

from storage.postgres.statement import Statement
from storage.postgres.unit_of_work import bound
from storage.scope import OperatorScope, Scope, TenantListing, TenantScope


class Pair(msgspec.Struct, frozen=True):
    left: int
    right: str


UPDATE = Statement("UPDATE t SET a = :a::text, b = :b WHERE tenant_id = :tenant_id AND x = :a")


def test_a_name_has_one_position_wherever_it_stands():
    assert UPDATE.text == "UPDATE t SET a = $1::text, b = $2 WHERE tenant_id = $3 AND x = $1"
    assert UPDATE.arguments({"tenant_id": 3, "subject_id": 9}, {"b": 2, "a": 1}) == [1, 2, 3]


@pytest.mark.parametrize("values", [{}, {"a": 1}, {"a": 1, "b": 2, "c": 3}, {"a": 1, "b": 2, "tenant_id": 4}])
def test_a_value_that_is_missing_or_unknown_or_the_scopes_to_say_is_refused(values):
    with pytest.raises(TypeError):
        UPDATE.arguments({"tenant_id": 3}, values)


def test_a_scope_says_the_tenant_and_the_subject_that_it_is_of():
    tenant = uuid4()
    assert bound(Scope(tenant, "user-1")) == {"tenant_id": tenant, "subject_id": "user-1"}
    assert bound(TenantScope(tenant)) == bound(TenantListing(tenant)) == {"tenant_id": tenant}
    assert bound(OperatorScope(tenant)) == {}


def test_a_record_becomes_a_row_of_the_struct_or_the_only_column():
    assert Statement("SELECT left, right", Pair).made((1, "b")) == Pair(1, "b")
    assert Statement("SELECT count(*)", int).made((5,)) == 5
