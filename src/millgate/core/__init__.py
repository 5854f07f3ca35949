"""The deciding core: pure arithmetic on events and times, with no clock, dice, log, socket or third party."""
