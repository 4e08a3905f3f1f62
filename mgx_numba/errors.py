"""Every error that a user of the package can meet.

All derive from `MgxError`; those that report a bad value derive from `ValueError` too. A message names what
was wrong, where, and what was expected.
"""


class MgxError(Exception):
    """Base of all errors raised on purpose by this package."""


class ParseError(MgxError, ValueError):
    """A model file that is not what it claims to be, or uses an operator as its standard forbids."""


class ShapeError(MgxError, ValueError):
    """Shapes or element types that do not fit an operator or each other."""


class IndexRangeError(ShapeError):
    """An index among a run's values that lies outside of the axis which it indexes."""


class ParameterError(MgxError, ValueError):
    """An argument of `run` with a wrong name, type or shape."""


class OptionError(MgxError, ValueError):
    """An option that does not exist, or a value that it cannot take."""


class FormatError(MgxError, ValueError):
    """A saved file that is damaged, truncated, or of a version this package does not read."""


class CompileError(MgxError):
    """A kernel or a program that could not be turned into machine code."""


class UnsupportedError(MgxError):
    """A valid request that this package or this machine does not support."""


class UnknownValueError(UnsupportedError):
    """A value or a length that must be known before a program runs, and depends on what it is run on."""


class DeviceError(MgxError):
    """A device or its driver is missing, too old, out of memory, or has failed."""


class OperatorError(MgxError, ValueError):
    """An unknown operator or attribute, or an attribute value of the wrong kind."""


class ValidationError(MgxError, RuntimeError):
    """The IR breaks one of its invariants."""
