"""The commands of the command line; nothing imports it."""
