"""What people see: tables, charts, live lines and pictures."""
