from uuid import uuid4

from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.conformance.capabilities import ALL_CAPABILITIES, DetectedCapabilities

from stateroom.langgraph import StateroomSaver

TESTS_IN_SUITE = 81


async def test_langgraphs_own_conformance_suite_passes_whole(gateway_env):
    @checkpointer_test(name="StateroomSaver")
    async def stateroom():
        subject = f"conformance-{uuid4()}"
        async with StateroomSaver(gateway_env.url, gateway_env.api_key, subject=subject) as saver:
            yield saver

    report = await validate(stateroom)
    failures = [text for result in report.results.values() for text in result.failures]
    assert failures == []
    assert all(result.detected and result.passed for result in report.results.values())
    assert sum(result.tests_passed for result in report.results.values()) == TESTS_IN_SUITE
    assert report.conformance_level() == "FULL"


def test_every_capability_is_detected_on_an_instance(gateway_env):
    with StateroomSaver(gateway_env.url, gateway_env.api_key, subject="detect") as saver:
        assert DetectedCapabilities.from_instance(saver).detected == ALL_CAPABILITIES
