"""The controller's side of a cluster: Ray's head, the node provider, the agents, the world."""
