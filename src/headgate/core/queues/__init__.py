"""Who is next?"""
