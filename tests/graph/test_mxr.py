"""Saving and loading programs: nothing is lost, and a damaged file gives one clear error."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest

from mgx_numba.core.argument import Argument
from mgx_numba.core.shape import DynamicDimension, Shape
from mgx_numba.core.types import Type
from mgx_numba.errors import FormatError, OptionError
from mgx_numba.graph.checksums import CHECKSUMS
from mgx_numba.graph.mxr import load_argument, load_buffer, load_program, save_argument, save_buffer, save_program
from mgx_numba.graph.origin import Origin
from mgx_numba.graph.program import Program
from mgx_numba.graph.validate import validate
from mgx_numba.graph.wire import Decoder, pack

from ..mutation.trees import file_tree

FORMATS = ("msgpack", "json")
STORED = [t for t in Type if t not in (Type.tuple_type, Type.sequence_type, Type.optional_type, Type.map_type)]


def bits(shape: Shape, seed: int) -> Argument:
    """Every bit pattern that fits the element space: NaN payloads, infinities, denormals; strings of any letters."""
    rng = np.random.default_rng(seed)
    if shape.type is Type.string_type:
        texts = ["".join(map(chr, rng.integers(0, 0xD800, 3))) for _ in range(shape.element_space)]
        return Argument.from_flat(shape, np.array(texts, object))
    if shape.type is Type.bool_type:
        flat = rng.integers(0, 2, shape.element_space).astype(bool)
    else:
        flat = np.frombuffer(rng.bytes(shape.bytes), shape.type.numpy)
    return Argument.from_flat(shape, flat)


def stored(value: Argument) -> bytes | list[str]:
    """All of a tensor's bits, or its strings."""
    return value.tolist() if value.shape.type.holds_objects else value.numpy().tobytes()


def convolution_program() -> Program:
    program = Program()
    main = program.main
    x = main.add_parameter("x", Shape(Type.float_type, (1, 3, 8, 8)))
    w = main.add_literal(bits(Shape(Type.float_type, (4, 3, 3, 3)), 1))
    low, high = (main.add_literal(Argument.from_array(np.float32(v))) for v in (0, np.inf))
    y = main.add_instruction("convolution", [x, w], padding=(1, 1), stride=(2, 2))
    y.debug_symbols = ("conv1", "relu1")
    y.normalized = True
    bounds = [main.add_instruction("multibroadcast", [b], out_lens=(1, 4, 4, 4)) for b in (low, high)]
    y = main.add_instruction("clip", [y, *bounds])
    y = main.add_instruction("pad", [y], pads=(0, 0, 1, 1, 0, 0, 1, 1), value=-np.inf)
    main.add_return([main.add_instruction("convert", [y], target_type=Type.bf16_type)])
    return program


def branching_program() -> Program:
    """A branch that captures a value of the main module, and a module that is used twice."""
    program = Program()
    main = program.main
    condition = main.add_parameter("cond", Shape(Type.bool_type))
    x = main.add_parameter("x", Shape(Type.float_type, (2, 3)))
    y = main.add_instruction("relu", [x])
    branches = []
    for name, op in (("If_0_if", "exp"), ("If_0_else", "neg")):
        branch = program.create_module(name)
        branch.add_return([branch.add_instruction(op, [y])])
        branches.append(branch)
    body = program.create_module("main:pointwise0")
    inner = body.add_parameter("x0", Shape(Type.float_type))
    body.add_return([body.add_instruction("sqrt", [inner])])
    z = main.add_instruction("if", [condition], branches)
    z = main.add_instruction("get_tuple_elem", [z], index=0) if z.shape.sub_shapes else z
    for _ in range(2):
        z = main.add_instruction("pointwise", [z], [body])
    main.add_return([z, y])
    return program


def dynamic_program() -> Program:
    program = Program()
    dims = [DynamicDimension(1, 4, frozenset({2, 4})), 3]
    x = program.main.add_parameter("x", Shape.dynamic(Type.half_type, dims))
    fixed = program.main.add_parameter("fixed", Shape(Type.half_type, (2, 3)).to_dynamic())
    program.main.add_return([program.main.add_instruction("relu", [x]), fixed])
    return program


def literal_program() -> Program:
    """Literals of every element type; broadcast, transposed, scalar, empty, with gaps and in a tuple."""
    program = Program()
    results = [program.main.add_literal(bits(Shape(t, (5, 7)), int(t))) for t in STORED]
    f = Type.float_type
    shapes = [
        Shape(f, (3, 400), (0, 1)),
        Shape(f, (4, 6), (1, 4)),
        Shape(f),
        Shape(f, ()),
        Shape(f, (0, 3)),
        Shape(f, (3, 2), (8, 1)),
        Shape(f, (300,)),
    ]
    results += [program.main.add_literal(bits(s, k)) for k, s in enumerate(shapes)]
    program.main.add_literal(Argument.from_tuple([bits(Shape(f, (2,)), 1), bits(Shape(Type.int8_type, (3,)), 2)]))
    program.main.add_return(results)
    return program


PROGRAMS = (convolution_program, branching_program, dynamic_program, literal_program)


def leaves(argument: Argument) -> list[Argument]:
    return [leaf for member in argument.sub for leaf in leaves(member)] if argument.sub else [argument]


def assert_same(loaded: Program, saved: Program) -> None:
    assert str(loaded) == str(saved)
    validate(loaded)
    assert list(loaded.parameter_shapes()) == list(saved.parameter_shapes())
    for mine, theirs in zip(loaded.reachable_modules(), saved.reachable_modules()):
        for a, b in zip(mine, theirs):
            assert (a.op, a.shape, a.debug_symbols, a.normalized) == (
                b.op,
                b.shape,
                b.debug_symbols,
                b.normalized,
            )
            if b.literal is not None:
                assert a.literal is not None
                for x, y in zip(leaves(a.literal), leaves(b.literal)):
                    assert x.shape == y.shape
                    assert stored(x) == stored(y)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("lens", [(), (1,), (1, 1), (0,), (2, 1)])
def test_strings_without_axes_could_not_be_saved(lens: tuple[int, ...], format: str, tmp_path: Path) -> None:
    program = Program()
    texts = np.array(["\u00e9", "b"] * 2, object)[: int(np.prod(lens))].reshape(lens)
    program.main.add_return([program.main.add_literal(texts)])
    save_program(program, tmp_path / "model", format)
    assert_same(load_program(tmp_path / "model", format)[0], program)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("build", PROGRAMS)
def test_round_trip_loses_nothing(build: Callable[[], Program], format: str, tmp_path: Path) -> None:
    program = build()
    extra = {
        "compiled": {"target": "cpu", "fast_math": False},
        "disabled_passes": ["x"],
        "tuning": [{"time": 1.5}],
    }
    path = tmp_path / "model.mxr"
    save_program(program, path, format, extra)
    loaded, found = load_program(path, format)
    assert found == extra
    assert_same(loaded, program)


@pytest.mark.parametrize("build", PROGRAMS)
def test_buffer_round_trip_is_reproducible(build: Callable[[], Program]) -> None:
    data = save_buffer(build())
    loaded, extra = load_buffer(data)
    assert extra == {"tuning": []}
    assert_same(loaded, build())
    assert save_buffer(loaded) == data


def test_structure_is_migraphx() -> None:
    root = file_tree(save_buffer(convolution_program()))
    assert root["version"] == 8
    assert {"migraphx_version", "targets", "contexts", "modules"} <= set(root)
    main = root["modules"]["main"]
    assert main["name"] == "main"
    node = next(n for n in main["nodes"] if n["name"] == "convolution")
    assert node["operator"]["padding"] == [1, 1]
    assert node["inputs"] == ["x", "@3"] or len(node["inputs"]) == 2
    assert node["shape"]["type"] == "float_type"
    assert node["shape"]["lens"] == [1, 4, 4, 4]
    assert node["normalized"] is True
    assert node["debug_symbols"] == ["conv1", "relu1"]
    parameter = next(n for n in main["nodes"] if n["name"] == "@param")
    assert parameter["output"] == "x"
    assert parameter["operator"] == {"parameter": "x", "order": 0}
    literal = next(n for n in main["nodes"] if n["name"] == "@literal" and n["shape"]["lens"] == [4, 3, 3, 3])
    assert isinstance(literal["literal"]["data"], list)
    assert len(literal["literal"]["data"][0]) == 4 * 4 * 27


def test_broadcast_literal_stores_each_element_once() -> None:
    program = Program()
    program.main.add_return([program.main.add_literal(bits(Shape(Type.float_type, (10000, 8), (0, 1)), 0))])
    assert len(save_buffer(program)) < 1000


def test_plain_binary_data_are_read_too() -> None:
    root = file_tree(save_buffer(literal_program()))
    for node in root["modules"]["main"]["nodes"]:
        if "data" in node.get("literal", {}):
            node["literal"]["data"] = b"".join(node["literal"]["data"])
    assert_same(load_buffer(msgpack.packb(root))[0], literal_program())


def test_large_literals_of_a_file_are_aligned_views(tmp_path: Path) -> None:
    save_program(literal_program(), tmp_path / "model.mxr")
    loaded, _ = load_program(tmp_path / "model.mxr")
    large = [i.literal.numpy() for i in loaded.main if i.literal is not None and i.shape.bytes > 1000]
    assert large
    for array in large:
        assert array.ctypes.data % 64 == 0
        assert not array.flags.writeable


def test_saving_over_the_file_keeps_the_loaded_program(tmp_path: Path) -> None:
    path = tmp_path / "model.mxr"
    save_program(literal_program(), path)
    loaded, _ = load_program(path)
    save_program(dynamic_program(), path)
    assert_same(loaded, literal_program())
    assert_same(load_program(path)[0], dynamic_program())


def test_failed_save_leaves_the_old_file_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.mxr"
    save_program(dynamic_program(), path)
    before = path.read_bytes()

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(FormatError, match=r"cannot be written: .*No space left"):
        save_program(literal_program(), path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["model.mxr"]


def test_permissions_of_a_replaced_file_stay(tmp_path: Path) -> None:
    path = tmp_path / "model.mxr"
    save_program(dynamic_program(), path)
    path.chmod(0o640)
    save_program(dynamic_program(), path)
    assert path.stat().st_mode & 0o777 == 0o640


def test_arguments_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "argument"
    for type in STORED:
        saved = bits(Shape(type, (3, 5), (1, 3)), int(type))
        save_argument(saved, path)
        loaded = load_argument(path)
        assert loaded.shape == saved.shape
        assert stored(loaded) == stored(saved)


@pytest.mark.parametrize("version", [7, 9, None, True, "8"])
def test_another_version_is_refused(version: Any) -> None:
    root = file_tree(save_buffer(dynamic_program()))
    root["version"] = version
    with pytest.raises(FormatError, match=r"file version is .*, expected 8"):
        load_buffer(msgpack.packb(root))


def test_another_version_of_our_part_is_refused() -> None:
    root = file_tree(save_buffer(dynamic_program()))
    root["mgx_numba"]["format"] = 2
    with pytest.raises(FormatError, match="mgx_numba: format is 2, expected 1"):
        load_buffer(msgpack.packb(root))


def test_a_file_of_migraphx_itself_has_no_part_of_ours() -> None:
    root = file_tree(save_buffer(convolution_program()))
    del root["mgx_numba"]
    loaded, extra = load_buffer(msgpack.packb(root))
    assert extra == {"tuning": []}
    assert_same(loaded, convolution_program())


def test_unknown_format_and_absent_file(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="Unknown format: xml"):
        save_program(dynamic_program(), tmp_path / "a", "xml")
    with pytest.raises(FormatError, match="cannot be read"):
        load_program(tmp_path / "absent")
    (tmp_path / "empty").touch()
    with pytest.raises(FormatError, match="empty"):
        load_program(tmp_path / "empty")


def edited(edit: Callable[[dict[str, Any]], Any], build: Callable[[], Program] = convolution_program) -> bytes:
    root = file_tree(save_buffer(build()))
    edit({n["output"]: n for m in root["modules"].values() for n in m["nodes"]} | {"root": root})
    return msgpack.packb(root)


def node_of(nodes: dict[str, Any], name: str) -> dict[str, Any]:
    return next(n for key, n in nodes.items() if key != "root" and n["name"] == name)


FAULTS: list[tuple[Callable[[dict[str, Any]], Any], str]] = [
    (lambda n: node_of(n, "convolution").update(name="conv"), r"node 4 \(conv\): unknown operator 'conv'"),
    (lambda n: node_of(n, "convolution")["operator"].update(pads=[1]), "no attribute 'pads'"),
    (lambda n: node_of(n, "convolution")["operator"].update(padding=["1", 1]), "attribute padding must be"),
    (lambda n: node_of(n, "convolution")["operator"].update(padding=[3, 3]), "by the operator's rule"),
    (lambda n: node_of(n, "convolution")["operator"].update(group=0), "group 0"),
    (
        lambda n: node_of(n, "convolution").update(inputs=["x", "@77"]),
        "'@77' is not the output of an earlier node",
    ),
    (lambda n: node_of(n, "convolution").update(inputs="x"), "inputs is 'x', expected an array"),
    (lambda n: node_of(n, "convolution").update(output="x"), "output 'x' is taken"),
    (lambda n: node_of(n, "convolution").pop("output"), "'output' and 'name' must be strings"),
    (lambda n: node_of(n, "convolution")["shape"].update(type="float"), "type 'float' is none of"),
    (lambda n: node_of(n, "convolution")["shape"].update(lens=[1, 4, -4, 4]), "negative length"),
    (lambda n: node_of(n, "convolution")["shape"].update(strides=[1]), "4 lengths but 1 strides"),
    (lambda n: node_of(n, "@param")["shape"].update(strides=[1 << 61] * 4), "exceeds"),
    (lambda n: node_of(n, "@param")["shape"].update(lens=[1] * 65, strides=[1] * 65), "65 axes"),
    (lambda n: node_of(n, "@param")["operator"].update(order=-1), "'order' an integer from 0 on"),
    (lambda n: node_of(n, "@literal").pop("literal"), "literal is absent, expected a map"),
    (lambda n: node_of(n, "@literal")["literal"].update(data=[b"123"]), "3 bytes of data for a shape of"),
    (lambda n: node_of(n, "@literal")["literal"].update(data="1234"), "data is '1234', expected an array"),
    (lambda n: n["root"]["modules"].pop("main"), "no module 'main'"),
    (lambda n: n["root"].pop("version"), "file version is None"),
    (lambda n: n["root"].update(mgx_numba=[]), "'mgx_numba' must be a map"),
    (lambda n: n["root"]["mgx_numba"].update(tuning={}), "'tuning' must be an array"),
    (lambda n: n["root"]["modules"]["main"].pop("nodes"), "module 'main' has no 'nodes'"),
    (lambda n: n["root"]["modules"]["main"]["nodes"].insert(0, 7), "a node must be a map"),
    (
        lambda n: n["root"]["modules"]["main"]["nodes"].append(dict(n["x"], output="z")),
        "follows the module's @return",
    ),
]


@pytest.mark.parametrize("edit, message", FAULTS, ids=[m for _, m in FAULTS])
def test_fault_is_named(edit: Callable[[dict[str, Any]], Any], message: str) -> None:
    with pytest.raises(FormatError, match=message):
        load_buffer(edited(edit))


@pytest.mark.parametrize(
    "edit, message",
    [
        (
            lambda n: node_of(n, "if").update(module_inputs=["If_0_if", "nowhere"]),
            "'nowhere', which is no submodule",
        ),
        (
            lambda n: node_of(n, "if").update(module_inputs=["If_0_if", "main"]),
            "'main', which is no submodule",
        ),
        (lambda n: node_of(n, "exp").update(module_inputs=["If_0_if"]), "module 'If_0_if' runs itself"),
        (
            lambda n: node_of(n, "sqrt").update(inputs=["If_0_if:@0"]),
            "a module that does not enclose this one",
        ),
    ],
)
def test_fault_in_modules_is_named(edit: Callable[[dict[str, Any]], Any], message: str) -> None:
    with pytest.raises(FormatError, match=message):
        load_buffer(edited(edit, branching_program))


def test_bool_that_is_neither_is_refused() -> None:
    program = Program()
    program.main.add_return([program.main.add_literal(np.array([True, False]))])
    data = msgpack.packb(file_tree(save_buffer(program))).replace(b"\x01\x00", b"\x02\x00")
    with pytest.raises(FormatError, match="neither 0 nor 1"):
        load_buffer(data)


@pytest.mark.parametrize(
    "data",
    [
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\x7f\xff\xff\xff" + bytes(100),
        b"\x91" * 100000,
        b"\xc1",
        b"\x81\x01\x02",
        b"\x82\xa1a\x01\xa1a\x02",
        b"\xa4\xff\xfe\xfd\xfc",
        b"\xdb\xff\xff\xff\xffx",
        b"\xcb\x00",
    ],
    ids=[
        "huge array",
        "huge map",
        "deep",
        "unassigned",
        "integer key",
        "key twice",
        "not UTF-8",
        "string",
        "number",
    ],
)
def test_malformed_msgpack(data: bytes) -> None:
    with pytest.raises(FormatError, match="at byte"):
        Decoder(memoryview(data)).value()


def test_msgpack_decoder_agrees_with_the_library() -> None:
    tree = {
        "numbers": [
            0,
            127,
            128,
            255,
            256,
            65535,
            65536,
            2**32,
            2**64 - 1,
            -1,
            -32,
            -33,
            -129,
            -(2**15) - 1,
            -(2**63),
        ],
        "reals": [0.5, float("inf"), 1e300],
        "others": [
            None,
            True,
            False,
            "",
            "é" * 200,
            "x" * 70000,
            [[]] * 20,
            {str(k): k for k in range(70000)},
        ],
    }
    pieces: list[Any] = []
    assert pack(tree, pieces.append) == sum(map(len, pieces))
    data = b"".join(pieces)
    assert msgpack.unpackb(data) == tree
    assert Decoder(memoryview(data)).value() == tree
    skipper = Decoder(memoryview(data))
    skipper.skip()
    assert skipper.finished


def test_blobs_of_several_chunks_are_joined() -> None:
    """MIGraphX writes blobs beyond 4 GiB in several chunks."""
    root = file_tree(save_buffer(literal_program()))
    for node in root["modules"]["main"]["nodes"]:
        if "data" in node.get("literal", {}):
            (data,) = node["literal"]["data"]
            node["literal"]["data"] = [data[:5], b"", data[5:]]
    assert_same(load_buffer(msgpack.packb(root))[0], literal_program())


def _pack(tree: Any) -> list[bytes]:
    pieces: list[Any] = []
    pack(tree, pieces.append)
    return [bytes(p) for p in pieces]


def test_json_is_readable_by_any_parser(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    save_program(literal_program(), path, "json")
    root = json.loads(path.read_text())
    data = [n["literal"]["data"] for n in root["modules"]["main"]["nodes"] if "data" in n.get("literal", {})]
    assert data
    assert all(list(d) == ["bytes"] and all(0 <= b < 256 for b in d["bytes"]) for d in data)


@pytest.mark.parametrize("text", ['{"bytes": [256]}', '{"bytes": [1,,2]}', '{"bytes": [1.5]}', '{"bytes": [-1]}'])
def test_json_bytes_out_of_range_are_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    path.write_text(f'{{"version": 8, "modules": {{}}, "x": {text}}}')
    with pytest.raises(FormatError, match="bytes"):
        load_program(path, "json")


@pytest.mark.parametrize("format", ["msgpack", "json"])
def test_axes_that_the_model_leaves_open_are_kept(format: str, tmp_path: Path) -> None:
    program = convolution_program()
    program.open_dims = {"x": {0: "batch", 2: ""}}
    save_program(program, tmp_path / "a", format)
    loaded, extra = load_program(tmp_path / "a", format)
    assert loaded.open_dims == program.clone().open_dims == program.open_dims
    assert extra == {"tuning": []}


@pytest.mark.parametrize("found", [3, {"x": 3}, {"x": [3]}, {"x": [[0]]}, {"x": [["0", "n"]]}, {"x": [[-1, "n"]]}])
def test_malformed_open_axes_are_refused(found: Any) -> None:
    with pytest.raises(FormatError, match="'open_dims'"):
        load_buffer(edited(lambda nodes: nodes["root"]["mgx_numba"].update(open_dims=found)))


@pytest.mark.parametrize("format", FORMATS)
def test_what_a_model_says_of_itself_is_kept(tmp_path: Path, format: str) -> None:
    program = branching_program()
    program.origin = Origin(("z", "y"), (("n", "", 3), ()), "tool", "g", "", "org.example", "text", 7, {"names": "a,b"})
    save_program(program, tmp_path / "p", format)
    loaded, extra = load_program(tmp_path / "p", format)
    assert loaded.origin == program.origin == program.clone().origin and "origin" not in extra
    with pytest.warns(DeprecationWarning, match="form of .mxr files of version 0.2 .* 0.4: save the program again"):
        assert Origin.from_json({"output_symbols": [["n", ""]]}).output_dims == (("n", ""),)
    assert loaded.origin.names(2) == ["z", "y"] and loaded.origin.names(1) == ["output_0"]
    save_program(dynamic_program(), tmp_path / "p", format)
    assert load_program(tmp_path / "p", format)[0].origin == Origin()


@pytest.mark.parametrize(
    ("origin", "message"),
    [
        ([], "'origin' must be a map"),
        ({"version": "7"}, "'version' of type str"),
        ({"colour": 1}, "'colour' of type int"),
        ({"output_names": [1]}, "must be strings"),
        ({"output_dims": ["n"]}, "must be arrays"),
        ({"output_dims": [[0]]}, "must hold symbols and lengths"),
        ({"output_dims": [["n", 2.0]]}, "must hold symbols and lengths"),
        ({"output_symbols": ["n"]}, "must be arrays"),
        ({"properties": {"a": 1}}, "must be strings"),
    ],
)
def test_damaged_origin_is_one_clear_error(origin: Any, message: str) -> None:
    tree = file_tree(save_buffer(dynamic_program()))
    tree["mgx_numba"]["origin"] = origin
    with pytest.raises(FormatError, match=message):
        load_buffer(msgpack.packb(tree))


def test_a_changed_byte_is_refused_and_its_section_named() -> None:
    """96 of 760 changed bytes changed weights without a word."""
    data = save_buffer(convolution_program())
    checked = len(data) - len(msgpack.packb(msgpack.unpackb(data)[CHECKSUMS])) - len(CHECKSUMS) - 2
    named = 0
    for at in range(0, checked, 7):
        changed = bytearray(data)
        changed[at] ^= 1 << at % 8
        with pytest.raises(FormatError) as found:
            load_buffer(changed)
        named += "damaged: module 'main'" in str(found.value)
    assert named > checked / 7 / 2  # the others are header bytes, or break the structure first


def test_checksums_of_another_file_are_refused() -> None:
    tree = msgpack.unpackb(save_buffer(convolution_program()))
    for wrong in ([["header", -1, []]], [["header", 1 << 40, [1]]], [[1, 2, 3]], [["header"]], 5, [["header", 10, 0]]):
        with pytest.raises(FormatError, match="'mgx_numba_checksums' is damaged"):
            load_buffer(msgpack.packb({**tree, CHECKSUMS: wrong}))


def test_files_without_checksums_load() -> None:
    assert_same(load_buffer(msgpack.packb(file_tree(save_buffer(convolution_program()))))[0], convolution_program())
