"""Networks that mutators make of a base, and weights that one takes over from another."""
