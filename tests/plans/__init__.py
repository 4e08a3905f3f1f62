"""Plans as text, to show the effect of a change to code generation: ``python -m tests.plans``."""
