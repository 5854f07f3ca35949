"""What both sides of HTTP/1.1 write and read alike: header lines, chunks, and what one turn of the loop sends."""
