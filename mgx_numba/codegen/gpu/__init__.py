"""GPU back end: the kernel language of blocks and lanes, its toolchains, its interpreter and its generators."""
