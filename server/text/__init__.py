"""Text and tokens: chat templates, tokenizers, detokenising, stop strings."""
