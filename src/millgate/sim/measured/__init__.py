"""A measured engine run, replayed: kernel timings in, times to tokens out, held against what was measured."""
