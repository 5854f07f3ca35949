"""The shipped test kit: what our own tests and our users' tests are built from."""
