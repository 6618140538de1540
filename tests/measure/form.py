"""The page of the form of a benchmark's JSON: ``python -m tests.measure.form`` writes it anew."""

from __future__ import annotations

import ast
import inspect
from typing import TYPE_CHECKING, Any

from streamrec.measure import figures
from tests.pages import DOCS

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = DOCS / "reference" / "benchmark.md"
HEAD = """\
# JSON of a benchmark

`streamrec bench --json` prints one object, [`Figures`](#figures). Rates are bytes or records a
second, times are seconds, and `null` stands for figures that were not measured. `version` is the
version of the form. Names may be added to the form; if a name is removed or changes its meaning,
the version changes.
[Comparing](../how-to/read-a-benchmark.md#compare-two) takes two such objects.
"""
PLAIN = {"integer": "whole number", "number": "number", "string": "text", "null": "`null`"}
MANY = {"integer": "whole numbers", "number": "numbers", "string": "texts"}


def page() -> str:
    """Return the page, as the models and the docstrings of their fields say it."""
    schema = figures.Figures.model_json_schema()
    models = schema["$defs"] | {"Figures": schema}
    explained = dict(_docstrings())
    ordered = sorted(models, key=lambda name: (name != "Figures", list(explained).index(name)))
    return HEAD + "".join(_section(name, models, explained[name]) for name in ordered)


def _section(name: str, models: dict[str, Any], explained: dict[str, str]) -> str:
    head = (
        f"\n## {name}\n\n{models[name]['description']}\n\n| key | type | holds |\n|---|---|---|\n"
    )
    rows = (
        f"| `{key}` | {_type(value)} | {explained.get(key) or _meaning(value, models)} |\n"
        for key, value in models[name]["properties"].items()
    )
    return head + "".join(rows).replace("|  |", "| |")


def _meaning(value: dict[str, Any], models: dict[str, Any]) -> str:
    """Return what the model of a field is."""
    choices = [value, *value.get("anyOf", [])]
    found = [choice["$ref"].rpartition("/")[2] for choice in choices if "$ref" in choice]
    return str(models[found[0]]["description"]) if found else ""


def _type(value: dict[str, Any]) -> str:
    if "anyOf" in value:
        return " or ".join(map(_type, value["anyOf"]))
    if "$ref" in value:
        return _link(value)
    if "const" in value:
        return f"`{value['const']}`"
    if "enum" in value:
        return ", ".join(f"`{choice}`" for choice in value["enum"])
    if value.get("type") == "array":
        return f"list of {_many(value['items'])}"
    if value.get("type") == "object":
        inner = value["additionalProperties"]
        return f"{'values' if inner is True else _many(inner)} by name"
    return PLAIN.get(value.get("type", ""), "any")


def _many(value: dict[str, Any]) -> str:
    return _link(value) if "$ref" in value else MANY[value["type"]]


def _link(value: dict[str, Any]) -> str:
    name = value["$ref"].rpartition("/")[2]
    return f"[`{name}`](#{name.lower()})"


def _docstrings() -> Iterator[tuple[str, dict[str, str]]]:
    """Yield each class of the module, and the docstrings below its fields."""
    for node in ast.parse(inspect.getsource(figures)).body:
        if isinstance(node, ast.ClassDef):
            yield node.name, dict(_fields(node))


def _fields(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for field, text in zip(node.body, node.body[1:], strict=False):
        if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
            continue
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            words = " ".join(str(text.value.value).split()).replace("``", "`")
            yield field.target.id, words.replace("`None`", "`null`").replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page())
