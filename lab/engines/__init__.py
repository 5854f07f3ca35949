"""Engines of experiments and truths: split into prefill and decode, or plain servers of queueing theory."""
