"""What an answer has beside the state that was asked for, in bytes: a little, whatever the state is."""

import msgspec
import pytest

SAVE = "/v1/threads/t/checkpoints"
FORMATS = {"json": msgspec.json, "msgpack": msgspec.msgpack}
# Names of fields, and values as short as the ids of these tests.
LOAD_BYTES = {"json": 312, "msgpack": 212}
SAVED_BYTES = {"json": 166, "msgpack": 111}
HEADER_BYTES = 272


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("messages", [0, 400])
async def test_a_load_answers_with_the_state_once_and_a_save_without_it(call, name, messages):
    codec, media_type = FORMATS[name], f"application/{name}"
    content = {"messages": [{"role": "user", "text": f"{number}" + "ä" * 100} for number in range(messages)]}
    headers = {"Content-Type": media_type, "Accept": media_type, "Accept-Encoding": "identity"}
    async with call() as client:
        saved = await client.post(SAVE, content=codec.encode({"state": content}), headers=headers)
        loaded = await client.get(f"{SAVE}/latest", headers=headers)
    assert (saved.status_code, loaded.status_code) == (201, 200)
    assert codec.decode(loaded.content)["state"] == content
    assert len(saved.content) <= SAVED_BYTES[name]
    assert len(loaded.content) <= LOAD_BYTES[name] + len(codec.encode(content))
    for answer in (saved, loaded):
        assert sum(len(field) + len(text) + len(": \r\n") for field, text in answer.headers.raw) <= HEADER_BYTES
