"""Commands that train: how one is started, spoken to, read and ended, in a worker."""
