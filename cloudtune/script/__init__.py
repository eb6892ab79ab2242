"""What a user's script or command shows without being run."""
