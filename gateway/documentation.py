"""The rendered documentation: the OpenAPI document, and one page of plain HTML made from it.

The page needs nothing but itself, so it works without a network and under a policy that forbids scripts.
"""

import html
from dataclasses import dataclass
from typing import Any

import msgspec

from gateway.problems import KINDS

_STYLE = """
:root{color-scheme:light dark}body{font:16px/1.5 system-ui,sans-serif;max-width:62rem;margin:2rem auto;
padding:0 1rem}
code,pre{font:14px/1.45 ui-monospace,monospace}pre{overflow:auto;
padding:.75rem;border:1px solid #8885;border-radius:4px}
table{border-collapse:collapse;width:100%}td,th{border-bottom:1px solid #8885;padding:.3rem .5rem;
text-align:left;vertical-align:top}h2{margin-top:2.5rem}.method{font-weight:700}summary{cursor:pointer}
"""


@dataclass(frozen=True, slots=True)
class Documentation:
    """Both forms, as bytes."""

    openapi: bytes
    page: bytes

    @classmethod
    def render(cls, document: dict[str, Any]) -> "Documentation":
        """Render an OpenAPI document."""
        return cls(msgspec.json.encode(document), _page(document).encode())


def _text(content: object) -> str:
    return html.escape(str(content))


def _page(document: dict[str, Any]) -> str:
    info = document["info"]
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8>",
        '<meta name=viewport content="width=device-width,initial-scale=1">',
        f"<title>{_text(info['title'])}</title><style>{_STYLE}</style>",
        f"<h1>{_text(info['title'])} {_text(info['version'])}</h1><p>{_text(info['description'])}</p>",
        '<p>Machine readable: <a href="/openapi.json">/openapi.json</a></p><h2>Operations</h2>',
    ]
    parts += [
        _operation(path, method, operation, document)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    parts.append("<h2>Problems</h2><table><tr><th>code<th>status<th>retryable<th>meaning and advice</tr>")
    for kind in sorted(KINDS.values(), key=lambda kind: (kind.status, kind.code)):
        parts.append(
            f'<tr id="{_text(kind.code)}"><td><code>{_text(kind.code)}</code><td>{kind.status}'
            f"<td>{'yes' if kind.retryable else 'no'}<td>{_text(kind.title)}. {_text(kind.advice)}</tr>"
        )
    parts.append("</table><h2>Schemas</h2>")
    for name, schema in document["components"]["schemas"].items():
        shown = msgspec.json.format(msgspec.json.encode(schema), indent=2).decode()
        parts.append(
            f'<details id="schema-{_text(name)}"><summary><code>{_text(name)}</code> '
            f"{_text(schema.get('description', ''))}</summary><pre>{_text(shown)}</pre></details>"
        )
    return "".join(parts)


def _schema_link(content: dict[str, Any]) -> str:
    reference = content["application/json"]["schema"].get("$ref", "") if "application/json" in content else ""
    name = reference.rsplit("/", 1)[-1]
    return f'<a href="#schema-{_text(name)}"><code>{_text(name)}</code></a>' if name else ""


def _example(content: dict[str, Any]) -> str:
    media = content.get("application/json", {})
    if "example" not in media:
        return ""
    shown = msgspec.json.format(msgspec.json.encode(media["example"]), indent=2).decode()
    return f"<pre>{_text(shown)}</pre>"


def _operation(path: str, method: str, operation: dict[str, Any], document: dict[str, Any]) -> str:
    name, about = _text(operation["operationId"]), _text(operation.get("description", ""))
    title = f'<h3 id="{name}"><span class=method>{method.upper()}</span> <code>{_text(path)}</code></h3>'
    parts = [title, f"<p>{_text(operation['summary'])} {about}</p>"]
    rows = []
    for given in operation.get("parameters", []):
        parameter = document["components"]["parameters"][given["$ref"].rsplit("/", 1)[-1]] if "$ref" in given else given
        rows.append(
            f"<tr><td><code>{_text(parameter['name'])}</code><td>{_text(parameter['in'])}"
            f"<td>{_text(parameter.get('description', ''))}</tr>"
        )
    if rows:
        parts.append(f"<table><tr><th>parameter<th>in<th>meaning</tr>{''.join(rows)}</table>")
    if "requestBody" in operation:
        content = operation["requestBody"]["content"]
        parts.append(f"<p>Body: {_schema_link(content) or 'bytes of any media type'}</p>")
        parts.append(_example(content))
    for status, answer in operation["responses"].items():
        if "content" in answer and int(status) < 400:
            parts.append(f"<p>{status}: {_schema_link(answer['content'])}</p>{_example(answer['content'])}")
    return "".join(parts)
