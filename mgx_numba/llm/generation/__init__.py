"""Generation of tokens: steps of a decoder over caches, and the choice of tokens from its logits."""
