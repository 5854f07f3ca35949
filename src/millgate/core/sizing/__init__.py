"""How big is it, and how long will it take?"""
