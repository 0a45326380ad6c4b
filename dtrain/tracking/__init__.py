"""Trackers: where a run is recorded while it trains. Training never waits for one."""
