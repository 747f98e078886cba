"""Settings schema, loader and presets."""
