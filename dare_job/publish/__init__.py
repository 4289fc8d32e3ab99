"""What readers get: gates, features, reports and published snapshots."""
