"""What readers get: gates, features, reports, published snapshots, and erasure."""
