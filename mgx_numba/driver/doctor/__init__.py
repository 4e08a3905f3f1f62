"""The command ``doctor``: facts about this machine and installation, and trials of small models against ``ref``."""
