"""Configuration as typed data: schema, units, loading with line and path."""
