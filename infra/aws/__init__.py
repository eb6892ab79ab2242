"""EC2: its calls, its error codes and its prices."""
