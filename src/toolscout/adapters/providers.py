"""Gives each provider of models the schemas that its published rules allow, and maps arguments back.

One schema that breaks a rule makes a provider refuse the whole request, with all its tools. So a schema is loosened
where a rule forbids what it says; the tool's own schema still checks the arguments that come back.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Final

import msgspec

from toolscout.sources.reading import Schema, as_list, as_object
from toolscout.types import Tool, digest, follow_reference, gather_properties

__all__ = ["ANTHROPIC", "BEDROCK", "GEMINI", "MCP_CLIENT", "OPENAI", "Provider", "Translation", "translate"]

MAX_NODES: Final = 5_000  # schemas in one schema, once its references are written out
MAX_OFFERED_BYTES: Final = 60_000
MAX_PATTERN_CHARS: Final = 500
MAX_BRANCHES: Final = 50
MAX_ALTERNATIVE_DEPTH: Final = 5  # of alternatives within alternatives
#: (levels, characters of a text) of attempts at a schema that is too large.
ATTEMPTS: Final = ((10, 10_000), (10, 300), (5, 200), (3, 100), (2, 0), (1, 0))
TYPES: Final = ("object", "array", "string", "number", "integer", "boolean", "null")
_BOUNDS: Final = ("minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems")
_COMMON_KEYWORDS: Final = frozenset(
    {"title", "default", "format", "pattern", "multipleOf", "exclusiveMinimum", "exclusiveMaximum", "uniqueItems"}
    | {"minProperties", "maxProperties", *_BOUNDS}
)
_GEMINI_FORMATS: Final = {
    "string": ("date-time",), "number": ("float", "double"), "integer": ("int32", "int64"),
}  # fmt: skip
ANY_VALUE_NOTE: Final = "Any JSON value, written as JSON text."

Path = tuple[str, ...]  # names of properties; ITEM for the items of a list and the values of a map
ITEM: Final = ""


@dataclasses.dataclass(frozen=True)
class Provider:
    """The rules of one provider.

    Attributes:
        name: of the provider.
        property_name: what the names of properties must match.
        keywords: of a schema, beside types, properties, items, choices and alternatives.
        is_typed: whether every schema names one type and every object its properties, so that other values are sent
            as JSON text, and alternatives have nothing beside them.
        max_description_chars: of a tool.
    """

    name: str
    property_name: re.Pattern[str] = re.compile(r"[A-Za-z0-9_.-]{1,64}")
    keywords: frozenset[str] = _COMMON_KEYWORDS
    is_typed: bool = False
    max_description_chars: int = 10_000


OPENAI: Final = Provider("openai", max_description_chars=1_024)
ANTHROPIC: Final = Provider("anthropic")
BEDROCK: Final = Provider("bedrock")
MCP_CLIENT: Final = Provider("mcp")  # some client whose model is not known: what all but Gemini accept
GEMINI: Final = Provider(
    "gemini", re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}"), frozenset({"format", "pattern", *_BOUNDS}), is_typed=True
)


@dataclasses.dataclass(frozen=True)
class Translation:
    """The schema of a tool as a provider accepts it.

    Attributes:
        schema: an object with properties, without references and without alternatives at its top.
        description: of the tool, with the alternatives that the schema no longer names. Never empty.
        names: names of properties that were changed → the tool's own names.
        texts: places where a value is written as JSON text.
        places: all places that have a schema.
    """

    schema: Schema
    description: str
    names: Mapping[str, str]
    texts: frozenset[Path]
    places: frozenset[Path]

    def restore(self, arguments: Mapping[str, object]) -> dict[str, object]:
        """Return the arguments of a call as the tool's own schema names and writes them."""
        restored = self._restore(dict(arguments), ())
        return restored if isinstance(restored, dict) else {}

    def _restore(self, value: object, path: Path) -> object:
        """Return a value of the model with its keys and texts as the tool's own schema wants them.

        `path`: where it is.
        """
        if path in self.texts:
            return _read_json(value)
        if isinstance(value, list):
            return [self._restore(item, (*path, ITEM)) for item in value]
        if not isinstance(value, dict):
            return value
        restored = {}
        for key, item in value.items():
            name = self.names.get(key, key)
            place = (*path, name)
            restored[name] = self._restore(item, place if place in self.places else (*path, ITEM))
        return restored


def _read_json(value: object) -> object:
    """Read JSON text. A text that is none, and a value of another type, mean themselves."""
    try:
        return msgspec.json.decode(value) if isinstance(value, str) else value
    except (msgspec.DecodeError, RecursionError):
        return value


def translate(tool: Tool, provider: Provider) -> Translation:
    """Translate the schema of a tool for a provider.

    References are written out, `allOf` is merged, alternatives at the top become optional properties, names that the
    provider forbids are changed, and what is too deep or too large becomes open.
    """
    root = tool.parameters or {}
    texts: frozenset[Path] = frozenset()
    for depth, max_chars in ATTEMPTS:
        while True:
            builder = _Builder(provider, root, depth, max_chars, texts)
            schema = builder.build_root()
            if builder.texts & builder.typed <= texts:
                break
            texts = texts | (builder.texts & builder.typed)  # text in one alternative is text in all
        if builder.nodes <= MAX_NODES and len(msgspec.json.encode(schema)) <= MAX_OFFERED_BYTES:
            break
    else:
        schema = {"type": "object", "properties": {}}
    description = f"{tool.description or tool.name} {_describe_alternatives(root)}".strip()
    return Translation(
        schema,
        _clip(description, provider.max_description_chars),
        builder.names,
        frozenset(builder.texts),
        frozenset(builder.texts | builder.typed),
    )


def _describe_alternatives(root: Schema) -> str:
    """Say which arguments must be given together, where the schema has alternatives at its top."""
    top = follow_reference(root, root)
    branches = [*as_list(top.get("anyOf")), *as_list(top.get("oneOf"))][:MAX_BRANCHES]
    choices = [" and ".join(gather_properties(branch, root)[1]) for branch in branches]
    return f"Give one of: {'; '.join(dict.fromkeys(choices))}." if len(choices) > 1 and all(choices) else ""


def _clip(text: str, max_chars: int) -> str:
    return text if len(text) <= max_chars else f"{text[: max(0, max_chars - 1)]}…"


class _Builder:
    """Builds the schema for a provider within one allowance; see `Translation` for `names`, `texts` and `typed`."""

    def __init__(
        self, provider: Provider, root: Schema, max_depth: int, max_chars: int, texts: frozenset[Path]
    ) -> None:
        self._provider, self._root, self._max_depth, self._max_chars = provider, root, max_depth, max_chars
        self._forced = texts  # places whose value becomes a text, whether or not the provider could express it
        self.names: dict[str, str] = {}
        self.texts: set[Path] = set()
        self.typed: set[Path] = set()
        self.nodes = 0  # schemas so far

    def build_root(self) -> Schema:
        """Build the schema of all arguments: `type`, `properties` and `required` alone."""
        properties, required = gather_properties(self._root)
        built = self._build_properties(properties, (), frozenset())
        needed = [self._rename(name) for name in dict.fromkeys(required) if name in properties]
        return {"type": "object", "properties": built, **({"required": needed} if needed else {})}

    def _build_properties(self, properties: Mapping[str, object], path: Path, outer: frozenset[str]) -> Schema:
        return {self._rename(name): self._build(node, (*path, name), outer) for name, node in properties.items()}

    def _rename(self, name: str) -> str:
        """Return a name that the provider accepts. A changed one ends with a hash, so that no two are the same."""
        if self._provider.property_name.fullmatch(name) and name not in self.names:
            return name
        plain = re.sub(r"[^A-Za-z0-9_]+", "_", name).strip("_")[:50]
        changed = f"{plain if plain[:1].isalpha() else f'p_{plain}'}_{digest('property/1', name)[:8]}"
        self.names[changed] = name
        return changed

    def _build(self, node: object, path: Path, outer: frozenset[str]) -> Schema:
        """Build the schema at a place. `outer` holds the references around it."""
        self.nodes += 1
        fields, outer = self._merge(node, outer)
        description = str(fields.get("description") or "")
        forms, has_null = self._list_forms(fields, outer)
        is_too_much = len(path) > self._max_depth or self.nodes > MAX_NODES
        if path in self._forced or is_too_much or not forms:
            return self._open(path, description)
        built = [self._build_form(form, path, around) for form, around in forms]
        if not all(built):
            return self._open(path, description)
        self.typed.add(path)
        return (
            self._join_typed(built, has_null, description)
            if self._provider.is_typed
            else self._describe(_join_forms(built, has_null), description)
        )

    def _join_typed(self, forms: list[Schema], has_null: bool, description: str) -> Schema:
        """Join alternatives for a provider that wants nothing beside them: each is described, and may be null."""
        nullable = {"nullable": True} if has_null else {}
        forms = [self._describe(form | nullable, str(form.get("description") or description)) for form in forms]
        return forms[0] if len(forms) == 1 else {"anyOf": forms}

    def _merge(self, node: object, outer: frozenset[str]) -> tuple[Schema, frozenset[str]]:
        """Follow the reference of a schema and merge its `allOf`. A reference inside itself stays as `$ref`."""
        fields = dict(as_object(node))
        ref = fields.get("$ref")
        if isinstance(ref, str):
            if ref in outer:
                return {"$ref": ref, "description": "Recursive: the same kind of value as one around it."}, outer
            outer = outer | {ref}
            fields = dict(follow_reference(fields, self._root))
        parts = as_list(fields.pop("allOf", None))[:MAX_BRANCHES]
        for part in parts:
            inner, around = self._merge(part, outer)
            if "$ref" not in inner:
                fields, outer = _unite(fields, inner), around
        return fields, outer

    def _list_forms(
        self, fields: Schema, outer: frozenset[str], depth: int = 0
    ) -> tuple[list[tuple[Schema, frozenset[str]]], bool]:
        """List the alternatives of a merged schema with the references around each, and tell whether null is one.

        Each has a type, or one of several if the provider knows such. Without any, one of them has no type.
        """
        branches = [*as_list(fields.get("anyOf")), *as_list(fields.get("oneOf"))][:MAX_BRANCHES]
        has_null = fields.get("nullable") is True
        if not branches:
            has_null |= "null" in _list_types(fields) or None in as_list(fields.get("enum"))
            return [(form, outer) for form in self._split_types(fields)], has_null
        base = {key: value for key, value in fields.items() if key not in ("anyOf", "oneOf")}
        forms: list[tuple[Schema, frozenset[str]]] = []
        for branch in branches if depth < MAX_ALTERNATIVE_DEPTH else ():
            self.nodes += 1
            merged, around = self._merge(branch, outer)
            inner, is_null = self._list_forms(_unite(merged, base), around, depth + 1)
            has_null |= is_null
            if "$ref" in merged or not (inner or is_null) or len(forms) > MAX_BRANCHES:
                return [], has_null
            forms += inner
        return forms, has_null

    def _split_types(self, fields: Schema) -> list[Schema]:
        """Split a schema by its types but null. They stay together if the provider knows lists of types."""
        types = [kind for kind in _list_types(fields) if kind != "null"]
        kinds = types if self._provider.is_typed else [types] * bool(types)
        return [{**fields, "type": kind} for kind in kinds]

    def _build_form(self, fields: Schema, path: Path, outer: frozenset[str]) -> Schema:
        """Build one alternative of a place. Empty if only an open schema says it."""
        kinds, is_typed = _list_types(fields), self._provider.is_typed
        built: Schema = {"type": kinds[0] if len(kinds) == 1 else kinds}
        built |= {key: fields[key] for key in fields if key in self._provider.keywords and _has_shape(key, fields[key])}
        if is_typed and built.get("format") not in _GEMINI_FORMATS.get(kinds[0], ()):
            built.pop("format", None)
        if "object" in kinds:
            if is_typed and not as_object(fields.get("properties")):
                return {}
            built |= self._build_object(fields, path, outer)
        if "array" in kinds:
            built["items"] = self._build(_list_items(fields), (*path, ITEM), outer)
        return self._add_choices(built, fields)

    def _build_object(self, fields: Schema, path: Path, outer: frozenset[str]) -> Schema:
        """Build the keywords of an object: its properties, those that are required, and the values of others."""
        properties = as_object(fields.get("properties"))
        built: Schema = {"properties": self._build_properties(properties, path, outer)}
        required = [self._rename(str(name)) for name in as_list(fields.get("required")) if name in properties]
        built |= {"required": list(dict.fromkeys(required))} if required else {}
        additional = fields.get("additionalProperties")
        if self._provider.is_typed or not isinstance(additional, (Mapping, bool)):
            return built
        is_schema = isinstance(additional, Mapping) and bool(additional)
        return built | {
            "additionalProperties": self._build(additional, (*path, ITEM), outer) if is_schema else additional
        }

    def _add_choices(self, built: Schema, fields: Schema) -> Schema:
        """Add the choices of a value. A provider that knows choices of text alone is told others in words."""
        choices = [fields["const"]] if "const" in fields else as_list(fields.get("enum"))
        if not choices:
            return built
        are_texts = built["type"] == "string" and all(isinstance(choice, str) and choice for choice in choices)
        if self._provider.is_typed and not are_texts:
            choices_text = ", ".join(msgspec.json.encode(choice).decode() for choice in choices[:MAX_BRANCHES])
            return built | {"description": f"{fields.get('description') or ''} One of: {choices_text}.".strip()}
        return built | {"enum": choices}

    def _open(self, path: Path, description: str) -> Schema:
        """Return the schema that any value fits."""
        self.texts |= {path} if self._provider.is_typed else set()
        if not self._provider.is_typed:
            return self._describe({}, description)
        return {"type": "string", "description": f"{_clip(description, self._max_chars)} {ANY_VALUE_NOTE}".strip()}

    def _describe(self, schema: Schema, description: str) -> Schema:
        text = _clip(description, self._max_chars) if self._max_chars else ""
        return {**schema, "description": text} if text else schema


def _join_forms(forms: list[Schema], has_null: bool) -> Schema:
    """Join the alternatives of a place, with null if it is one."""
    if len(forms) > 1:
        return {"anyOf": [*forms, {"type": "null"}] if has_null else forms}
    form = forms[0]
    if has_null:
        form["type"] = [*_list_types(form), "null"]
        form |= {"enum": [*form["enum"], None]} if None not in form.get("enum", [None]) else {}
    return form


def _unite(one: Schema, other: Schema) -> Schema:
    """Unite two schemas that must both hold. Of what they disagree about, the first counts."""
    properties = {**as_object(other.get("properties")), **as_object(one.get("properties"))}
    required = [*as_list(one.get("required")), *as_list(other.get("required"))]
    named = {key: value for key, value in (("properties", properties), ("required", required)) if value}
    return {**other, **one, **named}


def _list_types(fields: Schema) -> list[str]:
    """List the types of a schema, in JSON Schema's words; those that its keywords need if it names none."""
    stated_type = fields.get("type")
    types = [str(kind).lower() for kind in (stated_type if isinstance(stated_type, list) else [stated_type])]
    if types := list(dict.fromkeys(kind for kind in types if kind in TYPES)):
        return types
    choices = [fields["const"]] if "const" in fields else as_list(fields.get("enum"))
    if choices and all(isinstance(choice, str) for choice in choices):
        return ["string"]
    return ["object"] if fields.get("properties") else ["array"] if fields.get("items") else []


def _list_items(fields: Schema) -> object:
    """Return the schema of the items of a list. A list of schemas, one for each item, becomes alternatives."""
    rows = [*as_list(fields.get("prefixItems")), *as_list(fields.get("items"))][:MAX_BRANCHES]
    return {"anyOf": rows} if len(rows) > 1 else rows[0] if rows else fields.get("items")


def _has_shape(key: str, value: object) -> bool:
    """Return whether the value of a keyword is one that it may have."""
    if key in ("title", "format"):
        return isinstance(value, str)
    if key == "pattern":
        return isinstance(value, str) and len(value) <= MAX_PATTERN_CHARS and _is_pattern(value)
    if key == "uniqueItems":
        return isinstance(value, bool)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return key == "default" or (is_number and (key != "multipleOf" or value > 0))  # type: ignore[operator]


def _is_pattern(text: str) -> bool:
    try:
        re.compile(text)
    except (re.error, OverflowError, RecursionError):
        return False
    return True
