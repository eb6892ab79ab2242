"""What a ledger says about its run."""
