"""Checkpoints: finding, reading and dequantising them."""
