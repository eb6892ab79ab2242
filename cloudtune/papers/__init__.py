"""What papers publish, under names of its own: added by entry points, as another package would."""
