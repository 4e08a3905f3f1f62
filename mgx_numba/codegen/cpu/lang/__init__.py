"""The CPU's additions to the kernel language that back ends share."""
