"""The live page: the last decisions, ten minutes of history, one sentence, and the feed that shows them all."""
