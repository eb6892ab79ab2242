"""The environments of scripts: built once, packed, and fetched by every instance."""
