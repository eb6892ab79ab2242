"""Trials of one machine that read one input pipeline: batches loaded once, in shared memory."""
