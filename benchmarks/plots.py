"""Which drawings a report has; a drawing appears where its groups were measured.

They are made of the report's own numbers (`report.as_data`): ``python -m benchmarks.plots FILE`` draws those of a run
again.
"""

import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import svg
from benchmarks.bench import CLIENT_CPU, GATEWAY_CPU, P50, POSTGRES_CPU, RATE, SECONDS, SIZE, WAL
from benchmarks.contenders import HTTPX, INSERT, LANGGRAPH, SEALED, SOCKET, SQLITE, STATEROOM, STATEROOM_SYNC
from benchmarks.scale import LOAD_P50, SAVE_P50

_COLOURS = {
    STATEROOM: 0,
    STATEROOM_SYNC: 7,
    LANGGRAPH: 1,
    SEALED: 5,
    SQLITE: 6,
    HTTPX: 2,
    SOCKET: 3,
    INSERT: 4,
}
_OTHER = 4
_Measured = Mapping[str, Any]


class _Colours(dict[str, int]):
    """The colour of a contender, with or without what follows its name; the longest name that fits."""

    def __missing__(self, label: str) -> int:
        fitting = [name for name in _COLOURS if label.startswith(name)]
        return _COLOURS[max(fitting, key=len)] if fitting else _OTHER


def _spread(found: Mapping[str, float]) -> svg.Spread:
    return svg.Spread(found["median"], found["low"], found["high"])


def _of(groups: _Measured, group: str, metric: str) -> dict[str, svg.Spread]:
    """Contender to value, where there is one."""
    contenders = groups.get(group, {}).get("contenders", {})
    return {name: _spread(metrics[metric]) for name, metrics in contenders.items() if metric in metrics}


def _kilobytes(groups: _Measured, group: str) -> float:
    """How large the state of a group is, by its title: a quick look has shorter chats."""
    found = re.search(r"(\d+) KB of state", groups.get(group, {}).get("title", ""))
    return float(found[1]) if found else 400.0


def _bars(title: str, unit: str, shown: Mapping[str, Mapping[str, svg.Spread]]) -> str | None:
    shown = {heading: values for heading, values in shown.items() if values}
    return svg.bars(title, unit, shown, _Colours()) if shown else None


def _lines(
    groups: _Measured, title: str, unit: str, across: str, metric: str, places: Mapping[float, str]
) -> str | None:
    """A line for each contender over groups that differ in one number; for at least two of them."""
    series: dict[str, dict[float, svg.Spread]] = {}
    for place, group in places.items():
        for name, spread in _of(groups, group, metric).items():
            if spread.low > 0:
                series.setdefault(name, {})[place] = spread
    series = {name: points for name, points in series.items() if len(points) > 1}
    return svg.lines(title, unit, across, series, _Colours()) if series else None


def _table_lines(groups: _Measured) -> str | None:
    series: dict[str, dict[float, svg.Spread]] = {}
    for word, metric in (("save", SAVE_P50), ("load", LOAD_P50)):
        for name, spread in _of(groups, "large-tables", metric).items():
            contender, _, rows = name.removesuffix(" checkpoints").partition(", ")
            series.setdefault(f"{contender}, {word}", {})[float(rows.replace(",", ""))] = spread
    if not series:
        return None
    unit = "p50 of saving and loading 10 KB, ms; less is better"
    return svg.lines("Tables with many checkpoints", unit, "checkpoints in the tables", series, _Colours())


def _processor(groups: _Measured, group: str) -> dict[str, dict[str, svg.Spread]]:
    names = {"client": CLIENT_CPU, "gateway": GATEWAY_CPU, "PostgreSQL": POSTGRES_CPU}
    return {f"{group}: {where}": _of(groups, group, metric) for where, metric in names.items()}


def _chat_bars(groups: _Measured, title: str, names: Sequence[str]) -> str | None:
    shown = {
        f"{groups[name]['title']}: {what}": _of(groups, name, metric)
        for name in names
        if name in groups
        for what, metric in (("seconds", SECONDS), ("MB of tables", SIZE), ("MB of WAL", WAL))
    }
    return _bars(title, "median, least to greatest; less is better; each heading has its own scale", shown)


def drawn(data: Mapping[str, Any]) -> dict[str, str]:
    """The drawings of a report, as SVG, by their names."""
    groups = data["groups"]
    made = {
        "save": _bars(
            "Saving 10 KB, one writer",
            "p50, ms, least to greatest; less is better",
            {"": _of(groups, "save", P50)},
        ),
        "writers": _lines(
            groups,
            "Saving 10 KB, by the number of writers",
            "saves a second; more is better",
            "writers, each on a thread of its own",
            RATE,
            {1: "save", 16: "save-16", 64: "save-64"},
        ),
        "hot": _bars(
            "Saving 10 KB, 16 writers on one thread",
            "saves a second, least to greatest; more is better",
            {"": _of(groups, "save-hot", RATE)},
        ),
        "chat": _chat_bars(groups, "A growing chat", ("chat", "graph", "agent")),
        "chat-long": _chat_bars(groups, "A long growing chat", ("chat-long", "graph-long")),
        "load": _lines(
            groups,
            "Loading the latest checkpoint, by size",
            "p50, ms; less is better",
            "KB of state",
            P50,
            {10: "load-10kb", _kilobytes(groups, "load"): "load", 4000: "load-4mb"},
        ),
        "large-tables": _table_lines(groups),
        "gateways": _bars(
            "Saving 4 KB by 16 writers, over several gateway processes",
            "saves a second, least to greatest; more is better",
            {"": _of(groups, "gateways", RATE)},
        ),
        "cpu": _bars(
            "Processor time of saving 10 KB",
            "ms an operation, least to greatest; less is better; each heading has its own scale",
            {**_processor(groups, "save"), **_processor(groups, "save-16")},
        ),
    }
    return {name: drawing for name, drawing in made.items() if drawing is not None}


if __name__ == "__main__":
    source = Path(sys.argv[1])
    for each, text in drawn(json.loads(source.read_text())).items():
        source.with_name(f"{source.stem}-{each}.svg").write_text(text)
