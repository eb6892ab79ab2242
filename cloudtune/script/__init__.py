"""What a user's script or command shows before it trains."""
