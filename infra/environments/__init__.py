"""What a script needs besides cloudtune: built once, packed, and fetched by every instance."""
