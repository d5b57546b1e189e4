"""Checks arguments of calls against the schemas of tools, and explains what is wrong with them."""

from __future__ import annotations

import functools
import itertools
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from toolscout.errors import find_close
from toolscout.types import Tool
from toolscout_gateway.text import clip, make_plain, quote

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError  # type: ignore[import-untyped]

__all__ = ["Validators"]

MAX_FAULTS: Final = 5
MAX_VALUE_CHARS: Final = 80  # of the value that was found, in a message
MAX_NAMED_CHOICES: Final = 24  # valid values or names in a message
MAX_CHOICES_CHARS: Final = 400
MAX_KEYWORD_CHARS: Final = 120  # of what a keyword of the schema demands
MAX_CACHED_VALIDATORS: Final = 1024
MAX_VALIDATION_STEPS: Final = 20_000  # of one validation: a short schema can take years to evaluate
MAX_VALIDATION_S: Final = 1.0  # looked at before each step
TOO_MUCH_TO_CHECK: Final = "the arguments: they are too large to be checked: send less at once"
MAX_QUICK_STEPS: Final = 200  # of a validation for which all other requests wait
MAX_QUICK_SCHEMA_CHARS: Final = 4_096
MAX_QUICK_ARGUMENT_BYTES: Final = 2_048
NAMED_SCHEMAS: Final = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
LISTED_SCHEMAS: Final = ("anyOf", "oneOf", "allOf", "prefixItems")
SINGLE_SCHEMAS: Final = (
    *("items", "additionalProperties", "additionalItems", "not", "contains", "propertyNames", "if", "then", "else"),
    *("unevaluatedItems", "unevaluatedProperties"),
)
NUMBERS: Final = (
    *("multipleOf", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minLength", "maxLength"),
    *("minItems", "maxItems", "minProperties", "maxProperties", "minContains", "maxContains"),
)
TYPE_NAMES: Final = ("object", "array", "string", "number", "integer", "boolean", "null")
#: Keywords whose one step can take long, or can lead to further steps that are not counted.
SLOW_KEYWORDS: Final = ('"uniqueItems"', '"unevaluated', '"$ref"', '"$dynamicRef"', '"$recursiveRef"')
#: Keywords beside which `unevaluatedProperties` depends on further schemas. The library follows these uncounted.
IN_PLACE_KEYWORDS: Final = frozenset(
    ("$ref", "$dynamicRef", "$recursiveRef", "allOf", "anyOf", "oneOf", "if", "dependentSchemas",
     "additionalProperties")
)  # fmt: skip
Check = Callable[..., Any]  # of a keyword, as jsonschema calls it


class Validator:
    """A compiled schema, which one thread uses at a time.

    Attributes:
        is_quick: whether one step of it is quick.
        left: steps that the present validation may take.
        ends: when it ends, on the clock of `time.monotonic`.
        compiled: the validator of jsonschema. None: there is no schema, or it is not usable.
        lock: held during a validation.
    """

    def __init__(self, schema: dict[str, object] | None) -> None:
        encoded = _encode_json(schema)
        self.is_quick = len(encoded) <= MAX_QUICK_SCHEMA_CHARS and not any(word in encoded for word in SLOW_KEYWORDS)
        self.left, self.ends = 0, 0.0
        self.lock = threading.Lock()
        self.compiled = self._compile(schema) if schema else None

    def find_errors(self, arguments: Mapping[str, Any], most: int) -> tuple[list[ValidationError], bool]:
        """Return the first `most` faults, and whether the validation came to its end.

        An invalid schema, or one that cannot be evaluated in a bounded number of steps, does not block the call.
        """
        errors: list[ValidationError] = []
        if self.compiled is None:
            return errors, False
        with self.lock:
            self.left, self.ends = MAX_VALIDATION_STEPS, time.monotonic() + MAX_VALIDATION_S
            try:
                errors.extend(itertools.islice(self.compiled.iter_errors(dict(arguments)), most))  # keeps what came
            except Exception:  # an untrusted schema may raise anything
                return errors, False
        return errors, True

    def _compile(self, schema: dict[str, Any]) -> Any:
        """Compile a schema without patterns, which could run for ever. None if it is not usable."""
        from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
        from jsonschema.validators import extend, validator_for  # type: ignore[import-untyped]
        from referencing import Registry

        def skip_keyword(*_: object) -> None:
            return None

        try:
            draft = validator_for(schema, default=Draft202012Validator)
            changes: dict[str, Check] = {"pattern": skip_keyword, "patternProperties": skip_keyword}
            changes["uniqueItems"] = _find_repeated
            changes["unevaluatedItems"] = skip_keyword
            changes["unevaluatedProperties"] = functools.partial(_find_unevaluated, draft.VALIDATORS)
            if b'"patternProperties"' in msgspec.json.encode(schema):  # these patterns may allow any name
                changes["additionalProperties"] = changes["unevaluatedProperties"] = skip_keyword
            keywords = {name: self._count_steps(changes.get(name, check)) for name, check in draft.VALIDATORS.items()}
            return extend(draft, keywords)(_copy_usable(schema), registry=Registry())
        except Exception:  # the schema is untrusted here too
            return None

    def _count_steps(self, check: Check) -> Check:
        """Wrap the check of a JSON Schema keyword so that each use counts as a step."""

        def step(*arguments: object) -> object:
            self.left -= 1
            if self.left < 0 or time.monotonic() > self.ends:
                raise ValueError("too many steps")
            return check(*arguments)

        return step


def _copy_usable(schema: object) -> object:
    """Copy a schema without `$schema`, at which jsonschema would go on with keywords that nobody counts.

    The metaschemas are not used for the check, because they compare the items of a list in pairs.

    Raises:
        ValueError: if a keyword has a value of another type than its own.
    """
    if isinstance(schema, bool):
        return schema
    if not isinstance(schema, dict):
        raise ValueError("no schema")
    copied = {key: value for key, value in schema.items() if key != "$schema"}
    for key, value in copied.items():
        if key in NAMED_SCHEMAS:
            copied[key] = {name: _copy_usable(inner) for name, inner in value.items()}
        elif key in LISTED_SCHEMAS or (key == "items" and isinstance(value, list)):
            copied[key] = [_copy_usable(inner) for inner in value]
        elif key in SINGLE_SCHEMAS:
            copied[key] = _copy_usable(value)
        elif key in NUMBERS and (not isinstance(value, (int, float)) or (key == "multipleOf" and value <= 0)):
            raise ValueError(f"{key} without a number")
        elif key in ("required", "enum", "type") and not _is_list_for(key, value):
            raise ValueError(f"{key} without a list")
    return copied


def _is_list_for(key: str, value: object) -> bool:
    """Return whether a value is a list that `required`, `enum` or `type` may have; a type may be one text."""
    if not isinstance(value, list):
        return key == "type" and value in TYPE_NAMES
    return key == "enum" or all(isinstance(name, str) and (key != "type" or name in TYPE_NAMES) for name in value)


def _find_repeated(_: object, is_wanted: object, values: object, __: object) -> Iterator[Exception]:
    """Check `uniqueItems` in time that grows with the size of the list alone. The library's grows with its square."""
    from jsonschema import ValidationError

    distinct = {msgspec.json.encode(value, order="sorted") for value in values} if isinstance(values, list) else ()
    if is_wanted and isinstance(values, list) and len(distinct) < len(values):
        yield ValidationError("has values that are the same")


def _find_unevaluated(checks: Mapping[str, Check], *arguments: Any) -> Iterator[Exception]:
    """Check `unevaluatedProperties` where it means the same as `additionalProperties`, and nowhere else.

    The library's checks of `unevaluatedProperties` and `unevaluatedItems` take time that grows exponentially with the
    references of a schema, or with the square of a list.

    Args:
        checks: keyword → the library's check.
        arguments: of a check: the library's validator, the keyword's value, the instance, and the schema.
    """
    *_, schema = arguments
    if not IN_PLACE_KEYWORDS & schema.keys():
        yield from checks["additionalProperties"](*arguments)


class Validators:
    """The compiled schemas of the tools that were called last."""

    def __init__(self) -> None:
        # fingerprint of a tool → validator, the oldest first
        self._validators: OrderedDict[str, Validator] = OrderedDict()
        self._lock = threading.Lock()

    def accepts_at_once(self, tool: Tool, arguments: Mapping[str, object]) -> bool:
        """Return whether a validation of few steps finds no fault. False also means that it would take more.

        It needs no thread. Arguments that it does not accept are checked in one by `explain_faults`.
        """
        validator = self._validators.get(tool.fingerprint)
        if validator is None or not validator.is_quick:
            return False
        if not validator.lock.acquire(blocking=False):  # a thread is at a longer validation
            return False
        try:
            if len(msgspec.json.encode(arguments)) > MAX_QUICK_ARGUMENT_BYTES:
                return False
            if validator.compiled is None:
                return True
            validator.left, validator.ends = MAX_QUICK_STEPS, time.monotonic() + MAX_VALIDATION_S
            return next(iter(validator.compiled.iter_errors(dict(arguments))), None) is None
        except Exception:  # an untrusted schema may raise anything, and too many steps do
            return False
        finally:
            validator.lock.release()

    def explain_faults(self, tool: Tool, arguments: Mapping[str, object], *, must_end: bool = False) -> list[str]:
        """Explain the first five faults of the arguments, a sentence each. Empty if there are none.

        Patterns are left to the tool, because a malicious pattern could run for ever. `must_end`: a validation that
        takes too many steps is a fault too.
        """
        errors, has_ended = self.get(tool).find_errors(arguments, MAX_FAULTS)
        faults = list(dict.fromkeys(_explain_fault(error) for error in errors))
        return [TOO_MUCH_TO_CHECK] if must_end and not has_ended and not faults else faults

    def get(self, tool: Tool) -> Validator:
        """Return the compiled schema of a tool."""
        with self._lock:
            validator = self._validators.get(tool.fingerprint)
            if validator is not None:
                self._validators.move_to_end(tool.fingerprint)
                return validator
        validator = Validator(tool.parameters)
        with self._lock:
            self._validators[tool.fingerprint] = validator
            while len(self._validators) > MAX_CACHED_VALIDATORS:
                self._validators.popitem(last=False)
        return validator


def _explain_fault(error: Any) -> str:
    """Explain one fault: the parameter, what was expected, what was found, and the nearest valid name."""
    where = ".".join(map(str, error.absolute_path))
    subject = f"parameter {where!r}" if where else "the arguments"
    if error.validator == "required":
        return _explain_missing(error, where)
    if error.validator in ("additionalProperties", "unevaluatedProperties"):
        return f"{subject}: {_explain_extra(error)}"
    value = quote(error.instance) if isinstance(error.instance, str) else _encode_json(error.instance)
    value = clip(make_plain(value), MAX_VALUE_CHARS)
    if error.validator == "type":
        return f"{subject}: expected {_join_types(error.validator_value)}, found {value}"
    if error.validator == "enum":
        near = find_close(str(error.instance), [str(choice) for choice in error.validator_value])
        named = error.validator_value[:MAX_NAMED_CHOICES]
        choices = clip(", ".join(map(_encode_json, named)), MAX_CHOICES_CHARS)
        hint = f": did you mean {near[0]!r}?" if near else ""
        return f"{subject}: expected one of {choices}, found {value}{hint}"
    limit = clip(make_plain(_encode_json(error.validator_value)), MAX_KEYWORD_CHARS)
    return f"{subject}: expected {error.validator} {limit}, found {value}"


def _explain_missing(error: Any, where: str) -> str:
    """Name the required arguments that are not there, each with an unknown argument that may mean it."""
    missing = [name for name in error.validator_value if name not in error.instance]
    unused = [name for name in error.instance if name not in error.schema.get("properties", {})]
    parts = []
    for name in missing[:MAX_FAULTS]:
        near = find_close(name, unused)
        parts.append(f"{name!r}" + (f" (is that what {near[0]!r} means?)" if near else ""))
    inside = f" in {where!r}" if where else ""
    return f"expected the required {', '.join(parts)}{inside}, found none"


def _explain_extra(error: Any) -> str:
    """Name the arguments that the tool's schema does not allow, each with the nearest allowed name."""
    allowed = error.schema.get("properties", {})
    extra = [name for name in error.instance if name not in allowed]
    parts = []
    for name in extra[:MAX_FAULTS]:
        near = find_close(str(name), [*allowed])
        parts.append(f"{name!r}" + (f" (did you mean {near[0]!r}?)" if near else ""))
    named = ", ".join(map(str, [*allowed][:MAX_NAMED_CHOICES])) or "no names"
    return f"expected one of {named}, found {', '.join(parts)}"


def _join_types(value: object) -> str:
    return " or ".join(map(str, value)) if isinstance(value, list) else str(value)


def _encode_json(value: object) -> str:
    try:
        return msgspec.json.encode(value).decode()
    except (TypeError, ValueError):
        return repr(value)
