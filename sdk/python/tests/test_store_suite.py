"""The suite for LangGraph stores itself: it runs what it is asked to, tells what it found, and finds what is wrong."""

import asyncio
import io
from contextlib import asynccontextmanager

import pytest
from langgraph.store.base import BaseStore, PutOp
from langgraph.store.memory import InMemoryStore

from stateroom.testing.stores import CASES, validate_store


@asynccontextmanager
async def in_memory(config):
    yield InMemoryStore(index=config.index)


class Idle(BaseStore):
    """Answers nothing to everything."""

    supports_ttl = True

    def batch(self, ops):
        return [None for _ in ops]

    async def abatch(self, ops):
        return self.batch(ops)


class Empty(Idle):
    """Answers as a store that forgets all that is put."""

    def batch(self, ops):
        return [[] if "limit" in op._fields else None for op in ops]


class Eternal(InMemoryStore):
    """Says that items may live for a time, and keeps them."""

    supports_ttl = True


class Leaking(InMemoryStore):
    """Finds by text what it should find by labels: everything."""

    def batch(self, ops):
        return super().batch([op._replace(namespace_prefix=()) if "filter" in op._fields else op for op in ops])


class Failing(InMemoryStore):
    """Fails where something is deleted."""

    def batch(self, ops):
        asked = [*ops]
        if any(isinstance(op, PutOp) and op.value is None for op in asked):
            raise OSError("the disk is full")
        return super().batch(asked)


def made_by(kind):
    @asynccontextmanager
    async def made(_config):
        yield kind()

    return made


async def passed(make_store, **options):
    report = await validate_store(make_store, **options)
    return {each.name for each in report.results if each.outcome == "passed"}


async def no_time_at_all(_seconds):
    pass


def test_every_case_has_a_name_of_its_own_and_a_claim():
    assert len({each.name for each in CASES}) == len(CASES)
    assert all(each.claim.endswith(".") for each in CASES)


async def test_only_and_skip_choose_cases_and_groups():
    report = await validate_store(in_memory, only=["batches", "put-is-got"], skip=["a-batch-may-be-long"])
    assert {each.group for each in report.results} == {"batches", "operations"}
    names = [each.name for each in report.results if each.half == "async"]
    assert "put-is-got" in names
    assert "a-batch-may-be-long" not in names
    assert len(report.results) == 2 * len(names)


@pytest.mark.parametrize("option", ["only", "skip", "halves"])
async def test_what_there_is_none_of_is_refused_by_name(option):
    with pytest.raises(ValueError, match=r"there is no .* nothing-like-it"):
        await validate_store(in_memory, **{option: ["nothing-like-it"]})


async def test_each_store_is_made_once_for_each_config_and_closed():
    made, closed = [], []

    @asynccontextmanager
    async def counted(config):
        made.append(config)
        yield InMemoryStore(index=config.index)
        closed.append(config)

    await validate_store(counted, only=["meaning"])
    assert len(made) == len({id(each) for each in made}) == len(closed)


async def test_progress_is_told_of_each_case_as_it_ends():
    told = []
    report = await validate_store(in_memory, only=["filters"], progress=told.append)
    assert told == [*report.results]


async def test_cases_about_time_are_skipped_without_a_clock_and_where_there_is_none():
    timed = {each.name for each in CASES if each.needs_time}
    for options in ({}, {"advance": no_time_at_all}):
        report = await validate_store(in_memory, only=timed, **options)
        assert {each.outcome for each in report.results} == {"skipped"}
        assert not report.passed_all()


async def test_a_store_that_lets_nothing_end_fails_the_cases_about_time():
    timed = [each.name for each in CASES if each.needs_time]
    assert await passed(made_by(Eternal), only=timed, advance=no_time_at_all) == set()


async def test_a_run_is_not_disturbed_by_what_others_left():
    store = InMemoryStore()

    @asynccontextmanager
    async def shared(config):
        yield store

    chosen = ["operations", "batches", "filters"]
    assert await passed(shared, only=chosen) == await passed(shared, only=chosen)


async def test_a_store_that_fails_is_told_with_its_reason_and_the_other_cases_are_run():
    report = await validate_store(made_by(Failing), only=["operations"], halves=["blocking"])
    reasons = {each.name: each.reason for each in report.failed}
    assert reasons["nothing-is-deleted-without-an-error"] == "OSError: the disk is full"
    assert "put-is-got" not in reasons
    assert "blocking operations/nothing-is-deleted-without-an-error: OSError: the disk is full" in report.failures()


async def test_a_case_that_hangs_has_failed_and_the_others_are_run():
    class Hanging(InMemoryStore):
        async def abatch(self, ops):
            asked = [*ops]
            if any(op.key == "gone" for op in asked if isinstance(op, PutOp)):
                await asyncio.Event().wait()
            return self.batch(asked)

    report = await validate_store(
        made_by(Hanging), only=["operations", "batches"], halves=["async"], case_seconds_max=0.5
    )
    hung = {each.name for each in report.failed if each.reason == "it took more than 0.5 s"}
    assert "the-last-put-wins" in hung
    assert "put-is-got" not in hung


async def test_stores_that_do_nothing_pass_only_what_nothing_is_enough_for():
    enough = {"nothing-is-deleted-without-an-error", "bad-paths-are-refused", "a-batch-may-be-empty"}
    assert await passed(made_by(Idle)) == enough
    assert await passed(made_by(Empty)) == enough


async def test_a_store_that_finds_too_much_fails():
    failed = {each.name for each in (await validate_store(made_by(Leaking), halves=["blocking"])).failed}
    assert failed >= {"prefixes-are-labels-and-not-text", "filters-stay-below-their-prefix", "labels-mean-nothing"}


async def test_a_report_is_shown_by_groups_and_as_plain_data():
    report = await validate_store(made_by(Failing), only=["operations", "filters"], halves=["blocking"])
    shown = io.StringIO()
    report.print_report(shown)
    assert shown.getvalue().startswith("Store: Failing\n  ✗ operations: ")
    assert "      blocking deleted-is-gone: OSError: the disk is full\n" in shown.getvalue()
    assert "  ✓ filters: 8 passed\n" in shown.getvalue()
    plain = report.to_dict()
    assert (plain["store"], plain["passed_all"], len(plain["results"])) == ("Failing", False, len(report.results))
    assert plain["counts"]["failed"] == len(report.failed) == len(report.failures())


async def test_a_report_is_printed_to_standard_output(capsys):
    (await validate_store(in_memory, only=["put-is-got"])).print_report()
    assert capsys.readouterr().out == "Store: InMemoryStore\n  ✓ operations: 2 passed\n"
