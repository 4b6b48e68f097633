"""The workers: Celery tasks that move bisections along and run their trials."""
