"""The worker pool: what is measured away from requests, on any number of machines over one database."""
