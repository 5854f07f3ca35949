"""The simulator: clients, engines and the real governor in virtual time; no clock, no network, no asyncio."""
