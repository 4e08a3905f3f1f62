"""Rules of the rewriting passes, a file for each family of identities."""
