"""Small drawings as SVG: horizontal bars and lines with labels and units, readable on light and on dark pages.

It writes plain SVG 1.1 with one style sheet, whose colours follow ``prefers-color-scheme``, and no script. Text has
the fonts of whoever looks at it. It promises no layout engine: labels are measured by their number of characters.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple
from xml.sax.saxutils import escape

WIDTH = 760
_CHARACTER = 7.0  # of text of 12 px; on average, generously
_ROW, _TOP, _BAR = 22, 48, 14
_STYLE = """
text { font: 12px system-ui, sans-serif; fill: #1f2328; } .title { font-size: 15px; font-weight: 600; }
.faint { fill: #59636e; } .axis { stroke: #8b949e; fill: none; } .grid { stroke: #d1d9e0; }
.fill0 { fill: #0969da; } .fill1 { fill: #bc4c00; } .fill2 { fill: #8250df; } .fill3 { fill: #1a7f37; }
.fill4 { fill: #59636e; } .fill5 { fill: #bf3989; } .fill6 { fill: #9a6700; } .fill7 { fill: #0c7489; }
.line { fill: none; stroke-width: 2; } .whisker { stroke: #1f2328; stroke-width: 1; }
.line0 { stroke: #0969da; } .line1 { stroke: #bc4c00; } .line2 { stroke: #8250df; } .line3 { stroke: #1a7f37; }
.line4 { stroke: #59636e; } .line5 { stroke: #bf3989; } .line6 { stroke: #9a6700; } .line7 { stroke: #0c7489; }
@media (prefers-color-scheme: dark) {
text { fill: #f0f6fc; } .faint { fill: #9198a1; } .grid { stroke: #3d444d; } .whisker { stroke: #f0f6fc; }
.fill0 { fill: #4493f8; } .fill1 { fill: #f0883e; } .fill2 { fill: #ab7df8; } .fill3 { fill: #3fb950; }
.fill4 { fill: #9198a1; } .fill5 { fill: #db61a2; } .fill6 { fill: #d29922; } .fill7 { fill: #39c5cf; }
.line0 { stroke: #4493f8; } .line1 { stroke: #f0883e; } .line2 { stroke: #ab7df8; } .line3 { stroke: #3fb950; }
.line4 { stroke: #9198a1; } .line5 { stroke: #db61a2; } .line6 { stroke: #d29922; } .line7 { stroke: #39c5cf; }
}
"""
COLOURS = 8


class Spread(NamedTuple):
    """A median with the least and the greatest."""

    median: float
    low: float
    high: float


def number(value: float) -> str:
    """A value with about three digits."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 0.1 or not value else f"{value:.3f}"


def _document(title: str, height: float, parts: Sequence[str]) -> str:
    name = escape(title)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}"'
        f' height="{height:.0f}" role="img" aria-label="{escape(title, {chr(34): "&quot;"})}"><title>{name}</title>'
        f"<style>{_STYLE}</style>\n" + _text(8, 20, title, "title") + "\n" + "\n".join(parts) + "\n</svg>\n"
    )


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{escape(text)}</text>'


def _line(x: float, y: float, to_x: float, to_y: float, kind: str) -> str:
    return f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{to_x:.1f}" y2="{to_y:.1f}" class="{kind}"/>'


def _bar(x: float, y: float, length: float, colour: int) -> str:
    kind = f"fill{colour % COLOURS}"
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(length, 1):.1f}" height="{_BAR}" rx="2" class="{kind}"/>'


def bars(title: str, unit: str, groups: Mapping[str, Mapping[str, Spread]], colours: Mapping[str, int]) -> str:
    """Horizontal bars from 0, with the least and the greatest as a whisker.

    Args:
        title: What is shown.
        unit: Of all values, and which direction is better.
        groups: Heading to label to value; each heading has a scale of its own.
        colours: Label to the number of its colour, below `COLOURS`.
    """
    left = 16 + _CHARACTER * max(len(label) for group in groups.values() for label in group)
    space = WIDTH - left - 90
    parts, y = [_text(8, 38, unit, "faint")], float(_TOP)
    for heading, group in groups.items():
        if heading:
            parts.append(_text(8, y + 14, heading))
            y += _ROW
        most = max(spread.high for spread in group.values()) or 1.0
        for label, spread in group.items():
            x, low, high = (left + space * value / most for value in spread)
            middle = y + _BAR / 2
            parts += [
                _text(left - 8, middle + 4, label, "faint", "end"),
                _bar(left, y, x - left, colours[label]),
                _line(low, middle, high, middle, "whisker"),
                _text(max(x, high) + 6, middle + 4, number(spread.median)),
            ]
            y += _ROW
        y += 8
    return _document(title, y + 4, parts)


def lines(
    title: str, unit: str, across: str, series: Mapping[str, Mapping[float, Spread]], colours: Mapping[str, int]
) -> str:
    """Lines over a logarithmic axis, with the least and the greatest as whiskers; the upright axis is logarithmic, too.

    Args:
        title: What is shown.
        unit: Of the values, and which direction is better.
        across: What grows from left to right, and its unit.
        series: Label to position to value; positions and values above 0.
        colours: Label to the number of its colour, below `COLOURS`.
    """
    positions = sorted({position for points in series.values() for position in points})
    values = [value for points in series.values() for spread in points.values() for value in spread]
    left, right, top, bottom = 64.0, WIDTH - 24 - _CHARACTER * max(map(len, series)), 56.0, 336.0
    lowest, highest = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    highest = max(highest, lowest + 1)
    first, last = math.log10(positions[0]), math.log10(positions[-1])

    def at(position: float) -> float:
        return left + (right - left) * (0.5 if last == first else (math.log10(position) - first) / (last - first))

    def up(value: float) -> float:
        return bottom - (bottom - top) * (math.log10(value) - lowest) / (highest - lowest)

    parts = [_text(8, 38, unit, "faint"), _text((left + right) / 2, bottom + 36, across, "faint", "middle")]
    for power in range(lowest, highest + 1):
        y = up(10.0**power)
        parts += [_line(left, y, right, y, "grid"), _text(left - 8, y + 4, f"{10.0**power:,g}", "faint", "end")]
    parts += [_text(at(position), bottom + 18, f"{position:,g}", "faint", "middle") for position in positions]
    parts.append(_line(left, bottom, right, bottom, "axis"))
    taken: list[float] = []
    for label, points in sorted(series.items(), key=lambda each: up(each[1][max(each[1])].median)):
        colour = colours[label] % COLOURS
        dots = [(at(position), up(points[position].median)) for position in sorted(points)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in dots)
        parts.append(f'<polyline points="{path}" class="line line{colour}"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" class="fill{colour}"/>' for x, y in dots]
        parts += [
            _line(at(position), up(spread.low), at(position), up(spread.high), f"line{colour}")
            for position, spread in points.items()
        ]
        y = max(dots[-1][1] + 4, (taken[-1] + 15) if taken else 0)  # labels do not cover each other
        taken.append(y)
        parts.append(f'<text x="{dots[-1][0] + 9:.1f}" y="{y:.1f}" class="fill{colour}">{escape(label)}</text>')
    return _document(title, max(bottom + 48, taken[-1] + 12), parts)
