"""A statement takes its values by name, and refuses those that it does not have."""

import pytest

from storage.postgres.statement import Statement

UPDATE = Statement("UPDATE t SET a = :a::text, b = :b WHERE id = $1 AND x = :a", "b a")


def test_names_become_positions_after_those_of_the_thread():
    assert UPDATE.text == "UPDATE t SET a = $5::text, b = $4 WHERE id = $1 AND x = $5"
    values = {"a": 5, "thread_id": 3, "b": 4, "subject_id": 2, "tenant_id": 1}
    assert UPDATE.arguments(**values) == [1, 2, 3, 4, 5]


def test_who_binds_the_scope_is_given_what_comes_after_it():
    save = Statement.of_function("save", "a b")
    assert save.text == "SELECT stateroom.save($1, $2, $3, $4, $5)"
    assert save.after_scope(thread_id=3, b=5, a=4) == [3, 4, 5]


@pytest.mark.parametrize("values", [{}, {"a": 1}, {"a": 1, "b": 2, "c": 3}])
def test_a_value_that_is_missing_or_unknown_is_refused(values):
    with pytest.raises(TypeError):
        UPDATE.arguments(tenant_id=1, subject_id=2, thread_id=3, **values)


@pytest.mark.parametrize("names", ["a", "a b c", ""])
def test_a_text_that_names_other_parameters_is_refused(names):
    with pytest.raises(ValueError, match="differ"):
        Statement("SELECT :a, :b", names)
