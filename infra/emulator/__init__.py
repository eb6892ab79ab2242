"""An EC2 on this machine, and the faults that can be injected into it."""
