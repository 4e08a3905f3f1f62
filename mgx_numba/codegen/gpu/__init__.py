"""The back end of GPUs: the kernel language of blocks and lanes, its toolchains, its interpreter and its generators."""
