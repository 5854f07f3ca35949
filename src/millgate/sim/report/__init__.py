"""Results for people: one self-contained page per experiment."""
