"""HTTP/1.1: what both sides of it share (wire), the side of clients (server), the side of engines (client)."""
