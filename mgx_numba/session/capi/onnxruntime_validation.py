"""Checks of ONNX Runtime's installation."""

from __future__ import annotations

from mgx_numba.session.process import API_VERSION, cuda_version, package_name

__all__ = ["check_distro_info", "check_training_module", "get_package_name_and_version_info"]


def check_distro_info() -> None:
    """Do nothing: this package has no requirements of the operating system's distribution."""


def get_package_name_and_version_info() -> tuple[str, str, str]:
    """Return the package's name, the version of the interface and that of CUDA, which is empty."""
    return package_name, API_VERSION, cuda_version


def check_training_module() -> tuple[bool, str, str, str]:
    """Return False, as there is no training module, then the tuple of `get_package_name_and_version_info`."""
    return False, *get_package_name_and_version_info()
