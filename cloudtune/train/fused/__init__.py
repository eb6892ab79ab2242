"""Models that differ in numbers alone, trained as one batched model in one process."""
