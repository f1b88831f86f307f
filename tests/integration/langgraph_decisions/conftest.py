"""What tests of graphs with decisions share: a saver of a user of the running gateway, and a person who decides."""

import shlex
from uuid import uuid4

import pytest

from stateroom import Client
from stateroom.langgraph import StateroomSaver
from stateroom.langgraph.decisions import DecisionRules


@pytest.fixture
def keys(running_gateway):
    lines = running_gateway.env_file.read_text().splitlines()
    return dict(shlex.split(line)[0].split("=", 1) for line in lines)


@pytest.fixture
def subject():
    return f"user-{uuid4()}"


@pytest.fixture
def saver(keys, subject):
    made = StateroomSaver(
        keys["STATEROOM_URL"], keys["STATEROOM_API_KEY"], subject=subject, agent="bank", decisions=DecisionRules()
    )
    with made:
        yield made


@pytest.fixture
def person(keys):
    with Client(keys["STATEROOM_URL"], keys["STATEROOM_APPROVER_KEY"], subject=None) as client:
        yield client


@pytest.fixture
def config():
    return {"configurable": {"thread_id": str(uuid4())}}


@pytest.fixture
def paid():
    """What the tools paid."""
    return []
