"""From the numbers of single slices to medians, ratios and a table.

A ratio is taken inside each round, between two slices that ran seconds apart, and the median of those is
shown with the least and the greatest. Numbers of different runs are never compared.
"""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks import archiving, neighbour, pruning
from benchmarks.artifacts import BOTO3, DOWN, FILE_CPU, FILES, UP
from benchmarks.artifacts import SEALED as FILE
from benchmarks.audit import BATCHED, ROW_EACH, UNRECORDED
from benchmarks.bench import CLIENT_CPU, GATEWAY_CPU, P50, RATE, SECONDS, SIZE, SPEED, WAL, Group
from benchmarks.contenders import DELTA, INSERT, LANGGRAPH, SEALED, SOCKET, STATEROOM
from benchmarks.scale import LOAD_P50, MILLION, SAVE_P50, named
from benchmarks.sealing import COMPRESSED, PLAIN, RAW

Rounds = Mapping[str, Mapping[str, Mapping[str, Sequence[float]]]]
"""Group, contender and metric to a number for each round."""


class Hypothesis(NamedTuple):
    """A ratio that was expected before it was measured.

    Attributes:
        title: What is compared.
        measured: Group, contender and metric of the numerator.
        against: The same of the denominator.
        limit: What the ratio was expected to reach.
        at_least: Whether greater is better.
    """

    title: str
    measured: tuple[str, str, str]
    against: tuple[str, str, str]
    limit: float
    at_least: bool = False


HYPOTHESES = (
    Hypothesis("save 10 KB, one writer: time", ("save", STATEROOM, P50), ("save", LANGGRAPH, P50), 1.0),
    Hypothesis("save 10 KB, 16 writers: rate", ("save-16", STATEROOM, RATE), ("save-16", LANGGRAPH, RATE), 2.0, True),
    Hypothesis(
        "save 10 KB, 16 writers, without our SDK: rate",
        ("save-16", SOCKET, RATE),
        ("save-16", LANGGRAPH, RATE),
        2.0,
        True,
    ),
    Hypothesis(
        "save 10 KB, one writer, against LangGraph's with encryption: time",
        ("save", STATEROOM, P50),
        ("save", SEALED, P50),
        1.0,
    ),
    Hypothesis("save 10 KB, 64 writers: rate", ("save-64", STATEROOM, RATE), ("save-64", LANGGRAPH, RATE), 2.0, True),
    Hypothesis("chat, one save a turn: time", ("chat", STATEROOM, SECONDS), ("chat", LANGGRAPH, SECONDS), 0.5),
    Hypothesis("chat, one save a turn: size", ("chat", STATEROOM, SIZE), ("chat", LANGGRAPH, SIZE), 0.02),
    Hypothesis("chat, one save a turn: WAL", ("chat", STATEROOM, WAL), ("chat", LANGGRAPH, WAL), 0.1),
    Hypothesis("chat in a graph: time", ("graph", STATEROOM, SECONDS), ("graph", LANGGRAPH, SECONDS), 1.0),
    Hypothesis("chat in a graph: size", ("graph", STATEROOM, SIZE), ("graph", LANGGRAPH, SIZE), 0.02),
    Hypothesis(
        "chat in a graph, plain, against their DeltaChannel: size",
        ("graph", STATEROOM, SIZE),
        ("graph", LANGGRAPH + DELTA, SIZE),
        1.0,
    ),
    Hypothesis(
        "chat in a graph, both with DeltaChannel: time",
        ("graph", STATEROOM + DELTA, SECONDS),
        ("graph", LANGGRAPH + DELTA, SECONDS),
        1.0,
    ),
    Hypothesis(
        "long chat, one save a turn: time", ("chat-long", STATEROOM, SECONDS), ("chat-long", LANGGRAPH, SECONDS), 0.2
    ),
    Hypothesis(
        "long chat, one save a turn: size", ("chat-long", STATEROOM, SIZE), ("chat-long", LANGGRAPH, SIZE), 0.01
    ),
    Hypothesis(
        "long chat in a graph, plain, against their DeltaChannel: size",
        ("graph-long", STATEROOM, SIZE),
        ("graph-long", LANGGRAPH + DELTA, SIZE),
        1.0,
    ),
    Hypothesis("an agent with tools: time", ("agent", STATEROOM, SECONDS), ("agent", LANGGRAPH, SECONDS), 1.0),
    Hypothesis("load 10 KB: time", ("load-10kb", STATEROOM, P50), ("load-10kb", LANGGRAPH, P50), 1.0),
    Hypothesis("load the whole chat: time", ("load", STATEROOM, P50), ("load", LANGGRAPH, P50), 1.0),
    Hypothesis("load 4 MB: time", ("load-4mb", STATEROOM, P50), ("load-4mb", LANGGRAPH, P50), 1.0),
    Hypothesis("read a whole history: time", ("history", STATEROOM, P50), ("history", LANGGRAPH, P50), 1.0),
    Hypothesis("pending writes: time", ("writes", STATEROOM, P50), ("writes", LANGGRAPH, P50), 1.0),
    Hypothesis(
        "save 10 KB beside a tenant at its cap against alone: p99",
        ("neighbour", neighbour.BESIDE, neighbour.P99),
        ("neighbour", neighbour.ALONE, neighbour.P99),
        1.5,
    ),
    Hypothesis(
        "save 10 KB beside a tenant at another gateway against alone: p99",
        ("neighbour", neighbour.ELSEWHERE, neighbour.P99),
        ("neighbour", neighbour.ALONE, neighbour.P99),
        1.5,
    ),
    Hypothesis(
        "save 4 KB, 16 writers: gateway CPU against a raw insert's client CPU",
        ("small-16", SOCKET, GATEWAY_CPU),
        ("small-16", INSERT, CLIENT_CPU),
        2.0,
    ),
    *(
        Hypothesis(
            f"{what} 10 KB, tables of {rows:,} checkpoints against 10,000: time",
            ("large-tables", named(STATEROOM, rows), metric),
            ("large-tables", named(STATEROOM, 10_000), metric),
            1.2,
        )
        for rows in (100_000, MILLION)
        for what, metric in (("save", SAVE_P50), ("load", LOAD_P50))
    ),
    Hypothesis(
        "audit: loads with batched notes against no record: rate",
        ("audit", BATCHED, RATE),
        ("audit", UNRECORDED, RATE),
        0.9,
        True,
    ),
    Hypothesis(
        "audit: loads with one row each against batched notes: rate",
        ("audit", ROW_EACH, RATE),
        ("audit", BATCHED, RATE),
        1 / 3,
    ),
    Hypothesis(
        "audit: saves with batched notes against no record: rate",
        ("audit-save", BATCHED, RATE),
        ("audit-save", UNRECORDED, RATE),
        0.9,
        True,
    ),
    Hypothesis(
        "audit: saves with one row each against batched notes: rate",
        ("audit-save", ROW_EACH, RATE),
        ("audit-save", BATCHED, RATE),
        1 / 3,
    ),
    Hypothesis("seal and open 9 KB against the bare cipher: time", ("seal", PLAIN, P50), ("seal", RAW, P50), 8.0),
    Hypothesis(
        "seal and open 9 KB with zstd against the bare cipher: time",
        ("seal", COMPRESSED, P50),
        ("seal", RAW, P50),
        50.0,
    ),
    Hypothesis(
        "seal a blob against the bare cipher: speed",
        ("seal-blob", PLAIN, SPEED),
        ("seal-blob", RAW, SPEED),
        0.5,
        True,
    ),
    Hypothesis(
        "prune of a long thread: longest wait of its writer, against the same in one transaction",
        ("prune", pruning.BATCHES, pruning.WORST),
        ("prune", pruning.AT_ONCE, pruning.WORST),
        0.1,
    ),
    Hypothesis(
        "prune of a long thread: p99 of its writer's saves meanwhile against alone",
        ("prune", pruning.BATCHES, pruning.MEANWHILE),
        ("prune", pruning.BATCHES, pruning.ALONE),
        3.0,
    ),
    Hypothesis(
        "archive threads, against moving their rows in SQL: rate",
        ("archive", archiving.ARCHIVE, archiving.OUT),
        ("archive", archiving.SQL, archiving.OUT),
        0.1,
        True,
    ),
    Hypothesis(
        "restore threads, against moving their rows in SQL: rate",
        ("archive", archiving.ARCHIVE, archiving.BACK),
        ("archive", archiving.SQL, archiving.BACK),
        0.1,
        True,
    ),
    Hypothesis(
        "saves beside an archiver at half a rate, in the same process, against alone: p99",
        ("archive-beside", archiving.BESIDE_HALF, archiving.P99),
        ("archive-beside", archiving.ALONE, archiving.P99),
        2.0,
    ),
    Hypothesis("one large artifact up: rate", ("artifact", FILE, UP), ("artifact", BOTO3, UP), 0.8, True),
    Hypothesis("one large artifact down: rate", ("artifact", FILE, DOWN), ("artifact", BOTO3, DOWN), 0.8, True),
    Hypothesis(
        "artifacts of 100 KB, 16 writers: rate",
        ("artifact-16", FILE, FILES),
        ("artifact-16", BOTO3, FILES),
        0.8,
        True,
    ),
    Hypothesis(
        "artifacts of 100 KB, sealed, against boto3 unsealed: client CPU",
        ("artifact-16", FILE, FILE_CPU),
        ("artifact-16", BOTO3, FILE_CPU),
        1.0,
    ),
)


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, least and greatest."""
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}


def ratio(rounds: Rounds, measured: tuple[str, str, str], against: tuple[str, str, str]) -> dict[str, float] | None:
    """The spread of a ratio over the rounds; ``None`` where nothing can be divided."""
    above, below = (
        rounds.get(group, {}).get(contender, {}).get(metric, ()) for group, contender, metric in (measured, against)
    )
    if not above or not below or min(below) <= 0:
        return None
    # Some contenders run in the first rounds only.
    return spread([one / other for one, other in zip(above, below, strict=False)])


def summary(rounds: Rounds) -> list[dict[str, Any]]:
    """Every hypothesis with what was found."""
    found = []
    for each in HYPOTHESES:
        measured = ratio(rounds, each.measured, each.against)
        if measured is None:
            continue
        holds = measured["median"] >= each.limit if each.at_least else measured["median"] <= each.limit
        expected = {"at_least" if each.at_least else "at_most": each.limit}
        found.append({"title": each.title, "ratio": measured, "expected": expected, "holds": holds})
    return found


def as_data(rounds: Rounds, groups: Sequence[Group], environment: Mapping[str, Any]) -> dict[str, Any]:
    """Everything, for machines."""
    return {
        "format": "stateroom-benchmark/1",
        "environment": dict(environment),
        "summary": summary(rounds),
        "groups": {
            group.name: {
                "title": group.title,
                "reference": group.reference,
                "contenders": {
                    contender: {
                        metric: {**spread(values), "rounds": list(values)} for metric, values in metrics.items()
                    }
                    for contender, metrics in rounds[group.name].items()
                },
            }
            for group in groups
            if group.name in rounds
        },
    }


def _number(value: float) -> str:
    if not value:
        return "0"
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 0.1 else f"{value:.3f}"


def _range(found: Mapping[str, float]) -> str:
    return f"{_number(found['median'])} ({_number(found['low'])} to {_number(found['high'])})"


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for number, row in enumerate(rows):
        cells = [
            text.ljust(width) if not column else text.rjust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  " + "  ".join(cells).rstrip())
        if not number:
            lines.append("  " + "  ".join("-" * width for width in widths))
    return lines


def as_text(rounds: Rounds, groups: Sequence[Group], environment: Mapping[str, Any]) -> str:
    """Everything, for people."""
    lines = [f"{name}: {value}" for name, value in environment.items()]
    lines += ["", "Ratios; without another word: Stateroom (over HTTP, sealed) / LangGraph's saver (direct, plain)"]
    rows = [["", "ratio (least to greatest)", "expected", "holds"]]
    for found in summary(rounds):
        ((bound, limit),) = found["expected"].items()
        sign = ">=" if bound == "at_least" else "<="
        rows.append([found["title"], _range(found["ratio"]), f"{sign} {limit:g}", "yes" if found["holds"] else "no"])
    lines += _table(rows)
    for group in groups:
        measured = rounds.get(group.name)
        if not measured:
            continue
        metrics = list(dict.fromkeys(metric for found in measured.values() for metric in found))
        lines += ["", f"{group.title}: median (least to greatest), x = ratio to {group.reference}"]
        columns = [["", *measured]]
        for metric in metrics:
            columns.append(
                [metric, *(_range(spread(found[metric])) if metric in found else "" for found in measured.values())]
            )
            compared = {
                contender: ratio(rounds, (group.name, contender, metric), (group.name, group.reference, metric))
                for contender in measured
                if contender != group.reference and metric != GATEWAY_CPU  # the reference uses none
            }
            if any(compared.values()):
                cells = (compared.get(contender) for contender in measured)
                columns.append(["x", *(_number(cell["median"]) if cell else "" for cell in cells)])
        lines += _table(list(zip(*columns, strict=True)))
    return "\n".join(lines) + "\n"
