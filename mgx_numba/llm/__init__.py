"""Language models: from a file to streamed text."""
