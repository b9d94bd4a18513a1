"""What is durable? Records of each request's progress."""
