"""Training loops of other libraries: Lightning and transformers, reported and resumed."""
