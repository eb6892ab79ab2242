"""The nouns: what is rented, trained and planned, and what happens to it."""
