"""From names in a file to objects: one dictionary of choices, one builder of governors."""
