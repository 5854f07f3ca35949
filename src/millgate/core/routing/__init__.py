"""To which engine?"""
