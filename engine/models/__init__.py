"""Model families over shared layers."""
