"""The nouns: offers, instances, trials and plans, and what happens to them."""
