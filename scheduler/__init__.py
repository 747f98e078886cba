"""Pure policy: which tokens are computed next, and where their KV lives.

Nothing here imports torch, reads a clock or sleeps; plans are values.
"""
