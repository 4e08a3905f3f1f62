"""Plans as text, to see what a change to code generation changes: ``python -m tests.plans``."""
