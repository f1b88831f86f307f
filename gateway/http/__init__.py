"""HTTP: connections, requests and answers as they travel."""
