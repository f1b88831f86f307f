"""What is refused about items before anything is sent."""

import httpx2
import pytest

from stateroom import Client, InvalidRequest


def refuse(_request: httpx2.Request) -> httpx2.Response:
    raise AssertionError("nothing is to be sent")


@pytest.mark.parametrize("call", [
    lambda items: items.put("memories", "k", {}),
    lambda items: items.get("memories", "k"),
    lambda items: items.delete("memories", "k"),
    lambda items: list(items.search("memories")),
    lambda items: list(items.paths("memories")),
    lambda items: list(items.paths(suffix="ada")),
    lambda items: items.reindex(lambda _: [], "memories"),
])  # fmt: skip
def test_a_text_is_no_path_whose_labels_are_its_letters(call):
    with (
        Client("http://gateway", "key", subject="user-1", transport=httpx2.MockTransport(refuse)) as client,
        pytest.raises(InvalidRequest, match="a path is a sequence of labels"),
    ):
        call(client.items)
