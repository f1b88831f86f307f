"""Numbers of bytes as people write them. Owns the one reading of them, for settings and the command line."""

import re
from decimal import Decimal

SIZE_MAX = 2**63 - 1
_SIZE = re.compile(r"(\d{1,19}(?:\.\d{1,6})?) ?([KMGTPE]i?B|B)?", re.ASCII | re.IGNORECASE)
_UNITS = {"b": 1} | {
    f"{prefix}{unit}": base**power
    for power, prefix in enumerate("kmgtpe", 1)
    for unit, base in (("b", 1000), ("ib", 1024))
}


def parse_size(text: str) -> int:
    """The whole number of bytes that ``text`` names: ``500``, ``10GiB`` (powers of 1024), ``1.5 TB`` (powers of 1000).

    Raises:
        ValueError: it names none below 8 EiB.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError
    size = Decimal(match[1]) * _UNITS[(match[2] or "b").lower()]
    if size != int(size) or size > SIZE_MAX:
        raise ValueError
    return int(size)
