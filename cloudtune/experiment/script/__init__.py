"""What a user's script shows without being run."""
