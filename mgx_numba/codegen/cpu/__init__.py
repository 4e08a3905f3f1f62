"""The CPU back end: its kernel language and kernel generators."""
