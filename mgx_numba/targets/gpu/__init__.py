"""The ``gpu`` target."""
