"""The service: REST API, pages for people, and the webhook.

It parses, calls the bisection's storage and answers. It never imports torch or
git: what only they know is asked by a worker, through a row in the database.
"""
