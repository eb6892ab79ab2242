"""An EC2 on this machine, and the faults that it can be told to have."""
