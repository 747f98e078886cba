"""Native CPU kernels, and what the engine needs to know of them."""
