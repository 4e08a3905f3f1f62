"""ONNX Runtime's exception classes, for ``except`` clauses; every instance is also an error of this package."""

from __future__ import annotations

from ..errors import (
    DeviceError,
    FormatError,
    IndexRangeError,
    MgxError,
    OperatorError,
    OptionError,
    ParameterError,
    ParseError,
    UnsupportedError,
)

__all__ = [
    "DeviceReset",
    "EPFail",
    "EngineError",
    "Fail",
    "InvalidArgument",
    "InvalidGraph",
    "InvalidProtobuf",
    "ModelLoadCanceled",
    "ModelLoaded",
    "ModelRequiresCompilation",
    "NoModel",
    "NoSuchFile",
    "NotFound",
    "NotImplemented",
    "RuntimeException",
]


class Fail(MgxError):
    """Lengths do not fit an operator, a kernel cannot be compiled, or a run was terminated."""


class InvalidArgument(MgxError):
    """An argument of a session or a run does not fit the model, or an index is out of range."""


class NoSuchFile(MgxError):
    """The model's file does not exist."""


class NoModel(MgxError):
    """Never raised: a session has a model."""


class EngineError(MgxError):
    """Never raised here."""


class RuntimeException(Fail):
    """A run failed, for instance because lengths do not fit an operator. ONNX Runtime raises this class or `Fail`."""


class InvalidProtobuf(MgxError):
    """A file or bytes do not contain a model."""


class ModelLoaded(MgxError):
    """Never raised: a session reads one model."""


class NotImplemented(Fail):
    """A valid model or request that this package or this machine does not support; ONNX Runtime may raise `Fail`."""


class InvalidGraph(Fail):
    """A model violates the ONNX specification; for some violations ONNX Runtime raises `Fail`."""


class EPFail(MgxError):
    """A device or its driver is missing or has failed."""


class ModelLoadCanceled(MgxError):
    """Loading the model was cancelled: see `SessionOptions.set_load_cancellation_flag`."""


class ModelRequiresCompilation(MgxError):
    """Never raised: constructing a session compiles its model."""


class NotFound(MgxError):
    """Never raised here."""


class DeviceReset(MgxError):
    """Never raised here."""


_BY_KIND: tuple[tuple[type[MgxError], type[MgxError]], ...] = (
    (FormatError, InvalidProtobuf),
    (ParseError, InvalidGraph),
    (OperatorError, InvalidGraph),
    (UnsupportedError, NotImplemented),
    (ParameterError, InvalidArgument),
    (OptionError, InvalidArgument),
    (IndexRangeError, InvalidArgument),
    (DeviceError, EPFail),
    (MgxError, Fail),
)
"""ONNX Runtime's class for each of this package's error classes; the first match counts."""


def as_onnxruntime(error: MgxError, running: bool = False) -> MgxError:
    """Return the error as an instance also of ONNX Runtime's corresponding class, with the same message and traceback.

    Args:
        error: an error of this package.
        running: whether a run raised the error, not the construction of a session.
    """
    if type(error).__module__ == __name__:
        return error
    theirs = next(theirs for ours, theirs in _BY_KIND if isinstance(error, ours))
    if running and issubclass(theirs, Fail):
        theirs = RuntimeException
    found = _combined_class(theirs, type(error))(*error.args)
    found.__cause__, found.__suppress_context__ = error.__cause__, True
    return found.with_traceback(error.__traceback__)


def error_of(theirs: type[Exception], ours: type[MgxError], message: str) -> MgxError:
    """Return a new error that is an instance of ``ours``, a class of this package, and of ``theirs``.

    ``theirs`` is the class that ONNX Runtime raises: one of its own, or RuntimeError from its Python binding.
    """
    return _combined_class(theirs, ours)(message)


_made: dict[tuple[type[Exception], type[MgxError]], type[MgxError]] = {}


def _combined_class(theirs: type[Exception], ours: type[MgxError]) -> type[MgxError]:
    """Return a class that derives from both classes and has the name of ``theirs``."""
    if (theirs, ours) not in _made:
        members = {"__module__": __name__, "__doc__": theirs.__doc__, "__reduce__": _remade}
        made = type(theirs.__name__, (theirs, ours), members)
        _made.setdefault((theirs, ours), made)
    return _made[theirs, ours]


def _remade(self: MgxError) -> tuple[object, ...]:
    """Return the arguments by which `pickle` rebuilds the error, whose class no module contains by name."""
    theirs, ours = type(self).__bases__
    return error_of, (theirs, ours, str(self))
