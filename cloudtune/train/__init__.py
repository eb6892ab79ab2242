"""The side of the user's script: reports, epochs, checkpoints, data."""
