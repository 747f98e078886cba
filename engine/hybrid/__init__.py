"""The executor with two tiers: host rows advance beside the main batch, which never waits for them."""
