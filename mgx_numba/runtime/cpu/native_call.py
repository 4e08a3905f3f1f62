"""A plan's call as one native function: inputs by name in, a list of new arrays out.

Looking up and checking the inputs, making the outputs and taking a context are several microseconds of Python, more
than a small model computes. Here compiled code does this work through the C interfaces of Python and NumPy, for the
usual case: a ``dict`` that has for every parameter a C-contiguous array of exactly the declared type and lengths. In
any other case the function returns None without side effects, and the caller uses the general path, which also reports
wrong inputs. The function also returns None if a step met an index out of range: the results are dropped, and the
general path computes them again and reports the index. All work except the steps holds the interpreter's lock.

For a symbolic plan the function reads the symbols' values from the inputs' lengths, and binds the context to them if
necessary (`binding`). It returns None where the plan does not serve the lengths, or where its arena has to grow.

In a new block of `Call.LARGE` bytes or more the system clears every page, which takes as long as writing the result.
An entry therefore keeps the memory of up to `Call.MOST_KEPT` large arrays of each output. A later call writes its
result there if nothing else refers to the memory.

Python's functions belong to its stable interface. NumPy's functions are at fixed indices of its function table, and an
array's fields at the offsets of ``PyArrayObject``; both are compiled into every extension module. `recognises_objects`
checks these assumptions.
"""

from __future__ import annotations

import ctypes
import importlib
import math
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ...codegen.cpu.kernel import cpu_kernel
from ...codegen.cpu.toolchain.loader import load
from ...core.output_buffers import output_buffer
from ...core.types import numpy_dtype
from ..host.sizes import Sizes
from ..memory import ALIGNMENT, address_of, aligned_empty
from ..plan import Plan
from .bind_kernel import Bound
from .jumps import driving_code
from .plan_tables import PlanTables
from .spmd import LEAD, Job, Pool, constants_of

Entry = Callable[[Any], "list[Any] | None"]


class Call:
    """Words (int64) of an entry's block, followed by a `Spec` for each parameter, then for each output.

    ``LIMIT`` is the address of the number of contexts that may wait. ``JUMPS``: whether ``LEAD`` is `DRIVE`, and
    ``STEPS`` counts operations.
    """

    LARGE = 32 << 20  # glibc maps every block of so many bytes anew (DEFAULT_MMAP_THRESHOLD_MAX)
    MOST_KEPT = 2  # a caller holds one result while the next run writes the other
    LEAD, POOL, THREADS, STEPS, PARAMETERS, OUTPUTS, LIMIT = range(7)
    NONE, DICT_TYPE, ARRAY_TYPE, RESULT_TYPE, BYTE, IDLE, CONTEXTS = range(7, 14)
    RETAIN, RELEASE, CLEAR_ERROR, LEAVE, ENTER = range(14, 19)
    LOOK_UP, DELETE, LENGTH, ITEM, CUT, APPEND, NEW_LIST, SET_ITEM, NUMBER = range(19, 28)
    NEW_ARRAY, SET_BASE, RESTORE, JUMPS = range(28, 32)
    WORDS = 32  # whole cache lines


class Spec:
    """Words (int64) of a parameter or output.

    ``ROOM``: bytes to allocate for an output. ``ROOM_AT``: address of that number, which NumPy takes as the
    allocation's length. ``ALSO``: an array type accepted besides NumPy's. ``ITEM``: bytes of an element. ``TIED``: of
    an output the number of the parameter that the plan updates in place to make it, else -1. ``KEPT``: the list of the
    arrays whose memory an output uses again.
    """

    NAME, DTYPE, RANK, LENS, ROOM, ROOM_AT, ALSO, ITEM, TIED, KEPT = range(10)
    WORDS = 10  # one for each name


class Array:
    """Word offsets in NumPy's array object (``PyArrayObject``); ``TYPE`` is that of any object."""

    # From PyArrayObject_fields and NPY_ARRAY_* in ndarraytypes.h.
    # The count of references is the low half of its word.
    REFERENCES, TYPE, DATA, RANK, LENS, DTYPE, FLAGS = 0, 1, 2, 3, 4, 7, 8
    # WRITABLE: contiguous, aligned and writeable, as what a plan updates in place.
    C_CONTIGUOUS, WRITABLE_C_ARRAY, WRITABLE = 1, 0x501, 0x501


_PYTHON = {
    Call.RETAIN: "Py_IncRef",
    Call.RELEASE: "Py_DecRef",
    Call.CLEAR_ERROR: "PyErr_Clear",
    Call.LEAVE: "PyEval_SaveThread",
    Call.ENTER: "PyEval_RestoreThread",
    Call.LOOK_UP: "PyDict_GetItemWithError",
    Call.DELETE: "PyDict_DelItem",
    Call.LENGTH: "PyList_Size",
    Call.ITEM: "PyList_GetItem",
    Call.CUT: "PyList_SetSlice",
    Call.APPEND: "PyList_Append",
    Call.NEW_LIST: "PyList_New",
    Call.SET_ITEM: "PyList_SetItem",
    Call.NUMBER: "PyLong_AsLongLong",
    Call.RESTORE: "PyErr_Restore",
}
# Indices in NumPy's function table: PyArray_NewFromDescr, PyArray_SetBaseObject.
_NUMPY = {Call.NEW_ARRAY: 94, Call.SET_BASE: 282}
_NUMPY_ABI_FUNCTION, _NUMPY_ABI = 0, 0x02000000  # PyArray_GetNDArrayCVersion, and the ABI of NumPy 2
_METH_O = 8  # of methodobject.h

# args: the array over a Call block; begin: the one argument; returns a new reference, or 0 with the error set that the
# handler of a signal has raised. Under the interpreter's lock.
DIRECT = cpu_kernel(
    "executor_direct",
    "LOW = 0xFFFFFFFF\n"
    + f"ALIGNMENT = {ALIGNMENT}\n"
    + constants_of("CALL", Call)
    + constants_of("SPEC", Spec)
    + constants_of("ARRAY", Array)
    + constants_of("JOB", Job)
    + constants_of("POOL", Pool)
    + constants_of("BOUND", Bound)
    + constants_of("SIZES", Sizes)
    + """
def kernel(args, begin, end) -> int:
    call = words_at(args, ARRAY_DATA)
    idle = call[CALL_IDLE]
    count = 0
    if words_of(begin)[ARRAY_TYPE] == call[CALL_DICT_TYPE]:
        if words_at(call, CALL_POOL)[POOL_WORKERS] + 1 >= call[CALL_THREADS]:
            count = call_function(call, CALL_LENGTH, (idle,))
    if count == 0:
        call_function(call, CALL_RETAIN, (call[CALL_NONE],))
        return call[CALL_NONE]
    context = call_function(call, CALL_ITEM, (idle, count - 1))
    call_function(call, CALL_RETAIN, (context,))
    if call_function(call, CALL_CUT, (idle, count - 1, count, 0)) & LOW != 0:
        call_function(call, CALL_CLEAR_ERROR, ())
        call_function(call, CALL_RELEASE, (context,))
        call_function(call, CALL_RETAIN, (call[CALL_NONE],))
        return call[CALL_NONE]
    job = words_of(call_function(call, CALL_NUMBER, (context,)))
    bases = words_at(job, JOB_BASES)
    held = words_at(job, JOB_HELD)
    symbolic = job[JOB_BINDING] != 0
    fits = True
    number = 0
    spec = words_from(call, CALL_WORDS)
    while fits and number < call[CALL_PARAMETERS]:
        array = call_function(call, CALL_LOOK_UP, (begin, spec[SPEC_NAME]))
        fits = array != 0
        if fits:
            words = words_of(array)
            rank = spec[SPEC_RANK]
            fits = words[ARRAY_TYPE] == call[CALL_ARRAY_TYPE] or words[ARRAY_TYPE] == spec[SPEC_ALSO]
            if fits:
                fits = words[ARRAY_DTYPE] == spec[SPEC_DTYPE] and words[ARRAY_RANK] & LOW == rank
            if fits:
                fits = words[ARRAY_FLAGS] & ARRAY_C_CONTIGUOUS != 0
            if fits and not symbolic:
                lens = words_at(words, ARRAY_LENS)
                wanted = words_at(spec, SPEC_LENS)
                for axis in range(rank):
                    fits = fits and lens[axis] == wanted[axis]
            if fits:
                call_function(call, CALL_RETAIN, (array,))
                held[number] = array
                bases[number] = words[ARRAY_DATA]
                number += 1
                spec = words_from(spec, SPEC_WORDS)
    retained = number
    stopped = False
    results = 0
    steps = call[CALL_STEPS]
    lens_at = 0
    rooms_at = 0
    if fits and symbolic:
        bound = words_at(job, JOB_BINDING)
        values = words_at(bound, SIZES_VALUES)
        source = words_at(bound, BOUND_SOURCES)
        for k in range(bound[SIZES_GIVEN]):
            length = words_at(words_of(held[source[0]]), ARRAY_LENS)[source[1]]
            if length != values[k]:
                values[k] = length
                bound[BOUND_READY] = 0
            source = words_from(source, 2)
        if bound[BOUND_READY] == 0:
            call_kernel(bound, BOUND_BIND, bound, 0, 0)
        fits = bound[BOUND_READY] != 0
        lens_at = bound[BOUND_LENS]
        rooms_at = bound[BOUND_ROOMS]
        if call[CALL_JUMPS] == 0:
            steps = bound[BOUND_RECORDS]
        known = words_from(call, CALL_WORDS)
        for k in range(number):
            lens = words_at(words_of(held[k]), ARRAY_LENS)
            wanted = words_of(lens_at)
            for axis in range(known[SPEC_RANK]):
                fits = fits and lens[axis] == wanted[axis]
            lens_at += 8 * known[SPEC_RANK]
            known = words_from(known, SPEC_WORDS)
    if fits:
        results = call_function(call, CALL_NEW_LIST, (call[CALL_OUTPUTS],))
        fits = results != 0
    made = 0
    while fits and made < call[CALL_OUTPUTS]:
        room_at = spec[SPEC_ROOM_AT]
        output_lens = spec[SPEC_LENS]
        if symbolic:
            room_at = rooms_at + 8 * (call[CALL_OUTPUTS] + made)
            output_lens = lens_at
            lens_at += 8 * spec[SPEC_RANK]
        tied = spec[SPEC_TIED]
        own = 0
        if tied >= 0:
            own = call_function(call, CALL_LOOK_UP, (begin, spec[SPEC_NAME]))
            if own != held[tied]:
                own = 0
        if own != 0:
            words = words_of(own)
            lens = words_at(words, ARRAY_LENS)
            wanted = words_of(output_lens)
            size = spec[SPEC_ITEM]
            ours = words[ARRAY_TYPE] == call[CALL_ARRAY_TYPE] and words[ARRAY_FLAGS] & ARRAY_WRITABLE == ARRAY_WRITABLE
            for axis in range(spec[SPEC_RANK]):
                ours = ours and lens[axis] == wanted[axis]
                size *= lens[axis]
            other = words_from(call, CALL_WORDS)
            for k in range(retained):
                if k != tied:
                    lens = words_at(words_of(held[k]), ARRAY_LENS)
                    extent = other[SPEC_ITEM]
                    for axis in range(other[SPEC_RANK]):
                        extent *= lens[axis]
                    ours = ours and (bases[k] + extent <= bases[tied] or bases[tied] + size <= bases[k])
                other = words_from(other, SPEC_WORDS)
            if not ours:
                own = 0
        if own != 0:
            call_function(call, CALL_RETAIN, (own,))
            call_function(call, CALL_SET_ITEM, (results, made, own))
            bases[number] = bases[tied]
            number += 1
            made += 1
            spec = words_from(spec, SPEC_WORDS)
        else:
            memory = 0
            room = words_of(room_at)[0]
            kept_arrays = 0
            if room >= CALL_LARGE:
                kept_arrays = call_function(call, CALL_LENGTH, (spec[SPEC_KEPT],))
            for k in range(kept_arrays):
                other = words_of(call_function(call, CALL_ITEM, (spec[SPEC_KEPT], k)))
                if other[ARRAY_REFERENCES] & LOW == 1 and words_at(other, ARRAY_LENS)[0] == room:
                    memory = call_function(call, CALL_ITEM, (spec[SPEC_KEPT], k))
            if memory != 0:
                call_function(call, CALL_RETAIN, (memory,))
            else:
                call_function(call, CALL_RETAIN, (call[CALL_BYTE],))
                memory = call_function(
                    call, CALL_NEW_ARRAY, (call[CALL_ARRAY_TYPE], call[CALL_BYTE], 1, room_at, 0, 0, 0, 0)
                )
                if memory != 0 and room >= CALL_LARGE:
                    changed = 0
                    if kept_arrays == CALL_MOST_KEPT:
                        changed = call_function(call, CALL_CUT, (spec[SPEC_KEPT], 0, 1, 0))
                    if changed & LOW == 0:
                        changed = call_function(call, CALL_APPEND, (spec[SPEC_KEPT], memory))
                    if changed & LOW != 0:
                        call_function(call, CALL_CLEAR_ERROR, ())
            fits = memory != 0
            if fits:
                data = words_of(memory)[ARRAY_DATA]
                data += -data & (ALIGNMENT - 1)
                dtype = spec[SPEC_DTYPE]
                call_function(call, CALL_RETAIN, (dtype,))
                array = call_function(
                    call,
                    CALL_NEW_ARRAY,
                    (call[CALL_RESULT_TYPE], dtype, spec[SPEC_RANK], output_lens, 0, data, ARRAY_WRITABLE_C_ARRAY, 0),
                )
                fits = array != 0
                if fits:
                    call_function(call, CALL_SET_BASE, (array, memory))
                    call_function(call, CALL_SET_ITEM, (results, made, array))
                    bases[number] = data
                    number += 1
                    made += 1
                    spec = words_from(spec, SPEC_WORDS)
                else:
                    call_function(call, CALL_RELEASE, (memory,))
    if fits:
        job[JOB_FAULT] = 0
        thread = call_function(call, CALL_LEAVE, ())
        call_kernel(call, CALL_LEAD, job, 0, steps)
        call_function(call, CALL_ENTER, (thread,))
        fits = job[JOB_FAULT] == 0
        stopped = job[JOB_STOPPED] != 0
        job[JOB_STOPPED] = 0
    else:
        call_function(call, CALL_CLEAR_ERROR, ())
    kind, value, traceback = job[JOB_ERROR], job[JOB_ERROR + 1], job[JOB_ERROR + 2]
    for k in range(retained):
        call_function(call, CALL_RELEASE, (held[k],))
    kept = call_function(call, CALL_LENGTH, (idle,)) < words_at(call, CALL_LIMIT)[0]
    if kept:
        kept = call_function(call, CALL_APPEND, (idle, context)) & LOW == 0
    if not kept:
        call_function(call, CALL_CLEAR_ERROR, ())
        call_function(call, CALL_DELETE, (call[CALL_CONTEXTS], context))
    call_function(call, CALL_RELEASE, (context,))
    if not fits or stopped:
        if results != 0:
            call_function(call, CALL_RELEASE, (results,))
        results = 0
    if stopped:
        call_function(call, CALL_RESTORE, (kind, value, traceback))
    elif not fits:
        results = call[CALL_NONE]
        call_function(call, CALL_RETAIN, (results,))
    return results
""",
)


class _Block(np.ndarray):
    """A block of words, and the objects whose addresses it holds."""

    kept: tuple[object, ...] = ()


class _Method(ctypes.Structure):
    """Python's description of a native function (``PyMethodDef``)."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


_methods: dict[int, _Method] = {}


def direct_call(
    plan: Plan,
    tables: PlanTables,
    result_type: type[np.ndarray],
    *,
    pool_address: int,
    threads: int,
    idle: list[int],
    contexts: Mapping[int, object],
    limit: np.ndarray,
) -> Entry | None:
    """Return a native function that runs a plan without fallback steps; None where this interpreter or NumPy is not
    supported.

    The function takes a mapping of the parameters and returns the outputs as new arrays of ``result_type``, 64-byte
    aligned. An output that the plan makes by updating a parameter (`Plan.updates`) is the parameter's array, updated in
    place, if the mapping has this array also under the output's name (`output_buffer`), and no other input shares its
    memory. The function returns None without running if the inputs do not match their declarations, no context is idle,
    or workers or memory are missing. It also returns None if an index in the inputs is out of range. It raises only
    errors of signal handlers, as `Executable.run` does.

    Args:
        result_type: a subclass of ``numpy.ndarray``, also accepted for inputs, except for inputs of bytes. Arrays of
            bytes can hold several element types, and an array of ``result_type`` may say which.
        idle: job addresses of contexts that wait for a call, at most ``limit[0]``; the keys of ``contexts``.
    """
    functions = _numpy_functions() if recognises_objects() else None
    if functions is None:
        return None
    lead, code = load([LEAD, DIRECT])
    steps = len(plan.steps)
    if plan.jumps:
        lead, (_, steps) = driving_code()[1], tables.operation_ranges[0, steps]
    byte = np.dtype(np.uint8)
    words = {
        Call.LEAD: lead,
        Call.POOL: pool_address,
        Call.THREADS: threads,
        Call.STEPS: steps,
        Call.JUMPS: int(bool(plan.jumps)),
        Call.PARAMETERS: len(plan.parameters),
        Call.OUTPUTS: len(plan.outputs),
        Call.LIMIT: address_of(limit),
        Call.NONE: id(None),
        Call.DICT_TYPE: id(dict),
        Call.ARRAY_TYPE: id(np.ndarray),
        Call.RESULT_TYPE: id(result_type),
        Call.BYTE: id(byte),
        Call.IDLE: id(idle),
        Call.CONTEXTS: id(contexts),
        **{word: _address(getattr(ctypes.pythonapi, name)) for word, name in _PYTHON.items()},
        **{word: functions[place] for word, place in _NUMPY.items()},
    }
    updated = dict(plan.updates)
    specs: list[tuple[str, str, tuple[int, ...], int]] = [(p.name, p.dtype, p.lens, -1) for p in plan.parameters]
    specs += [
        (output_buffer(k), output.dtype, output.lens or (), updated.get(k, -1)) for k, output in enumerate(plan.outputs)
    ]
    block = aligned_empty((Call.WORDS + len(specs) * Spec.WORDS,), "int64").view(_Block)
    for word, value in words.items():
        block[word] = value
    kept: list[object] = [plan, tables, result_type, byte, idle, contexts, limit]
    for at, (name, type_name, lens, tied) in zip(range(Call.WORDS, len(block), Spec.WORDS), specs, strict=True):
        # For a symbolic plan lengths and allocation sizes are in each context.
        own = [0] * len(lens) if plan.symbols else lens
        dtype, lengths = numpy_dtype(type_name), np.array(own, np.int64)
        arrays: list[np.ndarray] = []
        kept += [name, dtype, lengths, arrays]
        room, room_at = math.prod(own) * dtype.itemsize + ALIGNMENT, address_of(block) + 8 * (at + Spec.ROOM)
        also = id(np.ndarray if dtype == byte else result_type)
        words_of_spec = id(name), id(dtype), len(lens), address_of(lengths), room, room_at, also, dtype.itemsize, tied
        block[at : at + Spec.WORDS] = *words_of_spec, id(arrays)
    block.kept = tuple(kept)
    return _function(code, block)


def _function(code: int, block: _Block) -> Entry:
    """Return machine code as a Python function with one argument, which keeps its block alive."""
    method = _methods.setdefault(code, _Method(b"run", code, _METH_O, None))
    prototype = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)
    return prototype(("PyCFunction_NewEx", ctypes.pythonapi))(ctypes.addressof(method), block, None)


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def recognises_objects() -> bool:
    """Return whether objects, arrays and NumPy's functions have the layout that `DIRECT` assumes."""
    if (
        sys.implementation.name != "cpython"
        or "free-threading" in sys.version
        or object.__basicsize__ != 16
        or not hasattr(ctypes.pythonapi, "PyCFunction_NewEx")
    ):
        return False
    probe = np.empty((3, 5), np.float32)
    words = (ctypes.c_int64 * (Array.FLAGS + 1)).from_address(id(probe))
    low = 0xFFFFFFFF
    found = (words[Array.TYPE], words[Array.DATA], words[Array.RANK] & low, words[Array.DTYPE], words[Array.FLAGS] & 1)
    expected = (id(np.ndarray), probe.__array_interface__["data"][0], 2, id(probe.dtype), 1)
    if found != expected or probe[:, ::2].flags.c_contiguous:
        return False
    return tuple((ctypes.c_int64 * 2).from_address(words[Array.LENS])) == probe.shape and bool(_numpy_functions())


def _numpy_functions() -> Any:
    """Return NumPy's table of C functions, as addresses; None if it is missing or has another ABI."""
    try:
        capsule = importlib.import_module("numpy._core._multiarray_umath")._ARRAY_API
    except (ImportError, AttributeError):
        return None
    prototype = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
    table = prototype(("PyCapsule_GetPointer", ctypes.pythonapi))(capsule, None)
    functions = ctypes.cast(table, ctypes.POINTER(ctypes.c_void_p))
    version = ctypes.PYFUNCTYPE(ctypes.c_uint)(functions[_NUMPY_ABI_FUNCTION])
    return functions if version() == _NUMPY_ABI else None
