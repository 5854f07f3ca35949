"""The asynchronous side: clock, driver, upstream connections, engine gauges."""
