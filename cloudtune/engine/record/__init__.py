"""What a ledger says of its run."""
