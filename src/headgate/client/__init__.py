"""The client side: transports for the SDKs and the line client."""
