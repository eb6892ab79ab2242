"""Allocators of runs without planned widths: how wide each trial is."""
