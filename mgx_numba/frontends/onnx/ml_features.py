"""Feature preparation: scaling, normalisation, imputation, encoding."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ...core.types import Type
from ...errors import ParseError, ShapeError
from ...graph.instruction import Instruction
from .activation import above
from .builder import Builder, rank
from .hash_table import FOLD, FOLD_MASK, HashTable, hash_table
from .ml_scores import ML
from .node import Node
from .registry import register


@register("Scaler", domain=ML)
def scaler(g: Builder, node: Node, x: Instruction) -> Instruction:
    """Emit ``(x - offset) * scale`` in float32; offset and scale are common to all features or per feature."""
    y = g.convert(x, Type.float_type)
    offset, scale = node.get_floats("offset", ()), node.get_floats("scale", ())
    if offset:
        y = g.pointwise("sub", y, _per_feature(g, y, offset, "offset"))
    return g.pointwise("mul", y, _per_feature(g, y, scale, "scale")) if scale else g.op("identity", y)


def _per_feature(
    g: Builder, x: Instruction, values: Sequence[float], what: str, type: Type = Type.float_type
) -> Instruction:
    if len(values) == 1:
        return g.literal(np.asarray(values[0]), type)
    if rank(x) == 0 or (not x.shape.is_dynamic and x.shape.lens[-1] != len(values)):
        raise ShapeError(f"attribute {what!r} has {len(values)} elements, the input is {x.shape}")
    return g.literal(np.asarray(values), type)


@register("Normalizer", domain=ML)
def normalizer(g: Builder, node: Node, x: Instruction) -> Instruction:
    """Emit rows divided by their largest element, L1 norm or L2 norm, in float32; rows of norm 0 are unchanged."""
    kind = node.get_choice("norm", ("MAX", "L1", "L2"), "MAX")
    y = g.convert(x, Type.float_type)
    if rank(y) not in (1, 2):
        raise ParseError(f"the input has {rank(y)} dimensions, expected 1 or 2")
    axes = (rank(y) - 1,)
    if kind == "MAX":
        size = g.op("reduce_max", y, axes=axes)
    elif kind == "L1":
        size = g.op("reduce_sum", g.op("abs", y), axes=axes)
    else:
        size = g.op("sqrt", g.op("reduce_sum", g.op("mul", y, y), axes=axes))
    none = g.pointwise("equal", size, g.like(0, size))
    return g.pointwise("div", y, g.pointwise("where", none, g.like(1, size), size))


@register("Imputer", domain=ML)
def imputer(g: Builder, node: Node, x: Instruction) -> Instruction:
    """Replace elements equal to a value (or NaN) by the feature's imputed value."""
    if x.shape.type.is_floating:
        values: Sequence[float] = node.get_floats("imputed_value_floats", ())
        wanted = node.get_float("replaced_value_float", 0.0)
    else:
        values, wanted = node.get_ints("imputed_value_int64s", ()), node.get_int("replaced_value_int64", 0)
    if not values:
        raise ParseError(f"no imputed values for elements of type {x.shape.type.name}")
    missing = g.op("isnan", x) if math.isnan(wanted) else g.pointwise("equal", x, g.like(wanted, x))
    return g.pointwise("where", missing, _per_feature(g, x, values, "imputed_value", x.shape.type), x)


@register("Binarizer", domain=ML)
def binarizer(g: Builder, node: Node, x: Instruction) -> Instruction:
    """Emit 1 where the input exceeds ``threshold``, else 0, in the input's type."""
    threshold = node.get_float("threshold", 0.0)
    return g.convert(above(g, x, threshold), x.shape.type)


@register("FeatureVectorizer", domain=ML)
def feature_vectorizer(g: Builder, node: Node, *parts: Instruction) -> Instruction:
    """Concatenate inputs [N, F] (a vector is one feature) in float32.

    Each input is cut or zero-padded to its number of features in ``inputdimensions``.
    """
    counts = node.get_ints("inputdimensions", ())
    if not parts or (counts and len(counts) != len(parts)):
        raise ParseError(f"got {len(parts)} inputs and {len(counts)} dimensions")
    columns = []
    for position, part in enumerate(parts):
        x = g.convert(part, Type.float_type)
        x = g.unsqueeze(x, [1]) if rank(x) == 1 else x
        if rank(x) != 2:
            raise ParseError(f"input {position} has {rank(x)} dimensions, expected 1 or 2")
        width = g.lens(x)[1]
        wanted = counts[position] if counts else width
        if wanted > width:
            x = g.op("pad", x, pads=(0, 0, 0, wanted - width))
        columns.append(g.slice(x, 1, 0, wanted) if wanted < width else x)
    return g.op("concat", *columns, axis=1) if len(columns) > 1 else g.op("identity", columns[0])


@register("ArrayFeatureExtractor", domain=ML)
def array_feature_extractor(g: Builder, node: Node, x: Instruction, indices: Instruction) -> Instruction:
    """Emit the elements of the last axis at the flattened indices; a vector of data becomes a row."""
    if rank(x) == 0:
        raise ParseError("the data has no dimensions")
    x = g.unsqueeze(x, [0]) if rank(x) == 1 else x
    return g.op("gather", x, g.from_start(g.flat(indices)), axis=rank(x) - 1)


@register("OneHotEncoder", domain=ML)
def one_hot_encoder(g: Builder, node: Node, x: Instruction) -> Instruction:
    """Append an axis of float32 with 1 at the element's category.

    With ``zeros`` 0, an element of no category is an error in ONNX Runtime; here its row is zeros, too.
    """
    if x.shape.type is Type.string_type:
        texts = node.get_strs("cats_strings")
        whole, categories = _text_index(g, x, texts), g.literal(np.arange(len(texts)))
    else:
        whole, categories = g.convert(x, Type.int64_type), g.literal(node.int_array("cats_int64s"))
    found = g.pointwise("equal", g.unsqueeze(whole, [rank(x)]), categories)
    return g.convert(found, Type.float_type)


_KEYS = ("keys_floats", "keys_int64s", "keys_strings")
_VALUES: dict[str, tuple[str, float | int | str]] = {
    "values_floats": ("default_float", -0.0),
    "values_int64s": ("default_int64", -1),
    "values_strings": ("default_string", "_Unused"),
}
"""Attribute with the default value for each values attribute, and ONNX's default of that attribute."""


@register("LabelEncoder", domain=ML)
def label_encoder(g: Builder, node: Node, x: Instruction) -> Instruction:
    """Map each element to the value of its key; NaN is a key like any other.

    Elements without an equal key get the default. The last of equal keys counts.
    """
    if node.has("classes_strings"):
        return _category(g, x, node.get_strs("classes_strings"), None, node)
    keys, values = _label_keys(node), _label_values(node)
    if keys.size != values.size - 1:
        raise ParseError(f"{keys.size} keys, but {values.size - 1} values")
    if keys.dtype.hasobject is not (x.shape.type is Type.string_type):
        raise ParseError(f"the keys are of type {keys.dtype}, the input is {x.shape}")
    if keys.dtype.hasobject:
        return g.op("gather", g.literal(values), _text_index(g, x, keys), axis=0)
    return _looked_up(g, x, keys, values)


@register("CategoryMapper", domain=ML)
def category_mapper(g: Builder, node: Node, x: Instruction) -> Instruction:
    """Map each string to its integer, or each integer to its string."""
    return _category(g, x, node.get_strs("cats_strings"), node.get_ints("cats_int64s"), node)


def _category(g: Builder, x: Instruction, texts: list[str], numbers: list[int] | None, node: Node) -> Instruction:
    """Map strings to numbers (by default their positions) or back, with ``default_int64`` and ``default_string``."""
    keys = np.array(texts, object)
    values = np.array(range(len(texts)) if numbers is None else numbers, np.int64)
    if keys.size != values.size:
        raise ParseError(f"{keys.size} strings, but {values.size} integers")
    if x.shape.type is Type.string_type:
        rest = np.int64(node.get_int("default_int64", -1))
        return g.op("gather", g.literal(np.append(values, rest)), _text_index(g, x, keys), axis=0)
    other = np.array([node.get_str("default_string", "_Unused")], object)
    return _looked_up(g, x, values, np.concatenate([keys, other]))


def _text_index(g: Builder, x: Instruction, keys: Sequence[str] | np.ndarray) -> Instruction:
    """Emit the position of each string among the keys; the number of keys for unknown strings."""
    return g.op("string_index", x, g.literal(np.array(keys, object)))


def _label_keys(node: Node) -> np.ndarray:
    if node.has("keys_tensor"):
        return node.get_array("keys_tensor").ravel()
    for name in _KEYS:
        if node.has(name):
            return _list(node, name)
    raise ParseError(f"no keys, expected one of keys_tensor, {', '.join(_KEYS)}")


def _list(node: Node, name: str) -> np.ndarray:
    """Return a list attribute of floats, integers or strings, by the suffix of its name."""
    if name.endswith("_floats"):
        return node.float_array(name)
    return np.array(node.get_strs(name), object) if name.endswith("_strings") else node.int_array(name)


def _label_values(node: Node) -> np.ndarray:
    """Return the values, followed by the default."""
    if node.has("values_tensor"):
        values = node.get_array("values_tensor").ravel()
        given = node.get_array("default_tensor") if node.has("default_tensor") else None
        if given is None:
            other = np.array(["_Unused"], object) if values.dtype.hasobject else np.zeros(1, values.dtype) - 1
        else:
            other = given.ravel().astype(values.dtype)
        return np.concatenate([values, other])
    for name, (default, otherwise) in _VALUES.items():
        if node.has(name):
            values = _list(node, name)
            rest = node.get_str(default, otherwise) if isinstance(otherwise, str) else _number(node, default, otherwise)
            return np.append(values, np.array([rest], values.dtype))
    raise ParseError(f"no values, expected one of values_tensor, {', '.join(_VALUES)}")


def _looked_up(g: Builder, x: Instruction, keys: np.ndarray, values: np.ndarray) -> Instruction:
    """Emit the value of the last key that each element equals, the last of ``values`` where there is none."""
    given = keys.astype(x.shape.type.numpy)
    last = {key: k for k, key in enumerate(given.tolist()) if key == key}
    places = np.array(list(last.values()), np.int64)
    known = given[places]
    if x.shape.type.is_floating:  # 0 and -0 are equal
        zeros = known == 0
        known, places = np.append(known, -known[zeros]), np.append(places, places[zeros])
    rest = [values[-1:]]
    if places.size:
        table = hash_table(_bits(known))
        slot = _slot(g, x, table)
        own, lies = np.full(table.slots, known[0]), np.full(table.slots, keys.size)
        filled = table.slot(_bits(known))
        own[filled], lies[filled] = known, places
        found = g.pointwise("equal", g.op("gather", g.literal(own), slot, axis=0), x)
        place = g.pointwise("where", found, slot, g.literal(np.int64(table.slots)))
        rest.insert(0, values[lies])
    else:
        place = g.convert(g.pointwise("less", x, x), Type.int64_type)
    unordered = np.flatnonzero(given != given)
    if unordered.size:
        place = g.pointwise("where", g.op("isnan", x), g.literal(np.int64(sum(map(len, rest)))), place)
        rest.append(values[unordered[-1:]])
    return g.op("gather", g.literal(np.concatenate(rest)), place, axis=0)


def _bits(keys: np.ndarray) -> np.ndarray:
    """Return the bits of numbers, floating-point numbers as integers, in int64."""
    return keys.view(f"int{8 * keys.itemsize}").astype(np.int64) if keys.dtype.kind == "f" else keys.astype(np.int64)


def _slot(g: Builder, x: Instruction, table: HashTable) -> Instruction:
    """Emit the slot of each element, by its bits."""
    type = x.shape.type
    bits = g.op("bit_cast", x, target_type=Type[f"int{8 * type.size}_type"]) if type.is_floating else x

    def part(shift: int, count: int) -> Instruction:
        moved = g.pointwise("bitwise_shift_right", hashes, g.literal(np.int64(shift)))
        return g.pointwise("bitwise_and", moved, g.literal(np.int64(count - 1)))

    key = g.convert(bits, Type.int64_type)
    upper = g.pointwise("bitwise_shift_right", key, g.literal(np.int64(FOLD)))
    key = g.pointwise("bitwise_xor", key, g.pointwise("bitwise_and", upper, g.literal(np.int64(FOLD_MASK))))
    hashes = g.pointwise("mul", key, g.literal(np.int64(table.multiplier)))
    moves = g.op("gather", g.literal(table.moves), part(table.bucket_shift, len(table.moves)), axis=0)
    slot = g.pointwise("add", part(table.slot_shift, table.slots), moves)
    return g.pointwise("bitwise_and", slot, g.literal(np.int64(table.slots - 1)))


def _number(node: Node, name: str, default: float | int) -> float | int:
    return node.get_float(name, default) if isinstance(default, float) else node.get_int(name, default)


@register("TfIdfVectorizer")
def tf_idf_vectorizer(g: Builder, node: Node, x: Instruction) -> Instruction:
    """Emit the weighted counts of n-grams of integers or strings."""
    if x.shape.type is Type.string_type:
        texts = node.get_strs("pool_strings")
        known = {text: place for place, text in enumerate(dict.fromkeys(texts))}
        x, pool = _text_index(g, x, list(known)), np.array([known[text] for text in texts], np.int64)
    else:
        pool = node.int_array("pool_int64s", ())
    indexes = node.int_array("ngram_indexes")
    if indexes.min(initial=0) < 0:
        raise ParseError(f"attribute 'ngram_indexes' has {indexes.min()}, expected columns from 0 on")
    return g.op(
        "tf_idf",
        x,
        *map(g.literal, (pool, indexes, node.float_array("weights", ()))),
        mode=node.get_choice("mode", ("TF", "IDF", "TFIDF")),
        counts=tuple(node.get_ints("ngram_counts")),
        columns=int(indexes.max(initial=-1)) + 1,
        min_length=node.get_int("min_gram_length"),
        max_length=node.get_int("max_gram_length"),
        max_skip=node.get_int("max_skip_count"),
    )
