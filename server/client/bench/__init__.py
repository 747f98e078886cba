"""``tandem bench``: a load client for any server with the OpenAI interface."""
