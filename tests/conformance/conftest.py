"""A running gateway for every conformance suite; each test takes subjects and threads of its own."""

from uuid import uuid4

import pytest

from stateroom import acting_for
from stateroom.langgraph import StateroomSaver


@pytest.fixture
def gateway_env(request):
    # Asked for by name, so that suites beside this one need no gateway to be collected.
    return request.getfixturevalue("running_gateway")


@pytest.fixture
def subject():
    return f"user-{uuid4()}"


@pytest.fixture
async def saver(gateway_env, subject):
    async with StateroomSaver(gateway_env.url, gateway_env.api_key, subject=subject) as opened:
        yield opened


@pytest.fixture
async def shared_saver(gateway_env):
    async with StateroomSaver(gateway_env.url, gateway_env.api_key) as opened:
        yield opened


@pytest.fixture
def thread_id():
    return str(uuid4())


@pytest.fixture
def config(thread_id):
    return {"configurable": {"thread_id": thread_id}}


@pytest.fixture
def acting(subject):
    with acting_for(subject):
        yield subject
