"""Pages of HTML with interactive charts: of a run, of a plan, of strategies compared."""
