"""The emulated EC2 made as strict as EC2: who may do what, how often, and what is refused."""
