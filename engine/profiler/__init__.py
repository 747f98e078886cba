"""``tandem profile``: measures what the planner's cost model has to know of this machine and a model."""
