"""What a method declares about its models, and the check that a model is as declared.

A digest says that nobody changed a model after it was written. It does not say that the arrays fit together: whoever
wrote the model also wrote its digests. So a method declares its arrays, and a model is checked against that when it is
pulled, promoted and loaded (`recipes.registry.check_model`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, NamedTuple, Protocol, runtime_checkable

import msgspec
import numpy as np

from toolscout.arrays import Array, Arrays
from toolscout.errors import StoreError, UserError
from toolscout.home.models.model_store import Manifest, Model
from toolscout.search.pipeline import Floors

__all__ = ["ArrayRule", "DeclaringMethod", "ModelDeclaration", "check_arrays", "check_manifest", "check_model"]

#: First word of a rule's content → the `dtype.kind` of numpy that an array may have: float, int, unsigned int, bool.
DTYPE_KINDS: Final = {"numbers": "f", "places": "iu", "starts": "i", "integers": "iu", "flags": "b"}


class ArrayRule(NamedTuple):
    """The shape of one array, and what it contains.

    Attributes:
        axes: a name for each axis, such as `tools dim`. Equal names have equal lengths in all arrays of a model;
            `sets+1` and `tools+sets` are sums. `tools` is the number of tools of the fit, `dim` the number of
            dimensions of its encoder.
        content: numbers, integers, flags; `places AXIS`: positions on that axis; `starts AXIS`: the positions on it
            where the rows of a sparse table begin, ascending from 0 to the length of the axis.
    """

    axes: str
    content: str = "numbers"


class ModelDeclaration(NamedTuple):
    """What a model of a method must have.

    Attributes:
        arrays: name → rule, in an order in which each axis is named before it occurs in a sum.
        settings: names of settings that must not be None.
    """

    arrays: Mapping[str, ArrayRule]
    settings: tuple[str, ...] = ()


@runtime_checkable
class DeclaringMethod(Protocol):
    """A fitted method that says what its models contain. Models of other methods get the general checks."""

    def declare(self, options: msgspec.Struct, arrays: Arrays, /) -> ModelDeclaration:
        """Return what a model with these settings must have; `arrays`: its arrays, which are not checked yet.

        Raises:
            ValueError: for settings that no model can have.
        """


JournalRow = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class _JournalRows(msgspec.Struct):
    through: JournalRow
    until: JournalRow = 0


class _CommonValues(msgspec.Struct):
    """Values of a manifest that any model may have; see `learn.loop` and `search.abstain.decision`."""

    journal: _JournalRows | None = None
    floors: Floors | None = None
    sure: float | None = None


def check_manifest(folder: object, manifest: Manifest) -> None:
    """Check the values of a manifest that every model may have.

    Raises:
        StoreError: if one cannot be used.
    """
    try:
        floors = msgspec.convert(manifest.values, _CommonValues).floors
    except msgspec.ValidationError as error:
        raise _refuse(folder, f"its manifest has a value that is not valid: {error}") from None
    if floors is None:
        return
    n_budgets = len(floors.budgets)
    is_fit_valid = len(floors.fit) in (0, n_budgets)  # a model without floors of fit judges only the need
    if n_budgets == 0 or len(floors.need) != n_budgets or not is_fit_valid:
        raise _refuse(folder, "its floors do not belong to its budgets")


def check_model(model: Model, method: object, options_type: type[msgspec.Struct]) -> None:
    """Check settings and arrays of a model that was loaded.

    Raises:
        StoreError: if the method cannot use it; the message names what is wrong.
    """
    manifest = model.manifest
    check_manifest(model.folder, manifest)
    if len(model.tools) != manifest.n_tools:
        raise _refuse(model.folder, f"it names {len(model.tools):,} tools, and its manifest says {manifest.n_tools:,}")
    values = {name: entry.value for name, entry in manifest.settings.items() if name in options_type.__struct_fields__}
    try:
        options = msgspec.convert(values, options_type)
    except (msgspec.ValidationError, UserError) as error:
        raise _refuse(model.folder, f"a setting of it is not valid: {error}") from None
    for name, array in model.arrays.items():
        if array.dtype.kind == "f" and not _is_finite(array):
            raise _refuse(model.folder, f"its array {name!r:.80} has values that are no numbers")
    if not isinstance(method, DeclaringMethod):
        return
    lengths = {"tools": manifest.n_tools}
    if manifest.encoder is not None:
        lengths["dim"] = manifest.encoder.dim
    try:
        declared = method.declare(options, model.arrays)
        for name in declared.settings:
            if getattr(options, name) is None:
                raise ValueError(f"its setting {name!r} has no value")
        check_arrays(model.arrays, declared.arrays, lengths)
    except ValueError as error:
        raise _refuse(model.folder, str(error)) from None


def _is_finite(array: Array) -> bool:
    """Return whether all values are finite: only then is their sum finite, and a sum needs no mask of the array."""
    with np.errstate(all="ignore"):
        return bool(np.isfinite(array.sum(dtype=np.float64)))


def _refuse(folder: object, reason: str) -> StoreError:
    """Return the error for a model that cannot be used."""
    return StoreError(f"{folder}: the model cannot be used: {reason}. Fit it again.")


def check_arrays(arrays: Arrays, rules: Mapping[str, ArrayRule], lengths: Mapping[str, int]) -> None:
    """Check arrays against rules.

    Args:
        arrays: name → array.
        rules: name → rule.
        lengths: axis → its length, for axes whose length is known without the arrays.

    Raises:
        ValueError: for the first array that does not follow its rule.
    """
    known = dict(lengths)
    for name, rule in rules.items():
        if name not in arrays:
            raise ValueError(f"its array {name!r} is missing")
        array, axes = arrays[name], rule.axes.split()
        content, _, _ = rule.content.partition(" ")
        # uint64 is unsigned too, but numpy cannot use it for positions, and no position needs it.
        has_type = array.dtype.kind in DTYPE_KINDS[content] and array.dtype != np.uint64
        if not has_type or array.ndim != len(axes):
            raise ValueError(f"its array {name!r} has the type {array.dtype} and the shape {array.shape}")
        for axis, length in zip(axes, array.shape, strict=True):
            _check_axis(name, axis, length, known)
    for name, rule in rules.items():
        content, _, axis = rule.content.partition(" ")
        if axis and not _are_positions_valid(arrays[name], content, known[axis]):
            raise ValueError(f"its array {name!r} has positions outside of the {known[axis]:,} {axis}")


def _check_axis(name: str, axis: str, length: int, known: dict[str, int]) -> None:
    """Check the length of one axis of the array `name`, and note the length of a name that is new in `known`.

    The axis is a name, or a sum such as `tools+sets`, in which at most one name is not known yet.

    Raises:
        ValueError: if the axis does not have the length that the known names have together.
    """
    terms = axis.split("+")
    new_names = [term for term in terms if not term.isdigit() and term not in known]
    known_length = sum(int(term) if term.isdigit() else known[term] for term in terms if term not in new_names)
    if new_names:
        known[new_names[0]] = length - known_length
        is_valid = length >= known_length
    else:
        is_valid = length == known_length
    if not is_valid:
        raise ValueError(f"its array {name!r} has the length {length:,} where its {axis} are {known_length:,}")


def _are_positions_valid(array: Array, content: str, length: int) -> bool:
    """Return whether `places` are positions on an axis of this length, or `starts` divide it into rows."""
    if not array.size:
        return content == "places"  # `starts` of a table without rows still begin with 0
    if content == "places":
        return int(array.min()) >= 0 and int(array.max()) < length
    row_lengths = np.diff(array.astype(np.int64))
    return bool(array[0] == 0 and array[-1] == length and (row_lengths >= 0).all())
