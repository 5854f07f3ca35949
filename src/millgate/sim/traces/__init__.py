"""Where jobs come from: published traces, and generators so that everything runs with no data at hand."""
