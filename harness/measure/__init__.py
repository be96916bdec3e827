"""What runs inside a worker."""
