"""GPU back end: the kernel language of blocks and lanes, its toolchains and its generators."""
