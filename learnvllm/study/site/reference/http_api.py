"""The HTTP API, from the OpenAPI schema that the server itself shows at /openapi.json."""

from __future__ import annotations

import json
import re
from typing import Any

from learnvllm.study.tables import code, table, text

Schema = dict[str, Any]


def page() -> str:
    """One section a route, one table for the fields of its body."""
    schema = openapi()
    routes = [
        (method.upper(), path, operation)
        for path, methods in schema["paths"].items()
        for method, operation in methods.items()
    ]
    overview = [
        (f"[{code(f'{method} {path}')}](#{anchor(method, path)})", text(summary(operation)))
        for method, path, operation in routes
    ]
    sections = "\n".join(section(*route, schema) for route in routes)
    return (
        "# HTTP API\n\n"
        "What `learnvllm serve` answers: OpenAI's API with vLLM's extra fields (upstream namesake: "
        "`vllm/entrypoints/openai/`). The same as a schema for programs: `GET /openapi.json`. A field that "
        "is not listed is refused by name, never ignored.\n\n"
        f"{table(('Route', 'What it does'), overview)}\n\n{sections}"
    )


def openapi() -> Schema:
    from fastapi.openapi.utils import get_openapi

    from learnvllm import __version__
    from learnvllm.serving.api_server import router

    return get_openapi(title="learnvllm", version=__version__, routes=router.routes)


def anchor(method: str, path: str) -> str:
    return re.sub(r"[^a-z0-9_]+", "-", f"{method}{path}".lower()).strip("-")


def summary(operation: Schema) -> str:
    return str(operation.get("description") or operation["summary"])


def section(method: str, path: str, operation: Schema, schema: Schema) -> str:
    parts = [
        f"## {code(f'{method} {path}')} {{ #{anchor(method, path)} }}\n",
        f"{text(summary(operation))}\n",
    ]
    body = operation.get("requestBody")
    if body:
        kind = resolve(body["content"]["application/json"]["schema"], schema)
        rows = [field(name, kind, schema) for name in kind["properties"]]
        parts.append(table(("Field", "Type", "Default", "Meaning"), rows) + "\n")
    return "\n".join(parts)


def field(name: str, kind: Schema, schema: Schema) -> tuple[str, ...]:
    spec = kind["properties"][name]
    default = "required" if name in kind.get("required", ()) else default_of(spec)
    return f"`{name}`", code(type_of(spec, schema)), default, text(spec.get("description", ""))


def default_of(spec: Schema) -> str:
    value = spec.get("default")
    return "" if value is None else code(json.dumps(value))


def type_of(spec: Schema, schema: Schema) -> str:
    """A JSON schema's type in a few words; `null` is left out, as it is the same as leaving the field out."""
    if "$ref" in spec:
        target = resolve(spec, schema)
        return str(target["title"]) if target.get("type") == "object" else type_of(target, schema)
    if "enum" in spec:
        return " | ".join(json.dumps(value) for value in spec["enum"])
    if "const" in spec:
        return json.dumps(spec["const"])
    if "anyOf" in spec:
        kinds = [type_of(one, schema) for one in spec["anyOf"] if one.get("type") != "null"]
        return " | ".join(dict.fromkeys(kinds)) or "null"
    if spec.get("type") == "array":
        return f"list of {type_of(spec.get('items', {}), schema)}"
    return str(spec.get("type", "any"))


def resolve(spec: Schema, schema: Schema) -> Schema:
    while "$ref" in spec:
        spec = schema["components"]["schemas"][spec["$ref"].rpartition("/")[2]]
    return spec
