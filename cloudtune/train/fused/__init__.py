"""Models that differ only in numbers, trained as one batched model in one process."""
