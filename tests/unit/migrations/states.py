"""States for the tests of state migrations."""

from typing import Any

import msgpack

from migrations.state.document import Encoded


def packed(**channels: Any) -> dict[str, Encoded]:
    return {name: Encoded("msgpack", msgpack.packb(value, use_bin_type=True)) for name, value in channels.items()}


def unpacked(state: dict[str, Encoded]) -> dict[str, Any]:
    return {
        name: msgpack.unpackb(each.data, raw=False, strict_map_key=False, ext_hook=msgpack.ExtType)
        for name, each in state.items()
    }
