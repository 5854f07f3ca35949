"""HTTP/1.1 on the server's side: framing, caps and deadlines; knows no gate."""
