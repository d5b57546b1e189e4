"""Gives each provider of models the schemas that its published rules allow, and maps arguments back.

One schema that breaks a rule makes a provider refuse the whole request, with all its tools. So where a rule forbids
what a schema says, the translated schema allows more; the tool's own schema still checks the arguments that come back.

A *place* is a path of property names in the arguments (`Path`). A place is *open* if its schema allows any value.
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
MAX_OFFERED_BYTES: Final = 60_000  # of a translated schema
MAX_PATTERN_CHARS: Final = 500
MAX_BRANCHES: Final = 50  # of `allOf`, `anyOf` and `oneOf`
MAX_ALTERNATIVE_DEPTH: Final = 5  # of alternatives within alternatives
#: Bounds of a schema, tried until it is small enough: (levels of objects and lists, characters of a description).
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

#: Names of properties, the outermost first; `ITEM` is any item of a list, or any value of a map.
Path = tuple[str, ...]
ITEM: Final = ""


@dataclasses.dataclass(frozen=True)
class Provider:
    """The rules of one provider.

    Attributes:
        name: of the provider.
        property_name: what the names of properties must match.
        keywords: that a schema may have besides types, properties, items, choices and alternatives.
        is_typed: whether every schema must have exactly one type, and every object its properties. Any other value is
            then sent as JSON text, and a schema with `anyOf` has no other keyword.
        max_description_chars: of the description of a tool.
    """

    name: str
    property_name: re.Pattern[str] = re.compile(r"[A-Za-z0-9_.-]{1,64}")
    keywords: frozenset[str] = _COMMON_KEYWORDS
    is_typed: bool = False
    max_description_chars: int = 10_000


OPENAI: Final = Provider("openai", max_description_chars=1_024)
ANTHROPIC: Final = Provider("anthropic")
BEDROCK: Final = Provider("bedrock")
MCP_CLIENT: Final = Provider("mcp")  # a client with an unknown model: gets what all providers but Gemini accept
GEMINI: Final = Provider(
    "gemini", re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}"), frozenset({"format", "pattern", *_BOUNDS}), is_typed=True
)


@dataclasses.dataclass(frozen=True)
class Translation:
    """The schema of a tool as a provider accepts it.

    Attributes:
        schema: an object with properties, without references and without alternatives at its top.
        description: of the tool, with the alternatives that the schema no longer names. Never empty.
        names: changed name of a property → the tool's own name.
        texts: places where the model writes a value as JSON text.
        places: all places that have a schema. A property that has none belongs to a map.
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
        """Return the value at a place, with its keys and texts as the tool's own schema wants them."""
        if path in self.texts:
            return _read_json(value)
        if isinstance(value, list):
            return [self._restore(item, (*path, ITEM)) for item in value]
        if not isinstance(value, dict):
            return value
        restored = {}
        for key, item in value.items():
            name = self.names.get(key, key)
            property_path = (*path, name)
            restored[name] = self._restore(item, property_path if property_path in self.places else (*path, ITEM))
        return restored


def _read_json(value: object) -> object:
    """Decode JSON text. A text that is not JSON, and a value of another type, are returned as they are."""
    try:
        return msgspec.json.decode(value) if isinstance(value, str) else value
    except (msgspec.DecodeError, RecursionError):
        return value


def translate(tool: Tool, provider: Provider) -> Translation:
    """Translate the schema of a tool for a provider.

    References are written out, `allOf` is merged, alternatives at the top become optional properties, names that the
    provider forbids are changed, and places that are too deep or too large become open.
    """
    root = tool.parameters or {}
    texts: frozenset[Path] = frozenset()
    for depth, max_chars in ATTEMPTS:
        while True:
            builder = _Builder(provider, root, depth, max_chars, texts)
            schema = builder.build_root()
            # If a place is text in one alternative and typed in another, build again with text in all of them:
            # else nobody knows how to read its value.
            both_kinds = builder.texts & builder.typed
            if both_kinds <= texts:
                break
            texts = texts | both_kinds
        if builder.nodes <= MAX_NODES and len(msgspec.json.encode(schema)) <= MAX_OFFERED_BYTES:
            break
    else:  # no attempt was small enough
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
    """Say which arguments must be given together, if the schema has alternatives at its top; else return ""."""
    top = follow_reference(root, root)
    branches = [*as_list(top.get("anyOf")), *as_list(top.get("oneOf"))][:MAX_BRANCHES]
    choices = []
    for branch in branches:
        _, required = gather_properties(branch, root)
        choices.append(" and ".join(required))
    return f"Give one of: {'; '.join(dict.fromkeys(choices))}." if len(choices) > 1 and all(choices) else ""


def _clip(text: str, max_chars: int) -> str:
    """Cut a text to `max_chars`, with an ellipsis as its last character."""
    return text if len(text) <= max_chars else f"{text[: max(0, max_chars - 1)]}…"


class _Builder:
    """Builds the schema for a provider, within the bounds of one attempt.

    In the methods, `fields` are the keywords of a schema, `path` is its place, and `outer` has the references that were
    followed on the way to it, so that a recursive one is noticed.

    Attributes:
        names: changed name of a property → the tool's own name.
        texts: places where a value is written as JSON text.
        typed: places with a schema of their own, in at least one alternative.
        nodes: number of schemas so far.
    """

    def __init__(
        self, provider: Provider, root: Schema, max_depth: int, max_chars: int, texts: frozenset[Path]
    ) -> None:
        """Start with nothing built.

        Args:
            provider: its rules.
            root: schema of all arguments of the tool.
            max_depth: levels of objects and lists; deeper places become open.
            max_chars: of each description.
            texts: places that become open, although the provider could express them.
        """
        self._provider, self._root, self._max_depth, self._max_chars = provider, root, max_depth, max_chars
        self._forced_texts = texts
        self.names: dict[str, str] = {}
        self.texts: set[Path] = set()
        self.typed: set[Path] = set()
        self.nodes = 0

    def build_root(self) -> Schema:
        """Build the schema of all arguments, which has only `type`, `properties` and `required`."""
        properties, required = gather_properties(self._root)
        built = self._build_properties(properties, (), frozenset())
        required_names = [self._rename(name) for name in dict.fromkeys(required) if name in properties]
        return {"type": "object", "properties": built, **({"required": required_names} if required_names else {})}

    def _build_properties(self, properties: Mapping[str, object], path: Path, outer: frozenset[str]) -> Schema:
        """Build the schemas of properties, under the names that the provider accepts."""
        return {self._rename(name): self._build(node, (*path, name), outer) for name, node in properties.items()}

    def _rename(self, name: str) -> str:
        """Return a name that the provider accepts. A changed name ends with a hash, so that no two are the same."""
        if self._provider.property_name.fullmatch(name) and name not in self.names:
            return name
        plain = re.sub(r"[^A-Za-z0-9_]+", "_", name).strip("_")[:50]
        if not plain[:1].isalpha():
            plain = f"p_{plain}"
        changed = f"{plain}_{digest('property/1', name)[:8]}"
        self.names[changed] = name
        return changed

    def _build(self, node: object, path: Path, outer: frozenset[str]) -> Schema:
        """Build the schema at a place, from the tool's own schema there, `node`."""
        self.nodes += 1
        fields, outer = self._merge(node, outer)
        description = str(fields.get("description") or "")
        forms, has_null = self._list_forms(fields, outer)
        is_too_much = len(path) > self._max_depth or self.nodes > MAX_NODES
        if path in self._forced_texts or is_too_much or not forms:
            return self._build_open(path, description)
        built = [self._build_form(form, path, form_outer) for form, form_outer in forms]
        if not all(built):
            return self._build_open(path, description)
        self.typed.add(path)
        if self._provider.is_typed:
            return self._join_typed(built, has_null, description)
        return self._describe(_join_forms(built, has_null), description)

    def _join_typed(self, forms: list[Schema], has_null: bool, description: str) -> Schema:
        """Join alternatives for a provider that is typed: each one has a description, and says whether null is one."""
        nullable = {"nullable": True} if has_null else {}
        forms = [self._describe(form | nullable, str(form.get("description") or description)) for form in forms]
        return forms[0] if len(forms) == 1 else {"anyOf": forms}

    def _merge(self, node: object, outer: frozenset[str]) -> tuple[Schema, frozenset[str]]:
        """Follow the reference of a schema and merge its `allOf`.

        Returns:
            The keywords; `outer` with the references that were followed. A recursive reference stays as `$ref`.
        """
        fields = dict(as_object(node))
        ref = fields.get("$ref")
        if isinstance(ref, str):
            if ref in outer:
                return {"$ref": ref, "description": "Recursive: the same kind of value as one around it."}, outer
            outer = outer | {ref}
            fields = dict(follow_reference(fields, self._root))
        parts = as_list(fields.pop("allOf", None))[:MAX_BRANCHES]
        for part in parts:
            part_fields, part_outer = self._merge(part, outer)
            if "$ref" not in part_fields:
                fields, outer = _unite(fields, part_fields), part_outer
        return fields, outer

    def _list_forms(
        self, fields: Schema, outer: frozenset[str], depth: int = 0
    ) -> tuple[list[tuple[Schema, frozenset[str]]], bool]:
        """List the alternatives of a merged schema; a schema without `anyOf` and `oneOf` is its own alternative.

        Returns:
            (keywords, `outer`) of each alternative, null aside; whether null is one. Each has one type, or several if
            the provider accepts lists of types. The list is empty if an alternative has no type: then only an open
            schema will do.
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
            branch_fields, branch_outer = self._merge(branch, outer)
            branch_forms, branch_has_null = self._list_forms(_unite(branch_fields, base), branch_outer, depth + 1)
            has_null |= branch_has_null
            if "$ref" in branch_fields or not (branch_forms or branch_has_null) or len(forms) > MAX_BRANCHES:
                return [], has_null
            forms += branch_forms
        return forms, has_null

    def _split_types(self, fields: Schema) -> list[Schema]:
        """Split a schema by its types, without null; none if it has no type.

        If the provider accepts lists of types, they stay in one schema.
        """
        types = [kind for kind in _list_types(fields) if kind != "null"]
        if self._provider.is_typed:
            return [{**fields, "type": kind} for kind in types]
        return [{**fields, "type": types}] if types else []

    def _build_form(self, fields: Schema, path: Path, outer: frozenset[str]) -> Schema:
        """Build one alternative of a place; empty if only an open schema can express it."""
        types, is_typed = _list_types(fields), self._provider.is_typed  # exactly one type if `is_typed`
        built: Schema = {"type": types[0] if len(types) == 1 else types}
        built |= {key: fields[key] for key in fields if key in self._provider.keywords and _is_valid(key, fields[key])}
        if is_typed and built.get("format") not in _GEMINI_FORMATS.get(types[0], ()):
            built.pop("format", None)
        if "object" in types:
            if is_typed and not as_object(fields.get("properties")):  # any object: it is sent as JSON text
                return {}
            built |= self._build_object(fields, path, outer)
        if "array" in types:
            built["items"] = self._build(_list_items(fields), (*path, ITEM), outer)
        return self._add_choices(built, fields)

    def _build_object(self, fields: Schema, path: Path, outer: frozenset[str]) -> Schema:
        """Build the keywords of an object: `properties`, `required` and `additionalProperties`."""
        properties = as_object(fields.get("properties"))
        built: Schema = {"properties": self._build_properties(properties, path, outer)}
        required = [self._rename(str(name)) for name in as_list(fields.get("required")) if name in properties]
        if required:
            built["required"] = list(dict.fromkeys(required))
        additional = fields.get("additionalProperties")
        if self._provider.is_typed or not isinstance(additional, (Mapping, bool)):
            return built
        if isinstance(additional, Mapping) and additional:  # {}, True and False stay as they are
            additional = self._build(additional, (*path, ITEM), outer)
        return built | {"additionalProperties": additional}

    def _add_choices(self, built: Schema, fields: Schema) -> Schema:
        """Add the choices of a value. A provider that is typed accepts only texts; other choices are described."""
        choices = [fields["const"]] if "const" in fields else as_list(fields.get("enum"))
        if not choices:
            return built
        are_texts = built["type"] == "string" and all(isinstance(choice, str) and choice for choice in choices)
        if self._provider.is_typed and not are_texts:
            choices_text = ", ".join(msgspec.json.encode(choice).decode() for choice in choices[:MAX_BRANCHES])
            return built | {"description": f"{fields.get('description') or ''} One of: {choices_text}.".strip()}
        return built | {"enum": choices}

    def _build_open(self, path: Path, description: str) -> Schema:
        """Build the schema that allows any value. For a provider that is typed, the value is written as JSON text."""
        if not self._provider.is_typed:
            return self._describe({}, description)
        self.texts.add(path)
        return {"type": "string", "description": f"{_clip(description, self._max_chars)} {ANY_VALUE_NOTE}".strip()}

    def _describe(self, schema: Schema, description: str) -> Schema:
        """Add a description to a schema, cut to the bound of this attempt, unless it is empty."""
        text = _clip(description, self._max_chars) if self._max_chars else ""
        return {**schema, "description": text} if text else schema


def _join_forms(forms: list[Schema], has_null: bool) -> Schema:
    """Join the alternatives of a place, and null if `has_null`, for a provider that is not typed."""
    if len(forms) > 1:
        return {"anyOf": [*forms, {"type": "null"}] if has_null else forms}
    [form] = forms
    if has_null:
        form["type"] = [*_list_types(form), "null"]
        if "enum" in form and None not in form["enum"]:
            form["enum"] = [*form["enum"], None]
    return form


def _unite(one: Schema, other: Schema) -> Schema:
    """Unite two schemas that a value must both fit. If both have a keyword or a property, the first one's counts."""
    properties = {**as_object(other.get("properties")), **as_object(one.get("properties"))}
    required = [*as_list(one.get("required")), *as_list(other.get("required"))]
    united = {key: value for key, value in (("properties", properties), ("required", required)) if value}
    return {**other, **one, **united}


def _list_types(fields: Schema) -> list[str]:
    """List the types of a schema, without unknown ones. If it names none, its other keywords tell its type."""
    stated_type = fields.get("type")
    types = [str(kind).lower() for kind in (stated_type if isinstance(stated_type, list) else [stated_type])]
    if types := list(dict.fromkeys(kind for kind in types if kind in TYPES)):
        return types
    choices = [fields["const"]] if "const" in fields else as_list(fields.get("enum"))
    if choices and all(isinstance(choice, str) for choice in choices):
        return ["string"]
    return ["object"] if fields.get("properties") else ["array"] if fields.get("items") else []


def _list_items(fields: Schema) -> object:
    """Return the schema of the items of a list. Several schemas, one for each item, become alternatives."""
    schemas = [*as_list(fields.get("prefixItems")), *as_list(fields.get("items"))][:MAX_BRANCHES]
    if not schemas:
        return fields.get("items")
    return {"anyOf": schemas} if len(schemas) > 1 else schemas[0]


def _is_valid(key: str, value: object) -> bool:
    """Tell whether a keyword of `_COMMON_KEYWORDS` may have this value."""
    if key in ("title", "format"):
        return isinstance(value, str)
    if key == "pattern":
        return isinstance(value, str) and len(value) <= MAX_PATTERN_CHARS and _is_pattern(value)
    if key == "uniqueItems":
        return isinstance(value, bool)
    if key == "default":
        return True
    # All others are bounds, such as `minimum` and `maxLength`, and `multipleOf`.
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return False
    return key != "multipleOf" or value > 0


def _is_pattern(text: str) -> bool:
    """Tell whether a text is a regular expression, as far as Python's can tell."""
    try:
        re.compile(text)
    except (re.error, OverflowError, RecursionError):
        return False
    return True
