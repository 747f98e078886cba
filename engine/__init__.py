"""The engine process: everything that touches torch or native code."""
