"""CPU of the gate beside HAProxy and nginx, in one run; `bench/README.md` says how and shows dated results."""
