"""Telemetry: metrics and spans made from the messages, for those who attach them. What they need
is imported then."""
