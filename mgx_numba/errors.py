"""Exception classes of the package.

All derive from `MgxError`; errors that report a bad value also derive from `ValueError`. A message says what was wrong,
where, and what was expected.
"""


class MgxError(Exception):
    """Base class of all errors that this package raises on purpose.

    Attributes:
        node: name of the node of PyTorch's graph that could not be translated; empty for other errors.
    """

    node: str = ""


class ParseError(MgxError, ValueError):
    """A model file is malformed, or uses an operator against its specification."""


class ShapeError(MgxError, ValueError):
    """Shapes or element types do not fit an operator or each other."""


class IndexRangeError(ShapeError, IndexError):
    """An index among the values of a run is out of range for its axis."""


class ParameterError(MgxError, ValueError):
    """An argument of `run` has a wrong name, type or shape."""


class OptionError(MgxError, ValueError):
    """An option does not exist, or its value is invalid."""


class FormatError(MgxError, ValueError):
    """A saved file is damaged, truncated, or of a version that this package does not read."""


class CompileError(MgxError):
    """A kernel or a program could not be compiled to machine code."""


class UnsupportedError(MgxError):
    """A valid request that this package or this machine does not support."""


class UnknownValueError(UnsupportedError):
    """A value or length must be known before a program runs, but depends on the program's inputs."""


class DeviceError(MgxError):
    """A device or its driver is missing, too old, out of memory, or has failed."""


class OperatorError(MgxError, ValueError):
    """An operator or attribute is unknown, or an attribute value has the wrong kind."""


class ValidationError(MgxError, RuntimeError):
    """The IR violates an invariant."""
