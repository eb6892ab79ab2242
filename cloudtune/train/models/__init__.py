"""Networks that mutators make from a base, and weights that one network inherits from another."""
