"""What nodes say to each other: messages, the append stream, the services."""
