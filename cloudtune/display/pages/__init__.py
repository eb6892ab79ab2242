"""Pages of HTML with interactive charts: of a run and of a plan."""
