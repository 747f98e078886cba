"""The steps of choosing a token, each a pure function over one row of logits."""
