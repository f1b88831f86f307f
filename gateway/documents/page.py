"""The API as one page of plain HTML, made from the OpenAPI document.

The page needs nothing but itself, so it works without a network and under a policy that forbids scripts.
"""

import html
from typing import Any

import msgspec

from gateway.problems import KINDS
from storage.encoding import encode_json

_STYLE = """
:root{color-scheme:light dark}body{font:16px/1.5 system-ui,sans-serif;max-width:62rem;margin:2rem auto;
padding:0 1rem}
code,pre{font:14px/1.45 ui-monospace,monospace}pre{overflow:auto;
padding:.75rem;border:1px solid #8885;border-radius:4px}
table{border-collapse:collapse;width:100%}td,th{border-bottom:1px solid #8885;padding:.3rem .5rem;
text-align:left;vertical-align:top}body{overflow-wrap:anywhere}h2{margin-top:2.5rem}.method{font-weight:700}summary{cursor:pointer}
@media(max-width:64rem){th{display:none}tr{display:block;border-bottom:1px solid #8885;padding:.4rem 0}
td{display:inline-block;border:0;padding:0 .75rem 0 0}td:last-child{display:block}
td[data-of]::before{content:attr(data-of)": "}}
"""


_AUTHENTICATION = (
    "<h2>Authentication</h2><p>Send <code>Authorization: Bearer &lt;API key&gt;</code>. A subject's key reaches that "
    "subject alone; a service key names whom it acts for in <code>Stateroom-Subject</code>; an operator's key opens no "
    "state. What a key may do are its permissions, which <code>GET /v1/whoami</code> shows.</p>"
)
_REFUSED = 400


def _text(content: object) -> str:
    return html.escape(str(content))


def page(document: dict[str, Any]) -> str:
    """The page of an OpenAPI document."""
    info = document["info"]
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8>",
        '<meta name=viewport content="width=device-width,initial-scale=1">',
        f"<title>{_text(info['title'])}</title><style>{_STYLE}</style>",
        f"<h1>{_text(info['title'])} {_text(info['version'])}</h1><p>{_text(info['description'])}</p>",
        '<p>Machine readable: <a href="/openapi.json">/openapi.json</a></p>',
        _AUTHENTICATION,
        "<h2>Contents</h2><ul>",
        *(f'<li><a href="#tag-{_text(tag["name"])}">{_text(tag["description"])}</a>' for tag in document["tags"]),
        '<li><a href="#problems">Problems</a><li><a href="#schemas">Schemas</a></ul>',
    ]
    for tag in document["tags"]:
        parts.append(f'<h2 id="tag-{_text(tag["name"])}">{_text(tag["description"])}</h2>')
        parts += [
            _operation(path, method, operation, document)
            for path, methods in document["paths"].items()
            for method, operation in methods.items()
            if tag["name"] in operation["tags"]
        ]
    parts.append("<h2 id=problems>Problems</h2><table><tr><th>code<th>status<th>retryable<th>meaning and advice</tr>")
    for kind in sorted(KINDS.values(), key=lambda kind: (kind.status, kind.code)):
        parts.append(
            f'<tr id="{_text(kind.code)}"><td><code>{_text(kind.code)}</code><td>{kind.status}'
            f"<td data-of=retryable>{'yes' if kind.retryable else 'no'}"
            f"<td>{_text(kind.title)}. {_text(kind.advice)}</tr>"
        )
    parts.append("</table><h2 id=schemas>Schemas</h2>")
    for name, schema in document["components"]["schemas"].items():
        shown = msgspec.json.format(encode_json(schema), indent=2).decode()
        parts.append(
            f'<details id="schema-{_text(name)}"><summary><code>{_text(name)}</code> '
            f"{_text(schema.get('description', ''))}</summary><pre>{_text(shown)}</pre></details>"
        )
    return "".join(parts)


def _form(schema: dict[str, Any]) -> str:
    """A parameter's type, what it may be, and what it is when it is left out."""
    if "anyOf" in schema:
        return " or ".join(map(_form, schema["anyOf"]))
    words = [" ".join(filter(None, (schema.get("type", ""), schema.get("format", ""))))]
    if "enum" in schema:
        words = [" | ".join(map(str, schema["enum"]))]
    if "items" in schema:
        words.append(f"of {_form(schema['items'])}")
    if "default" in schema:
        words.append(f"default {schema['default'] if schema['default'] != '' else 'empty'}")
    return ", ".join(words)


def _schema_link(content: dict[str, Any]) -> str:
    reference = content["application/json"]["schema"].get("$ref", "") if "application/json" in content else ""
    name = reference.rsplit("/", 1)[-1]
    return f'<a href="#schema-{_text(name)}"><code>{_text(name)}</code></a>' if name else ""


def _example(content: dict[str, Any]) -> str:
    media = content.get("application/json", {})
    if "example" not in media:
        return ""
    shown = msgspec.json.format(encode_json(media["example"]), indent=2).decode()
    return f"<pre>{_text(shown)}</pre>"


def _operation(path: str, method: str, operation: dict[str, Any], document: dict[str, Any]) -> str:
    name, about = _text(operation["operationId"]), _text(operation.get("description", ""))
    title = f'<h3 id="{name}"><span class=method>{method.upper()}</span> <code>{_text(path)}</code></h3>'
    parts = [title, f"<p>{_text(operation['summary'])} {about}</p>"]
    rows = []
    for shown in operation.get("parameters", []):
        parameter = document["components"]["parameters"][shown["$ref"].rsplit("/", 1)[-1]] if "$ref" in shown else shown
        rows.append(
            f"<tr><td><code>{_text(parameter['name'])}</code><td>{_text(parameter['in'])}"
            f"{', required' if parameter.get('required') else ''}<td>{_text(_form(parameter['schema']))}"
            f"<td>{_text(parameter.get('description', ''))}</tr>"
        )
    if rows:
        parts.append(f"<table><tr><th>parameter<th>in<th>form<th>meaning</tr>{''.join(rows)}</table>")
    if "requestBody" in operation:
        content = operation["requestBody"]["content"]
        parts.append(f"<p>Body: {_schema_link(content) or 'bytes of any media type'}</p>")
        parts.append(_example(content))
    for status, answer in operation["responses"].items():
        if "content" in answer and int(status) < 400:
            parts.append(f"<p>{status}: {_schema_link(answer['content'])}</p>{_example(answer['content'])}")
    refused = [
        f'{status} <a href="#{_text(code)}">{_text(code)}</a>'
        for status, answer in operation["responses"].items()
        if int(status) >= _REFUSED
        for code in answer["description"].split(", ")
        if code in KINDS
    ]
    parts.append(f"<details><summary>Problems</summary><p>{', '.join(refused)}</p></details>")
    return "".join(parts)
