"""The vectors of the action hash, as values of Python."""

import datetime as dt
import json
from decimal import Decimal
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "vectors"
PATH = FOLDER / "action-hash.json"
VECTORS = json.loads(PATH.read_text())

_NOTATIONS = {
    "~float": float,
    "~int": int,
    "~bytes": bytes.fromhex,
    "~decimal": Decimal,
    "~date": dt.date.fromisoformat,
    "~datetime": dt.datetime.fromisoformat,
}


def read(written, notations=_NOTATIONS):
    """A value of the vectors, in which one member that begins with ``~`` is what JSON cannot say."""
    if isinstance(written, list):
        return [read(each, notations) for each in written]
    if not isinstance(written, dict):
        return written
    if len(written) == 1 and next(iter(written)).startswith("~"):
        ((tag, said),) = written.items()
        return notations[tag](said)
    return {key: read(each, notations) for key, each in written.items()}


def received(written):
    """The same, as a gateway receives it: what MessagePack cannot say has become tagged texts."""
    tagged = {f"~{tag}": lambda said, tag=tag: {f"${tag}": said} for tag in ("decimal", "date", "datetime")}
    return read(written, _NOTATIONS | tagged)
