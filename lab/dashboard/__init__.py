"""The Grafana dashboard in deploy/grafana: its panels, its JSON, and a run on which every query is tried."""
